"""Apple devices from unprivileged sources of macOS: the list of displays, the accelerator's registry entry and sysctl.

Power, temperature and clocks need root (powermetrics) and are left unknown.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from gpuwise.errors import InputError, NoDriverError, ReadingError
from gpuwise.machine.devices.readings import Driver, Health, Identity, Peer, Sample, State, Xid
from gpuwise.machine.devices.sysfs import with_reasons

VENDOR = "apple"
PERCENT = 100
DISPLAYS = ("system_profiler", "SPDisplaysDataType", "-json")
REGISTRY = ("ioreg", "-r", "-c", "IOAccelerator", "-a")
MEMORY = ("sysctl", "-n", "hw.memsize")
VERSION = ("sw_vers", "-productVersion")
_LIMIT_S = 20
_ROOT_ONLY = "macOS tells root only"
_SILENT = ("power_w", "power_limit_w", "energy_j", "temperature_c", "sm_clock_hz", "memory_clock_hz", "event_reasons")

Run = Callable[[Sequence[str]], bytes]


def open_apple(*, run: Run | None = None) -> AppleDevices:
    """The GPU of this Mac; ``run`` runs a command and gives its output (OSError where it cannot). Raises NoDriverError."""
    if run is None and sys.platform != "darwin" and shutil.which(DISPLAYS[0]) is None:
        raise NoDriverError("this is not macOS", vendor=VENDOR)
    return AppleDevices(run or _run)


class AppleDevices:
    """See :class:`gpuwise.machine.devices.backend.Devices`."""

    vendor = VENDOR

    def __init__(self, run: Run) -> None:
        self._run = run
        self._gpus = _gpus(_json(self._ask(DISPLAYS)))
        if not self._gpus:
            raise NoDriverError("system_profiler lists no Apple GPU", vendor=VENDOR)
        memory = self._ask(MEMORY).strip()
        self._memory_bytes = int(memory) if memory.isdigit() else None

    def driver(self) -> Driver:
        version = self._ask(VERSION).decode("utf-8", "replace").strip()
        return Driver(
            VENDOR, f"macOS {version}" if version else None, unknown={} if version else {"version": "sw_vers is silent"}
        )

    def identities(self) -> tuple[Identity, ...]:
        identities: list[Identity] = []
        for i, gpu in enumerate(self._gpus):
            cores = str(gpu.get("sppci_cores", ""))
            identity = Identity(
                VENDOR,
                i,
                str(gpu.get("sppci_model") or gpu.get("_name") or "Apple GPU"),
                memory_bytes=self._memory_bytes,
                unified_memory=True,
                n_cores=int(cores) if cores.isdigit() else None,
            )
            identities.append(with_reasons(identity, {}))
        return tuple(identities)

    def sample(self, index: int, *, processes: bool = True) -> Sample:
        self._check(index)
        entries = _entries(self._ask(REGISTRY))
        now_s = time.monotonic()
        if index >= len(entries):
            return Sample(index, now_s, state=State.UNREACHABLE, error="the registry has no accelerator")
        statistics = cast("Mapping[str, Any]", entries[index].get("PerformanceStatistics") or {})
        busy = statistics.get("Device Utilization %")
        used_bytes = statistics.get("In use system memory")
        sample = Sample(
            index,
            now_s,
            utilization=busy / PERCENT if isinstance(busy, int) else None,
            memory_used_bytes=used_bytes if isinstance(used_bytes, int) else None,
            memory_total_bytes=self._memory_bytes,
        )
        return with_reasons(sample, dict.fromkeys(_SILENT, _ROOT_ONLY), () if processes else ("processes",))

    def health(self, index: int) -> Health:
        self._check(index)
        return with_reasons(Health(index, time.monotonic()), {})

    def peers(self) -> tuple[Peer, ...]:
        n = len(self._gpus)
        return tuple(Peer(a, b, "unknown") for a in range(n) for b in range(a + 1, n))

    def wait_for_xid(self, timeout_s: float) -> Xid | None:
        raise ReadingError("XIDs", "only NVIDIA's driver has them", vendor=VENDOR)

    def close(self) -> None:
        """Does nothing: no handle is open."""

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self._gpus):
            raise InputError(f"no Apple device {index}", hint=f"there are {len(self._gpus)}, counted from 0")

    def _ask(self, command: Sequence[str]) -> bytes:
        try:
            return self._run(command)
        except OSError:
            return b""


def _run(command: Sequence[str]) -> bytes:
    import subprocess

    try:
        return subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=True).stdout
    except subprocess.SubprocessError as error:
        raise OSError(str(error)) from error


def _json(raw: bytes) -> Mapping[str, Any]:
    import json

    try:
        document = json.loads(raw)
    except ValueError:
        return {}
    return cast("Mapping[str, Any]", document) if isinstance(document, dict) else {}


def _gpus(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Entries of Apple's own GPUs, without those of AMD and Intel in older Macs."""
    listed = _mappings(document.get("SPDisplaysDataType"))
    return [g for g in listed if "apple" in f"{g.get('spdisplays_vendor', '')} {g.get('sppci_model', '')}".lower()]


def _entries(raw: bytes) -> list[Mapping[str, Any]]:
    """Registry entries of accelerators, as ioreg writes them."""
    import plistlib
    from xml.parsers.expat import ExpatError

    try:
        return _mappings(plistlib.loads(raw))
    except (plistlib.InvalidFileException, ExpatError, ValueError, OverflowError, LookupError, AttributeError, TypeError):
        return []


def _mappings(listed: object) -> list[Mapping[str, Any]]:
    if not isinstance(listed, list):
        return []
    return [cast("Mapping[str, Any]", entry) for entry in cast("list[object]", listed) if isinstance(entry, dict)]
