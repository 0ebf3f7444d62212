"""How a price moved: the turns of a monthly series, and the change a year between them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

FEWEST_MONTHS = 3
"""Minimum months for restating a change per year: with fewer, noise to the twelfth power dominates."""


@dataclass(frozen=True, slots=True)
class Move:
    """From one turn of the series to the next."""

    start: datetime.date
    end: datetime.date
    start_usd: float
    end_usd: float

    @property
    def months(self) -> int:
        return 12 * (self.end.year - self.start.year) + self.end.month - self.start.month

    @property
    def share(self) -> float:
        """end / start - 1."""
        return self.end_usd / self.start_usd - 1

    @property
    def share_a_year(self) -> float | None:
        """(end / start) ** (12 / months) - 1; None for a stretch too short to be restated."""
        if self.months < FEWEST_MONTHS:
            return None
        return (self.end_usd / self.start_usd) ** (12 / self.months) - 1


def moves(points: Sequence[tuple[datetime.date, float]]) -> tuple[Move, ...]:
    """The moves between first, lowest, highest and last point, in time; empty for fewer than two points."""
    if len(points) < 2:
        return ()
    turns = {0, len(points) - 1}
    prices = [usd for _, usd in points]
    turns |= {prices.index(min(prices)), prices.index(max(prices))}
    stops = [points[i] for i in sorted(turns)]
    return tuple(Move(a[0], b[0], a[1], b[1]) for a, b in pairwise(stops))


def whole(points: Sequence[tuple[datetime.date, float]]) -> Move | None:
    """From the first point to the last; None for fewer than two."""
    if len(points) < 2:
        return None
    return Move(points[0][0], points[-1][0], points[0][1], points[-1][1])
