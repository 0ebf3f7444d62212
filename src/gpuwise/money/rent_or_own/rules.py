"""Where a rule of thumb holds: "rent below 100 GPU-hours a month, buy above 1,000".

The rule names no GPU and no price, so it is judged for each: at both numbers of hours, how often is owning cheaper,
and at how many hours a month do the two meet? What is owned comes in whole servers, which is what the rule
forgets: eight H100 for 100 hours a month stand idle 98 % of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuwise.interval import BAND
from gpuwise.money.rent_or_own.demand import HOURS_PER_MONTH, Demand
from gpuwise.money.rent_or_own.engine import Batch, Mix, draw, draw_prices, uncertain_inputs_of
from gpuwise.money.rent_or_own.ownership import Ownership
from gpuwise.money.rent_or_own.renting import Renting
from gpuwise.money.rent_or_own.uncertain_inputs import Array
from gpuwise.predict.estimate import Estimate

RENT_BELOW, BUY_ABOVE = 100.0, 1000.0
"""GPU-hours a month of the rule."""
SCENARIOS = 512
_FEWEST_HOURS = 10.0
_POINTS = 16


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """The rule for one GPU at one rental price."""

    accelerator: str
    usd_per_hour: float
    own_wins_at: dict[float, float]
    """Share of the scenarios in which owning is cheaper, by GPU-hours a month."""
    owned_gpus: dict[float, int]
    break_even: Estimate | None
    """GPU-hours a month from which owning is cheaper; None when it never is up to all that the owned GPUs can do."""

    def as_dict(self) -> dict[str, object]:
        return {
            "accelerator": self.accelerator,
            "usd_per_gpu_hour": self.usd_per_hour,
            "own_wins": {f"{hours:g}": share for hours, share in self.own_wins_at.items()},
            "owned_gpus": {f"{hours:g}": gpus for hours, gpus in self.owned_gpus.items()},
            "break_even_hours_per_month": None if self.break_even is None else self.break_even.as_dict(),
            "rent_holds": self.rent_holds,
            "buy_holds": self.buy_holds,
        }

    @property
    def rent_holds(self) -> bool:
        """Renting is cheaper at :data:`RENT_BELOW` in most scenarios."""
        return self.own_wins_at[RENT_BELOW] < 0.5

    @property
    def buy_holds(self) -> bool:
        """Owning is cheaper at :data:`BUY_ABOVE` in most scenarios."""
        return self.own_wins_at[BUY_ABOVE] > 0.5


def check_rule(
    accelerator: str,
    ownership: Ownership,
    rent: Renting,
    months: int,
    price_factors: Sequence[float] = (0.5, 1.0, 2.0),
    *,
    seed: int = 0,
) -> list[RuleCheck]:
    """The rule for steady demands of this GPU, its rental price times each factor."""
    return [
        _check(accelerator, ownership, replace(rent, usd_per_hour=rent.usd_per_hour * f), months, seed) for f in price_factors
    ]


def _check(accelerator: str, ownership: Ownership, rent: Renting, months: int, seed: int) -> RuleCheck:
    wins = {hours: float(np.mean(_difference(hours, ownership, rent, months, seed) < 0)) for hours in (RENT_BELOW, BUY_ABOVE)}
    needed = {hours: ownership.needed(hours / HOURS_PER_MONTH) for hours in wins}
    grid = np.geomspace(
        _FEWEST_HOURS, max(ownership.gpus_per_server * HOURS_PER_MONTH * ownership.usable, 2 * _FEWEST_HOURS), _POINTS
    )
    apart = [_difference(float(h), ownership, rent, months, seed) for h in grid]
    ends = np.array([(np.quantile(d, BAND[0]), d.mean(), np.quantile(d, BAND[-1])) for d in apart])
    low, middle, high = (_first_below(grid, ends[:, i]) for i in range(3))
    break_even = (
        None if middle is None else Estimate(min(low or middle, middle), middle, max(high or float(grid[-1]), middle), "derived")
    )
    return RuleCheck(accelerator, rent.usd_per_hour, wins, needed, break_even)


def _difference(hours: float, ownership: Ownership, rent: Renting, months: int, seed: int) -> Array:
    """(own - rent on demand) at the given hours per month, ``(S,)``; the same scenarios for the same seed."""
    demand = Demand(hours)
    rng = np.random.Generator(np.random.PCG64(seed))
    x = draw(uncertain_inputs_of(demand, ownership, rent), rng, SCENARIOS)
    batch = Batch(demand, ownership, rent, x, *draw_prices(rent, rng, months, SCENARIOS), n=SCENARIOS)
    mix = Mix(ownership.needed(hours / HOURS_PER_MONTH))
    return np.broadcast_to(batch.cost(mix).total_usd - batch.cost(Mix()).total_usd, (SCENARIOS,))


def _first_below(grid: Array, values: Array) -> float | None:
    """Point at which ``values`` first fall below zero, interpolated linearly."""
    below = np.flatnonzero(values < 0)
    if not below.size:
        return None
    i = int(below[0])
    if i == 0:
        return float(grid[0])
    share = values[i - 1] / (values[i - 1] - values[i])
    return float(grid[i - 1] + share * (grid[i] - grid[i - 1]))
