"""The monitor: reads every device at each refresh, adds the slow readings and those of the operating system, keeps the history.

>>> with Monitor() as monitor:                     # doctest: +SKIP
...     frame = monitor.refresh()
...     print(monitor.causes(frame))
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from gpuwise.errors import DeviceError
from gpuwise.machine.devices.backend import Devices
from gpuwise.machine.devices.readings import GpuProcess, Identity, Sample, State, Xid
from gpuwise.machine.telemetry.frames import Card, Frame, HostProcess, ProcessRow
from gpuwise.machine.telemetry.history import N_KEPT, History
from gpuwise.machine.telemetry.host import HostMeter
from gpuwise.machine.telemetry.host_processes import ProcessReader, default_reader
from gpuwise.machine.telemetry.rates import EnergyMeter, HealthTrack, SampleTrack
from gpuwise.machine.telemetry.slow import HealthWatch, SlowReading, XidWatch

if TYPE_CHECKING:
    from gpuwise.machine.telemetry.causes.table import Cause

HEALTH_PERIOD_S = 5.0
"""Every card's slow readings are read once in this time."""
LOOK_AGAIN_S = 10.0
"""How often cards are looked for where none answers, and identities are read again after one came back."""
SHORTEST_SETTLE_S = 0.2
"""Between the two refreshes of :meth:`Monitor.settle`: shares of the processor need a span."""


class Source(Protocol):
    """A source of frames: :class:`Monitor`, or the replay of a recording."""

    @property
    def history(self) -> History: ...

    @property
    def interval_s(self) -> float: ...

    @property
    def notices(self) -> tuple[str, ...]:
        """Messages beside the frames: a full disk, an alert."""
        ...

    def refresh(self) -> Frame: ...

    def causes(self, frame: Frame) -> tuple[Cause, ...]: ...

    def close(self) -> None: ...


class _DeviceState:
    """One card between two refreshes."""

    __slots__ = ("away", "devices", "energy", "identity", "index", "last_seen_s", "samples")

    def __init__(self, devices: Devices, identity: Identity) -> None:
        self.devices, self.index, self.identity = devices, identity.index, identity
        self.energy, self.samples = EnergyMeter(), SampleTrack()
        self.last_seen_s: float | None = None
        self.away = False


