"""Whole numbers of a captured step as functions of what a person can choose. No torch here.

A dimension, a storage or a FLOP count is a product of powers and one term of the size ``x`` (the side of an image in pixels, or
a number of tokens), relative to the size ``x0`` that was captured:

    v = b^i r^j f^k (alpha + m (x / x0)^p)

with the batch ``b``, the rank ``r`` of adapters and the latent frames ``f`` of a video.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Term(NamedTuple):
    """Exponents of batch, rank and frames; ``alpha``, ``m`` and the power of the size."""

    batch: int
    rank: int
    frames: int
    alpha: float
    m: float
    power: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a step is made for; ``base`` is the size ``x0``."""

    batch: int
    rank: int
    frames: int
    size: float
    base: float

    def of(self, t: Sequence[float]) -> int:
        """The value of a :class:`Term`."""
        grown = float(t[3]) + float(t[4]) * (self.size / self.base) ** int(t[5])
        return self.batch ** int(t[0]) * self.rank ** int(t[1]) * self.frames ** int(t[2]) * max(round(grown), 0)


MARKERS = ("batch", "rank", "frames")


def term_of(low: int, high: int, ratio: float, markers: Sequence[int], affine: int) -> Term:
    """The term that is ``low`` at the captured size and ``high`` at ``ratio`` times it, where what a marker (a prime for each of
    batch, rank and frames; 1: not varied) divides grows with it; ``affine``: the power of the size in sums."""
    exponents: list[int] = []
    for marker in markers:
        n = 0
        while marker > 1 and low and low % marker == 0 and high % marker == 0 and n < 3:
            low, high, n = low // marker, high // marker, n + 1
        exponents.append(n)
    b, r, f = exponents
    if low == high:
        return Term(b, r, f, low, 0, 0)
    for power in (1, 2, 4):
        if abs(high - low * ratio**power) < 1e-9 * high:
            return Term(b, r, f, 0, low, power)
    m = (high - low) / (ratio**affine - 1.0)
    return Term(b, r, f, low - m, m, affine)
