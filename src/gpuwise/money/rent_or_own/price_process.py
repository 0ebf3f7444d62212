"""Future rental prices: a distribution of paths fitted on published monthly prices.

The log price of one GPU-hour is a random walk with drift, seen through the noise of an index::

    x[t+1] = x[t] + mu + sigma * e[t],    y[t] = x[t] + tau * n[t],    e, n ~ N(0, 1)

``sigma`` and ``tau`` come from the variogram (mean squared change over 1 to 12 months, all GPUs pooled), the
drift of a GPU from its own history shrunk towards the mean of all, and that towards no drift at all. The
drift and the volatility keep their uncertainty: each scenario draws its own. No path is a straight line, and
prices go up as well as down: H100 list prices fell 27 % a year to October 2025 and rose 39 % in 2026.

How good it is: :func:`calibration` fits on the past alone and counts how often the 80 % band contains the price 3, 6 and 12
months later. On H100, A100, H200 and B200 to September 2026 it contained 152 of 193 (79 %), and 129 of 161 (80 %) for a GPU
left out of the fit; by GPU from half (B200) to nearly all (H200). The worst starting point was the turn of October 2025, after
which it contained 30 of 44 months, and 4 of 11 for the H100.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.interval import Z80
from gpuwise.money.rent_or_own.uncertain_inputs import Array

Series = Mapping[int, float]
"""US dollars per hour by month, counted from year 0 (``year * 12 + month - 1``); months may be missing."""
LONGEST_LAG = 12
PRIOR_DRIFT_PER_MONTH = 0.20 / 12
"""Standard deviation of a GPU's drift before any history: a fifth a year either way, an estimate. Published
prices of a chip have moved by -27 % to +39 % within a year."""
_FEWEST_CHANGES = 12
_NO_SPREAD = 1e-12


@dataclass(frozen=True, slots=True)
class PriceProcess:
    """A fitted process; all figures are of the natural logarithm of the price, by month."""

    drift: float
    drift_sigma: float
    volatility: float
    """Standard deviation of a month's change."""
    freedom: float
    """Degrees of freedom of the volatility: how many independent changes it was seen in."""
    noise: float
    """Standard deviation of the index around the true price."""
    fitted_on: str
    """The history in words."""

    def paths(self, rng: np.random.Generator, months: int, n: int) -> Array:
        """Prices over today's, ``(months + 1, n)``, float32; the first row is today's, 1."""
        fat = np.sqrt(self.freedom / rng.chisquare(self.freedom, n)).astype(np.float32)
        moves = np.zeros((months + 1, n), dtype=np.float32)
        rng.standard_normal(dtype=np.float32, out=moves[1:])
        moves[1:] *= np.float32(self.volatility) * fat
        moves[1:] += np.float32(self.drift) + np.float32(self.drift_sigma) * fat * rng.standard_normal(n, dtype=np.float32)
        for before, row in pairwise(moves):
            row += before
        return np.exp(moves, out=moves)

    def log_sigma(self, months: Array | float) -> Array:
        """Standard deviation of the log price after that many months (of the normal, before fat tails)."""
        ahead = np.asarray(months, dtype=np.float64)
        return np.sqrt(self.volatility**2 * ahead + (self.drift_sigma * ahead) ** 2)

    def as_dict(self) -> dict[str, object]:
        """The process as JSON values."""
        return {
            "drift_per_year": math.expm1(12 * self.drift),
            "drift_sigma_per_year": 12 * self.drift_sigma,
            "volatility_per_year": self.volatility * math.sqrt(12),
            "fitted_on": self.fitted_on,
        }


def fit_process(histories: Mapping[str, Series], of: str | None = None) -> PriceProcess:
    """The process of the GPU called ``of`` (None, or one without history: a GPU like the others).

    Raises UnpredictableError with fewer than a dozen monthly changes to fit on.
    """
    series = {name: _log(points) for name, points in histories.items() if len(points) > 1}
    lags, squares, counts = _variogram(series)
    if not lags.size or counts[0] < _FEWEST_CHANGES:
        raise UnpredictableError("no price history", "too few published prices to estimate a trend")
    volatility, noise = _fit_variogram(lags, squares, counts)
    alike = _correlation(series)
    spans = np.array([max(s) - min(s) for s in series.values()], dtype=np.float64)
    drifts = np.array([(s[max(s)] - s[min(s)]) for s in series.values()]) / spans
    own_variance = (volatility**2 * spans + 2 * noise**2) / spans**2
    # GPUs move together: several histories of the same months are worth little more than one
    together = 1 + (len(series) - 1) * alike
    weights = spans / spans.sum()
    mean, mean_variance = float(weights @ drifts), float(weights**2 @ own_variance) * together
    between = max(float(np.average((drifts - mean) ** 2, weights=weights)) - float(weights @ own_variance), 0.0)
    drift, variance = _shrink(mean, mean_variance, 0.0, PRIOR_DRIFT_PER_MONTH**2)
    variance += between
    names = list(series)
    if of in names:
        position = names.index(of)
        drift, variance = _shrink(float(drifts[position]), float(own_variance[position]), drift, max(variance, _NO_SPREAD))
    freedom = max(spans.sum() / together, 4.0)
    return PriceProcess(drift, math.sqrt(variance), volatility, float(freedom), noise, _words(series))


