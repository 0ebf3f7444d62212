"""Break-even of owning and renting on demand: in months, and in hours per month.

In months: cumulative spending on owning, without resale, equals that on renting; searched over ten years on price paths of that
length. In hours: an owned GPU has a fixed cost ``F`` and a cost ``v`` for an hour of work, a rented one only its price ``P``;
both present values over the horizon::

    h = F / (P - v)      hours a month and owned GPU, resale counted; never when P <= v or h is more than a month has
"""

from __future__ import annotations

import numpy as np

from gpuwise.interval import BAND
from gpuwise.money.rent_or_own.comparison import LONGEST_MONTHS, BreakEven, Floats
from gpuwise.money.rent_or_own.demand import HOURS_PER_MONTH, Demand
from gpuwise.money.rent_or_own.engine import Batch, Mix, draw, draw_prices, uncertain_inputs_of
from gpuwise.money.rent_or_own.ownership import Ownership
from gpuwise.money.rent_or_own.renting import Renting
from gpuwise.money.rent_or_own.uncertain_inputs import Array
from gpuwise.predict.estimate import Estimate

SCENARIOS = 2048
"""Enough for percentiles that move by less than a few parts in a hundred from seed to seed."""


def break_even(
    demand: Demand, ownership: Ownership, rent: Renting, batch: Batch, gpus: int, seed: np.random.SeedSequence
) -> BreakEven:
    """The break-even of ``gpus`` owned ones; ``batch`` has the scenarios of the horizon."""
    months = months_to_break_even(demand, ownership, rent, gpus, seed)
    hours, _ = hours_to_break_even(batch, gpus)
    return BreakEven(
        months=capped(months, LONGEST_MONTHS),
        months_never=float(np.mean(~np.isfinite(months))),
        hours_per_month=capped(hours, HOURS_PER_MONTH),
        hours_never=float(np.mean(~np.isfinite(hours))),
    )


def months_to_break_even(
    demand: Demand, ownership: Ownership, rent: Renting, gpus: int, seed: np.random.SeedSequence, n: int = SCENARIOS
) -> Floats:
    """Months until owning ``gpus`` has paid for itself in each scenario, ``(n,)``; infinite when it does not within
    :data:`LONGEST_MONTHS`. What the owned GPUs cannot do is rented on demand."""
    rng = np.random.Generator(np.random.PCG64(seed))
    x = draw(uncertain_inputs_of(demand, ownership, rent), rng, n)
    prices, last = draw_prices(rent, rng, LONGEST_MONTHS, n)
    batch = Batch(demand, ownership, rent, x, prices, last, n=n, most_groups=0)
    return crossing(batch.spent_by_month(Mix()) - batch.spent_by_month(Mix(gpus)))


def crossing(saved: Array) -> Floats:
    """Row at which each column of ``saved`` ``(M + 1, S)`` first reaches zero from below, interpolated linearly; infinite if
    it never does."""
    above = saved >= 0
    reached = above.any(axis=0)
    row = np.argmax(above, axis=0)
    column = np.arange(saved.shape[1], dtype=np.intp)
    now, before = saved[row, column], saved[np.maximum(row - 1, 0), column]
    rise = np.where(row > 0, now - before, 1.0)
    exact = np.where(row > 0, row - now / np.where(rise > 0, rise, 1.0), 0.0)
    return np.where(reached, exact, np.inf)


def hours_to_break_even(batch: Batch, gpus: int) -> tuple[Floats, Floats]:
    """Hours a month and owned GPU from which owning is cheaper, infinite where it never is, and the most an owned
    GPU can deliver; ``(S,)`` each."""
    fixed, variable, price = _per_gpu(batch, gpus)
    gain = price - variable
    most = HOURS_PER_MONTH * np.broadcast_to(batch.usable, gain.shape)
    hours = np.maximum(fixed, 0.0) / np.where(gain > 0, gain, 1.0)
    return np.where((gain > 0) & (hours <= most), hours, np.inf), np.asarray(most, dtype=np.float64)


def capped(values: Floats, most: float) -> Estimate | None:
    """Median and central 80 % of ``values``, the high end cut at ``most``; None when the median is infinite."""
    low, middle, high = np.quantile(np.where(np.isfinite(values), values, 1e12), BAND)
    if middle >= 1e12 * 0.5:
        return None
    return Estimate(float(low), float(middle), float(min(high, most)), "derived")


def _per_gpu(batch: Batch, gpus: int) -> tuple[Floats, Floats, Floats]:
    """Present value of an owned GPU that idles (resale counted), of an hour a month of work on it beyond that, of an
    hour a month on demand, ``(S,)`` each."""
    ownership, x, total = batch.own, batch.x, float(batch.discounts.sum())
    resale = ownership.resale_usd(gpus, x, batch.months, batch.last) * batch.discounts[-1]
    standing = ownership.hardware_usd(gpus, x) - resale + sum(ownership.fixed_usd(gpus, x, batch.discounts).values())
    idle = HOURS_PER_MONTH * batch.kw_idle * x["usd_per_kwh"] * total
    power_usd = (batch.kw_busy - batch.kw_idle) * x["usd_per_kwh"] * total
    price = batch.mean_price().astype(np.float64) * total
    fixed, variable, price = np.broadcast_arrays(standing / gpus + idle, power_usd, price)
    return fixed, variable, price
