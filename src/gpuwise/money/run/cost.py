"""The bill of a whole training run: its hours (:mod:`gpuwise.money.run.goodput`), storage, egress, power and carbon.

Every hour is the same machines at the same price, so the items of compute are shares of one time: they move
together with it, and apart in their own shares. Storage and egress are added to them as they stand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuwise.errors import UnpredictableError
from gpuwise.facts.grid import PowerPrice
from gpuwise.facts.models.known_runs import known_runs
from gpuwise.facts.operations import operations
from gpuwise.money.carbon import Carbon, carbon
from gpuwise.money.combine import exactly, product, sum_independent, sum_together
from gpuwise.money.power import PowerBudget, is_personal, of_quantity
from gpuwise.money.run.goodput import Operation, Run, operate
from gpuwise.money.run.interruptions import Interruptions
from gpuwise.predict.estimate import Estimate, weakest
from gpuwise.units import DAY_S, GIGA, HOUR_S

MONTH_S = 365.25 / 12 * DAY_S


@dataclass(frozen=True, slots=True)
class Line:
    """One item of the bill."""

    name: str
    usd: Estimate
    hours: Estimate | None = None
    """Hours of the whole cluster; None where the item is not time."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class RunCost:
    """The bill. ``total_usd`` expects the sum of the lines."""

    run: Run
    lines: tuple[Line, ...]
    total_usd: Estimate
    usd_per_hour: float
    """Mean price of an accelerator-hour used in the lines; 0 on the user's own machine."""
    wall_s: Estimate
    stops: Interruptions
    evaluation: Estimate
    idle: Estimate
    """Shares of the training time."""
    stored_gb: Mapping[str, float]
    """Mean 1e9 bytes at rest over the run: checkpoints, weights, data."""
    power: PowerBudget | None
    kwh: Estimate | None
    kwh_parts: Mapping[str, float]
    """Expected, by item of the power budget; they sum to ``kwh.expected``."""
    electricity: PowerPrice | None
    electricity_usd: Estimate | None
    """Electricity at the grid's price; part of the bill only on the user's own machine, otherwise part of the rent."""
    carbon: Carbon

    @property
    def accelerator_hours(self) -> float:
        """Hours of wall time times accelerators, interruptions included."""
        return self.wall_s.expected / HOUR_S * self.run.cluster.n_accelerators

    @property
    def effective(self) -> float:
        """Share of the paid time that is training."""
        return self.run.time_s.expected / self.wall_s.expected


def run_cost(run: Run, done: Operation | None = None) -> RunCost:
    """The bill of ``run``, with its hours in ``done`` if already computed.

    Raises InputError on invalid figures, and UnpredictableError without a rent or electricity price, or when the run would not
    end.
    """
    done = done or operate(run)
    t, shares, wall, stops = run.time_s, done.shares, done.wall_s, done.stops
    rate = _usd_per_hour(run)
    times = [product([t, share]) for share in shares.values()]
    lines = [
        Line(name, _usd(time_s, rate, run.cluster.n_accelerators), time_s.scaled(1 / HOUR_S), why)
        for name, time_s, why in zip(shares, times, _reasons(stops), strict=True)
    ]
    stored, extra = _beside(run, done)
    paid, power_usd = _electricity(run, done.kwh)
    if run.price is None:
        lines = [Line(x.name, exactly(0.0), x.hours, x.why) for x in lines]
    return RunCost(
        run,
        (*lines, *extra),
        _total_usd(run, done, extra),
        rate.expected,
        wall,
        stops,
        shares["evaluation"],
        shares["debugging and idle"],
        stored,
        done.power,
        done.kwh,
        done.kwh_parts,
        paid,
        power_usd,
        carbon(done.kwh, wall, run.cluster, run.grid),
    )


def run_usd(run: Run, done: Operation) -> Estimate:
    """The total of :func:`run_cost` alone. Raises what it raises."""
    return _total_usd(run, done, _beside(run, done)[1])


def _total_usd(run: Run, done: Operation, extra: Sequence[Line]) -> Estimate:
    rent = [] if run.price is None else [_usd(done.wall_s, _usd_per_hour(run), run.cluster.n_accelerators)]
    return sum_together([*rent, *(x.usd for x in extra)])


