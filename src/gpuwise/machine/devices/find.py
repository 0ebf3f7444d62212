"""Finds the devices of this machine, of every vendor whose library answers.

``GPUWISE_ROOT`` names another folder in which the kernel's files are looked for, as where a container has the machine's own
``/sys`` and ``/proc`` under ``/host``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from gpuwise.errors import DeviceError, NoDriverError
from gpuwise.machine.devices.backend import Devices

BACKENDS: Mapping[str, str] = {
    "nvidia": "gpuwise.machine.devices.nvml.backend:open_nvml",
    "amd": "gpuwise.machine.devices.amd.backend:open_amd",
    "apple": "gpuwise.machine.devices.apple:open_apple",
    "intel": "gpuwise.machine.devices.intel:open_intel",
}
"""Vendor -> function that opens its devices; it raises NoDriverError without any."""
_BY_FILES = ("nvidia", "amd", "intel")
"""Vendors whose devices are read, or placed, by the kernel's files."""


@dataclass(frozen=True, slots=True)
class DeviceSearch:
    """The opened backends, and the errors of the others."""

    backends: tuple[Devices, ...]
    failed: Mapping[str, DeviceError]
    """Vendor -> why not. A vendor with nothing at all installed is not in here."""


def kernel_root() -> Path:
    """Root folder of the kernel's files."""
    return Path(os.environ.get("GPUWISE_ROOT") or "/")


def find_devices(vendors: tuple[str, ...] = tuple(BACKENDS)) -> DeviceSearch:
    """Open every vendor's devices. Close each of ``backends`` when done."""
    root = kernel_root() if os.environ.get("GPUWISE_ROOT") else None
    opened: list[Devices] = []
    failed: dict[str, DeviceError] = {}
    for vendor in vendors:
        module, _, name = BACKENDS[vendor].partition(":")
        make: Callable[..., Devices] = getattr(import_module(module), name)
        try:
            opened.append(make(root=root) if root and vendor in _BY_FILES else make())
        except NoDriverError as error:
            if error.code is not None:
                # the library is here, so someone meant to have a device
                failed[vendor] = error
        except DeviceError as error:
            failed[vendor] = error
    return DeviceSearch(tuple(opened), failed)
