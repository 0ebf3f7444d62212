"""Rates from counters, and shares of time from the driver's nanosecond counters. No clock, no device."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwise.machine.devices.readings import EventReason, Health, Sample, State
from gpuwise.machine.telemetry.frames import Recent, Window

WINDOWS_S = (60.0, 300.0, 900.0)
"""The last minute, five minutes, quarter of an hour."""
ENERGY_SPAN_S = 0.9
"""Power from the energy counter is a mean over at least this: the counter moves in steps of up to 0.1 s, which would be
10 % of a shorter span."""
COUNTERS = ("ecc_corrected", "ecc_uncorrected", "pcie_replays", "nvlink_errors")
REASON_BITS: tuple[tuple[str, int], ...] = tuple((str(r.name), int(r)) for r in EventReason if r is not EventReason.IDLE)


@dataclass(frozen=True, slots=True)
class HealthRates:
    """Rates from the last two health readings."""

    nvlink_sent_bytes_per_s: float | None = None
    nvlink_received_bytes_per_s: float | None = None


class EnergyMeter:
    """Joules since the first sample, and the power now. Falls back on integrating the driver's average power."""

    def __init__(self) -> None:
        self._counted: deque[tuple[float, float]] = deque()
        self._before: Sample | None = None
        self.energy_j: float | None = None
        self.basis: str | None = None

    def add(self, sample: Sample) -> tuple[float | None, str | None]:
        """Power in watts now and where it is from: ``energy counter``, ``driver's average`` or None."""
        before, self._before = self._before, sample
        if sample.state is not State.OK:
            return None, None
        self._integrate(before, sample)
        if sample.energy_j is None:
            self._counted.clear()
        else:
            if self._counted and (sample.energy_j < self._counted[-1][1] or sample.at_s <= self._counted[-1][0]):
                self._counted.clear()  # the driver was reloaded: its counter restarts
            self._counted.append((sample.at_s, sample.energy_j))
            while len(self._counted) > 2 and sample.at_s - self._counted[1][0] >= ENERGY_SPAN_S:
                self._counted.popleft()
            at_s, energy_j = self._counted[0]
            if sample.at_s - at_s >= ENERGY_SPAN_S:
                return (sample.energy_j - energy_j) / (sample.at_s - at_s), "energy counter"
        return (None, None) if sample.power_w is None else (sample.power_w, "driver's average")

    def _integrate(self, before: Sample | None, now: Sample) -> None:
        if before is None or now.at_s <= before.at_s:
            return
        energy_j, basis = None, None
        if before.energy_j is not None and now.energy_j is not None and now.energy_j >= before.energy_j:
            energy_j, basis = now.energy_j - before.energy_j, "energy counter"
        elif before.power_w is not None and now.power_w is not None:
            energy_j, basis = (before.power_w + now.power_w) / 2 * (now.at_s - before.at_s), "integrated power"
        if energy_j is not None:
            self.energy_j = (self.energy_j or 0.0) + energy_j
            # once any stretch was integrated the sum is no longer the counter's
            self.basis = basis if self.basis in (None, basis) else "integrated power"


