"""Result of the monitor at every refresh: :class:`Frame`. Values only; SI units, shares 0 to 1, unknown is None.

A frame has all that a screen, an exporter or :func:`gpuwise.machine.telemetry.causes.table.causes` needs, so a recorded frame
shows and explains the same as the live one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwise.machine.devices.readings import GpuProcess, Health, Identity, Sample, State, Xid


@dataclass(frozen=True, slots=True)
class HostProcess:
    """Operating system data of one process."""

    pid: int
    name: str | None = None
    command: str | None = None
    """The command line, arguments joined by spaces; bytes that are no UTF-8 are shown as ``\\xNN``."""
    user: str | None = None
    container: str | None = None
    """Engine and short id: ``docker 3f2a9c11d0e4``; None with no entry in ``unknown``: not in a container."""
    parent_pid: int | None = None
    started_s: float | None = None
    """Seconds since the machine booted."""
    state: str | None = None
    """One letter as in ``ps``: R running, S sleeping, D waiting for a disk or device, Z dead, T stopped."""
    host_memory_bytes: int | None = None
    cpu_share: float | None = None
    """Use in cores, all threads together, since the previous reading: 2.5 is two and a half cores."""
    pegged_thread: str | None = None
    """Name of a thread that used one core whole since the reading before."""
    n_workers: int | None = None
    """Its child processes (data-loader workers are among them)."""
    workers_cpu_share: float | None = None
    """Cores used by all of them together."""
    n_workers_pegged: int | None = None
    """Number of them that used one core completely."""
    n_workers_waiting: int | None = None
    """Number of them that wait for a disk or a device."""
    unknown: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process on one device: data of the driver and of the operating system."""

    number: int
    """Number of the card, as in :attr:`Card.number`."""
    gpu: GpuProcess
    host: HostProcess

    @property
    def pid(self) -> int:
        return self.gpu.pid


@dataclass(frozen=True, slots=True)
class Window:
    """Time with reduced clocks in the last ``length_s`` seconds, by reason (names of EventReason)."""

    length_s: float
    """Length actually covered: shorter at first."""
    shares: Mapping[str, float]
    basis: str
    """``counters`` (the driver counts nanoseconds) or ``samples`` (share of the refreshes that saw the bit)."""


@dataclass(frozen=True, slots=True)
class Recent:
    """Means over the refreshes of the last minute."""

    length_s: float
    n_samples: int
    utilization: float | None = None
    sm_clock_hz: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """One device in a frame."""

    number: int
    """Place in the frame, over all vendors, from 0; it keeps it while the monitor lives."""
    identity: Identity
    sample: Sample
    health: Health | None = None
    """The latest reading; it is older than the sample."""
    health_error: str | None = None
    power_w: float | None = None
    """From the energy counter where there is one, else the driver's average."""
    power_basis: str | None = None
    """``energy counter`` or ``driver's average``."""
    energy_j: float | None = None
    """Used since the monitor started."""
    energy_basis: str | None = None
    """``energy counter``, or ``integrated power``."""
    pcie_sent_bytes_per_s: float | None = None
    pcie_received_bytes_per_s: float | None = None
    nvlink_sent_bytes_per_s: float | None = None
    """Payload over all links."""
    nvlink_received_bytes_per_s: float | None = None
    counted: Mapping[str, int] = field(default_factory=dict[str, int])
    """Increase of these health counters while the monitor watched: ``ecc_corrected``, ``ecc_uncorrected``, ``pcie_replays``,
    ``nvlink_errors``."""
    windows: tuple[Window, ...] = ()
    """Windows of one minute, five minutes, a quarter of an hour; those not longer than the previous one are omitted."""
    recent: Recent | None = None
    processes: tuple[ProcessRow, ...] | None = None
    """None: the driver does not list them (``sample.unknown`` has the reason)."""
    last_seen_s: float | None = None
    """``at_s`` of the last sample that was ok; None if there was none."""

    @property
    def ok(self) -> bool:
        """Whether the device answered this time."""
        return self.sample.state is State.OK


@dataclass(frozen=True, slots=True)
class Host:
    """The machine around the cards."""

    name: str | None = None
    n_cores: int | None = None
    cpu_share: float | None = None
    """Use in shares of all cores, since the previous frame."""
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    load_1min: float | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """All cards at one refresh."""

    sequence: int
    """Counts from 0."""
    at_s: float
    """Time of a monotonic clock; only differences are meaningful."""
    wall_s: float
    """Seconds since 1970; it may jump."""
    interval_s: float | None
    """Since the frame before; None in the first."""
    cards: tuple[Card, ...]
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Vendor -> why its devices cannot be read."""
    host: Host = field(default_factory=Host)
    drivers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Vendor -> driver version."""
    xids: tuple[tuple[int | None, Xid], ...] = ()
    """Errors that the driver reported while the monitor watched, newest last, with the card's number if known."""
    demo: bool = False
    """The cards do not exist."""
