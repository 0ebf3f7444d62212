"""Intel devices through the files of the xe and i915 drivers, without root.

These drivers report utilisation and used memory to root only (performance counters, debugfs). Power is the energy of the card
between two samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from gpuwise.errors import NoDriverError
from gpuwise.machine.devices.drm import GONE, DrmDevices
from gpuwise.machine.devices.readings import Driver, EventReason, Health, Identity, Peer, Sample, State
from gpuwise.machine.devices.sysfs import DrmCard, Files, drm_cards, pci_name, pcie_generation, with_reasons
from gpuwise.units import MEGA, MICRO, MILLI

VENDOR, VENDOR_ID, DRIVERS = "intel", 0x8086, ("xe", "i915")
INTEGRATED = "00000000:00:02.0"
"""Location of the graphics in Intel's processors."""
_ROOT_ONLY = "the driver tells root only"
_REASONS = {
    "pl1": EventReason.SW_POWER_CAP,
    "pl2": EventReason.SW_POWER_CAP,
    "pl4": EventReason.SW_POWER_CAP,
    "thermal": EventReason.SW_THERMAL,
    "prochot": EventReason.HW_THERMAL,
    "ratl": EventReason.SW_THERMAL,
    "vr_thermalert": EventReason.HW_THERMAL,
    "vr_tdc": EventReason.SW_POWER_CAP,
}
"""Reason of the driver (the kernel's xe_gt_throttle.c, i915 sysfs) -> in NVML's words."""
_FILES = {
    "xe": {
        "clock": "device/tile0/gt0/freq0/act_freq",
        "fastest": "device/tile0/gt0/freq0/rp0_freq",
        "status": "device/tile0/gt0/freq0/throttle/status",
        "reason": "device/tile0/gt0/freq0/throttle/reason_{}",
    },
    "i915": {
        "clock": "gt/gt0/rps_act_freq_mhz",
        "fastest": "gt/gt0/rps_RP0_freq_mhz",
        "status": "gt/gt0/throttle_reason_status",
        "reason": "gt/gt0/throttle_reason_{}",
    },
}


def open_intel(*, root: Path = Path("/")) -> IntelDevices:
    """The Intel graphics devices of this machine. Raises NoDriverError without any."""
    return IntelDevices(root=root)


