"""Finding offers: what a person means by a few words, which offers suit, what each costs for its work."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuwise.errors import AmbiguousNameError, UnknownNameError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.facts.hardware.naming import find_accelerator, named_with_count
from gpuwise.facts.offers.table import Offer
from gpuwise.units import GIGA, PETA

Kind = Literal["on-demand", "spot", "reserved"]
Order = Literal["price", "per-pflop", "per-gb", "age"]
KINDS: tuple[Kind, ...] = ("on-demand", "spot", "reserved")
ORDERS: tuple[Order, ...] = ("price", "per-pflop", "per-gb", "age")


@dataclass(frozen=True, slots=True)
class OfferFilter:
    """Conditions on an offer; None: any."""

    kind: Kind = "on-demand"
    provider: str | None = None
    """Part of the provider's name."""
    region: str | None = None
    """Part of a region's name."""
    count: int | None = None
    """Accelerators in the instance."""
    min_memory_bytes: float | None = None
    """Memory of one accelerator."""
    max_usd_per_hour: float | None = None
    """Price of one accelerator, of the requested kind."""


@dataclass(frozen=True, slots=True)
class PricedOffer:
    """An offer at one kind of price."""

    offer: Offer
    accelerator: Accelerator
    kind: Kind
    usd_per_hour: float
    """Price of one accelerator; reserved: for one year."""

    @property
    def usd_per_pflop_hour(self) -> float | None:
        """US dollars for an hour of 1e15 FLOP/s at the dense bf16 peak: price / (peak / 1e15); None without
        a bf16 rate."""
        peak = self.accelerator.peak_flop_per_s.get("bf16")
        return None if peak is None else self.usd_per_hour / (peak / PETA)

    @property
    def usd_per_gb_hour(self) -> float:
        """US dollars for an hour of 1e9 bytes of accelerator memory."""
        return self.usd_per_hour / (self.accelerator.memory_bytes / GIGA)


def offers_named(query: str, listed: Sequence[Offer]) -> tuple[Offer, ...]:
    """The offers that ``query`` means: those of the named accelerator, of all it may name, or those whose accelerator, provider,
    region and instance contain all of its words; all offers without words.

    Empty for an accelerator without offers. Raises UnknownNameError when no word fits anything.
    """
    if not query.strip():
        return tuple(listed)
    try:
        ids = set(accelerators_of(query))
        return tuple(o for o in listed if o.accelerator_id in ids)
    except UnknownNameError:
        words = query.lower().split()
        matches = tuple(o for o in listed if all(word in _text(o) for word in words))
        if not matches:
            raise
        return matches


def accelerators_of(query: str) -> tuple[str, ...]:
    """The ids that ``query`` may name, or whose name, vendor and family hold all of its words. Raises
    UnknownNameError."""
    try:
        return (find_accelerator(query).id,)
    except AmbiguousNameError as error:
        return tuple(name for name in error.candidates if name in accelerators())
    except UnknownNameError:
        words = query.lower().split()
        ids = tuple(a.id for a in accelerators().values() if words and all(word in _device_text(a) for word in words))
        return ids or named_with_count(query)


def select(listed: Iterable[Offer], offer_filter: OfferFilter) -> tuple[PricedOffer, ...]:
    """The matching offers, each at its price of the requested kind."""
    priced: list[PricedOffer] = []
    for offer in listed:
        usd = price_of_kind(offer, offer_filter.kind)
        accelerator = accelerators()[offer.accelerator_id]
        if (
            usd is not None
            and (offer_filter.provider is None or offer_filter.provider.lower() in offer.provider.lower())
            and (offer_filter.region is None or offer_filter.region.lower() in offer.region.lower())
            and offer_filter.count in (None, offer.count)
            and accelerator.memory_bytes >= (offer_filter.min_memory_bytes or 0.0)
            and (offer_filter.max_usd_per_hour is None or usd <= offer_filter.max_usd_per_hour)
        ):
            priced.append(PricedOffer(offer, accelerator, offer_filter.kind, usd))
    return tuple(priced)


def price_of_kind(offer: Offer, kind: Kind) -> float | None:
    """US dollars per hour and accelerator; None when the offer has no such price."""
    if kind == "spot":
        return offer.spot_usd_per_hour
    if kind == "reserved":
        return offer.reserved_usd_per_hour
    return offer.on_demand_usd_per_hour


def sort_offers(priced: Iterable[PricedOffer], by: Order, today: datetime.date) -> tuple[PricedOffer, ...]:
    """Lowest first; offers known to be out of stock or without such a figure come last."""

    def key(row: PricedOffer) -> tuple[bool, float, float, str]:
        value = {
            "price": row.usd_per_hour,
            "per-pflop": row.usd_per_pflop_hour,
            "per-gb": row.usd_per_gb_hour,
            "age": float(row.offer.age_days(today)),
        }[by]
        out = row.offer.in_stock is False or value is None
        return (out, 0.0 if value is None else value, row.usd_per_hour, row.offer.provider)

    return tuple(sorted(priced, key=key))


def _text(offer: Offer) -> str:
    here = f"{offer.provider} {offer.region} {offer.instance} {offer.kind}".lower()
    return f"{here} {_device_text(accelerators()[offer.accelerator_id])}"


def _device_text(a: Accelerator) -> str:
    memory = "" if a.memory_nominal_gb is None else f" {a.memory_nominal_gb:g}gb"
    return f"{a.id} {a.name} {a.vendor} {a.family} {a.memory_type} {a.form} {a.year}{memory}".lower()
