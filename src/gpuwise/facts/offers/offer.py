"""Offers: hourly price of an accelerator, with place and date.

Prices move both ways (an H100 hour fell by a quarter a year until late 2025 and rose by a third in 2026), so every offer has a
date and :meth:`Offer.age_days` returns its age. The shipped table is a dated snapshot; the book is that snapshot with the
user's own prices and those of feeds, newest first.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from types import MappingProxyType
from typing import NamedTuple

from gpuwise.errors import UnpredictableError
from gpuwise.facts.loading import ShippedData, shipped_text
from gpuwise.facts.offers.seal import check_seal
from gpuwise.facts.offers.store import StoredFile, current_files, offers_in, stored_files
from gpuwise.facts.offers.table import OFFER_SCHEMA, Offer, parse_offers, read_offers
from gpuwise.facts.sources import check_shipped_sources

__all__ = [
    "OFFER_SCHEMA",
    "Offer",
    "PriceRange",
    "book",
    "contracts_for",
    "current_by_provider",
    "merge_offers",
    "offers",
    "offers_for",
    "parse_offers",
    "read_offers",
    "stored_history",
    "typical_price_usd_per_hour",
]


class PriceRange(NamedTuple):
    """On-demand US dollars per hour and accelerator."""

    low: float
    median: float
    high: float


@cache
def offers() -> tuple[Offer, ...]:
    """The shipped offers in the order of the file. Raises DataError when it is corrupt."""
    with ShippedData():
        parsed = parse_offers(check_seal(shipped_text("offers.csv"), "offers.csv"), "offers.csv")
    check_shipped_sources("offers.csv", (offer.source_key for offer in parsed))
    return parsed


def book(today: datetime.date | None = None) -> tuple[Offer, ...]:
    """Every offer valid on ``today``: the shipped ones merged with the store.

    The newest of each (provider, region, instance, accelerator, count, kind) counts; if a feed lists an accelerator of a
    provider, older rows of that pair from elsewhere are dropped, except those with the only reserved price. Contracts count
    within their dates; without ``today`` only those without dates. Raises DataError when a file is corrupt.
    """
    return _merge(None, current_files(), today)


def offers_for(accelerator_id: str, today: datetime.date | None = None) -> tuple[Offer, ...]:
    """The offers of one accelerator in the book, cheapest on-demand price first; empty when it has no rental offer. Raises
    DataError when a file is corrupt."""
    return _merge(accelerator_id, current_files(), today)


def contracts_for(accelerator_id: str, today: datetime.date | None = None) -> tuple[Offer, ...]:
    """A person's own contracts for one accelerator that hold on ``today``, cheapest first."""
    return tuple(o for o in offers_for(accelerator_id, today) if o.kind == "contract")


def current_by_provider(accelerator_id: str, today: datetime.date | None = None) -> Mapping[str, Offer]:
    """The cheapest on-demand offer of each provider, cheapest first.

    Offers known to be out of stock are excluded; contracts, which are one customer's price, count only without other offers of
    the accelerator.
    """
    listed = offers_for(accelerator_id, today)
    market = [o for o in listed if o.kind != "contract" and o.in_stock is not False]
    cheapest: dict[str, Offer] = {}
    for offer in market or [o for o in listed if o.kind == "contract"]:
        cheapest.setdefault(offer.provider, offer)
    return MappingProxyType(cheapest)


def typical_price_usd_per_hour(accelerator_id: str, today: datetime.date | None = None) -> PriceRange:
    """Lowest, median and highest on-demand price of one accelerator.

    The median is over providers, each with its cheapest price in stock, so that one with many instances does
    not outvote the rest. Raises UnpredictableError when there is no offer.
    """
    prices = [o.on_demand_usd_per_hour for o in current_by_provider(accelerator_id, today).values()]
    if not prices:
        raise UnpredictableError(
            "no offer for accelerator",
            f"no rental price is known for {accelerator_id}",
            hint="give a price of your own",
        )
    return PriceRange(prices[0], _middle(prices), prices[-1])


