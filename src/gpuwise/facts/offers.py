"""Offers: what an hour of an accelerator costs, where, and on which day it did.

Prices move both ways (an H100 hour fell by a quarter a year until late 2025 and rose by a third in 2026), so
every offer carries its date and :meth:`Offer.age_days` says how old it is. The shipped table is a dated
sample for ranking systems; a person's own table is read by :func:`read_offers` under the same rules.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from gpuwise.errors import DataError, FieldError, UnpredictableError
from gpuwise.facts.accelerators import accelerators, sources
from gpuwise.facts.loading import Field, Record, parse_csv, read_user_text, shipped_text
from gpuwise.facts.seal import check_seal

_MOST_USD_PER_HOUR = 1000.0
"""Above any rented accelerator; catalogues hold placeholders such as 700."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One thing one could rent. Prices are US dollars per hour and accelerator, without storage, egress and
    tax."""

    provider: str
    region: str
    """``cheapest`` when the source keeps only the cheapest configuration of a provider."""
    instance: str
    """The provider's name for it; empty when the source does not say."""
    accelerator_id: str
    count: int
    """Accelerators in the instance the price is for."""
    on_demand_usd_per_hour: float
    spot_usd_per_hour: float | None
    reserved_usd_per_hour: float | None
    """One year, nothing paid ahead."""
    as_of: datetime.date
    kind: str
    """``list`` (the provider's price), ``marketplace`` (what one host asked) or ``contract`` (a person's
    own)."""
    source_key: str
    """The row of ``data/sources.csv``; a person's own file may name anything."""
    spot_kind: str = ""
    """``market`` (the spot price moves) or ``policy`` (a fixed share of the on-demand price, which says
    nothing about demand); empty without a spot price."""
    reserved_3y_usd_per_hour: float | None = None
    network: str = ""
    """Between instances, as the provider states it (``efa 3200 Gbit/s``); empty when it does not."""
    in_stock: bool | None = None
    """Whether it could be had on that day; None when the source does not say."""

    def age_days(self, today: datetime.date) -> int:
        """Days since the price was read; negative for a date to come."""
        return (today - self.as_of).days


class PriceRange(NamedTuple):
    """On-demand US dollars per hour and accelerator."""

    low: float
    median: float
    high: float


OFFER_SCHEMA: dict[str, Field] = {
    "provider": Field("text"),
    "region": Field("text", required=False),
    "instance": Field("text", required=False),
    "accelerator": Field("text"),
    "count": Field("integer", maximum=100_000),
    "on_demand_usd_h": Field("number", maximum=_MOST_USD_PER_HOUR),
    "spot_usd_h": Field("number", required=False, maximum=_MOST_USD_PER_HOUR),
    "spot_kind": Field("text", required=False, choices=("market", "policy")),
    "reserved_usd_h": Field("number", required=False, maximum=_MOST_USD_PER_HOUR),
    "reserved_3y_usd_h": Field("number", required=False, maximum=_MOST_USD_PER_HOUR),
    "network": Field("text", required=False),
    "in_stock": Field("flag", required=False),
    "as_of": Field("date"),
    "kind": Field("text", choices=("list", "marketplace", "contract")),
    "source": Field("text"),
}


@cache
def offers() -> tuple[Offer, ...]:
    """The shipped offers in the order of the file. Raises DataError when it is corrupt."""
    try:
        found = parse_offers(check_seal(shipped_text("offers.csv"), "offers.csv"), "offers.csv")
    except FieldError as error:
        raise DataError(error.message, hint=error.hint) from error
    missing = {offer.source_key for offer in found} - set(sources())
    if missing:
        raise DataError(f"offers.csv cites {', '.join(sorted(missing))}, not in sources.csv")
    return found


def read_offers(path: Path) -> tuple[Offer, ...]:
    """Offers from a person's CSV file. Raises FieldError with file, line and hint."""
    return parse_offers(read_user_text(path), str(path))


def parse_offers(text: str, file: str) -> tuple[Offer, ...]:
    """Offers from CSV text. Raises FieldError."""
    return tuple(_offer(record) for record in parse_csv(text, OFFER_SCHEMA, file))


def offers_for(accelerator_id: str) -> tuple[Offer, ...]:
    """The shipped offers of one accelerator, cheapest on-demand price first; empty when nobody rents it
    out."""
    return _by_accelerator().get(accelerator_id, ())


def typical_price_usd_per_hour(accelerator_id: str) -> PriceRange:
    """Lowest, median and highest shipped on-demand price of one accelerator.

    The median is over providers, each with its cheapest price, so that one with many instances does not
    outvote the rest. Raises UnpredictableError when there is no offer.
    """
    cheapest: dict[str, float] = {}
    for offer in offers_for(accelerator_id):
        cheapest.setdefault(offer.provider, offer.on_demand_usd_per_hour)
    if not cheapest:
        raise UnpredictableError(
            "no offer for accelerator",
            f"no rental price is known for {accelerator_id}",
            hint="give a price of your own",
        )
    prices = sorted(cheapest.values())
    middle = len(prices) // 2
    median = prices[middle] if len(prices) % 2 else (prices[middle - 1] + prices[middle]) / 2
    return PriceRange(prices[0], median, prices[-1])


@cache
def _by_accelerator() -> Mapping[str, tuple[Offer, ...]]:
    found: dict[str, list[Offer]] = {}
    for offer in sorted(offers(), key=lambda o: o.on_demand_usd_per_hour):
        found.setdefault(offer.accelerator_id, []).append(offer)
    return MappingProxyType({name: tuple(listed) for name, listed in found.items()})


def _offer(record: Record) -> Offer:
    accelerator_id = record.text("accelerator")
    if accelerator_id not in accelerators():
        raise record.error(
            f"accelerator {accelerator_id!r} is not an id of the catalogue", field="accelerator",
            hint="use an id such as h100-sxm-80gb",
        )  # fmt: skip
    on_demand = record.number("on_demand_usd_h")
    for column in ("spot_usd_h", "reserved_usd_h", "reserved_3y_usd_h"):
        other = record.maybe(column)
        if other is not None and other > on_demand:
            raise record.error(
                f"{column} {other:g} is above the on-demand price {on_demand:g}", field=column,
                hint="prices are per accelerator, not per instance",
            )  # fmt: skip
    if (record.maybe("spot_usd_h") is None) != (record.text("spot_kind") == ""):
        raise record.error(
            "spot_usd_h and spot_kind go together", field="spot_kind",
            hint="spot_kind is market (the price moves) or policy (a fixed share of the on-demand price)",
        )  # fmt: skip
    return Offer(
        provider=record.text("provider"),
        region=record.text("region"),
        instance=record.text("instance"),
        accelerator_id=accelerator_id,
        count=record.integer("count"),
        on_demand_usd_per_hour=on_demand,
        spot_usd_per_hour=record.maybe("spot_usd_h"),
        reserved_usd_per_hour=record.maybe("reserved_usd_h"),
        as_of=record.date("as_of"),
        kind=record.text("kind"),
        source_key=record.text("source"),
        spot_kind=record.text("spot_kind"),
        reserved_3y_usd_per_hour=record.maybe("reserved_3y_usd_h"),
        network=record.text("network"),
        in_stock=record.maybe_flag("in_stock"),
    )
