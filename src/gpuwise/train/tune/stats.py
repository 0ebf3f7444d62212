"""How much faster B is than A, from pairs of runs that were made one right after the other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
T_900 = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372)
"""Student's t at 97.5 % and at 90 % for 1, 2, ... degrees of freedom (NIST/SEMATECH e-Handbook of Statistical Methods,
1.3.6.7.2): for intervals of 95 % and of 80 %."""
RANKS_FROM, TENTATIVE_RANKS_FROM = 6, 4
"""Pairs from which the smallest and the largest cover the median at 95 %: 1 - 2 (1/2)^6 = 97 %; at 80 %: 1 - 2 (1/2)^4 = 87 %."""
LEAST_GAIN = 1.03
"""A lever that gives less is not worth a changed line. Rule of this project."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Ratio of rates, B to A: median of the pairs with an interval; that of one pair is unknown (0 to infinity)."""

    ratio: float
    low: float
    high: float
    n_pairs: int

    @property
    def verdict(self) -> str:
        """``faster``, ``not faster``, or ``undecided`` where the interval holds ``LEAST_GAIN``."""
        if self.low > LEAST_GAIN:
            return "faster"
        return "not faster" if self.high < LEAST_GAIN else "undecided"

    @property
    def words(self) -> str:
        """``2.41x (2.20 to 2.63)``; the interval of a single pair is not known."""
        if self.n_pairs < 2:
            return f"{self.ratio:.2f}x (one pair)"
        return f"{self.ratio:.2f}x ({self.low:.2f} to {self.high:.2f})"

    def within(self, share: float) -> bool:
        """Decided, and the interval is no wider than ``share`` of the ratio."""
        return self.verdict != "undecided" and self.high - self.low <= share * self.ratio


def gain_of(pairs: Sequence[tuple[float, float]], *, tentative: bool = False) -> Gain:
    """From rates (A, B) of each pair, all above zero; the interval covers 95 %, or 80 % where ``tentative``: whether a lever is
    kept for now, which the measurement of all together still has to bear out.

    Few pairs: Student's interval of the mean of log ratios. With enough: ranks (of a binomial), which a single
    disturbed run does not move.
    """
    logs = sorted(math.log(b / a) for a, b in pairs)
    n = len(logs)
    middle = statistics.median(logs)
    if n == 1:
        return Gain(math.exp(middle), 0.0, math.inf, 1)
    if n >= (TENTATIVE_RANKS_FROM if tentative else RANKS_FROM):
        k = _rank(n, 0.2 if tentative else 0.05)
        return Gain(math.exp(middle), math.exp(logs[k]), math.exp(logs[n - 1 - k]), n)
    table = T_900 if tentative else T_975
    t = table[min(n - 2, len(table) - 1)]
    half = t * statistics.stdev(logs) / math.sqrt(n)
    mean = statistics.fmean(logs)
    return Gain(math.exp(middle), math.exp(min(mean - half, middle)), math.exp(max(mean + half, middle)), n)


def _rank(n: int, missed: float) -> int:
    """The largest k for which the k-th smallest and largest of n values miss their median at most so often."""
    below, k = 0.0, 0
    while True:
        below += math.comb(n, k) * 0.5**n
        if 2 * below > missed:
            return max(k - 1, 0)
        k += 1