def _beside(run: Run, done: Operation) -> tuple[dict[str, float], list[Line]]:
    """Mean 1e9 bytes stored, and the lines beside rented time: storage, egress, electricity of the user's own machine."""
    stored, lines = _storage(run, done.wall_s)
    power_usd = _electricity(run, done.kwh)[1] if run.price is None else None
    if run.price is None and power_usd is None:
        raise _no_price(run)
    power = [] if power_usd is None else [Line("electricity", power_usd, None, "of your own machine")]
    return stored, [*power, *lines, _egress(run, done.wall_s)]


def published_usd(model_id: str, run: Run, tokens: float) -> tuple[float, ...]:
    """Cost in US dollars, at the rent of ``run``, of the GPU hours of each published training of the model on its accelerator,
    scaled to ``tokens``."""
    if run.price is None:
        return ()
    alike = [known for known in known_runs().get(model_id, ()) if known.accelerator_id == run.cluster.accelerator.id]
    return tuple(known.gpu_hours_per_token * tokens * run.price.expected for known in alike)


def _electricity(run: Run, kwh: Estimate | None) -> tuple[PowerPrice | None, Estimate | None]:
    """The grid's price (a household's for a personal computer) and the cost of the run's energy at it."""
    sector = "household" if run.price is None and is_personal(run.cluster) else "industrial"
    paid = None if run.grid is None else run.grid.price(sector)
    if paid is None or kwh is None:
        return paid, None
    return paid, kwh.scaled(paid.usd_per_kwh)


def _usd_per_hour(run: Run) -> Estimate:
    """Mean price of an accelerator-hour; on spot, blended with the hours on demand when none is to be had."""
    if run.price is None:
        return exactly(0.0)
    on_demand, spot = run.price.expected, run.spot_usd_per_hour
    if spot is None:
        return run.price.per_hour
    share = operations()["spot_available"]
    low, expected, high = (on_demand + (spot - on_demand) * s for s in (share.high, share.expected, share.low))
    return Estimate(min(low, expected), expected, max(high, expected), "derived")


def _usd(time_s: Estimate, rate: Estimate, n_accelerators: int) -> Estimate:
    cost = product([time_s, rate]).scaled(n_accelerators / HOUR_S)
    return Estimate(cost.low, cost.expected, cost.high, weakest(time_s.basis, rate.basis))


def _storage(run: Run, wall: Estimate) -> tuple[dict[str, float], list[Line]]:
    """Storage: full checkpoints replace each other; weights saved along the way accumulate, half of them on average."""
    facts = operations()
    states = of_quantity(facts["kept_states"]).scaled(run.state_bytes / GIGA)
    weights = of_quantity(facts["kept_weights"]).scaled(run.weight_bytes / GIGA / 2)
    month_usd = wall.scaled(run.storage.usd_per_gb_month / MONTH_S)
    checkpoints_usd = product([sum_independent([states, weights]), month_usd])
    data = month_usd.scaled(run.data_bytes / GIGA)
    at = f"at ${run.storage.usd_per_gb_month:g} a GB-month"
    lines = [Line("checkpoint storage", checkpoints_usd, None, at), Line("data storage", data, None, at)]
    return {"checkpoints": states.expected, "weights": weights.expected, "data": run.data_bytes / GIGA}, lines


def _egress(run: Run, wall: Estimate) -> Line:
    """Egress: the trained weights once, unless the user states an amount."""
    gb = run.weight_bytes / GIGA if run.egress_gb is None else run.egress_gb
    free = run.storage.free_egress_gb_month * max(math.ceil(wall.expected / MONTH_S), 1)
    usd = max(gb - free, 0.0) * run.storage.egress_usd_per_gb
    what = "the trained weights" if run.egress_gb is None else "as given"
    return Line("egress", exactly(usd), None, f"{what}, {gb:,.3g} GB at ${run.storage.egress_usd_per_gb:g}")


def _reasons(stops: Interruptions) -> tuple[str, ...]:
    return (
        "the plan's time",
        "validation and benchmarks",
        f"{stops.checkpoints:,.0f} checkpoints",
        f"since the last checkpoint, {stops.stops.expected:,.2g} stops",
        "until work resumes",
        "paid, not training",
    )


def _no_price(run: Run) -> UnpredictableError:
    return UnpredictableError(
        "no price",
        f"there is no rent or electricity price for {run.cluster.accelerator.name}"
        + ("" if run.grid is None else f" in {run.grid.name}"),
        hint="give the rent with --price (of `cost` --rent-price), or a country with a known electricity price: --country DE",
    )
