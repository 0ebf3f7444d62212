"""What renting costs: on demand at a price that moves, reserved for a term, or spot with checkpoints.

A reserved GPU is paid for every hour of its term whether it works or not, at a share of the on-demand price of
the day the term begins. A spot hour of work costs::

    on_demand [ share (1 + overhead) (1 - fallback) + fallback ]

with the checkpoint overhead of Young and Daly at the best interval, and ``fallback`` the share of the hours in
which no spot server is to be had and the work runs on demand.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from statistics import median

import numpy as np

from gpuwise.errors import InputError, UnknownNameError, UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.offers.offer import Offer, offers_for
from gpuwise.facts.offers.price_history import history_of, price_history, series_of
from gpuwise.facts.operations import operations
from gpuwise.money.cost import price_of
from gpuwise.money.rent_or_own.demand import MONTHS_PER_YEAR
from gpuwise.money.rent_or_own.ownership import Values
from gpuwise.money.rent_or_own.price_process import PriceProcess, Series, fit_process, still
from gpuwise.money.rent_or_own.uncertain_inputs import Array, UncertainInput, economics, from_quantity
from gpuwise.money.run.checkpointing import optimal_checkpoint

_MOST_USD_PER_HOUR = 10_000.0
MARKET = "median"
"""The series of a price history that is the median over providers."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """GPUs paid for a whole term at a share of the on-demand price of its first day."""

    name: str
    """``reserved-1y`` or ``reserved-3y``."""
    months: int
    share: UncertainInput
    words: str
    """Source of the share."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Servers that may be taken back, with checkpoints at the best interval."""

    share: UncertainInput
    """Share of the on-demand price."""
    reclaim_s: UncertainInput
    restart_s: UncertainInput
    save_s: UncertainInput
    fallback: UncertainInput
    servers_per_job: int = 1
    """A job stops when any of its servers is taken."""
    words: str = ""

    def over_on_demand(self, x: Values) -> Array:
        """Dollars for an hour of work over the on-demand price; 1 where spot would cost more than on demand."""
        mtbf_s = x["spot_reclaim_s"] / self.servers_per_job
        overhead = optimal_checkpoint(x["spot_save_s"], x["spot_restart_s"], mtbf_s).overhead
        spot = x["spot_share"] * (1.0 + overhead)
        return np.minimum(spot, 1.0) * (1.0 - x["spot_fallback"]) + x["spot_fallback"]


