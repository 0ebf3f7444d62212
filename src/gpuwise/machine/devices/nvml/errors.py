"""NVML's return codes: the error for each, and the reason for a missing reading."""

from __future__ import annotations

from gpuwise.errors import (
    DeviceError,
    DeviceLostError,
    DevicePermissionError,
    DriverMismatchError,
    NoDriverError,
    ReadingError,
)

VENDOR = "nvidia"

# nvml.h, nvmlReturn_t
UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, INSUFFICIENT_SIZE = 1, 2, 3, 4, 6, 7
DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 9, 10, 12, 13
GPU_IS_LOST, RESET_REQUIRED, OPERATING_SYSTEM, LIB_RM_VERSION_MISMATCH, UNKNOWN = 15, 16, 17, 18, 999

REASONS = {
    1: "the library was not started",
    2: "the driver does not know the question",
    3: "not supported",
    4: "no permission",
    5: "already started",
    6: "not found",
    7: "the answer did not fit",
    8: "the card lacks external power",
    9: "the driver is not loaded",
    10: "the driver did not answer in time",
    11: "the driver lost an interrupt",
    12: "the library is not here",
    13: "this driver does not have it yet",
    14: "the card's configuration memory is corrupt",
    15: "the GPU is lost",
    16: "the GPU has to be reset",
    17: "the operating system blocks it",
    18: "library and driver are of different versions",
    19: "in use by another",
    20: "out of memory",
    21: "no data yet",
    22: "not supported with this error correction",
    23: "out of resources",
    24: "frequency not supported",
    25: "the driver knows another form of the question",
    26: "no longer reported by this driver",
    27: "not ready",
    28: "no such GPU",
    29: "not in this state",
    30: "this kind of reset is not supported",
    999: "unknown error",
}
"""Return code -> a short stable phrase."""

LOST_CODES = frozenset({GPU_IS_LOST, RESET_REQUIRED})
"""The device is lost or hangs."""
GONE_CODES = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH})
"""The driver is unloaded: the library has to be started again."""
LASTING_CODES = frozenset({NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, 22, 25, 26})
"""Asking again does not help while the device stays."""

_MISMATCH = "reboot, or unload and load the nvidia kernel modules: the driver was updated while the old one is loaded"
_BLOCKED = (
    "in a container: start it with the GPUs (docker run --gpus all); where they vanished while it ran, restart it "
    "(a reload of systemd takes the devices away); else look at the rights of /dev/nvidia*"
)


class NvmlError(Exception):
    """A call of the library returned something other than success."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def reason_of(code: int) -> str:
    """The phrase of a return code."""
    return REASONS.get(code, f"error {code}")


def is_out_of_reach(code: int) -> bool:
    """Whether the code is about the driver or library as a whole rather than one reading."""
    return code in GONE_CODES or code in (LIBRARY_NOT_FOUND, OPERATING_SYSTEM)


def opening_error(code: int, detail: str = "") -> DeviceError:
    """Reason why the library could not be started."""
    more = f": {detail}" if detail else ""
    if code == LIBRARY_NOT_FOUND:
        return NoDriverError(
            f"NVIDIA's library is not here{more}",
            vendor=VENDOR,
            code=None,
            hint="if there is an NVIDIA GPU, install its driver; gpuwise doctor prints the commands",
        )
    if code == DRIVER_NOT_LOADED:
        return NoDriverError(
            "the NVIDIA driver is installed but not loaded",
            vendor=VENDOR,
            code=code,
            hint="sudo modprobe nvidia, and if that fails look at dmesg (Secure Boot, no module for this kernel)",
        )
    if code == LIB_RM_VERSION_MISMATCH:
        return DriverMismatchError(
            "NVIDIA's library and the loaded driver are of different versions", vendor=VENDOR, code=code, hint=_MISMATCH
        )
    if code in (NO_PERMISSION, OPERATING_SYSTEM):
        return DevicePermissionError(
            f"the NVIDIA driver refuses this process: {reason_of(code)}", vendor=VENDOR, code=code, hint=_BLOCKED
        )
    return DeviceError(
        f"the NVIDIA library does not start: {reason_of(code)} ({code})",
        vendor=VENDOR,
        code=code,
        hint=_BLOCKED if code == UNKNOWN else "gpuwise doctor looks for the reason",
    )


def device_error(code: int, index: int, what: str) -> DeviceError:
    """Error for a failed query of one device; ``what`` names it."""
    if code in LOST_CODES:
        return DeviceLostError(
            index,
            f"GPU {index}: {reason_of(code)}",
            vendor=VENDOR,
            code=code,
            hint="stop what uses it, then nvidia-smi --gpu-reset or reboot; see dmesg for XIDs",
        )
    if is_out_of_reach(code):
        return opening_error(code)
    if code == NO_PERMISSION:
        return DevicePermissionError(f"GPU {index}: {what}: no permission", vendor=VENDOR, code=code, hint="run it as root")
    return ReadingError(what, reason_of(code), vendor=VENDOR, code=code)
