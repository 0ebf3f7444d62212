"""When requests arrive, at a mean of one a second: gamma gaps, and a day's rise and fall.

A gap has mean 1 and coefficient of variation ``cv`` (0 a metronome, 1 Poisson, above 1 bursts). A day's rate follows

    rate(t) / mean = exp(k cos(2 pi t / period)) / I0(k),     peak over mean = exp(k) / I0(k)
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError

F64 = NDArray[np.float64]
MOST_CV = 20.0
"""Above the largest published variation of gaps (13, an hour of code completion)."""
MOST_PEAK = 20.0


def unit_arrivals(n: int, cv: float, rng: np.random.Generator) -> F64:
    """[N] ascending times from 0 whose gaps have mean 1 and coefficient of variation ``cv``. Raises InputError on a ``cv``
    that cannot be meant."""
    if not 0 <= cv <= MOST_CV:
        raise InputError(f"gaps cannot vary by {cv:g}", hint=f"a coefficient of variation from 0 to {MOST_CV:g}: 1 is Poisson")
    if n <= 0:
        return np.zeros(0)
    gaps = np.ones(n - 1) if cv == 0 else rng.gamma(1.0 / cv**2, cv**2, n - 1)
    total = float(gaps.sum())
    if total > 0:
        gaps *= (n - 1) / total  # the same mean rate for every seed: what is compared is the burstiness
    return np.concatenate([[0.0], np.cumsum(gaps)])


def day_shape(peak_over_mean: float, steps: int) -> F64:
    """[steps] rate over mean in the middle of equal parts of a day, lowest first and last. Raises InputError."""
    k = _concentration(peak_over_mean)
    turn = 2 * math.pi * (np.arange(steps) + 0.5) / steps
    shape = np.exp(-k * np.cos(turn))
    return shape / shape.mean()


@lru_cache(maxsize=64)
def _concentration(peak_over_mean: float) -> float:
    if not 1 <= peak_over_mean <= MOST_PEAK:
        raise InputError(
            f"a peak of {peak_over_mean:g} times the mean cannot be meant", hint=f"from 1 (level) to {MOST_PEAK:g}, for example 3"
        )
    low, high = 0.0, 100.0  # exp(k) / I0(k) is sqrt(2 pi k) for large k: 25 there
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.exp(middle) / float(np.i0(middle)) < peak_over_mean else (low, middle)
    return (low + high) / 2
