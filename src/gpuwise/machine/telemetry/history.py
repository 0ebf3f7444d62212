"""What the cards did in the last minutes: rings of plain doubles, so that a long watch neither grows nor needs numpy."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable

from gpuwise.machine.telemetry.frames import Card, Frame

SERIES: dict[str, Callable[[Card], float | None]] = {
    "utilization": lambda c: c.sample.utilization,
    "memory_utilization": lambda c: c.sample.memory_utilization,
    "memory_used_bytes": lambda c: c.sample.memory_used_bytes,
    "power_w": lambda c: c.power_w,
    "temperature_c": lambda c: c.sample.temperature_c,
    "memory_temperature_c": lambda c: c.sample.memory_temperature_c,
    "sm_clock_hz": lambda c: c.sample.sm_clock_hz,
    "fan": lambda c: c.sample.fan,
    "pcie_sent_bytes_per_s": lambda c: c.pcie_sent_bytes_per_s,
    "pcie_received_bytes_per_s": lambda c: c.pcie_received_bytes_per_s,
    "nvlink_sent_bytes_per_s": lambda c: c.nvlink_sent_bytes_per_s,
    "nvlink_received_bytes_per_s": lambda c: c.nvlink_received_bytes_per_s,
    "encoder_utilization": lambda c: c.sample.encoder_utilization,
    "decoder_utilization": lambda c: c.sample.decoder_utilization,
}
"""Name of a series -> where a card holds it."""

N_KEPT = 3600
"""An hour at one refresh a second: 14 series of doubles are 0.4 MB a card."""


class Ring:
    """The last ``size`` doubles, oldest first. Memory is taken as it fills, and never more than ``size``."""

    __slots__ = ("_next", "_size", "_values")

    def __init__(self, size: int) -> None:
        self._size, self._next, self._values = size, 0, array("d")

    def __len__(self) -> int:
        return len(self._values)

    def append(self, value: float) -> None:
        """Add a value; the oldest goes where the ring is full."""
        if len(self._values) < self._size:
            self._values.append(value)
        else:
            self._values[self._next] = value
            self._next = (self._next + 1) % self._size

    def last(self, n: int | None = None) -> array[float]:
        """The newest ``n`` values (all of them by default), oldest first: a copy."""
        values, at = self._values, self._next
        n = len(values) if n is None else min(max(n, 0), len(values))
        # those before the oldest are the newest; only the requested part is copied
        return values[at - n : at] if n <= at else values[len(values) - (n - at) :] + values[:at]

    def copy(self) -> Ring:
        """A separate ring with the same values."""
        copied = Ring(self._size)
        copied._next, copied._values = self._next, self._values[:]
        return copied


class History:
    """Series of every card, one value a frame; NaN where a reading was unknown or the card did not answer."""

    def __init__(self, size: int = N_KEPT) -> None:
        self._size = max(1, size)
        self._at, self._wall = Ring(self._size), Ring(self._size)
        self._series: dict[int, dict[str, Ring]] = {}
        """Number of a card -> name -> values."""

    def __len__(self) -> int:
        return len(self._at)

    def append(self, frame: Frame) -> None:
        """Add a frame to every series; a card that came late is NaN before it came."""
        before = len(self._at)
        full = before == self._size
        self._at.append(frame.at_s)
        self._wall.append(frame.wall_s)
        numbers = {card.number for card in frame.cards}
        for card in frame.cards:
            rings = self._series.get(card.number)
            if rings is None:
                rings = self._series[card.number] = {name: Ring(self._size) for name in SERIES}
                for ring in rings.values():
                    for _ in range(self._size if full else before):
                        ring.append(math.nan)
            for ring, reader in zip(rings.values(), SERIES.values(), strict=True):
                value = reader(card)
                ring.append(math.nan if value is None else value)
        for number, rings in self._series.items():
            if number not in numbers:
                for ring in rings.values():
                    ring.append(math.nan)

    def copy(self) -> History:
        """The history as it is now, which does not go on: for a screen that was paused."""
        copied = History(self._size)
        copied._at, copied._wall = self._at.copy(), self._wall.copy()
        copied._series = {
            number: {name: ring.copy() for name, ring in rings.items()} for number, rings in list(self._series.items())
        }
        return copied

    def times(self, n: int | None = None) -> array[float]:
        """``Frame.at_s`` of the newest ``n`` frames, oldest first."""
        return self._at.last(n)

    def series(self, number: int, name: str, n: int | None = None) -> array[float]:
        """The newest ``n`` values of one series of a card, oldest first, in step with :meth:`times`. ``name`` is a key of
        :data:`SERIES`; a card never seen gives an empty array."""
        if name not in SERIES:
            raise KeyError(name)
        rings = self._series.get(number)
        return array("d") if rings is None else rings[name].last(n)