class Monitor:
    """All cards of this machine over time.

    ``devices`` are opened backends, which the caller keeps; default: those of every vendor, searched again while none answers
    (limited by ``vendors``). ``clock`` is monotonic, ``wall`` is the time of day. With ``background`` the slow readings are
    read by a thread over ``health_period_s``; without, one card's at each refresh; and not at all without ``health``. Use it
    in a ``with`` block, or call :meth:`close`. Raises nothing for a machine without cards: ``frame.failed`` has the reason.
    """

    def __init__(
        self,
        devices: Sequence[Devices] | None = None,
        *,
        interval_s: float = 1.0,
        health_period_s: float = HEALTH_PERIOD_S,
        background: bool = True,
        health: bool = True,
        processes: bool = True,
        watch_xids: bool = True,
        reader: ProcessReader | None = None,
        find: Callable[[], tuple[Sequence[Devices], Mapping[str, str]]] | None = None,
        history_size: int = N_KEPT,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        demo: bool = False,
    ) -> None:
        self.interval_s, self.history, self.demo = interval_s, History(history_size), demo
        self._clock, self._wall, self._processes = clock, wall, processes
        self._reader = reader if reader is not None else (default_reader() if processes else None)
        self._background, self._watch_xids = background and health, watch_xids and background
        self._health = HealthWatch(health_period_s)
        self._host = HostMeter()
        self._find = find or find_all
        self._owned: list[Devices] = []
        self._devices_are_callers = devices is not None
        self._backends: tuple[Devices, ...] = tuple(devices or ())
        self._failed: Mapping[str, str] = {}
        self._cards: list[_DeviceState] = []
        self._xid_watch: XidWatch | None = None
        self._drivers: dict[str, str] = {}
        self._sequence, self._closed, self._health_by_hand = 0, False, not health
        self._before_s: float | None = None
        self._looked_s = clock()
        self._look()
        if self._background:
            self._health.start()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the threads and close the backends that the monitor opened; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._health.stop()
        if self._xid_watch is not None:
            self._xid_watch.stop()
        for devices in self._owned:
            devices.close()

    @property
    def notices(self) -> tuple[str, ...]:
        """Empty: problems are in the frames."""
        return ()

    def refresh(self) -> Frame:
        """Read every device now. Never raises for a device error: a lost device is a card of the frame."""
        now_s = self._clock()
        if not self._cards and now_s - self._looked_s >= LOOK_AGAIN_S:
            self._look()
        if not self._background and not self._health_by_hand:
            self._health.step()
        samples = [c.devices.sample(c.index, processes=self._processes) for c in self._cards]
        came = [n for n, s in enumerate(samples) if s.state is State.OK and self._cards[n].away]
        if came:
            self._identify_again()
        hosts = self._join(samples, now_s)
        slow = self._health.readings()
        cards = tuple(self._card(n, c, s, slow.get(n), hosts) for n, (c, s) in enumerate(zip(self._cards, samples, strict=True)))
        interval_s = None if self._before_s is None or now_s <= self._before_s else now_s - self._before_s
        frame = Frame(
            self._sequence,
            now_s,
            self._wall(),
            interval_s,
            cards,
            self._failed,
            self._host.read(),
            dict(self._drivers),
            self._xids(),
            self.demo,
        )
        self._sequence, self._before_s = self._sequence + 1, now_s
        self.history.append(frame)
        return frame

    def settle(self, timeout_s: float = 3.0) -> Frame:
        """A frame with everything in it, for those who take only one: two refreshes with the health of every card between."""
        self.refresh()
        started_s = time.monotonic()
        if self._background:
            self._health.wait_for_round(timeout_s)
        else:
            self._health.read_all()
        time.sleep(max(0.0, SHORTEST_SETTLE_S * 1.1 - (time.monotonic() - started_s)))
        return self.refresh()

    def read_health(self) -> None:
        """Read the health of every card now, in this thread; from then on only so (for those who play their own clock)."""
        self._health_by_hand = True
        self._health.read_all()

    def causes(self, frame: Frame) -> tuple[Cause, ...]:
        """Why each card is slow: see :func:`gpuwise.machine.telemetry.causes.table.find_causes`."""
        from gpuwise.machine.telemetry.causes.table import find_causes

        return find_causes(frame)

    def _look(self) -> None:
        """Open the backends if not done yet, and list their cards."""
        self._looked_s = self._clock()
        if not self._devices_are_callers:
            for devices in self._owned:
                devices.close()
            backends, self._failed = self._find()
            self._owned = list(backends)
            self._backends = tuple(backends)
        failed = dict(self._failed)
        for devices in self._backends:
            try:
                identities = devices.identities()
                version = devices.driver().version
            except DeviceError as error:
                failed[devices.vendor] = error.message
                continue
            failed.pop(devices.vendor, None)
            if version is not None:
                self._drivers[devices.vendor] = version
            self._cards += [_DeviceState(devices, identity) for identity in identities]
        self._failed = failed
        self._health.watch([(c.devices, c.index) for c in self._cards])
        if self._watch_xids and self._cards:
            if self._xid_watch is not None:
                self._xid_watch.stop()
            self._xid_watch = XidWatch(self._backends)
            self._xid_watch.start()

    def _identify_again(self) -> None:
        """Read the identities of cards that just appeared or came back: a card lost at the start had no name yet."""
        for devices in self._backends:
            try:
                identities = {i.index: i for i in devices.identities()}
            except DeviceError:
                continue
            for card in self._cards:
                if card.devices is devices and card.index in identities:
                    card.identity = identities[card.index]

    def _join(self, samples: Sequence[Sample], now_s: float) -> Mapping[int, HostProcess]:
        pids = {p.pid for s in samples for p in s.processes or ()}
        return self._reader.read(pids, now_s) if self._reader is not None else {}

    def _card(
        self, number: int, card: _DeviceState, sample: Sample, slow: SlowReading | None, hosts: Mapping[int, HostProcess]
    ) -> Card:
        power_w, power_basis = card.energy.add(sample)
        card.samples.add(sample, power_w)
        card.away = sample.state is not State.OK
        card.last_seen_s = card.last_seen_s if card.away else sample.at_s
        track = slow.track if slow is not None else HealthTrack()
        health = slow.health if slow is not None else None
        sampled = card.samples.window()
        return Card(
            number,
            card.identity,
            sample,
            health,
            slow.error if slow is not None else None,
            power_w,
            power_basis,
            card.energy.energy_j,
            card.energy.basis,
            health.pcie_sent_bytes_per_s if health is not None else None,
            health.pcie_received_bytes_per_s if health is not None else None,
            track.rates.nvlink_sent_bytes_per_s,
            track.rates.nvlink_received_bytes_per_s,
            dict(track.counted),
            track.windows() or ((sampled,) if sampled is not None else ()),
            card.samples.recent(),
            _rows(number, sample.processes, hosts),
            card.last_seen_s,
        )

    def _xids(self) -> tuple[tuple[int | None, Xid], ...]:
        if self._xid_watch is None:
            return ()
        numbers = {c.identity.pci_bus_id: n for n, c in enumerate(self._cards) if c.identity.pci_bus_id is not None}
        return tuple((numbers.get(x.pci_bus_id or ""), x) for x in self._xid_watch.seen())


def _rows(number: int, processes: Sequence[GpuProcess] | None, hosts: Mapping[int, HostProcess]) -> tuple[ProcessRow, ...] | None:
    if processes is None:
        return None
    return tuple(ProcessRow(number, p, hosts.get(p.pid) or HostProcess(p.pid)) for p in processes)


def find_all(vendors: tuple[str, ...] | None = None) -> tuple[Sequence[Devices], Mapping[str, str]]:
    """Every vendor's devices, and vendor -> why not."""
    from gpuwise.machine.devices.find import find_devices

    backends = find_devices() if vendors is None else find_devices(vendors)
    return backends.backends, {v: e.message for v, e in backends.failed.items()}
