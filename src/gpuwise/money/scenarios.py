"""Rent, own or mix: the whole answer from seeded scenarios.

One draw of everything uncertain (demand, prices of hardware, resale, power, people, and the path of rental
prices) judges every way to get the hours, so that comparisons are scenario by scenario. The same seed gives
the same bytes. 100,000 scenarios of three years take less than half a second of processor time
(``benchmarks/monte_carlo_speed.py``).
"""

from __future__ import annotations

import math

import numpy as np

from gpuwise.errors import InputError
from gpuwise.money.break_even import break_even
from gpuwise.money.comparison import BAND, Option, PriceFan, RentOrOwn
from gpuwise.money.demand import HOURS_PER_MONTH, Demand
from gpuwise.money.drivers import Array
from gpuwise.money.engine import Batch, Costed, Mix, Top, draw, draw_prices, first, spread_drivers
from gpuwise.money.footprint import Footprint, spread
from gpuwise.money.mixing import SCENARIOS, best_mix, best_reserved
from gpuwise.money.ownership import Ownership
from gpuwise.money.renting import Renting
from gpuwise.money.sensitivity import tornado
from gpuwise.money.told import assumptions, label, notes

MOST_SCENARIOS = 5_000_000
MOST_MONTHS = 120
_FAN = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
_BINS = 60


def rent_or_own(
    demand: Demand, own: Ownership, rent: Renting, horizon_months: int, *, n_scenarios: int = 100_000, seed: int = 0,
    accelerator: str = "", footprint: Footprint | None = None,
) -> RentOrOwn:  # fmt: skip
    """Every way to get the hours of ``demand`` over ``horizon_months``, the cheapest first.

    Raises InputError for a horizon of less than a month or more than ten years, and for fewer than 100
    scenarios or more than five million.
    """
    _check(horizon_months, n_scenarios, seed)
    main, longer = np.random.SeedSequence(seed).spawn(2)
    rng = np.random.Generator(np.random.PCG64(main))
    x = draw(spread_drivers(demand, own, rent), rng, n_scenarios)
    prices, last = draw_prices(rent, rng, horizon_months, n_scenarios)
    batch = Batch(demand, own, rent, x, prices, last)
    part = Batch(demand, own, rent, first(x, SCENARIOS), prices[:, :SCENARIOS], last[:SCENARIOS])
    steps = Batch(demand, own, rent, first(x, SCENARIOS), prices[:, :SCENARIOS], last[:SCENARIOS], by_month=True)
    peak = demand.peak_gpus(horizon_months)
    gpus = own.needed(peak)
    tops: tuple[Top, ...] = ("on-demand",) if rent.spot is None else ("on-demand", "spot")
    tried = best_mix(part, max(gpus, own.for_peak(peak)), max(1, math.ceil(peak)), tops)
    mixes = _mixes(part, rent, horizon_months, gpus, peak, tops)
    if tried.best.owned and tried.best not in mixes.values():
        mixes["mix"] = tried.best
    costed = {name: batch.cost(mix) for name, mix in mixes.items()}
    totals = {name: np.broadcast_to(c.total_usd, (n_scenarios,)) for name, c in costed.items()}
    cheapest = np.argmin(np.stack(list(totals.values())), axis=0)
    wins = np.bincount(cheapest, minlength=len(totals)) / n_scenarios
    hours = np.broadcast_to(batch.discounted_hours(), (n_scenarios,))
    options = tuple(
        _option(name, costed[name], hours, steps, float(win), own, footprint)
        for name, win in zip(costed, wins, strict=True)
    )  # fmt: skip
    options = tuple(sorted(options, key=lambda o: o.total_usd.expected))
    best_rent = next(o.name for o in options if not o.owned_gpus)
    difference = totals["own"] - totals[best_rent]
    counts, edges = np.histogram(difference, bins=_BINS)
    regret = totals[options[0].name] - np.min(np.stack(list(totals.values())), axis=0)
    return RentOrOwn(
        demand=demand, accelerator=accelerator, horizon_months=horizon_months, n_scenarios=n_scenarios, seed=seed,
        options=options, own_wins=float(np.mean(difference < 0)), best_rent=best_rent,
        own_minus_rent_usd=spread(difference), difference_edges=edges.astype(np.float64),
        difference_counts=counts.astype(np.float64), regret_usd=spread(regret),
        prices=_fan(rent, prices, last), break_even=break_even(demand, own, rent, part, gpus, longer),
        bars=tornado(demand, own, rent, batch, mixes["own"], mixes[best_rent], difference),
        mix_counts=tried.counts, mix_usd=tried.usd, assumptions=assumptions(demand, own, rent),
        notes=notes(demand, own, rent, horizon_months, gpus),
    )  # fmt: skip


def _mixes(part: Batch, rent: Renting, months: int, gpus: int, peak: float, tops: tuple[Top, ...]) -> dict[str, Mix]:
    """The plain ways: own for the peak, on demand, reserved for each term the horizon holds, spot."""
    mixes = {"own": Mix(gpus), "on-demand": Mix()}
    for reservation in rent.reservations:
        if reservation.months <= months:
            mixes[reservation.name] = best_reserved(part, reservation, max(1, math.ceil(peak)))
    if "spot" in tops:
        mixes["spot"] = Mix(top="spot")
    return mixes


def _option(
    name: str, costed: Costed, hours: Array, steps: Batch, win: float, own: Ownership, footprint: Footprint | None
) -> Option:
    mix = costed.mix
    mean_hours = {layer: float(np.mean(value, dtype=np.float64)) for layer, value in costed.hours.items()}
    held = mix.owned + mix.reserved
    worked = mean_hours.get("owned", 0.0) + mean_hours.get("reserved", 0.0)
    power_known = own.tdp_w is not None
    spent = np.quantile(steps.spent_by_month(mix), BAND, axis=1)
    return Option(
        name=name, label=label(mix), owned_gpus=mix.owned, reserved_gpus=mix.reserved, hours=mean_hours,
        total_usd=spread(costed.total_usd), usd_per_gpu_hour=spread(costed.total_usd / hours),
        parts_usd={part: float(np.mean(value, dtype=np.float64)) for part, value in costed.parts_usd.items()},
        cheapest_share=win, cumulative_usd=spent,
        utilisation=worked / (held * HOURS_PER_MONTH * steps.months) if held else None,
        kwh=spread(costed.kwh) if power_known else None,
        operational_kgco2e=footprint.operational(costed.kwh) if footprint is not None and power_known else None,
        embodied_kgco2e=footprint.embodied(mix.owned, mean_hours) if footprint is not None else None,
    )  # fmt: skip


def _fan(rent: Renting, prices: Array, last: Array) -> PriceFan:
    """Percentiles of the on-demand price at the end of each month, from a part of the paths."""
    some = np.concatenate([prices[:, :SCENARIOS], rent.usd_per_hour * last[None, :SCENARIOS]])
    return PriceFan(
        np.arange(some.shape[0], dtype=np.float64), _FAN, np.quantile(some, _FAN, axis=1).astype(np.float64), rent.history,
        rent.process.fitted_on,
    )  # fmt: skip


def _check(months: int, n: int, seed: int) -> None:
    if not 1 <= months <= MOST_MONTHS:
        raise InputError(f"a horizon of {months} months cannot be", hint="from one month to ten years, for example 3 years")
    if not 100 <= n <= MOST_SCENARIOS:
        raise InputError(f"{n} scenarios cannot be", hint=f"from 100 to {MOST_SCENARIOS:,}")
    if seed < 0:
        raise InputError(f"the seed {seed} is negative", hint="a whole number of at least 0")
