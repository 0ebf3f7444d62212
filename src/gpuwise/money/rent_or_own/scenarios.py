"""Rent, own or mix: the whole answer from seeded scenarios.

One draw of everything uncertain (demand, prices of hardware, resale, power, people, and the path of rental
prices) judges every way to get the hours, so that comparisons are scenario by scenario. The same seed gives
the same bytes. 100,000 scenarios of three years take less than half a second of processor time
(``benchmarks/monte_carlo_speed.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain

import numpy as np

from gpuwise.errors import InputError
from gpuwise.interval import BAND
from gpuwise.money.rent_or_own.assumptions_text import assumptions, label, notes
from gpuwise.money.rent_or_own.break_even import EachGpu, break_even, each_gpu
from gpuwise.money.rent_or_own.comparison import Floats, Option, PriceFan, RentOrOwn
from gpuwise.money.rent_or_own.demand import HOURS_PER_MONTH, Demand
from gpuwise.money.rent_or_own.engine import CHUNK, Batch, Mix, draw, draw_prices, uncertain_inputs_of
from gpuwise.money.rent_or_own.footprint import Footprint, spread
from gpuwise.money.rent_or_own.mixing import SCENARIOS, MixSearch, best_mix, best_reserved
from gpuwise.money.rent_or_own.ownership import Ownership
from gpuwise.money.rent_or_own.renting import Renting
from gpuwise.money.rent_or_own.sensitivity import SCENARIOS as SENSED
from gpuwise.money.rent_or_own.sensitivity import tornado
from gpuwise.money.rent_or_own.uncertain_inputs import Array

MOST_SCENARIOS = 5_000_000
MOST_MONTHS = 120
_FAN = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


def rent_or_own(
    demand: Demand,
    ownership: Ownership,
    rent: Renting,
    horizon_months: int,
    *,
    n_scenarios: int = 100_000,
    seed: int = 0,
    accelerator: str = "",
    footprint: Footprint | None = None,
) -> RentOrOwn:
    """Every way to get the hours of ``demand`` over ``horizon_months``, the cheapest first.

    Raises InputError for a horizon of less than a month or more than ten years, and for fewer than 100
    scenarios or more than five million.
    """
    _check(horizon_months, n_scenarios, seed)
    main, longer = np.random.SeedSequence(seed).spawn(2)
    batches = _batches(demand, ownership, rent, horizon_months, n_scenarios, np.random.Generator(np.random.PCG64(main)))
    part = next(batches)
    some = part.first(SCENARIOS)
    peak = demand.peak_gpus(horizon_months)
    gpus = ownership.needed(peak)
    mixes, tried = _mixes(some, rent, horizon_months, gpus, peak)
    tallies = {name: _Tally(mix) for name, mix in mixes.items()}
    hours: list[Array] = []
    drawn: list[Batch] = []
    each: list[EachGpu] = []
    for batch in chain([part], batches):
        each.append(each_gpu(batch, gpus))
        if len(drawn) * CHUNK < SENSED:
            drawn.append(batch)
        hours.append(_wide(batch.discounted_hours(), batch.n))
        for tally in tallies.values():
            tally.add(batch)
    totals = {name: tally.total_usd() for name, tally in tallies.items()}
    stacked = np.stack(list(totals.values()))
    wins = np.bincount(np.argmin(stacked, axis=0), minlength=len(totals)) / n_scenarios
    steps = some.by_month()
    delivered = np.concatenate(hours)
    options = sorted(
        (_option(t, name, delivered, steps, float(w), footprint) for (name, t), w in zip(tallies.items(), wins, strict=True)),
        key=lambda o: o.total_usd.expected,
    )
    if options[0].name != "mix":  # owning and renting together must earn its place
        options = [o for o in options if o.name != "mix"]
    best_rent = next(o.name for o in options if not o.owned_gpus)
    difference = totals["own"] - totals[best_rent]
    regret = totals[options[0].name] - stacked.min(axis=0)
    return RentOrOwn(
        demand=demand,
        accelerator=accelerator,
        horizon_months=horizon_months,
        n_scenarios=n_scenarios,
        seed=seed,
        options=tuple(options),
        own_wins=float(np.mean(difference < 0)),
        best_rent=best_rent,
        own_minus_rent_usd=spread(difference),
        regret_usd=spread(regret),
        prices=_fan(rent, some),
        break_even=break_even(demand, ownership, rent, each, steps, gpus, longer),
        bars=tornado(demand, ownership, rent, drawn, mixes["own"], mixes[best_rent], difference),
        mix_counts=tried.counts,
        mix_usd=tried.usd,
        assumptions=assumptions(demand, ownership, rent),
        notes=notes(demand, ownership, rent, horizon_months, gpus),
        beats={o.name: float(np.mean(totals[options[0].name] < totals[o.name])) for o in options[1:]},
    )


class _Tally:
    """A mix, costed batch after batch."""

    def __init__(self, mix: Mix) -> None:
        self.mix, self.n = mix, 0
        self._totals: list[Array] = []
        self._kwh: list[Array] = []
        self._parts: dict[str, float] = {}
        self._hours: dict[str, float] = {}

    def add(self, batch: Batch) -> None:
        costed, n = batch.cost(self.mix), batch.n
        self.n += n
        self._totals.append(_wide(costed.total_usd, n))
        self._kwh.append(_wide(costed.kwh, n))
        for sums, values in ((self._parts, costed.parts_usd), (self._hours, costed.hours)):
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + n * float(np.mean(value, dtype=np.float64))

    def total_usd(self) -> Array:
        return np.concatenate(self._totals)

    def kwh(self) -> Array:
        return np.concatenate(self._kwh)

    def parts_usd(self) -> dict[str, float]:
        return {name: value / self.n for name, value in self._parts.items()}

    def hours(self) -> dict[str, float]:
        return {name: value / self.n for name, value in self._hours.items()}


def _batches(
    demand: Demand, ownership: Ownership, rent: Renting, months: int, n: int, rng: np.random.Generator
) -> Iterator[Batch]:
    """``n`` scenarios, in batches that fit in the processor's cache."""
    uncertain_inputs = uncertain_inputs_of(demand, ownership, rent)
    for start in range(0, n, CHUNK):
        size = min(CHUNK, n - start)
        x = draw(uncertain_inputs, rng, size)
        yield Batch(demand, ownership, rent, x, *draw_prices(rent, rng, months, size), n=size)


