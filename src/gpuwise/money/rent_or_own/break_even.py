"""Break-even of owning and renting on demand: in months, and in hours per month. Both are where the expected totals meet, as
totals are expected ones; their intervals are those of the scenarios.

In months: cumulative spending on owning, without resale, equals that on renting; searched over ten years on price paths of that
length. In hours: an owned GPU has a fixed cost ``F`` and a cost ``v`` for an hour of work of which it does at most ``most``, a
rented one only its price ``P``; present values over the horizon, ``s`` the actual over the stated demand::

    mean(F) = mean((P - v) min(h s, most))      hours h a month and owned GPU, resale counted; one scenario: h = F / (P - v)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from gpuwise.interval import BAND
from gpuwise.money.rent_or_own.comparison import LONGEST_MONTHS, BreakEven, Floats
from gpuwise.money.rent_or_own.demand import HOURS_PER_MONTH, Demand
from gpuwise.money.rent_or_own.engine import DEMAND, Batch, Mix, draw, draw_prices, uncertain_inputs_of
from gpuwise.money.rent_or_own.ownership import Ownership
from gpuwise.money.rent_or_own.renting import Renting
from gpuwise.money.rent_or_own.uncertain_inputs import Array
from gpuwise.predict.estimate import Estimate

SCENARIOS = 2048
"""Enough for percentiles that move by less than a few parts in a hundred from seed to seed."""


EachGpu: TypeAlias = tuple[Floats, Floats, Floats, Floats]


def break_even(
    demand: Demand,
    ownership: Ownership,
    rent: Renting,
    each: Sequence[EachGpu],
    by_month: Batch,
    gpus: int,
    seed: np.random.SeedSequence,
) -> BreakEven:
    """The break-even of ``gpus`` owned ones; ``each`` has all scenarios of the horizon, ``by_month`` those of which the spending
    over time is shown."""
    saved = saved_by_month(demand, ownership, rent, gpus, seed)
    months = crossing(saved)
    hours, meet = hours_to_break_even(each)
    shown = by_month.spent_by_month(Mix()) - by_month.spent_by_month(Mix(gpus))
    return BreakEven(
        months=around(months_to_break_even(shown) or months_to_break_even(saved), months, LONGEST_MONTHS),
        months_never=float(np.mean(~np.isfinite(months))),
        hours_per_month=around(meet, hours, HOURS_PER_MONTH),
        hours_never=float(np.mean(~np.isfinite(hours))),
    )


def each_gpu(batch: Batch, gpus: int) -> EachGpu:
    """Present value of an owned GPU that idles (resale counted), what an hour a month of work saves on it, the most hours that it
    works, and the actual over the stated demand, ``(S,)`` each."""
    ownership, x, total = batch.own, batch.x, float(batch.discounts.sum())
    resale = ownership.resale_usd(gpus, x, batch.months, batch.last) * batch.discounts[-1]
    standing = ownership.hardware_usd(gpus, x) - resale + sum(ownership.fixed_usd(gpus, x, batch.discounts).values())
    idle = HOURS_PER_MONTH * batch.kw_idle * x["usd_per_kwh"] * total
    power_usd = (batch.kw_busy - batch.kw_idle) * x["usd_per_kwh"] * total
    gain = batch.mean_price().astype(np.float64) * total - power_usd
    values = (standing / gpus + idle, gain, HOURS_PER_MONTH * batch.usable, x[DEMAND])
    fixed, gain, most, demand = (np.broadcast_to(np.asarray(v, dtype=np.float64), (batch.n,)) for v in values)
    return fixed, gain, most, demand


def saved_by_month(
    demand: Demand, ownership: Ownership, rent: Renting, gpus: int, seed: np.random.SeedSequence, n: int = SCENARIOS
) -> Array:
    """Spending on renting less that on owning ``gpus`` by the end of month 0 (the purchase), 1, ..., ``(M + 1, n)``. What the
    owned GPUs cannot do is rented on demand."""
    rng = np.random.Generator(np.random.PCG64(seed))
    x = draw(uncertain_inputs_of(demand, ownership, rent), rng, n)
    prices, last = draw_prices(rent, rng, LONGEST_MONTHS, n)
    batch = Batch(demand, ownership, rent, x, prices, last, n=n, most_groups=0)
    return batch.spent_by_month(Mix()) - batch.spent_by_month(Mix(gpus))


def months_to_break_even(saved: Array) -> float | None:
    """Months until owning has paid for itself by what is expected; None where ``saved`` ends before."""
    month = float(crossing(saved.mean(axis=1, keepdims=True))[0])
    return month if np.isfinite(month) else None


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


def hours_to_break_even(each: Sequence[EachGpu]) -> tuple[Floats, float | None]:
    """Hours a month and owned GPU from which owning is cheaper in each scenario, ``(S,)``, infinite where it never is; and from
    which it is by the expected totals, None where it never is."""
    fixed, gain, most, demand = (np.concatenate(parts) for parts in zip(*each, strict=True))
    hours = np.maximum(fixed, 0.0) / np.where(gain > 0, gain, 1.0)
    alone = np.where((gain > 0) & (hours <= most), hours, np.inf)

    def loss(stated: float) -> float:
        return float(np.mean(fixed - gain * np.minimum(stated * demand, most)))

    low, high = 0.0, HOURS_PER_MONTH
    if loss(high) > 0:
        return alone, None
    while high - low > EXACT * HOURS_PER_MONTH:
        middle = (low + high) / 2
        low, high = (middle, high) if loss(middle) > 0 else (low, middle)
    return alone, high


EXACT = 1e-5
"""Of a month: as exactly hours are searched for."""


def around(expected: float | None, values: Floats, most: float) -> Estimate | None:
    """``expected`` within the central 80 % of ``values``, the high end cut at ``most``; None where the totals never meet."""
    if expected is None:
        return None
    low, _, high = np.quantile(np.where(np.isfinite(values), values, most), BAND)
    ends = (min(float(low), expected), max(min(float(high), most), expected))
    first, last = ends if ends[1] - ends[0] > 2 * EXACT * most else (expected, expected)
    return Estimate(first, expected, last, "derived")