@dataclass(frozen=True, slots=True)
class Renting:
    """Ways to rent one kind of GPU."""

    usd_per_hour: float
    """On demand, one GPU, today."""
    process: PriceProcess
    reservations: tuple[Reservation, ...] = ()
    spot: Spot | None = None
    price_words: str = "given"
    price_age_days: int | None = None
    history: tuple[tuple[str, float], ...] = ()
    """Published prices of this GPU by month, to show beside what may come."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.usd_per_hour) and 0 < self.usd_per_hour <= _MOST_USD_PER_HOUR):
            raise InputError(
                f"a rental price of {self.usd_per_hour:g} cannot be", hint="US dollars per GPU and hour, for example 2.5"
            )

    def uncertain_inputs(self) -> Iterator[UncertainInput]:
        """Every uncertain input of the ways to rent that are offered."""
        yield from (r.share for r in self.reservations)
        if self.spot is not None:
            yield from (self.spot.share, self.spot.reclaim_s, self.spot.restart_s, self.spot.save_s, self.spot.fallback)


def rent_of(
    cluster: Cluster,
    today: datetime.date,
    *,
    usd_per_hour: float | None = None,
    provider: str | None = None,
    reserved: tuple[str, ...] | None = None,
    spot: bool = False,
    moving: bool = True,
) -> Renting:
    """Ways to rent this GPU: on demand at the given price, the provider's or the median; reserved at a known price, or with the
    usual discount when ``reserved`` names terms (``1y``, ``3y``; an empty tuple: none).

    Raises UnpredictableError without a price, UnknownNameError for a provider without an offer.
    """
    price = price_of(cluster, today, usd_per_hour=usd_per_hour, provider=provider)
    accelerator_id = cluster.accelerator.id
    if price is None:
        raise UnpredictableError(
            "no offer for accelerator",
            f"{cluster.accelerator.name} has no known rental offer",
            hint="give the price per hour with --rent-price 2",
        )
    offers = [] if usd_per_hour is not None else list(offers_for(accelerator_id, today))
    if provider is not None:
        offers = [o for o in offers if o.provider.lower() == provider.lower()]
    process = _process(accelerator_id) if moving else still()
    return Renting(
        usd_per_hour=price.expected,
        process=process,
        reservations=_reservations(offers, price.expected, reserved),
        spot=_spot(offers) if spot else None,
        price_words=price.provider,
        price_age_days=price.age_days,
        history=_history(accelerator_id),
    )


@cache
def shipped_histories() -> dict[str, Series]:
    """Published market prices by GPU name: medians over providers.

    One provider's list price stays constant for years and then jumps; fitted together with medians it gave bands with 70 %
    coverage instead of 80 %.
    """
    return {accelerators()[name].name: dict(_market(name)) for name in price_history() if MARKET in series_of(name)}


def _market(accelerator_id: str) -> Iterator[tuple[int, float]]:
    for point in history_of(accelerator_id, MARKET):
        yield point.month.year * MONTHS_PER_YEAR + point.month.month - 1, point.usd_per_hour


def _process(accelerator_id: str) -> PriceProcess:
    return fit_process(shipped_histories(), accelerators()[accelerator_id].name)


def _history(accelerator_id: str) -> tuple[tuple[str, float], ...]:
    if MARKET not in series_of(accelerator_id):
        return ()
    return tuple((f"{p.month:%Y-%m}", p.usd_per_hour) for p in history_of(accelerator_id, MARKET))


def _reservations(offers: list[Offer], on_demand: float, chosen_terms: tuple[str, ...] | None) -> tuple[Reservation, ...]:
    terms = {"1y": ("reserved-1y", 12), "3y": ("reserved-3y", 36)}
    for term in chosen_terms or ():
        if term not in terms:
            raise UnknownNameError("term", term, terms, hint="--reserved 1y or --reserved 3y")
    reservations: list[Reservation] = []
    for term, (name, months) in terms.items():
        if chosen_terms is not None and term not in chosen_terms:
            continue
        usual = replace(economics()[f"reserved_{term}"], name=name)
        term_prices = [(_reserved_price(o, term), o.provider) for o in offers]
        prices = sorted((p, provider) for p, provider in term_prices if p is not None)
        if prices and prices[0][0] < on_demand:
            usd, provider = prices[0]
            share = replace(usual.with_range(min(usd / on_demand, 1.0)), source="offers")
            reservations.append(Reservation(name, months, share, f"{provider}, ${usd:.2f}"))
        elif chosen_terms is not None:
            reservations.append(Reservation(name, months, usual, "the usual discount of large clouds"))
    return tuple(reservations)


def _reserved_price(offer: Offer, term: str) -> float | None:
    return offer.reserved_usd_per_hour if term == "1y" else offer.reserved_3y_usd_per_hour


def _spot(offers: list[Offer]) -> Spot:
    """Spot at the median over providers of what a moving spot price is of the same offer's on-demand price."""
    usual, run = economics(), operations()
    some = run["spot_available"]
    ratios: dict[str, float] = {}
    for offer in offers:
        if offer.spot_usd_per_hour is not None and offer.spot_kind == "market":
            ratio = offer.spot_usd_per_hour / offer.on_demand_usd_per_hour
            ratios[offer.provider] = min(ratio, ratios.get(offer.provider, 1.0))
    share, words = usual["spot_share"], "usual share of the on-demand price"
    if ratios:
        share, words = (
            replace(_moved_input(share, median(ratios.values())), source="offers"),
            f"{len(ratios)} providers' spot prices",
        )
    return Spot(
        share=share,
        save_s=usual["spot_save_s"],
        words=words,
        reclaim_s=from_quantity("spot_reclaim_s", run["reclaim_s"], "time until a spot server is taken back"),
        restart_s=from_quantity("spot_restart_s", run["restart_s"], "restart after a spot server is taken back"),
        fallback=UncertainInput(
            "spot_fallback",
            1 - some.high,
            1 - some.expected,
            1 - some.low,
            "of the hours",
            "hours without spot, had on demand",
            some.source_key,
            1.0,
            some.note,
        ),
    )


def _moved_input(uncertain_input: UncertainInput, middle: float) -> UncertainInput:
    """The input with another median and the same relative spread, cut at its maximum."""
    ratio = middle / uncertain_input.expected
    low, mid, high = (
        float(np.minimum(v * ratio, uncertain_input.most))
        for v in (uncertain_input.low, uncertain_input.expected, uncertain_input.high)
    )
    return replace(uncertain_input, low=low, expected=mid, high=high)
