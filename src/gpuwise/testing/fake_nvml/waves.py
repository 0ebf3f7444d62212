"""Readings of a fake card as functions of time, written into its script.

Time is that of ``time.monotonic``, which all processes of a machine share, so every client sees the same wave.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Wave:
    """``square`` and ``sine`` go between ``low`` and ``high`` in ``period_s``; ``ramp`` starts at ``low`` and gains ``high``
    every second."""

    kind: Literal["square", "sine", "ramp"]
    low: float
    high: float
    period_s: float = 1.0
    duty: float = 0.5
    """Share of the period a square wave is high, from its start."""
    start_s: float = 0.0

    def at(self, now_s: float) -> float:
        """The value at a moment of ``time.monotonic``; the library computes the same."""
        since_s = now_s - self.start_s
        phase = since_s / self.period_s
        if self.kind == "ramp":
            return self.low + self.high * since_s
        if self.kind == "square":
            return self.high if phase - math.floor(phase) < self.duty else self.low
        return self.low + (self.high - self.low) * (0.5 - 0.5 * math.cos(2 * math.pi * phase))

    @property
    def mean(self) -> float:
        """Over whole periods; of a ramp, its start."""
        if self.kind == "ramp":
            return self.low
        share = self.duty if self.kind == "square" else 0.5
        return self.low + (self.high - self.low) * share

    def line(self) -> str:
        """The line in the library's format."""
        return f"{self.kind} {self.low!r} {self.high!r} {self.period_s!r} {self.duty!r} {self.start_s!r}"


def square(low: float, high: float, period_s: float, duty: float = 0.5) -> Wave:
    """High for ``duty`` of each period, beginning now."""
    return Wave("square", float(low), float(high), float(period_s), float(duty), time.monotonic())


def sine(low: float, high: float, period_s: float) -> Wave:
    """From ``low`` up to ``high`` and back, beginning now."""
    return Wave("sine", float(low), float(high), float(period_s), 0.5, time.monotonic())


def ramp(start: float, per_s: float) -> Wave:
    """A counter: ``start`` now, ``per_s`` more every second."""
    return Wave("ramp", float(start), float(per_s), 1.0, 0.5, time.monotonic())
