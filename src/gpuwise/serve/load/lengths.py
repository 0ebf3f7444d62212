"""Distributions of lengths: published quantiles joined in the logarithm, or a mean with a coefficient of variation.

    log Q(u) linear between the published levels,   Q(u) = q_99 (q_max / q_99)^(((u - 0.99) / 0.01)^k)  beyond 0.99

``k`` sets the mean to the published one: a table of quantiles contains little about a tail with a tenth of the tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import DataError

F64 = NDArray[np.float64]
LEVELS = (0.01, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1.0)
"""Levels at which tables of traces give quantiles; the last is the maximum."""
TAIL = (0.05, 20.0)
"""Bounds of the tail's exponent: beyond, the mean is the quantiles' own."""
NODES = 2048


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens with a ``mean``: by ``quantiles`` at :data:`LEVELS`, else log-normal with coefficient of variation ``cv``."""

    mean: float
    quantiles: tuple[float, ...] = ()
    cv: float = 0.0

    def __post_init__(self) -> None:
        if self.quantiles and (len(self.quantiles) != len(LEVELS) or list(self.quantiles) != sorted(self.quantiles)):
            raise DataError(f"quantiles of lengths must ascend at {LEVELS}, not {self.quantiles}")

    def at(self, u: F64) -> F64:
        """Lengths at the levels ``u`` in (0, 1), not rounded."""
        if self.quantiles:
            return _from_quantiles(u, self.quantiles, _tail_exponent(self.mean, self.quantiles))
        if not self.cv:
            return np.full_like(u, self.mean)
        sigma = math.sqrt(math.log1p(self.cv**2))
        levels, normal = _normal_quantiles()
        return np.exp(math.log(self.mean) - sigma**2 / 2 + sigma * np.interp(u, levels, normal))

    def tokens(self, u: F64) -> NDArray[np.int64]:
        """Whole tokens at the levels ``u``, at least 1."""
        return np.maximum(np.rint(self.at(u)), 1).astype(np.int64)

    @property
    def largest(self) -> float:
        """The largest published, or the 99.9th percentile."""
        return float(self.at(np.array([1.0 if self.quantiles else 0.999]))[0])


def _from_quantiles(u: F64, quantiles: tuple[float, ...], exponent: float) -> F64:
    last, most = math.log(quantiles[-2]), math.log(quantiles[-1])
    inner = np.interp(u, LEVELS[:-1], np.log(quantiles[:-1]))
    beyond = np.clip((u - LEVELS[-2]) / (1 - LEVELS[-2]), 0.0, 1.0)
    return np.exp(np.where(u > LEVELS[-2], last + (most - last) * beyond**exponent, inner))


@lru_cache(maxsize=256)
def _tail_exponent(mean: float, quantiles: tuple[float, ...]) -> float:
    """The exponent that gives the published mean, by bisection: the mean falls as it grows."""
    u = (np.arange(NODES * 16) + 0.5) / (NODES * 16)
    tail = u[u > LEVELS[-2]]  # the rest of the sum is the same for every exponent
    wanted = mean * len(u) - _from_quantiles(u[u <= LEVELS[-2]], quantiles, 1.0).sum()
    low, high = TAIL
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _from_quantiles(tail, quantiles, middle).sum() > wanted else (low, middle)
    return math.sqrt(low * high)


@lru_cache(maxsize=1)
def _normal_quantiles() -> tuple[F64, F64]:
    levels = (np.arange(NODES) + 0.5) / NODES
    normal = NormalDist()
    return levels, np.array([normal.inv_cdf(float(u)) for u in levels])
