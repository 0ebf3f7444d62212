"""Status codes and answers of AMD's own library, converted to our names and units.

From amdsmi.h and amdsmi_interface.py of ROCm 6.3 and 7.0. ``"N/A"``, the largest number and an empty text mean that a reading
is not offered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuwise.errors import DeviceError, DeviceLostError, DevicePermissionError, NoDriverError, ReadingError
from gpuwise.machine.devices.readings import GpuProcess
from gpuwise.machine.devices.sysfs import pcie_generation
from gpuwise.units import KILO, MICRO

VENDOR = "amd"
PERCENT = 100
# amdsmi.h, amdsmi_status_t
NOT_SUPPORTED, NOT_YET, NO_PERM, IO, INIT_ERROR, BUSY, NOT_FOUND, NOT_INIT, DRIVER_NOT_LOADED = 2, 3, 10, 12, 18, 30, 31, 32, 34
REASONS = {
    1: "amdsmi does not know the question",
    2: "not supported",
    3: "not supported",
    4: "the library is not here",
    5: "this library does not have it yet",
    6: "the kernel's graphics layer refuses",
    7: "the driver refuses",
    8: "the driver did not answer in time",
    9: "the device is busy",
    10: "no permission",
    12: "the device does not answer",
    13: "the device does not answer",
    14: "not supported",
    15: "out of resources",
    18: "the library does not start",
    20: "not supported",
    30: "the device is busy",
    31: "amdsmi does not list this device",
    32: "the library was not started",
    34: "the driver is not loaded",
    40: "no data",
    43: "the driver's answer makes no sense",
    52: "not supported",
}
"""Status -> a short stable phrase; a file that is not there (14, 20, 52) is a reading the driver does not offer."""
GONE_CODES = frozenset({NOT_FOUND, NOT_INIT})
"""The library has lost the device: it has to be started again."""

_PENDING = 1
"""amdsmi.h, AMDSMI_MEM_PAGE_STATUS_PENDING: a bad page that is taken out at the next reset."""


def amd_smi_error(code: int, index: int | None, what: str) -> DeviceError:
    """Error for a status of the library; ``index`` is the queried device, None for the library as a whole."""
    reason = REASONS.get(code, f"error {code}")
    if code == NO_PERM:
        hint = "join the groups render and video, or ask root"
        return DevicePermissionError(f"amdsmi: {what}: no permission", vendor=VENDOR, code=code, hint=hint)
    if code == DRIVER_NOT_LOADED:
        return NoDriverError("the amdgpu driver is not loaded", vendor=VENDOR, code=code, hint="sudo modprobe amdgpu")
    if index is None:
        return DeviceError(f"amdsmi does not start: {reason} ({code})", vendor=VENDOR, code=code, hint="look at dmesg")
    if code in GONE_CODES:
        return DeviceLostError(index, f"AMD GPU {index}: {reason}", vendor=VENDOR, code=code, hint="look at dmesg, then reboot")
    return ReadingError(what, reason, vendor=VENDOR, code=code)


@dataclass(frozen=True, slots=True)
class Question:
    """One function of the library, and what of its answer is a reading."""

    function: str
    readings: tuple[str, ...]
    read: Callable[[Any], Mapping[str, Any]]
    """Converts the answer to readings, None for a missing one; any error it raises means an undocumented form."""
    block: str | None = None
    """Block of AmdSmiGpuBlock, if the function takes one."""


def whole(value: object) -> int | None:
    """A count; None for ``"N/A"``, truth values and negative numbers."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def text(value: object) -> str | None:
    """A name; None for an empty one, ``N/A`` and a bare number of the PCI lists."""
    word = value.strip() if isinstance(value, str) else ""
    return None if word in ("", "N/A") or word.lower().startswith("0x") else word


def _scaled(value: object, unit: float) -> float | None:
    count = whole(value)
    return None if count is None else count * unit


def _share(value: object) -> float | None:
    """Share from percent."""
    count = whole(value)
    return None if count is None or count > PERCENT else count / PERCENT


def _generation(speed_mt_s: object) -> int | None:
    """Generation from megatransfers per second and lane."""
    count = whole(speed_mt_s)
    return None if count is None else pcie_generation(str(count / KILO))


def _energy(answer: Any) -> Mapping[str, Any]:
    """A counter and its step in microjoules; the counter had another name before ROCm 6.4."""
    counter = answer["energy_accumulator"] if "energy_accumulator" in answer else answer["power"]
    step_uj = float(answer["counter_resolution"])
    return {"energy_j": _scaled(counter, MICRO * step_uj) if step_uj > 0 else None}


