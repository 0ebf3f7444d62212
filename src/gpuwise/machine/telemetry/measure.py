"""What one block of code cost: energy, peak memory, and how long the clocks were held meanwhile.

>>> from gpuwise.machine import measure              # doctest: +SKIP
>>> with measure() as m:
...     train_one_epoch()
>>> print(m.energy_j, m.peak_memory_bytes)
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from gpuwise.errors import DeviceError
from gpuwise.machine.devices.backend import Devices
from gpuwise.machine.devices.readings import Health, Sample, State
from gpuwise.machine.telemetry.monitor import find_all
from gpuwise.machine.telemetry.rates import REASON_BITS, EnergyMeter

INTERVAL_S = 0.1
"""Between samples: the driver renews power and memory about this often."""


@dataclass(frozen=True, slots=True)
class CardMeasure:
    """One card over the block. Missing readings are None, and ``unknown`` has the reason."""

    number: int
    name: str
    energy_j: float | None = None
    energy_basis: str | None = None
    """``energy counter``, or ``integrated power``: the driver's average power over the samples."""
    mean_power_w: float | None = None
    peak_power_w: float | None = None
    """Highest of the driver's averages that was sampled."""
    peak_memory_bytes: int | None = None
    """Highest use of the card that was sampled, by all processes."""
    own_peak_memory_bytes: int | None = None
    """Peak used by this process, if the driver lists it under its own number (not in a container with separate numbers)."""
    mean_utilization: float | None = None
    peak_temperature_c: float | None = None
    held_back_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds of reduced clocks, by reason (names of EventReason)."""
    held_back_basis: str | None = None
    """``counters`` of the driver, or ``samples``."""
    n_samples: int = 0
    unknown: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class _DeviceTrack:
    """One card under the meter: running sums and peaks, so that a block of days takes no more memory than one of seconds."""

    devices: Devices
    index: int
    name: str
    energy: EnergyMeter = field(default_factory=EnergyMeter)
    last: Sample | None = None
    n_samples: int = 0
    span_s: float = 0.0
    """Covered by samples that were ok on both ends."""
    utilization: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Sum and number."""
    peaks: dict[str, float] = field(default_factory=dict[str, float])
    reasons: dict[str, float] = field(default_factory=dict[str, float])
    before: Health | None = None
    after: Health | None = None
    unknown: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, sample: Sample) -> None:
        """Take one sample."""
        self.energy.add(sample)
        before, self.last = self.last, sample
        if sample.state is not State.OK:
            self.unknown["card"] = sample.error or sample.state.value
            return
        self.n_samples += 1
        self.unknown |= {k: v for k, v in sample.unknown.items() if k in ("power_w", "energy_j", "memory_used_bytes")}
        if sample.utilization is not None:
            self.utilization = [self.utilization[0] + sample.utilization, self.utilization[1] + 1]
        own_bytes = [p.memory_bytes for p in sample.processes or () if p.pid == os.getpid() and p.memory_bytes is not None]
        for name, value in (
            ("power_w", sample.power_w),
            ("memory", sample.memory_used_bytes),
            ("own", sum(own_bytes) if own_bytes else None),
            ("temperature_c", sample.temperature_c),
        ):
            if value is not None:
                self.peaks[name] = max(value, self.peaks.get(name, value))
        if before is None or before.state is not State.OK or sample.at_s <= before.at_s:
            return
        self.span_s += sample.at_s - before.at_s
        for name, bit in REASON_BITS:
            # between two samples the earlier one's bits apply
            if (before.event_reasons or 0) & bit:
                self.reasons[name] = self.reasons.get(name, 0.0) + sample.at_s - before.at_s

    def read_health(self) -> Health | None:
        """The slow readings, or None where the card does not give them."""
        try:
            return self.devices.health(self.index)
        except DeviceError as error:
            self.unknown["health"] = error.message
            return None

    def measured(self, number: int) -> CardMeasure:
        """Result so far."""
        held_bytes, basis = self._throttle()
        peaks, (total, n) = self.peaks, self.utilization
        energy_j = self.energy.energy_j
        return CardMeasure(
            number,
            self.name,
            energy_j,
            self.energy.basis,
            energy_j / self.span_s if energy_j is not None and self.span_s > 0 else None,
            peaks.get("power_w"),
            int(peaks["memory"]) if "memory" in peaks else None,
            int(peaks["own"]) if "own" in peaks else None,
            total / n if n else None,
            peaks.get("temperature_c"),
            held_bytes,
            basis,
            self.n_samples,
            dict(self.unknown),
        )

    def _throttle(self) -> tuple[Mapping[str, float], str | None]:
        if self.before is not None and self.after is not None and self.after.held_back_s:
            a, b = self.before.held_back_s, self.after.held_back_s
            # a counter that fell was restarted inside the block: its whole value belongs to the block
            return {k: v - a.get(k, 0.0) if v >= a.get(k, 0.0) else v for k, v in b.items()}, "counters"
        return dict(self.reasons), ("samples" if self.n_samples > 1 else None)


