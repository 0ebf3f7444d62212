"""The bill of a whole training run: its work, what is lost on the way, storage, egress, power and carbon.

With T the time of the training itself, e the share of evaluation, o what checkpoints and stops add to work
and i the share of paid but idle hours, the machines are paid for::

    wall = T (1 + e) (1 + o) + T i

Every hour is the same machines at the same price, so the items of compute are shares of one time: they move
together with T, and apart in their own shares. Storage and egress are added to them as they stand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.grid import Grid, PowerPrice
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.offers.storage import StoragePrice
from gpuwise.facts.operations import Site, operations, sites
from gpuwise.money.carbon import Carbon, carbon
from gpuwise.money.combine import exactly, product, sum_independent, sum_together
from gpuwise.money.cost import Price
from gpuwise.money.power import PowerBudget, cluster_power, is_personal, of_quantity
from gpuwise.money.run.interruptions import Interruptions, causes, interruptions
from gpuwise.predict.estimate import Estimate, weakest
from gpuwise.units import DAY_S, GIGA, HOUR_S, J_PER_KWH

MONTH_S = 365.25 / 12 * DAY_S


@dataclass(frozen=True, slots=True)
class Run:
    """What is run, where, and at which prices. None: the usual figure."""

    time_s: Estimate
    """Of the training itself, uninterrupted."""
    cluster: Cluster
    price: Price | None
    """Rent of an accelerator; None on one's own machine, which pays for electricity instead."""
    state_bytes: float
    """A full checkpoint."""
    weight_bytes: float
    """The weights alone, as they are kept and taken away."""
    data_bytes: float
    """Training data at rest."""
    storage: StoragePrice
    grid: Grid | None = None
    site: Site | None = None
    pue: float | None = None
    spot_usd_per_hour: float | None = None
    """Of an accelerator on spot, in place of ``price`` while spot is to be had."""
    evaluation_share: float | None = None
    egress_gb: float | None = None
    write: Estimate | None = None
    """Measured write rate of the storage, B/s."""
    background: bool = False
    """Checkpoints are written beside the training; it waits for a copy into host memory alone."""


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
    """Mean price of an accelerator-hour that the lines stand on; 0 on one's own machine."""
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
    """At the grid's price; part of the bill only on one's own machine, of the rent elsewhere."""
    carbon: Carbon

    @property
    def accelerator_hours(self) -> float:
        return self.wall_s.expected / HOUR_S * self.run.cluster.n_accelerators

    @property
    def effective(self) -> float:
        """Share of the paid time that is training."""
        return self.run.time_s.expected / self.wall_s.expected


def run_cost(run: Run) -> RunCost:
    """The bill of ``run``. Raises InputError on figures that cannot be meant, and UnpredictableError when
    neither a rent nor an electricity price is known, or when the run would not end."""
    _check(run)
    facts, t = operations(), run.time_s
    evaluation = _share(run.evaluation_share, "evaluation_share")
    idle = of_quantity(facts["idle_share"])
    work_s = t.expected * (1.0 + evaluation.expected)
    spot = run.spot_usd_per_hour is not None
    why = causes(run.cluster, run.state_bytes, spot=spot, write=run.write, background=run.background)
    stops = interruptions(work_s, why)
    one = exactly(1.0, "derived")
    more = Estimate(1.0 + evaluation.low, 1.0 + evaluation.expected, 1.0 + evaluation.high, "derived")
    lost = [product([more, x]) for x in (stops.saving, stops.rework, stops.restarting)]
    shares = {
        "training": one,
        "evaluation": evaluation,
        "writing checkpoints": lost[0],
        "lost work": lost[1],
        "restarts": lost[2],
        "debugging and idle": idle,
    }
    wall = product([t, sum_independent(list(shares.values()))])
    energy = _energy(run, t, shares)
    rate = _usd_per_hour(run)
    lines = [
        Line(name, _usd(product([t, share]), rate, run.cluster.n_accelerators), product([t, share]).scaled(1 / HOUR_S), why)
        for (name, share), why in zip(shares.items(), _reasons(stops), strict=True)
    ]
    compute = _usd(wall, rate, run.cluster.n_accelerators)
    stored, held = _storage(run, wall)
    out = _egress(run, wall)
    extra = [*held, out]
    paid, power_usd = _electricity(run, energy)
    if run.price is None:
        if power_usd is None:
            raise _no_price(run)
        lines = [Line(x.name, exactly(0.0), x.hours, x.why) for x in lines]
        compute, extra = power_usd, [Line("electricity", power_usd, None, "of one's own machine"), *extra]
        total = sum_together([x.usd for x in extra])
    else:
        total = sum_together([compute, *(x.usd for x in extra)])
    return RunCost(
        run,
        (*lines, *extra),
        total,
        rate.expected,
        wall,
        stops,
        evaluation,
        idle,
        stored,
        energy.budget,
        energy.kwh,
        energy.parts,
        paid,
        power_usd,
        carbon(energy.kwh, wall, run.cluster, run.grid),
    )


@dataclass(frozen=True, slots=True)
class _Energy:
    budget: PowerBudget | None
    kwh: Estimate | None
    parts: Mapping[str, float]