def _wide(values: Array, n: int) -> Array:
    return np.broadcast_to(values, (n,))


def _mixes(part: Batch, rent: Renting, months: int, gpus: int, peak: float) -> tuple[dict[str, Mix], MixSearch]:
    """The pure options (own for the peak, on demand, reserved for each term within the horizon, spot), and the best mix if it
    is none of these."""
    mixes = {"own": Mix(gpus), "on-demand": Mix()}
    most = max(1, math.ceil(peak))
    terms = [r for r in rent.reservations if r.months <= months]
    for reservation in terms:
        mixes[reservation.name] = best_reserved(part, reservation, most)
    if rent.spot is not None:
        mixes["spot"] = Mix(top="spot")
    tried = best_mix(part, max(gpus, part.own.for_peak(peak)), most, terms)
    if tried.best not in mixes.values():
        mixes["mix"] = tried.best
    return mixes, tried


def _option(tally: _Tally, name: str, delivered: Array, steps: Batch, win: float, footprint: Footprint | None) -> Option:
    mix, hours, total = tally.mix, tally.hours(), tally.total_usd()
    gpus = mix.owned + mix.reserved
    worked = hours.get("owned", 0.0) + hours.get("reserved", 0.0)
    kwh = None if steps.own.tdp_w is None else spread(tally.kwh())
    grid = None if footprint is None else footprint.kg_co2e_per_kwh
    return Option(
        name=name,
        label=label(mix),
        owned_gpus=mix.owned,
        reserved_gpus=mix.reserved,
        hours=hours,
        total_usd=spread(total),
        usd_per_gpu_hour=spread(total / delivered),
        parts_usd=tally.parts_usd(),
        cheapest_share=win,
        cumulative_usd=_spent(steps, mix),
        utilisation=worked / (gpus * HOURS_PER_MONTH * steps.months) if gpus else None,
        kwh=kwh,
        operational_kgco2e=kwh.scaled(grid) if kwh is not None and grid is not None else None,
        embodied_kgco2e=footprint.embodied(mix.owned, hours) if footprint is not None else None,
    )


def _spent(steps: Batch, mix: Mix) -> Floats:
    """Low end, mean and high end of the spending by the end of each month, ``(3, months + 1)``."""
    spent = steps.spent_by_month(mix)
    low, high = np.quantile(spent, (BAND[0], BAND[-1]), axis=1)
    mean = spent.mean(axis=1)
    return np.stack([np.minimum(low, mean), mean, np.maximum(high, mean)]).astype(np.float64)


def _fan(rent: Renting, part: Batch) -> PriceFan:
    """Percentiles of the on-demand price at the end of each month, from a part of the paths."""
    paths = np.concatenate([part.prices, rent.usd_per_hour * np.atleast_2d(part.last)])
    return PriceFan(
        np.arange(paths.shape[0], dtype=np.float64),
        _FAN,
        np.quantile(paths, _FAN, axis=1).astype(np.float64),
        rent.history,
        rent.process.fitted_on,
    )


def _check(months: int, n: int, seed: int) -> None:
    if not 1 <= months <= MOST_MONTHS:
        raise InputError(f"a horizon of {months} months cannot be", hint="from one month to ten years, for example 3 years")
    if not 100 <= n <= MOST_SCENARIOS:
        raise InputError(f"{n} scenarios cannot be", hint=f"from 100 to {MOST_SCENARIOS:,}")
    if seed < 0:
        raise InputError(f"the seed {seed} is negative", hint="a whole number of at least 0")
