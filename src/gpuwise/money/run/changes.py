"""What would change the bill of a run: each change is the same run costed again."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from gpuwise.errors import UnpredictableError
from gpuwise.facts.grid import PROVIDERS, Grid, grids
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.offers.offer import Offer, offers_for
from gpuwise.money.cost import Price
from gpuwise.money.run.cost import RunCost, run_cost
from gpuwise.units import KILO

WORTH_SAYING = 0.005
"""A change of less than this share of money or carbon is not shown."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing done otherwise, and the difference it is expected to make (negative: less)."""

    name: str
    usd: float
    wall_s: float
    kg_co2e: float | None


def changes(cost: RunCost, today: datetime.date) -> tuple[Change, ...]:
    """Recommended changes, the largest saving first."""
    run, options = cost.run, list[Change]()
    if run.price is not None and run.spot_usd_per_hour is None:
        spot = spot_usd_per_hour(run.cluster, today, None)
        if spot is not None and spot < run.price.expected:
            options += _try(cost, f"on spot at ${spot:.2f}, taken back as often as on AWS in 2023", spot_usd_per_hour=spot)
    offer = None if run.price is None else _cheapest(run.cluster, today)
    if run.price is not None and offer is not None and offer.on_demand_usd_per_hour < run.price.expected:
        usd = offer.on_demand_usd_per_hour
        price = Price(usd, usd, usd, offer.provider, offer.as_of, offer.as_of, offer.age_days(today), 1)
        name = f"at {offer.provider}, ${usd:.2f} a GPU and hour on {offer.as_of.isoformat()}"
        options += _try(cost, name, price=price, spot_usd_per_hour=None)
    if not run.background and run.cluster.accelerator.pcie_bytes_per_s is not None:
        options += _try(cost, "checkpoints written in the background", background=True)
    if run.grid is not None:
        green = _greenest(run.grid)
        if green is not None:
            options += _try(cost, f"in {green.name}, {green.kg_co2e_per_kwh * KILO:.0f} g/kWh", grid=green)
    return tuple(sorted(options, key=lambda c: c.usd))


def _cheapest(cluster: Cluster, today: datetime.date) -> Offer | None:
    """The cheapest on-demand offer with as many accelerators as a host needs that is not known to be out of stock."""
    whole = min(cluster.system.count, cluster.n_accelerators)
    fitting = [o for o in offers_for(cluster.accelerator.id, today) if o.count >= whole and o.in_stock is not False]
    return min(fitting, key=lambda o: o.on_demand_usd_per_hour, default=None)


def spot_usd_per_hour(cluster: Cluster, today: datetime.date, provider: str | None) -> float | None:
    """The spot price of an accelerator: a provider's cheapest, or the median over providers; None without an offer. Fixed
    discounts that are not a spot market count only if there are no others."""
    offers = [
        o
        for o in offers_for(cluster.accelerator.id, today)
        if o.spot_usd_per_hour is not None and (provider is None or o.provider.lower() == provider.lower())
    ]
    market = [o for o in offers if o.spot_kind == "market"] or offers
    cheapest: dict[str, float] = {}
    for offer in market:
        usd = offer.spot_usd_per_hour or 0.0
        cheapest[offer.provider] = min(usd, cheapest.get(offer.provider, usd))
    return median(cheapest.values()) if cheapest else None


def _try(cost: RunCost, name: str, **values: object) -> Sequence[Change]:
    try:
        other = run_cost(replace(cost.run, **values))  # pyright: ignore[reportArgumentType]
    except UnpredictableError:
        return ()
    usd = other.total_usd.expected - cost.total_usd.expected
    now, then = cost.carbon.total_kg, other.carbon.total_kg
    kg = None if now is None or then is None else then.expected - now.expected
    shares = [abs(usd) / cost.total_usd.expected, abs(kg or 0.0) / (now.expected if now else 1.0)]
    if max(shares) < WORTH_SAYING:
        return ()
    return (Change(name, usd, other.wall_s.expected - cost.wall_s.expected, kg),)


def _greenest(grid: Grid) -> Grid | None:
    """The cloud region with the least carbon: of the same cloud where one is named; None when it is this."""
    cloud = grid.key.partition(":")[0]
    regions = [g for g in grids().values() if g.scope == "region" and (cloud not in PROVIDERS or g.key.startswith(cloud + ":"))]
    best = min(regions, key=lambda g: g.kg_co2e_per_kwh)
    return best if best.kg_co2e_per_kwh < grid.kg_co2e_per_kwh else None