def _energy(run: Run, t: Estimate, shares: Mapping[str, Estimate]) -> _Energy:
    """Work and rework at training power; writing, restarts and debugging at idle power."""
    site = run.site or (sites()["data-centre"] if run.price is not None else None)
    busy = cluster_power(run.cluster, site=site, pue=run.pue)
    idle = cluster_power(run.cluster, workload="idle", site=site, pue=run.pue)
    if busy is None or idle is None:
        return _Energy(None, None, {})
    still = ("writing checkpoints", "restarts", "debugging and idle")
    kwh: list[Estimate] = []
    parts = dict.fromkeys(busy.items(), 0.0)
    for group, budget in ((False, busy), (True, idle)):
        share = sum_independent([s for name, s in shares.items() if (name in still) is group])
        kwh.append(product([t, share, budget.total_w.scaled(1 / J_PER_KWH)]))
        for name, watts in budget.items().items():
            parts[name] += t.expected * share.expected * watts.expected / J_PER_KWH
    return _Energy(busy, sum_together(kwh), parts)


def _electricity(run: Run, energy: _Energy) -> tuple[PowerPrice | None, Estimate | None]:
    """The grid's price (a household's for one's own computer) and what the run's energy costs at it."""
    sector = "household" if run.price is None and is_personal(run.cluster) else "industrial"
    paid = None if run.grid is None else run.grid.price(sector)
    if paid is None or energy.kwh is None:
        return paid, None
    return paid, energy.kwh.scaled(paid.usd_per_kwh)


def _usd_per_hour(run: Run) -> Estimate:
    """Mean price of an accelerator-hour; on spot, blended with the hours on demand when none is to be had."""
    if run.price is None:
        return exactly(0.0)
    on_demand, spot = run.price.expected, run.spot_usd_per_hour
    if spot is None:
        return exactly(on_demand)
    share = operations()["spot_available"]
    low, expected, high = (on_demand + (spot - on_demand) * s for s in (share.high, share.expected, share.low))
    return Estimate(min(low, expected), expected, max(high, expected), "derived")


def _usd(time_s: Estimate, rate: Estimate, n_accelerators: int) -> Estimate:
    cost = product([time_s, rate]).scaled(n_accelerators / HOUR_S)
    return Estimate(cost.low, cost.expected, cost.high, weakest(time_s.basis, rate.basis))


def _storage(run: Run, wall: Estimate) -> tuple[dict[str, float], list[Line]]:
    """Full checkpoints are replaced as they come; weights kept along the way pile up, half of them on average."""
    facts = operations()
    states = of_quantity(facts["kept_states"]).scaled(run.state_bytes / GIGA)
    weights = of_quantity(facts["kept_weights"]).scaled(run.weight_bytes / GIGA / 2)
    month_usd = wall.scaled(run.storage.usd_per_gb_month / MONTH_S)
    kept = product([sum_independent([states, weights]), month_usd])
    data = month_usd.scaled(run.data_bytes / GIGA)
    at = f"at ${run.storage.usd_per_gb_month:g} a GB-month"
    lines = [Line("checkpoint storage", kept, None, at), Line("data storage", data, None, at)]
    return {"checkpoints": states.expected, "weights": weights.expected, "data": run.data_bytes / GIGA}, lines


def _egress(run: Run, wall: Estimate) -> Line:
    """What is taken away: the trained weights once, unless the person says how much."""
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
        "until work goes on",
        "paid, not training",
    )


def _share(given: float | None, name: str) -> Estimate:
    return of_quantity(operations()[name]) if given is None else exactly(given)


def _no_price(run: Run) -> UnpredictableError:
    return UnpredictableError(
        "no price",
        f"neither a rent nor an electricity price is known for {run.cluster.accelerator.name}"
        + ("" if run.grid is None else f" in {run.grid.name}"),
        hint="give the rent with --price, or a country whose electricity price is known, such as --country DE",
    )


def _check(run: Run) -> None:
    """Raises InputError on a figure that cannot be meant."""
    if not (math.isfinite(run.time_s.expected) and run.time_s.expected > 0 and run.time_s.low > 0):
        raise InputError(f"a run of {run.time_s.expected:g} seconds", hint="the time must be positive")
    for name, value in (("weights", run.weight_bytes), ("data", run.data_bytes)):
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} of {value:g} bytes", hint="give a number of bytes of at least 0")
    if run.evaluation_share is not None and not 0 <= run.evaluation_share <= 10:
        raise InputError(
            f"evaluation cannot take {run.evaluation_share:g} of the training time",
            hint="0.02 is two hours of evaluation for a hundred of training",
        )
    if run.egress_gb is not None and not (math.isfinite(run.egress_gb) and run.egress_gb >= 0):
        raise InputError(f"{run.egress_gb:g} GB cannot be taken away", hint="give a number of at least 0")
    spot = run.spot_usd_per_hour
    if spot is not None and (run.price is None or not (math.isfinite(spot) and spot > 0)):
        raise InputError("a spot price must be positive and needs a price on demand beside it", hint="give both")
