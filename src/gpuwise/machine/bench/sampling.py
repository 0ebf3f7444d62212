"""When to stop sampling: once the median is precise enough, or the time is up. Pure: the clock is an argument.

The 95 % interval of a median needs no model of the noise: with ``n`` samples the k-th smallest and the k-th largest bound it,
k the largest number with P(Binomial(n, 1/2) < k) <= 2.5 % (David and Nagaraja, Order Statistics, 7.1). Below six samples there
is no interval. Correlated samples (a drifting clock) make it too narrow: the conditions stored with a measurement show whether
clocks moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

LEAST_SAMPLES = 6
"""Fewer have no 95 % interval of the median at all."""
MOST_SAMPLES = 2000
TARGET = 0.01
"""Half the interval over the median at which a measurement is done."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of samples in one unit: median with its 95 % interval (None below six samples)."""

    median: float
    low: float | None
    high: float | None
    n: int

    @property
    def half_width(self) -> float:
        """Half the interval over the median; infinite without an interval."""
        if self.low is None or self.high is None or self.median <= 0:
            return math.inf
        return (self.high - self.low) / (2.0 * self.median)


@cache
def interval_rank(n: int) -> int | None:
    """k, counted from 1: the k-th smallest and k-th largest of ``n`` samples hold the median with 95 %; None if none do."""
    below = 0.0
    k = 0
    while True:
        # P(Binomial(n, 1/2) <= k), by logarithms: n may be thousands
        below += math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2.0))
        if below > 0.025 or k > n // 2:
            return k or None
        k += 1


def summarise(samples: Sequence[float]) -> Summary:
    """Median and interval. Raises ValueError without samples."""
    ordered = sorted(samples)
    n = len(ordered)
    if not n:
        raise ValueError("no samples")
    median = ordered[n // 2] if n % 2 else 0.5 * (ordered[n // 2 - 1] + ordered[n // 2])
    k = interval_rank(n)
    return Summary(median, None if k is None else ordered[k - 1], None if k is None else ordered[n - k], n)


def measure(
    sample: Callable[[], float],
    *,
    limit_s: float,
    clock: Callable[[], float],
    target: float = TARGET,
    least: int = LEAST_SAMPLES,
    most: int = MOST_SAMPLES,
) -> list[float]:
    """Samples until half the 95 % interval of the median is within ``target`` of it, or ``limit_s`` is over by ``clock``.

    At least one sample, and ``least`` of them where the time allows. Raises what ``sample`` raises.
    """
    end = clock() + limit_s
    samples = [sample()]
    # the interval is looked at each time the number has grown by an eighth: looking is not free, nor is peeking
    look = least
    while len(samples) < most and clock() < end:
        if len(samples) >= look:
            if summarise(samples).half_width <= target:
                break
            look = len(samples) + max(1, len(samples) // 8)
        samples.append(sample())
    return samples


def outliers(values: Sequence[float]) -> tuple[int, ...]:
    """Positions of rates that are low outliers among their siblings.

    Three or more are needed: with two, either may be wrong. Low means below the median by more than ``NODE_SPREAD`` and by a
    robust score above ``LARGEST_SCORE``.
    """
    if len(values) < 3:
        return ()
    middle = summarise(values).median
    spread = summarise([abs(v - middle) for v in values]).median / NORMAL_MAD
    positions: list[int] = []
    for i, value in enumerate(values):
        short = middle - value
        if short > NODE_SPREAD * middle and short > LARGEST_SCORE * spread:
            positions.append(i)
    return tuple(positions)


NODE_SPREAD = 0.05
"""Spread between cards of a healthy node (stas00/ml-engineering, compute/accelerator/benchmarks, MAMF of 8 GPUs of a node: 5 %
and more)."""
LARGEST_SCORE = 3.5
"""Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993): scores beyond are called outliers."""
NORMAL_MAD = 0.6745
"""Median absolute deviation of a normal distribution, in standard deviations."""
