"""How much faster B is than A, from pairs of runs that were made one right after the other."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_GAIN = 1.03
"""A lever that gives less is not worth a changed line. Rule of this project."""
WORTH_KNOWING = 1.1
"""An interval that ends below this leaves nothing open that would be missed. Rule of this project."""


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
        """``2.41x (2.20 to 2.63)``; the interval of a single pair is unknown."""
        if self.n_pairs < 2:
            return f"{self.ratio:.2f}x (one pair)"
        return f"{self.ratio:.2f}x ({self.low:.2f} to {self.high:.2f})"

    def within(self, share: float) -> bool:
        """Decided, and the interval is no wider than ``share`` of the ratio."""
        return self.verdict != "undecided" and self.high - self.low <= share * self.ratio


def gain_of(pairs: Sequence[tuple[float, float]], *, missed: float = 0.05) -> Gain:
    """From rates (A, B) of each pair, all above zero; the interval covers all but ``missed`` of cases. With several levers, each
    gets its share of the error probability (Bonferroni).

    Few pairs: Student's interval of the mean of log ratios. Enough pairs: ranks (of a binomial) without the smallest and the
    largest, so that a single disturbed run does not matter. In between, where ranks would span the whole range and one run
    decides all: the interval of the signed ranks (Wilcoxon 1945; Hodges and Lehmann 1963), since disturbances affect both runs
    of a pair alike and the log ratios are symmetric around the true one.
    """
    logs = sorted(math.log(b / a) for a, b in pairs)
    n = len(logs)
    middle = statistics.median(logs)
    if n == 1:
        return Gain(math.exp(middle), 0.0, math.inf, 1)
    k = _rank(n, missed)
    if k > 0:
        return Gain(math.exp(middle), math.exp(logs[k]), math.exp(logs[n - 1 - k]), n)
    left_out = _left_out(n, missed)
    if left_out > 0:
        means = sorted((a + b) / 2.0 for a, b in itertools.combinations_with_replacement(logs, 2))
        low, high = means[left_out], means[-1 - left_out]
        return Gain(math.exp(middle), math.exp(min(low, middle)), math.exp(max(high, middle)), n)
    half = student_t(1.0 - missed / 2.0, n - 1) * statistics.stdev(logs) / math.sqrt(n)
    mean = statistics.fmean(logs)
    return Gain(math.exp(middle), math.exp(min(mean - half, middle)), _exp(max(mean + half, middle)), n)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700.0 else math.inf


def pairs_that_tell(gain: Gain, *, missed: float, most: int) -> int | None:
    """About how many pairs would decide a gain like this one (its interval above ``LEAST_GAIN``, or below ``WORTH_KNOWING``),
    assuming the same spread; None if even ``most`` would not, and for a single pair."""
    if gain.n_pairs < 2 or not math.isfinite(gain.high) or gain.low <= 0.0:
        return None
    half = math.log(gain.high / gain.low) / 2.0
    deviation = half * math.sqrt(gain.n_pairs) / student_t(1.0 - missed / 2.0, gain.n_pairs - 1)
    away = max(math.log(gain.ratio / LEAST_GAIN), math.log(WORTH_KNOWING / gain.ratio))
    for n in range(gain.n_pairs + 1, most + 1):
        if student_t(1.0 - missed / 2.0, n - 1) * deviation / math.sqrt(n) < away:
            return n
    return None


def student_t(share: float, freedom: int) -> float:
    """The value that Student's t with the given degrees of freedom stays below in ``share`` (above a half) of cases, by
    bisection of its distribution (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    low, high = 0.0, 1.0
    while _student_share(high, freedom) < share:
        high *= 2.0
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _student_share(middle, freedom) < share else (low, middle)
    return high


def _student_share(t: float, freedom: int) -> float:
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (cosine if freedom % 2 else 1.0), 0.0
    for k in range(freedom // 2):
        total += term
        j = 2 * k + (3 if freedom % 2 else 2)
        term *= cosine * cosine * (j - 1) / j
    inside = 2.0 / math.pi * (angle + (sine * total if freedom > 1 else 0.0)) if freedom % 2 else sine * total
    return (1.0 + inside) / 2.0


def spread_of(rates: Sequence[float]) -> float | None:
    """Spread of runs of the same thing, from lowest to highest, as a share of the median; None for fewer than two."""
    return (max(rates) - min(rates)) / statistics.median(rates) if len(rates) > 1 else None


def _left_out(n: int, missed: float) -> int:
    """Number of pairwise means of ``n`` values (including each with itself) to drop at either end for an interval that misses
    their centre with at most the given probability; -1 if even all of them miss it more often. From the distribution of the
    signed-rank sum: the number of the 2 ** n signs for which numbers 1 to n add to that little."""
    ways = [1]
    for rank in range(1, n + 1):
        longer = ways + [0] * rank
        ways = [longer[s] + (longer[s - rank] if s >= rank else 0) for s in range(len(longer))]
    below = 0
    for at, number in enumerate(ways):
        below += number
        if 2.0 * below * 0.5**n > missed:
            return at - 1
    return len(ways) - 1


def _rank(n: int, missed: float) -> int:
    """The largest k for which the k-th smallest and largest of n values miss their median at most so often."""
    below, k = 0.0, 0
    while True:
        below += math.comb(n, k) * 0.5**n
        if 2 * below > missed:
            return max(k - 1, 0)
        k += 1