def calibration(
    histories: Mapping[str, Series], ahead: Sequence[int] = (3, 6, 12), *, without_own: bool = False
) -> dict[str, tuple[int, int]]:
    """How often the 80 % band, fitted on the past alone, contained the later price: ``{name: (inside, of)}`` by GPU.

    Every month with at least twelve earlier months of history is a starting point. ``without_own`` leaves the predicted GPU
    out of the fit.
    """
    coverage: dict[str, tuple[int, int]] = {}
    for name, points in histories.items():
        inside = total = 0
        for now in sorted(points):
            past = {n: {m: p for m, p in s.items() if m <= now} for n, s in histories.items() if not (without_own and n == name)}
            try:
                process = fit_process(past, name)
            except UnpredictableError:
                continue
            for months in ahead:
                if now + months in points:
                    change = math.log(points[now + months] / points[now]) - process.drift * months
                    sigma = math.sqrt(float(process.log_sigma(months)) ** 2 + 2 * process.noise**2)
                    inside += abs(change) <= Z80 * sigma
                    total += 1
        coverage[name] = (inside, total)
    return coverage


def still() -> PriceProcess:
    """A process in which prices do not move."""
    return PriceProcess(0.0, 0.0, 0.0, 4.0, 0.0, "held still")


def _log(points: Series) -> dict[int, float]:
    for month, price in points.items():
        if not (math.isfinite(price) and price > 0):
            raise InputError(f"a price of {price} in month {month} cannot be", hint="prices are US dollars per hour")
    return {month: math.log(points[month]) for month in sorted(points)}


def _variogram(series: Mapping[str, Mapping[int, float]]) -> tuple[Array, Array, Array]:
    """Lags in months, mean squared change of the log price over each, and how many changes that is."""
    lags: list[int] = []
    squares: list[float] = []
    counts: list[int] = []
    for lag in range(1, LONGEST_LAG + 1):
        changes = [s[m + lag] - s[m] for s in series.values() for m in s if m + lag in s]
        if changes:
            lags.append(lag)
            squares.append(float(np.mean(np.square(changes))))
            counts.append(len(changes))
    return np.array(lags), np.array(squares), np.array(counts)


def _fit_variogram(lags: Array, squares: Array, counts: Array) -> tuple[float, float]:
    """(sigma, tau) of ``sigma^2 lag + 2 tau^2``, weighted by changes over the squared size of each, none below zero."""
    weights = counts / (squares + _NO_SPREAD) ** 2 / lags  # overlapping changes repeat each other
    slope, level = np.polyfit(lags, squares, 1, w=np.sqrt(weights)) if lags.size > 1 else (squares[0], 0.0)
    if level < 0:
        slope, level = float(np.sum(weights * lags * squares) / np.sum(weights * lags**2)), 0.0
    if slope < 0:
        slope, level = 0.0, float(np.average(squares, weights=weights))
    return math.sqrt(slope), math.sqrt(level / 2)


def _correlation(series: Mapping[str, Mapping[int, float]]) -> float:
    """Mean correlation of three-month changes between GPUs, 0 to 1; 1 when it cannot be seen."""
    changes = [{m: s[m + 3] - s[m] for m in s if m + 3 in s} for s in series.values()]
    both = top = bottom = 0.0
    for i, one in enumerate(changes):
        for other in changes[i + 1 :]:
            shared = one.keys() & other.keys()
            for month in shared:
                top += one[month] * other[month]
                bottom += (one[month] ** 2 + other[month] ** 2) / 2
            both += len(shared)
    return min(max(top / bottom, 0.0), 1.0) if both >= _FEWEST_CHANGES and bottom > 0 else 1.0


def _shrink(value: float, variance: float, towards: float, prior_variance: float) -> tuple[float, float]:
    """Mean and variance of a normal observation under a normal prior."""
    weight = prior_variance / (prior_variance + variance)
    return towards + weight * (value - towards), weight * variance


def _words(series: Mapping[str, Mapping[int, float]]) -> str:
    first, last = min(min(s) for s in series.values()), max(max(s) for s in series.values())
    return f"{len(series)} GPUs, {first // 12}-{first % 12 + 1:02d} to {last // 12}-{last % 12 + 1:02d}"