@dataclass(slots=True)
class HealthTrack:
    """The health readings of one card over the longest window."""

    readings: deque[tuple[float, Mapping[str, float]]] = field(default_factory=deque[tuple[float, Mapping[str, float]]])
    last: Health | None = None
    counted: dict[str, int] = field(default_factory=dict[str, int])
    rates: HealthRates = field(default_factory=HealthRates)

    def add(self, health: Health) -> None:
        """Take one reading; a counter that fell means that the driver was reloaded."""
        before = self.last
        if before is not None and health.at_s <= before.at_s:
            return
        if before is not None:
            self._count(before, health)
            span_s = health.at_s - before.at_s
            self.rates = HealthRates(
                _rate(before.nvlink_sent_bytes, health.nvlink_sent_bytes, span_s),
                _rate(before.nvlink_received_bytes, health.nvlink_received_bytes, span_s),
            )
            if any(health.held_back_s.get(k, v) < v for k, v in before.held_back_s.items()):
                self.readings.clear()
        self.last = health
        if health.held_back_s:
            self.readings.append((health.at_s, health.held_back_s))
            while len(self.readings) > 2 and health.at_s - self.readings[1][0] >= WINDOWS_S[-1]:
                self.readings.popleft()

    def _count(self, before: Health, now: Health) -> None:
        for name in COUNTERS:
            a, b = getattr(before, name), getattr(now, name)
            if a is not None and b is not None:
                self.counted[name] = self.counted.get(name, 0) + max(0, b - a)

    def windows(self) -> tuple[Window, ...]:
        """Share of the last minute, five minutes and quarter of an hour with clocks reduced for each reason, from the
        counters."""
        if len(self.readings) < 2:
            return ()
        end_s, end = self.readings[-1]
        out: list[Window] = []
        for length_s in WINDOWS_S:
            # the newest reading that is old enough; the oldest there is while the watch is young
            start_s, start = next(
                ((t, reading) for t, reading in reversed(self.readings) if end_s - t >= length_s), self.readings[0]
            )
            covered_s = end_s - start_s
            if out and covered_s <= out[-1].length_s:
                break
            shares = {k: min(1.0, max(0.0, end[k] - start[k]) / covered_s) for k in end if k in start}
            out.append(Window(covered_s, shares, "counters"))
        return tuple(out)


class SampleTrack:
    """The samples of one card over the last minute, as running sums: a refresh costs the same at ten a second as at one.

    The sums are of whole numbers (parts in a million, Hz, mW), so they stay exact.
    """

    __slots__ = ("_bits", "_kept", "_sums")

    def __init__(self) -> None:
        self._kept: deque[tuple[float, int | None, int | None, int | None, int | None]] = deque()
        self._bits: dict[int, int] = {}
        """Event reasons -> samples that had exactly these."""
        self._sums = [[0, 0], [0, 0], [0, 0]]
        """Sum and number of utilisation, clock and power."""

    def add(self, sample: Sample, power_w: float | None) -> None:
        """Take one sample; a card that does not answer is reset."""
        if sample.state is not State.OK:
            self.__init__()
            return
        if self._kept and sample.at_s <= self._kept[-1][0]:
            return
        row = (
            sample.at_s,
            sample.event_reasons,
            _whole(sample.utilization, _SCALES[0]),
            _whole(sample.sm_clock_hz, _SCALES[1]),
            _whole(power_w, _SCALES[2]),
        )
        self._kept.append(row)
        self._count(row, 1)
        while sample.at_s - self._kept[0][0] > WINDOWS_S[0]:
            self._count(self._kept.popleft(), -1)

    def _count(self, row: tuple[float, int | None, int | None, int | None, int | None], sign: int) -> None:
        _, bits, *values = row
        if bits is not None:
            remaining = self._bits.get(bits, 0) + sign
            if remaining:
                self._bits[bits] = remaining
            else:
                del self._bits[bits]
        for total, value in zip(self._sums, values, strict=True):
            if value is not None:
                total[0] += sign * value
                total[1] += sign

    def window(self) -> Window | None:
        """Share of the refreshes of the last minute that saw each reason's bit; None before the second refresh."""
        n = sum(self._bits.values())
        if n < 2:
            return None
        shares = {
            name: n_samples / n
            for name, bit in REASON_BITS
            if (n_samples := sum(k for bits, k in self._bits.items() if bits & bit))
        }
        return Window(self._kept[-1][0] - self._kept[0][0], shares, "samples")

    def recent(self) -> Recent | None:
        """Means over the last minute; None where the card does not answer."""
        if not self._kept:
            return None
        means = [total / n / scale if n else None for (total, n), scale in zip(self._sums, _SCALES, strict=True)]
        return Recent(self._kept[-1][0] - self._kept[0][0], len(self._kept), *means)


_SCALES = (1e6, 1.0, 1e3)


def _whole(value: float | None, scale: float) -> int | None:
    return None if value is None else round(value * scale)


def _rate(before: int | None, now: int | None, span_s: float) -> float | None:
    if before is None or now is None or now < before or span_s <= 0:
        return None
    return (now - before) / span_s