def stored_history(accelerator_id: str) -> tuple[tuple[datetime.date, float, int], ...]:
    """Prices of one accelerator from feeds, by day of fetching, oldest first: the day, the median over providers of their
    cheapest on-demand price, and how many providers that is.

    Raises DataError when a stored file is corrupt.
    """
    days: dict[datetime.date, dict[str, float]] = {}
    for file in stored_files():
        for offer in () if file.is_own else offers_in(file, accelerator_id):
            cheapest = days.setdefault(file.day, {})
            usd = offer.on_demand_usd_per_hour
            cheapest[offer.provider] = min(usd, cheapest.get(offer.provider, usd))
    return tuple((day, _middle(by_provider.values()), len(by_provider)) for day, by_provider in sorted(days.items()))


@cache
def _shipped_by_accelerator() -> Mapping[str, tuple[Offer, ...]]:
    by_accelerator: dict[str, list[Offer]] = {}
    for offer in offers():
        by_accelerator.setdefault(offer.accelerator_id, []).append(offer)
    return MappingProxyType({name: tuple(listed) for name, listed in by_accelerator.items()})


@lru_cache(maxsize=1024)
def _merge(accelerator_id: str | None, files: tuple[StoredFile, ...], today: datetime.date | None) -> tuple[Offer, ...]:
    """The shipped offers and those of ``files``, of one accelerator by price or of all in order."""
    shipped = offers() if accelerator_id is None else _shipped_by_accelerator().get(accelerator_id, ())
    own_offers = [o for f in files if f.is_own for o in offers_in(f, accelerator_id)]
    fed = [o for f in files if not f.is_own for o in offers_in(f, accelerator_id)]
    merged = merge_offers(shipped, fed, own_offers, today)
    return merged if accelerator_id is None else tuple(sorted(merged, key=lambda o: o.on_demand_usd_per_hour))


def _middle(prices: Iterable[float]) -> float:
    """The median of at least one price."""
    ordered = sorted(prices)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def merge_offers(
    shipped: Iterable[Offer], fed: Iterable[Offer], own: Iterable[Offer], today: datetime.date | None
) -> tuple[Offer, ...]:
    """The valid offers among shipped, feeds' and own ones, as in :func:`book`; of two on one day the later in order."""
    latest: dict[tuple[object, ...], Offer] = {}
    newest_fed: dict[tuple[str, str], datetime.date] = {}
    fed_reserved: set[tuple[str, str]] = set()
    shipped, fed, own = (tuple(o for o in offers if o.valid_on(today)) for offers in (shipped, fed, own))
    for offer in fed:
        pair = (offer.provider, offer.accelerator_id)
        newest_fed[pair] = max(offer.as_of, newest_fed.get(pair, offer.as_of))
        if offer.reserved_usd_per_hour is not None or offer.reserved_3y_usd_per_hour is not None:
            fed_reserved.add(pair)
    for offer in (*shipped, *fed, *own):
        key = (
            offer.provider,
            offer.region,
            offer.instance,
            offer.accelerator_id,
            offer.count,
            offer.kind,
        )
        before = latest.get(key)
        if before is None or offer.as_of >= before.as_of:
            latest[key] = offer
    return tuple(o for o in latest.values() if not _is_superseded(o, newest_fed, fed_reserved))


def _is_superseded(offer: Offer, newest_fed: Mapping[tuple[str, str], datetime.date], fed_reserved: set[tuple[str, str]]) -> bool:
    pair = (offer.provider, offer.accelerator_id)
    if offer.kind == "contract" or offer.as_of >= newest_fed.get(pair, offer.as_of):
        return False
    reserved = offer.reserved_usd_per_hour is not None or offer.reserved_3y_usd_per_hour is not None
    return not (reserved and pair not in fed_reserved)
