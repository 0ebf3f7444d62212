"""AMD devices through the files of the amdgpu driver: no library, no root. Compute processes are those that KFD lists.

Readings missing in the files come from AMD's own library if it is installed (:mod:`gpuwise.machine.devices.amd.smi`).
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gpuwise.errors import NoDriverError
from gpuwise.machine.devices.amd.kfd import kfd_nodes
from gpuwise.machine.devices.amd.smi import NOT_INSTALLED, AmdSmi, SmiReadings, open_amd_smi
from gpuwise.machine.devices.drm import GONE, DrmDevices
from gpuwise.machine.devices.readings import Driver, EventReason, GpuProcess, Health, Identity, Peer, Sample, State
from gpuwise.machine.devices.sysfs import DrmCard, Files, drm_cards, pci_name, pcie_generation, with_reasons
from gpuwise.units import MEGA, MICRO, MILLI

Reading = TypeVar("Reading", Identity, Sample, Health)
Asker = Callable[[AmdSmi, str, Iterable[str]], SmiReadings]
VENDOR, VENDOR_ID, DRIVER = "amd", 0x1002, "amdgpu"
PERCENT = 100
_CLOCK = re.compile(r"(\d+)\s*Mhz", re.IGNORECASE)
_ERRORS = re.compile(r"^(ue|ce):\s*(\d+)", re.MULTILINE)
_METRICS_HEADER = struct.Struct("<HBB")
_METRICS_1_3 = (1, 3)
_REASONS_AT = 112
"""Offset of indep_throttle_status in gpu_metrics_v1_3 (the kernel's kgd_pp_interface.h)."""
_ENERGY_AT = 24
_NOT_TOLD = 2**64 - 1
_ENERGY_FAMILY = "gfx9"
_ENERGY_UNIT_J = 15.259e-6
"""Joules per unit of energy_accumulator, on accelerators of that format (kgd_pp_interface.h: 15.259 uJ, 2**-16 J)."""

UNKNOWN_REASON = 1 << 63
"""nvml.h, nvmlClocksThrottleReasonUnknown."""
_POWER_BITS = (*range(8), *range(16, 24))
_HEAT_BITS = range(32, 44)
_HOT_BITS = range(44, 48)
_PPM_BIT, _FIT_BIT = 56, 57
"""amdgpu_smu.h, SMU_THROTTLER_*: power and current limits, temperatures, hot signals of regulators and processor, reliability."""


def open_amd(*, root: Path = Path("/")) -> AmdDevices:
    """The AMD devices of this machine, with AMD's own library beside the files if installed. Raises NoDriverError without
    devices."""
    devices = AmdDevices(root=root)
    devices.use_library(*open_amd_smi())
    return devices


class AmdDevices(DrmDevices):
    """See :class:`gpuwise.machine.devices.backend.Devices`."""

    vendor, maker = VENDOR, "AMD"

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._root = root
        cards = drm_cards(root, VENDOR_ID, (DRIVER,))
        if not cards:
            present = drm_cards(root, VENDOR_ID, ("", "radeon", "vfio-pci"))
            raise NoDriverError(
                "no AMD GPU runs on the amdgpu driver",
                vendor=VENDOR,
                code=1 if present else None,
                hint="sudo modprobe amdgpu, and look at dmesg" if present else None,
            )
        super().__init__(cards)
        self._nodes = kfd_nodes(root)
        self._smi: AmdSmi | None = None
        self._no_smi = NOT_INSTALLED
        self._away: set[int] = set()
        """Indices of cards that were missing at the last check."""

    def use_library(self, library: AmdSmi | None, why_not: str = NOT_INSTALLED) -> None:
        """Use ``library`` for readings missing in the files; None with the reason without one."""
        self._smi, self._no_smi = library, why_not

    def close(self) -> None:
        if self._smi is not None:
            self._smi.close()

    def driver(self) -> Driver:
        version = Files(self._root / "sys/module/amdgpu").text("version")
        if version is None:
            kernel = Files(self._root / "proc/sys/kernel").text("osrelease")
            version = None if kernel is None else f"amdgpu of Linux {kernel}"
        module_version, library = self._smi.versions() if self._smi is not None else (None, None)
        unknown = {} if module_version or version else {"version": "the driver does not tell"}
        if library is None:
            unknown["library_version"] = self._no_smi or "the library does not tell"
        return Driver(VENDOR, module_version or version, library, unknown=unknown)

    def sample(self, index: int, *, processes: bool = True) -> Sample:
        card = self._card(index)
        if not card.device.exists():
            self._away.add(index)
            return Sample(index, time.monotonic(), state=State.LOST, error=GONE)
        if index in self._away:
            self._away.clear()
            if self._smi is not None:
                self._smi.restart()
        files, sensors = Files(card.device), Files(card.hwmon)
        busy = files.number("gpu_busy_percent", "utilization")
        memory_busy = files.number("mem_busy_percent", "memory_utilization")
        limit = sensors.number("power1_cap", "power_limit_w")
        celsius = _temperatures(sensors)
        reasons, energy_j = _metrics(files)
        node = self._nodes.get(card.bus_id or "")
        if energy_j is not None and not (node and (node.architecture or "").startswith(_ENERGY_FAMILY)):
            energy_j = None
            files.missing("energy_j", "its unit on this GPU is not published")
        sample = Sample(
            index,
            time.monotonic(),
            utilization=None if busy is None else busy / PERCENT,
            memory_utilization=None if memory_busy is None else memory_busy / PERCENT,
            memory_used_bytes=files.number("mem_info_vram_used", "memory_used_bytes"),
            memory_total_bytes=files.number("mem_info_vram_total", "memory_total_bytes"),
            power_w=_power_w(sensors),
            power_limit_w=None if limit is None else limit * MICRO,
            energy_j=energy_j,
            temperature_c=celsius.get("junction", celsius.get("edge")),
            memory_temperature_c=celsius.get("mem"),
            fan=_fan(sensors),
            sm_clock_hz=_clock_hz(files, sensors, "sclk", "sm_clock_hz"),
            memory_clock_hz=_clock_hz(files, sensors, "mclk", "memory_clock_hz"),
            event_reasons=reasons,
            pcie_generation=pcie_generation(files.text("current_link_speed", "pcie_generation")),
            pcie_width=files.number("current_link_width", "pcie_width"),
            processes=self._processes(card) if processes else None,
        )
        sample = with_reasons(sample, {**sensors.reasons, **files.reasons}, () if processes else ("processes",))
        return self._completed(sample, card, AmdSmi.sample)

    def health(self, index: int) -> Health:
        card = self._card_here(index)
        files = Files(card.device)
        errors = _memory_errors(files)
        health = Health(
            index,
            time.monotonic(),
            ecc_corrected=errors.get("ce"),
            ecc_uncorrected=errors.get("ue"),
            pcie_replays=files.number("pcie_replay_count", "pcie_replays"),
        )
        return self._completed(with_reasons(health, files.reasons), card, AmdSmi.health, "held_back_s")

    def _completed(self, reading: Reading, card: DrmCard, ask: Asker, *also: str) -> Reading:
        """Fill unknown readings, and those of ``also``, from AMD's library."""
        if self._smi is None or card.bus_id is None:
            return reading
        extra = ask(self._smi, card.bus_id, (*reading.unknown, *also))
        better = {k: v for k, v in extra.reasons.items() if reading.unknown.get(k) == "not supported"}
        unknown = {k: v for k, v in {**reading.unknown, **better}.items() if k not in extra.values}
        return replace(reading, **extra.values, unknown=unknown)

    def peers(self) -> tuple[Peer, ...]:
        """Links from KFD: XGMI or PCIe; peer access from AMD's library."""
        n = len(self._cards)
        nodes = [self._nodes.get(card.bus_id or "") for card in self._cards]
        peers: list[Peer] = []
        for a in range(n):
            for b in range(a + 1, n):
                first, second = nodes[a], nodes[b]
                kind = None if first is None or second is None else first.links.get(second.number)
                link = {2: "pcie host bridge", 11: "xgmi"}.get(kind or 0)
                library_link = (None, None)
                if self._smi is not None:
                    library_link = self._smi.link(self._cards[a].bus_id or "", self._cards[b].bus_id or "")
                peers.append(Peer(a, b, link or library_link[0] or "unknown", can_read=library_link[1]))
        return tuple(peers)

    def _identity(self, index: int) -> Identity:
        card = self._cards[index]
        files, sensors = Files(card.device), Files(card.hwmon)
        name = files.text("product_name") or None
        watts = (sensors.number(f"power1_cap{end}") for end in ("_default", "_min", "_max"))
        default, least, most = (None if w is None else w * MICRO for w in watts)
        serial = files.text("serial_number", "serial")
        node, numa = self._nodes.get(card.bus_id or ""), files.number("numa_node", "numa_node")
        unique = files.text("unique_id", "uuid")
        hottest = _sensor(sensors, "junction", "edge")
        slow, stop = (_milli(sensors.number(f"temp{hottest}_{end}")) for end in ("crit", "emergency"))
        identity = Identity(
            VENDOR,
            index,
            name or "",
            uuid=None if unique is None else f"GPU-{unique}",
            pci_bus_id=card.bus_id,
            serial=serial or None,
            architecture=None if node is None else node.architecture,
            memory_bytes=files.number("mem_info_vram_total", "memory_bytes"),
            unified_memory=None if node is None else node.shares_memory,
            n_cores=None if node is None else node.n_cores,
            power_limit_default_w=default,
            power_limit_min_w=least,
            power_limit_max_w=most,
            sm_clock_max_hz=_fastest_hz(files, "sclk"),
            memory_clock_max_hz=_fastest_hz(files, "mclk"),
            temperature_slowdown_c=slow,
            temperature_shutdown_c=stop,
            memory_temperature_max_c=_milli(sensors.number(f"temp{_sensor(sensors, 'mem')}_crit")),
            pcie_generation_max=pcie_generation(files.text("max_link_speed", "pcie_generation_max")),
            pcie_width_max=files.number("max_link_width", "pcie_width_max"),
            numa_node=None if numa is None or numa < 0 else numa,
            vbios=files.text("vbios_version", "vbios"),
        )
        identity = self._completed(with_reasons(identity, files.reasons), card, AmdSmi.identity, *(() if name else ("name",)))
        if not identity.name:
            listed = pci_name(self._root, VENDOR_ID, card.device_id)
            identity = replace(identity, name=listed or f"AMD GPU {card.device_id or 0:#06x}")
        self._identities[index] = identity
        return identity

    def _processes(self, card: DrmCard) -> tuple[GpuProcess, ...] | None:
        """Compute processes with their memory on this card; graphics processes are not reported."""
        node = self._nodes.get(card.bus_id or "")
        if node is None:
            return None
        processes: list[GpuProcess] = []
        try:
            entries = sorted((self._root / "sys/class/kfd/kfd/proc").iterdir(), key=lambda p: p.name)
        except OSError:
            return None
        for entry in entries:
            memory_bytes = Files(entry).number(f"vram_{node.gpu_id}")
            if entry.name.isdigit() and memory_bytes is not None:
                processes.append(GpuProcess(int(entry.name), "compute", memory_bytes))
        return tuple(sorted(processes, key=lambda p: p.pid))


# --- reading ---


def _power_w(sensors: Files) -> float | None:
    """Average power if the card reports it, else the current power."""
    micro = sensors.number("power1_average")
    if micro is None:
        micro = sensors.number("power1_input", "power_w")
    return None if micro is None else micro * MICRO


def _milli(value: int | None) -> float | None:
    return None if value is None else value * MILLI


def _temperatures(sensors: Files) -> dict[str, float]:
    """Degrees by the sensor's label: edge, junction, mem."""
    temperatures: dict[str, float] = {}
    for n in (1, 2, 3):
        milli = sensors.number(f"temp{n}_input")
        if milli is not None:
            temperatures[sensors.text(f"temp{n}_label") or ("edge", "junction", "mem")[n - 1]] = milli * MILLI
    return temperatures


def _sensor(sensors: Files, *labels: str) -> int:
    """The number of the first sensor with one of the labels; 0 without one."""
    for label in labels:
        for n in (1, 2, 3):
            if sensors.text(f"temp{n}_label") == label:
                return n
    return 0


def _fan(sensors: Files) -> float | None:
    speed, most = sensors.number("pwm1", "fan"), sensors.number("pwm1_max") or 255
    return None if speed is None else speed / most


def _clock_hz(files: Files, sensors: Files, name: str, reading: str) -> float | None:
    """Clock of the sensor if there is one, else the marked line of the table of clocks."""
    hertz = sensors.number("freq1_input" if name == "sclk" else "freq2_input")
    if hertz is not None:
        return float(hertz)
    table = files.text(f"pp_dpm_{name}", reading)
    for line in (table or "").splitlines():
        match = _CLOCK.search(line)
        if match and line.rstrip().endswith("*"):
            return int(match[1]) * MEGA
    if table is not None:
        files.missing(reading, "the driver marks no clock")
    return None


def _fastest_hz(files: Files, name: str) -> float | None:
    clocks = [int(mhz) for mhz in _CLOCK.findall(files.text(f"pp_dpm_{name}") or "")]
    return max(clocks) * MEGA if clocks else None


def _metrics(files: Files) -> tuple[int | None, float | None]:
    """Event reasons and energy, where the driver's table of metrics has the form 1.3."""
    raw = files.raw("gpu_metrics", "event_reasons")
    if raw is None:
        files.missing("energy_j", files.reasons["event_reasons"])
        return None, None
    if len(raw) < _REASONS_AT + 8 or _METRICS_HEADER.unpack_from(raw)[1:] != _METRICS_1_3:
        for reading in ("event_reasons", "energy_j"):
            files.missing(reading, "the driver tells it in a form that is not read")
        return None, None
    (bits,) = struct.unpack_from("<Q", raw, _REASONS_AT)
    (counter,) = struct.unpack_from("<Q", raw, _ENERGY_AT)
    if counter in (0, _NOT_TOLD):
        files.missing("energy_j")
    if bits == _NOT_TOLD:
        files.missing("event_reasons")
    return (
        None if bits == _NOT_TOLD else event_reasons(bits),
        None if counter in (0, _NOT_TOLD) else counter * _ENERGY_UNIT_J,
    )


def event_reasons(bits: int) -> int:
    """AMD's throttle bits as NVML reasons; all unknown bits become one."""
    reasons = 0
    for numbers, reason in (
        (_POWER_BITS, EventReason.SW_POWER_CAP),
        (_HEAT_BITS, EventReason.SW_THERMAL),
        (_HOT_BITS, EventReason.HW_THERMAL),
        ((_PPM_BIT,), EventReason.HW_POWER_BRAKE),
        ((_FIT_BIT,), EventReason.RELIABILITY),
    ):
        mask = sum(1 << n for n in numbers)
        if bits & mask:
            reasons |= reason
        bits &= ~mask
    return reasons | UNKNOWN_REASON if bits else reasons


def _memory_errors(files: Files) -> dict[str, int]:
    """Corrected and uncorrected errors of the memory (RAS block umc)."""
    text = files.text("ras/umc_err_count", "ecc_corrected")
    if text is None:
        files.missing("ecc_uncorrected", files.reasons["ecc_corrected"])
        return {}
    return {kind: int(count) for kind, count in _ERRORS.findall(text)}
