"""Readings of a device, in SI units. A reading that is missing is None, and ``unknown`` has the reason.

:class:`Identity` is read once, :class:`Sample` at every refresh, :class:`Health` now and then (its readings are slow or seldom
change). A reading is never guessed: 0 means that the device reported 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag, StrEnum


class State(StrEnum):
    """Whether a device answers."""

    OK = "ok"
    LOST = "lost"
    """Fell off the bus, or has to be reset."""
    UNREACHABLE = "unreachable"
    """The driver went away, refuses, or does not answer."""


class EventReason(IntFlag):
    """Reason for reduced clocks (nvml.h, ``nvmlClocksEventReason*``); other vendors are mapped to it.

    Unknown bits are shown as numbers.
    """

    IDLE = 0x1
    APPLICATION_CLOCKS = 0x2
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    HW_POWER_BRAKE = 0x80
    DISPLAY_CLOCKS = 0x100
    BOARD_LIMIT = 0x200
    RELIABILITY = 0x400


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver behind one vendor's devices."""

    vendor: str
    """``nvidia``, ``amd``, ``apple``, ``intel`` or ``null``."""
    version: str | None
    """Version of the loaded kernel driver: ``580.95.05``."""
    library_version: str | None = None
    """Version of the library (NVML): it differs from the driver's only in its own numbering."""
    cuda_version: tuple[int, int] | None = None
    """The newest CUDA the driver runs, (13, 0); not the toolkit's, not a wheel's."""
    unknown: Mapping[str, str] = field(default_factory=dict[str, str])


def plain_uuid(uuid: object) -> str:
    """A device's unique name as frameworks and drivers both have it: in small letters, without ``GPU-``; empty for none."""
    return str(uuid or "").lower().removeprefix("gpu-")


@dataclass(frozen=True, slots=True)
class Identity:
    """Properties of a device that do not change."""

    vendor: str
    index: int
    """In the order of the vendor's library (PCI order for NVML), not in that of CUDA_VISIBLE_DEVICES."""
    name: str
    uuid: str | None = None
    pci_bus_id: str | None = None
    """``00000000:65:00.0``."""
    serial: str | None = None
    compute_capability: tuple[int, int] | None = None
    architecture: str | None = None
    """Vendor's name of the compilation target: ``sm_90``, ``gfx942``."""
    memory_bytes: int | None = None
    unified_memory: bool | None = None
    """The device shares the processor's memory."""
    n_cores: int | None = None
    power_limit_default_w: float | None = None
    power_limit_min_w: float | None = None
    power_limit_max_w: float | None = None
    sm_clock_max_hz: float | None = None
    memory_clock_max_hz: float | None = None
    temperature_slowdown_c: float | None = None
    temperature_shutdown_c: float | None = None
    memory_temperature_max_c: float | None = None
    pcie_generation_max: int | None = None
    """Highest generation that device and slot support."""
    pcie_width_max: int | None = None
    n_nvlinks: int | None = None
    """Links the device has, active or not; of XGMI on AMD's."""
    mig: bool | None = None
    """It is divided into parts, which are devices of their own to CUDA."""
    persistence: bool | None = None
    ecc: bool | None = None
    """Error correction is on."""
    numa_node: int | None = None
    vbios: str | None = None
    mig_uuids: tuple[str, ...] = ()
    """UUIDs of those parts, in their order."""
    unknown: Mapping[str, str] = field(default_factory=dict[str, str])
    """Reading -> why it is None: ``not supported``, ``no permission``."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a device, as the driver sees it: its number is the host's, even inside a container."""

    pid: int
    kind: str
    """``compute``, ``graphics`` or ``both``."""
    memory_bytes: int | None = None
    sm_utilization: float | None = None
    """0 to 1."""
    memory_utilization: float | None = None
    encoder_utilization: float | None = None
    decoder_utilization: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One device at one moment. Shares are 0 to 1."""

    index: int
    at_s: float
    """Time of a monotonic clock (``time.monotonic``)."""
    state: State = State.OK
    utilization: float | None = None
    """Share of the driver's window (1/6 to 1 s) in which any kernel ran: 1 does not mean well used."""
    memory_utilization: float | None = None
    """Share of that window in which memory was read or written."""
    memory_used_bytes: int | None = None
    """Used memory, without the driver's reserve."""
    memory_reserved_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    """The driver's average, over 1 s on most."""
    power_limit_w: float | None = None
    """Enforced now."""
    energy_j: float | None = None
    """Counts up since the driver was loaded."""
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    fan: float | None = None
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    performance_state: int | None = None
    """0 is the fastest."""
    event_reasons: int | None = None
    """Bits of :class:`EventReason`, unknown ones included."""
    pcie_generation: int | None = None
    """Drops when idle: judge it under load."""
    pcie_width: int | None = None
    encoder_utilization: float | None = None
    decoder_utilization: float | None = None
    processes: tuple[GpuProcess, ...] | None = None
    unknown: Mapping[str, str] = field(default_factory=dict[str, str])
    error: str | None = None
    """Why ``state`` is not ``ok``."""


@dataclass(frozen=True, slots=True)
class Health:
    """Counters and states that change seldom, or that take the driver long to read."""

    index: int
    at_s: float
    held_back_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds of reduced clocks since the driver was loaded, by ``SW_POWER_CAP``, ``SYNC_BOOST``, ``SW_THERMAL``,
    ``HW_THERMAL``, ``HW_POWER_BRAKE`` (names of :class:`EventReason`); on AMD's, since the first query."""
    ecc_corrected: int | None = None
    """Since the driver was loaded."""
    ecc_uncorrected: int | None = None
    ecc_uncorrected_ever: int | None = None
    remapped_rows_corrected: int | None = None
    remapped_rows_uncorrected: int | None = None
    remap_pending: bool | None = None
    """A row is remapped at the next reset."""
    remap_failed: bool | None = None
    retired_pages_pending: bool | None = None
    recovery_action: str | None = None
    """Recovery action recommended by the driver: ``none``, ``reset``, ``reboot``, ``drain``, ``drain and reset``."""
    pcie_replays: int | None = None
    pcie_sent_bytes_per_s: float | None = None
    """From the device; the driver measures it over 20 ms, so it is not among the quick readings."""
    pcie_received_bytes_per_s: float | None = None
    nvlinks_active: int | None = None
    nvlink_sent_bytes: int | None = None
    """Payload, all links, counts up."""
    nvlink_received_bytes: int | None = None
    nvlink_errors: int | None = None
    """Replays, recoveries and CRC errors of all links."""
    unknown: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Xid:
    """An error the NVIDIA driver reported."""

    code: int
    at_s: float | None
    """Time of ``time.time``; None if the log has none."""
    pci_bus_id: str | None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Peer:
    """How two devices of one vendor reach each other."""

    a: int
    b: int
    link: str
    """``nvlink``, ``pcie switch``, ``pcie host bridge``, ``numa node``, ``system``, ``same board``, ``xgmi`` or
    ``unknown``."""
    n_links: int | None = None
    can_read: bool | None = None
    """Peer access, as reported by the driver; without the effect of the machine's IOMMU."""