class IntelDevices(DrmDevices):
    """See :class:`gpuwise.machine.devices.backend.Devices`."""

    vendor, maker = VENDOR, "Intel"

    def __init__(self, *, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._clock = root, clock
        cards = drm_cards(root, VENDOR_ID, DRIVERS)
        if not cards:
            raise NoDriverError("no Intel GPU runs on the xe or i915 driver", vendor=VENDOR)
        super().__init__(cards)
        self._energy: dict[int, tuple[float, float]] = {}
        """Index -> moment and energy of the last sample."""

    def driver(self) -> Driver:
        kernel = Files(self._root / "proc/sys/kernel").text("osrelease")
        drivers = "/".join(sorted({card.driver for card in self._cards}))
        unknown = {} if kernel else {"version": "the kernel does not tell"}
        return Driver(VENDOR, f"{drivers} of Linux {kernel}" if kernel else None, unknown=unknown)

    def sample(self, index: int, *, processes: bool = True) -> Sample:
        card = self._card(index)
        now_s = self._clock()
        if not card.device.exists():
            return Sample(index, now_s, state=State.LOST, error=GONE)
        files, sensors, device = Files(card.card), Files(card.hwmon), Files(card.device)
        for reading in ("utilization", "memory_utilization", "memory_used_bytes", "encoder_utilization", "decoder_utilization"):
            files.missing(reading, _ROOT_ONLY)
        files.missing("processes", "not reported by this driver")
        energy_j = _micro(sensors.number("energy1_input", "energy_j"))
        mhz = files.number(_FILES[card.driver]["clock"], "sm_clock_hz")
        sample = Sample(
            index,
            now_s,
            memory_total_bytes=files.number("lmem_total_bytes", "memory_total_bytes"),
            power_w=self._power_w(index, now_s, energy_j, files),
            power_limit_w=_limit_w(sensors),
            energy_j=energy_j,
            temperature_c=_celsius(sensors, 2, 1),
            memory_temperature_c=_celsius(sensors, 3),
            sm_clock_hz=None if mhz is None else mhz * MEGA,
            event_reasons=_event_reasons(files, card),
            pcie_generation=pcie_generation(device.text("current_link_speed", "pcie_generation")),
            pcie_width=device.number("current_link_width", "pcie_width") or None,
        )
        reasons = {**sensors.reasons, **device.reasons, **files.reasons}
        return with_reasons(sample, reasons, () if processes else ("processes",))

    def health(self, index: int) -> Health:
        self._card_here(index)
        return with_reasons(Health(index, self._clock()), {})

    def peers(self) -> tuple[Peer, ...]:
        n = len(self._cards)
        return tuple(Peer(a, b, "unknown") for a in range(n) for b in range(a + 1, n))

    def _identity(self, index: int) -> Identity:
        card = self._cards[index]
        files, sensors, device = Files(card.card), Files(card.hwmon), Files(card.device)
        fastest = files.number(_FILES[card.driver]["fastest"], "sm_clock_max_hz")
        numa = device.number("numa_node", "numa_node")
        integrated = card.bus_id == INTEGRATED
        identity = Identity(
            VENDOR,
            index,
            pci_name(self._root, VENDOR_ID, card.device_id) or f"Intel GPU {card.device_id or 0:#06x}",
            pci_bus_id=card.bus_id,
            memory_bytes=files.number("lmem_total_bytes", "memory_bytes"),
            unified_memory=integrated,
            power_limit_default_w=_micro(sensors.number("power1_rated_max")),
            power_limit_max_w=_micro(sensors.number("power1_rated_max")),
            sm_clock_max_hz=None if fastest is None else fastest * MEGA,
            temperature_slowdown_c=_milli(sensors.number("temp2_max")),
            temperature_shutdown_c=_milli(sensors.number("temp2_crit")),
            memory_temperature_max_c=_milli(sensors.number("temp3_crit")),
            pcie_generation_max=None if integrated else pcie_generation(device.text("max_link_speed", "pcie_generation_max")),
            pcie_width_max=None if integrated else device.number("max_link_width", "pcie_width_max"),
            numa_node=None if numa is None or numa < 0 else numa,
        )
        self._identities[index] = identity = with_reasons(identity, {**device.reasons, **files.reasons})
        return identity

    def _power_w(self, index: int, now_s: float, energy_j: float | None, files: Files) -> float | None:
        if energy_j is None:
            return None
        before = self._energy.get(index)
        self._energy[index] = (now_s, energy_j)
        if before is None or now_s <= before[0] or energy_j < before[1]:
            files.missing("power_w", "known from the second sample on")
            return None
        return (energy_j - before[1]) / (now_s - before[0])


def _micro(value: int | None) -> float | None:
    return None if value is None else value * MICRO


def _milli(value: int | None) -> float | None:
    return None if value is None else value * MILLI


def _celsius(sensors: Files, *numbers: int) -> float | None:
    """Temperature of the first available sensor: 2 the package, 3 the memory (xe)."""
    for n in numbers:
        milli = sensors.number(f"temp{n}_input")
        if milli is not None:
            return milli * MILLI
    return None


def _limit_w(sensors: Files) -> float | None:
    """0 means that there is no limit."""
    return _micro(sensors.number("power1_max", "power_limit_w") or None)


def _event_reasons(files: Files, card: DrmCard) -> int | None:
    """The driver's reasons for reduced clocks; a state without a known reason is reported as an unknown bit."""
    names = _FILES[card.driver]
    status = files.number(names["status"], "event_reasons")
    if status is None:
        return None
    reasons = 0
    for name, reason in _REASONS.items():
        if files.number(names["reason"].format(name)):
            reasons |= reason
    return reasons if reasons or not status else 1 << 63