class Measure:
    """A block of code under the meter; use it in a ``with`` block and read it after (or during) it.

    Without a card, or where a card does not answer, the readings are None and ``unknown`` has the reason: the block runs
    anyway, and its exceptions are raised.
    """

    def __init__(
        self,
        devices: Sequence[Devices] | None = None,
        *,
        cards: Sequence[int] | None = None,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._devices_or_none, self._card_numbers, self._interval_s, self._clock = devices, cards, interval_s, clock
        self._owned: Sequence[Devices] = ()
        self._watched: dict[int, _DeviceTrack] = {}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._began_s: float | None = None
        self._ended_s: float | None = None
        self.unknown: dict[str, str] = {}
        """Vendor or card -> why there is nothing to read."""

    def __enter__(self) -> Measure:
        self._open()
        self._began_s = self._clock()
        self._sample()
        self._thread = threading.Thread(target=self._run, name="gpuwise-measure", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        self._sample()
        self._ended_s = self._clock()
        for card in self._watched.values():
            card.after = card.read_health()
        for devices in self._owned:
            devices.close()

    @property
    def wall_s(self) -> float:
        """Seconds the block took, or has taken so far."""
        if self._began_s is None:
            return 0.0
        return (self._clock() if self._ended_s is None else self._ended_s) - self._began_s

    @property
    def cards(self) -> tuple[CardMeasure, ...]:
        """Measurements of each card."""
        with self._lock:
            return tuple(w.measured(n) for n, w in self._watched.items())

    @property
    def energy_j(self) -> float | None:
        """Energy of all cards together; None if that of any is unknown, or there is no card."""
        values = [c.energy_j for c in self.cards]
        return sum(v for v in values if v is not None) if values and None not in values else None

    @property
    def energy_basis(self) -> str | None:
        """``energy counter`` where all cards have one, else ``integrated power``; None with the energy."""
        bases = {c.energy_basis for c in self.cards}
        return None if not bases or None in bases else bases.pop() if len(bases) == 1 else "integrated power"

    @property
    def mean_power_w(self) -> float | None:
        """Energy over time, of all cards together."""
        return None if self.energy_j is None or not self.wall_s > 0 else self.energy_j / self.wall_s

    @property
    def peak_memory_bytes(self) -> int | None:
        """Peak of the fullest card, by all processes; None if unknown."""
        return max((c.peak_memory_bytes for c in self.cards if c.peak_memory_bytes is not None), default=None)

    @property
    def held_back_s(self) -> Mapping[str, float]:
        """Values of the card throttled longest, by reason."""
        out: dict[str, float] = {}
        for card in self.cards:
            for reason, held_s in card.held_back_s.items():
                out[reason] = max(held_s, out.get(reason, 0.0))
        return out

    def _open(self) -> None:
        backends: Sequence[Devices]
        if self._devices_or_none is None:
            backends, failed = find_all()
            self._owned = backends
            self.unknown |= failed
        else:
            backends = self._devices_or_none
        number = 0
        for devices in backends:
            try:
                identities = devices.identities()
            except DeviceError as error:
                self.unknown[devices.vendor] = error.message
                continue
            for identity in identities:
                if self._card_numbers is None or number in self._card_numbers:
                    card = self._watched[number] = _DeviceTrack(devices, identity.index, identity.name)
                    card.before = card.read_health()
                number += 1
        if not self._watched and not self.unknown:
            self.unknown["cards"] = "no GPU was found"

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._sample()

    def _sample(self) -> None:
        for card in self._watched.values():
            sample = card.devices.sample(card.index)
            with self._lock:
                card.add(sample)