def _power(answer: Any) -> Mapping[str, Any]:
    """Watts: the moment's on MI300 and later, an average on others."""
    now = _scaled(answer.get("current_socket_power"), 1.0)
    return {"power_w": now if now is not None else _scaled(answer["average_socket_power"], 1.0)}


def _caps(answer: Any) -> Mapping[str, Any]:
    """Microwatts."""
    now, default, least, most = (_scaled(answer[f"{word}power_cap"], MICRO) for word in ("", "default_", "min_", "max_"))
    return {
        "power_limit_w": now,
        "power_limit_default_w": default,
        "power_limit_min_w": least,
        "power_limit_max_w": most,
    }


def _pcie(answer: Any) -> Mapping[str, Any]:
    best, now = answer["pcie_static"], answer["pcie_metric"]
    return {
        "pcie_generation_max": _generation(best["max_pcie_speed"]),
        "pcie_width_max": whole(best["max_pcie_width"]),
        "pcie_generation": _generation(now["pcie_speed"]),
        "pcie_width": whole(now["pcie_width"]),
        "pcie_replays": whole(now["pcie_replay_count"]),
    }


def _xgmi(answer: Any) -> Mapping[str, Any]:
    """Links are up (``U``), down (``D``) or disabled (``X``)."""
    states = list(answer["status"])
    there = sum(state in ("U", "D") for state in states)
    return {"n_nvlinks": there, "nvlinks_active": states.count("U")} if there else {}


def _moved(answer: Any) -> Mapping[str, Any]:
    """Kilobytes of each link, both ways."""
    sums: dict[str, Any] = {}
    for name, way in (("nvlink_sent_bytes", "write"), ("nvlink_received_bytes", "read")):
        counts = [count for link in answer["links"] if (count := whole(link[way])) is not None]
        sums[name] = int(sum(counts) * KILO) if counts else None
    return sums


def _processes(answer: Any) -> Mapping[str, Any]:
    processes: list[GpuProcess] = []
    for entry in answer:
        memory_bytes = whole(entry["memory_usage"]["vram_mem"])
        processes.append(
            GpuProcess(int(entry["pid"]), "compute", memory_bytes if memory_bytes is not None else whole(entry["mem"]))
        )
    return {"processes": tuple(sorted(processes, key=lambda p: p.pid))}


BOARD = Question(
    "amdsmi_get_gpu_board_info",
    ("name", "serial"),
    lambda a: {"name": text(a["product_name"]), "serial": text(a["product_serial"])},
)
CHIP = Question("amdsmi_get_gpu_asic_info", ("name",), lambda a: {"name": text(a["market_name"])})
CAPS = ("power_limit_default_w", "power_limit_min_w", "power_limit_max_w")
IDENTITY = (
    BOARD,
    CHIP,
    Question("amdsmi_get_power_cap_info", CAPS, _caps),
    Question("amdsmi_get_pcie_info", ("pcie_generation_max", "pcie_width_max"), _pcie),
    Question("amdsmi_get_gpu_xgmi_link_status", ("n_nvlinks",), _xgmi),
)
SAMPLE = (
    Question("amdsmi_get_energy_count", ("energy_j",), _energy),
    Question(
        "amdsmi_get_gpu_activity",
        ("utilization", "memory_utilization"),
        lambda a: {"utilization": _share(a["gfx_activity"]), "memory_utilization": _share(a["umc_activity"])},
    ),
    Question("amdsmi_get_power_info", ("power_w",), _power),
    Question("amdsmi_get_power_cap_info", ("power_limit_w",), _caps),
    Question("amdsmi_get_pcie_info", ("pcie_generation", "pcie_width"), _pcie),
    Question("amdsmi_get_gpu_process_list", ("processes",), _processes),
)
HEALTH = (
    Question(
        "amdsmi_get_gpu_ecc_count",
        ("ecc_corrected", "ecc_uncorrected"),
        lambda a: {"ecc_corrected": whole(a["correctable_count"]), "ecc_uncorrected": whole(a["uncorrectable_count"])},
        block="UMC",
    ),
    Question(
        "amdsmi_get_gpu_bad_page_info",
        ("retired_pages_pending",),
        lambda a: {"retired_pages_pending": any(page["status"] == _PENDING for page in a)},
    ),
    Question("amdsmi_get_pcie_info", ("pcie_replays",), _pcie),
    Question("amdsmi_get_gpu_xgmi_link_status", ("nvlinks_active",), _xgmi),
    Question("amdsmi_get_link_metrics", ("nvlink_sent_bytes", "nvlink_received_bytes"), _moved),
)
"""For each kind of reading, the queries in order; a known reading is not queried again."""
