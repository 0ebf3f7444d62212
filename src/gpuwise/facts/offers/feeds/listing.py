"""From priced instances to offers: one price per accelerator, honest spot prices, regions put together.

Every feed's parser ends here, so the same traps are shut for all of them.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpuwise.facts.offers.feeds.names import FeedProvider
from gpuwise.facts.offers.feeds.tally import ParsedFeed, Tally
from gpuwise.facts.offers.table import MOST_USD_PER_HOUR, Offer
from gpuwise.text import single_line

SAME_SHARE = 0.01
"""Tolerance within which spot shares of the on-demand price on all products count as one posted share (Verda: 0.35 on all)."""
FEWEST_FOR_A_POLICY = 3
"""Minimum number of products with a spot price for an equal share to be significant."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One instance type in one place, priced as a whole."""

    instance: str
    region: str
    accelerator_id: str
    count: int
    on_demand_usd: float
    """US dollars per hour for the whole instance."""
    spot_usd: float | None


def offers_of(
    listed: Iterable[Listing], feed_provider: FeedProvider, source_key: str, day: datetime.date, tally: Tally, rows: int
) -> ParsedFeed:
    """The offers of one provider: the cheapest zone of each region, spot prices only where they can be
    believed, regions of one price in one row."""
    cheapest: dict[tuple[str, str, str, int], Listing] = {}
    for item in listed:
        reason = _refusal(item, feed_provider)
        if reason is not None:
            tally.add(reason, f"{item.instance} in {item.region}")
            continue
        item = _with_honest_spot(item, feed_provider, tally)
        key = (item.instance, item.region, item.accelerator_id, item.count)
        before = cheapest.get(key)
        cheapest[key] = item if before is None else _cheaper(before, item)
    listings = tuple(cheapest.values())
    if _is_placeholder_list(listings):
        tally.add("the same price for every accelerator is a placeholder", f"{listings[0].instance}", len(listings))
        listings = ()
    spot_kind = "policy" if _is_policy(listings) else feed_provider.spot_kind
    return ParsedFeed(_join_regions(listings, feed_provider, spot_kind, source_key, day), tally.skipped(), rows)


def _refusal(item: Listing, feed_provider: FeedProvider) -> str | None:
    usd = item.on_demand_usd
    if not math.isfinite(usd) or usd <= 0:
        return "no on-demand price"
    if feed_provider.placeholder_usd is not None and usd == feed_provider.placeholder_usd:
        return f"placeholder price of {usd:g}"
    if usd / item.count > MOST_USD_PER_HOUR:
        return f"more than {MOST_USD_PER_HOUR:g} $/h an accelerator"
    return None


def _with_honest_spot(item: Listing, feed_provider: FeedProvider, tally: Tally) -> Listing:
    spot = item.spot_usd
    if spot is None:
        return item
    where = f"{item.instance} in {item.region}"
    if not feed_provider.spot_kind:
        tally.add("spot price dropped: the provider sells none", where)
    elif not math.isfinite(spot) or spot <= 0:
        tally.add("spot price dropped: zero stands for none", where)
    elif spot >= item.on_demand_usd:
        tally.add("spot price dropped: not below the on-demand price", f"{where}: {spot:g} $/h")
    else:
        return item
    return replace(item, spot_usd=None)


def _cheaper(a: Listing, b: Listing) -> Listing:
    """One instance type in two zones of a region: the lower price of each kind."""
    spots = [x.spot_usd for x in (a, b) if x.spot_usd is not None]
    lower = min(a, b, key=lambda x: x.on_demand_usd)
    return replace(lower, spot_usd=min(spots) if spots else None)


def _is_placeholder_list(listings: tuple[Listing, ...]) -> bool:
    """Whether several different accelerators all cost the same whole dollars (Mithril lists 1 $ for any)."""
    each = {item.on_demand_usd / item.count for item in listings}
    return len(each) == 1 and each.pop().is_integer() and len({item.accelerator_id for item in listings}) > 1


def _is_policy(listings: tuple[Listing, ...]) -> bool:
    shares: dict[tuple[str, int], float] = {}
    for item in listings:
        if item.spot_usd is not None:
            shares[item.accelerator_id, item.count] = item.spot_usd / item.on_demand_usd
    products = {accelerator_id for accelerator_id, _ in shares}
    close = max(shares.values(), default=0.0) - min(shares.values(), default=0.0) <= SAME_SHARE
    return close and len(products) >= FEWEST_FOR_A_POLICY


def _join_regions(
    listings: Iterable[Listing], feed_provider: FeedProvider, spot_kind: str, source_key: str, day: datetime.date
) -> tuple[Offer, ...]:
    """One offer for all regions of an instance type with the same prices."""
    regions: dict[tuple[str, str, int, float, float | None], set[str]] = {}
    for item in listings:
        key = (item.instance, item.accelerator_id, item.count, item.on_demand_usd, item.spot_usd)
        regions.setdefault(key, set()).add(clean(item.region))
    offers: list[Offer] = []
    for (instance, accelerator_id, count, usd, spot), names in regions.items():
        offers.append(
            Offer(
                provider=feed_provider.provider,
                region="" if feed_provider.regions == "open" else ";".join(sorted(names - {""})),
                instance=clean(instance),
                accelerator_id=accelerator_id,
                count=count,
                on_demand_usd_per_hour=usd / count,
                spot_usd_per_hour=None if spot is None else spot / count,
                reserved_usd_per_hour=None,
                as_of=day,
                kind=feed_provider.kind,
                source_key=source_key,
                spot_kind="" if spot is None else spot_kind,
            )
        )
    offers.sort(key=lambda o: (o.accelerator_id, o.on_demand_usd_per_hour, o.instance, o.region))
    return tuple(offers)


def clean(text: str) -> str:
    """A feed's text as one line without control characters; a region without its leading comma."""
    return " ".join(single_line(text).replace(";", ",").split()).strip(" ,#")[:120]


def by_offer(offers: Iterable[Offer]) -> Mapping[tuple[str, str, str, int], Offer]:
    """Offers by their subject; of several regions the cheapest."""
    by_key: dict[tuple[str, str, str, int], Offer] = {}
    for offer in offers:
        key = (offer.provider, offer.instance, offer.accelerator_id, offer.count)
        before = by_key.get(key)
        if before is None or offer.on_demand_usd_per_hour < before.on_demand_usd_per_hour:
            by_key[key] = offer
    return by_key
