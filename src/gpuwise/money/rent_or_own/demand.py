"""Demand in GPU-hours, month by month, and its distribution inside a month.

A GPU-hour is an hour of work delivered by one GPU. Inside a month the load takes a few levels, each for a share of the hours;
a level is so many GPUs at once, over the mean of the month. The hours delivered by owned capacity then have a closed form:
capacity ``C`` (GPUs that work at once) under mean load ``D`` leaves ``sum(share * max(level * D - C, 0))`` to be rented.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpuwise.errors import InputError
from gpuwise.money.rent_or_own.uncertain_inputs import Array, UncertainInput, economics

HOURS_PER_MONTH = 730.0
"""A twelfth of a year of 8,760 hours."""
MONTHS_PER_YEAR = 12
_MOST_GPU_HOURS = 1e12
_MOST_GROWTH = 9.0


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand in GPU-hours per month.

    ``gpu_hours_per_month`` is the mean of the first year. Raises InputError for a demand that is not positive and finite, a
    peak below the mean, or a profile without exactly twelve figures.
    """

    gpu_hours_per_month: float
    peak_over_mean: float = 1.0
    """Most GPUs at once over the mean: 1 is a steady load."""
    peak_share: float | None = None
    """Share of the hours at the peak. None: half of the work is done at the peak, an estimate."""
    growth_per_year: float = 0.0
    """0.5: half as much again every year, month by month; -0.2: a fifth less."""
    profile: tuple[float, ...] = ()
    """Twelve weights, one a calendar month from the first on; only their ratios count."""
    spread: UncertainInput | None = None
    """Actual over stated demand; None: the default estimate."""

    def __post_init__(self) -> None:
        _check(0 < self.gpu_hours_per_month <= _MOST_GPU_HOURS, "GPU-hours a month", self.gpu_hours_per_month, "10000/month")
        _check(1 <= self.peak_over_mean <= 1000, "the peak over the mean", self.peak_over_mean, "3 (at least 1)")
        _check(-1 < self.growth_per_year <= _MOST_GROWTH, "the growth a year", self.growth_per_year, "50%")
        if self.peak_share is not None and not 0 < self.peak_share * self.peak_over_mean <= 1:
            raise InputError(
                f"a load {self.peak_over_mean:g} times the mean cannot last {self.peak_share:.0%} of the time",
                hint=f"at most {1 / self.peak_over_mean:.0%}, or a lower peak",
            )
        if self.profile:
            good = len(self.profile) == MONTHS_PER_YEAR and all(math.isfinite(w) and w >= 0 for w in self.profile)
            if not good or sum(self.profile) <= 0:
                raise InputError("the profile is not twelve figures of at least 0", hint="for example 1,1,1,1,1,1,2,2,1,1,1,1")

    @property
    def shape(self) -> str:
        """``steady`` or ``bursts``."""
        return "steady" if self.peak_over_mean == 1 else "bursts"

    @property
    def drift(self) -> UncertainInput:
        """The uncertainty of the demand: demanded over stated."""
        return economics()["demand_spread"] if self.spread is None else self.spread

    def levels(self) -> tuple[Array, Array]:
        """Shares of the hours ``(L,)`` and GPUs at once over the mean ``(L,)``: shares sum to 1, their
        product to 1."""
        peak = self.peak_over_mean
        if peak == 1:
            return np.ones(1), np.ones(1)
        share = 0.5 / peak if self.peak_share is None else self.peak_share
        base = 0.0 if share == 1 else max((1 - share * peak) / (1 - share), 0.0)
        return np.array([share, 1 - share]), np.array([peak, base])

    def by_month(self, months: int) -> Array:
        """Demand in GPU-hours of each month, shape ``(months,)``; the first year's mean is ``gpu_hours_per_month``."""
        month = np.arange(months)
        weights = np.ones(MONTHS_PER_YEAR) if not self.profile else np.array(self.profile)
        weights = weights / weights.mean()
        growth = (1 + self.growth_per_year) ** (month / MONTHS_PER_YEAR)
        first_year = (1 + self.growth_per_year) ** (np.arange(MONTHS_PER_YEAR) / MONTHS_PER_YEAR) * weights
        return self.gpu_hours_per_month * weights[month % MONTHS_PER_YEAR] * growth / first_year.mean()

    def peak_gpus(self, months: int) -> float:
        """Maximum GPUs at work at once in the first ``months`` months, as stated (without spread)."""
        return float(self.by_month(months).max()) / HOURS_PER_MONTH * self.peak_over_mean

    def as_dict(self) -> dict[str, object]:
        """The demand as JSON values."""
        return {
            "gpu_hours_per_month": self.gpu_hours_per_month,
            "shape": self.shape,
            "peak_over_mean": self.peak_over_mean,
            "peak_share": float(self.levels()[0][0]) if self.shape == "bursts" else None,
            "growth_per_year": self.growth_per_year,
            "profile": list(self.profile),
            "spread": self.drift.as_dict(),
        }


def beyond(capacity: Array, mean_load: Array, shares: Array, levels: Array) -> Array:
    """GPUs, averaged over the hours, that a load needs beyond ``capacity`` GPUs.

    ``capacity`` and ``mean_load`` broadcast together; ``shares`` and ``levels`` are those of
    :meth:`Demand.levels`. Zero capacity returns ``mean_load``.
    """
    total = shares[0] * np.maximum(levels[0] * mean_load - capacity, 0.0)
    for share, level in zip(shares[1:], levels[1:], strict=True):
        total += share * np.maximum(level * mean_load - capacity, 0.0)
    return total


def _check(good: bool, what: str, value: float, example: str) -> None:
    if not good or not math.isfinite(value):
        raise InputError(f"{what}: {value:g} cannot be", hint=f"write it like {example}")
