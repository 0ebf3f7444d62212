"""The table of offers: rows, reader and writer.

The shipped table, the user's own prices and feeds all use this format.
"""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuwise.facts.hardware.accelerators import check_accelerator
from gpuwise.facts.loading import Field, Record, parse_csv
from gpuwise.files import read_text

MOST_USD_PER_HOUR = 1000.0
"""Above any rented accelerator; catalogues hold placeholders such as 700."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One thing one could rent. Prices are US dollars per hour and accelerator, without storage, egress and
    tax."""

    provider: str
    region: str
    """``cheapest`` when the source keeps only the cheapest configuration of a provider; several with the
    same price are joined with ``;``."""
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
    """``market`` (the spot price moves) or ``policy`` (a fixed share of the on-demand price, independent of demand); empty
    without a spot price."""
    reserved_3y_usd_per_hour: float | None = None
    network: str = ""
    """Between instances, as the provider states it (``efa 3200 Gbit/s``); empty when it does not."""
    in_stock: bool | None = None
    """Whether it could be had on that day; None when the source does not say."""
    valid_from: datetime.date | None = None
    """First day of a contract; None: from always."""
    valid_to: datetime.date | None = None
    """Last day of a contract; None: without end."""

    def age_days(self, today: datetime.date) -> int:
        """Days since the price was read; negative for a date to come."""
        return (today - self.as_of).days

    def valid_on(self, day: datetime.date | None) -> bool:
        """Whether the price holds on ``day``; without a day only prices that always hold do."""
        if day is None:
            return self.valid_from is None and self.valid_to is None
        return (self.valid_from or day) <= day <= (self.valid_to or day)


OFFER_SCHEMA: dict[str, Field] = {
    "provider": Field("text"),
    "region": Field("text", required=False),
    "instance": Field("text", required=False),
    "accelerator": Field("text"),
    "count": Field("integer", maximum=100_000),
    "on_demand_usd_h": Field("number", maximum=MOST_USD_PER_HOUR),
    "spot_usd_h": Field("number", required=False, maximum=MOST_USD_PER_HOUR),
    "spot_kind": Field("text", required=False, choices=("market", "policy")),
    "reserved_usd_h": Field("number", required=False, maximum=MOST_USD_PER_HOUR),
    "reserved_3y_usd_h": Field("number", required=False, maximum=MOST_USD_PER_HOUR),
    "network": Field("text", required=False),
    "in_stock": Field("flag", required=False),
    "as_of": Field("date"),
    "kind": Field("text", choices=("list", "marketplace", "contract")),
    "source": Field("text"),
    "valid_from": Field("date", required=False),
    "valid_to": Field("date", required=False),
}


def read_offers(path: Path) -> tuple[Offer, ...]:
    """Offers from a person's CSV file. Raises FieldError with file, line and hint."""
    return parse_offers(read_text(path), str(path))


def parse_offers(text: str, file: str) -> tuple[Offer, ...]:
    """Offers from CSV text. Raises FieldError."""
    return tuple(offer_from_record(record) for record in parse_csv(text, OFFER_SCHEMA, file))


def format_offers(offers: Iterable[Offer]) -> str:
    """The CSV text that :func:`parse_offers` reads back as ``offers``, to the last digit."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(OFFER_SCHEMA)
    for o in offers:
        prices = (o.on_demand_usd_per_hour, o.spot_usd_per_hour)
        reserved = (o.reserved_usd_per_hour, o.reserved_3y_usd_per_hour)
        stock = "" if o.in_stock is None else str(o.in_stock).lower()
        writer.writerow(
            (
                o.provider,
                o.region,
                o.instance,
                o.accelerator_id,
                o.count,
                *map(_number, prices),
                o.spot_kind,
                *map(_number, reserved),
                o.network,
                stock,
                o.as_of.isoformat(),
                o.kind,
                o.source_key,
                _day(o.valid_from),
                _day(o.valid_to),
            )
        )
    return out.getvalue()


def offer_from_record(record: Record) -> Offer:
    """One checked row as an offer. Raises FieldError on an unknown accelerator and on prices that
    contradict each other."""
    accelerator_id = record.text("accelerator")
    check_accelerator(record)
    on_demand = record.number("on_demand_usd_h")
    for column in ("spot_usd_h", "reserved_usd_h", "reserved_3y_usd_h"):
        other = record.maybe(column)
        if other is not None and other > on_demand:
            raise record.error(
                f"{column} {other:g} is above the on-demand price {on_demand:g}",
                field=column,
                hint="prices are per accelerator, not per instance",
            )
    if (record.maybe("spot_usd_h") is None) != (record.text("spot_kind") == ""):
        raise record.error(
            "spot_usd_h and spot_kind go together",
            field="spot_kind",
            hint="spot_kind is market (the price moves) or policy (a fixed share of the on-demand price)",
        )
    valid_from, valid_to = record.maybe_date("valid_from"), record.maybe_date("valid_to")
    if valid_from is not None and valid_to is not None and valid_to < valid_from:
        raise record.error(f"valid_to {valid_to} is before valid_from {valid_from}", field="valid_to", hint="swap the two dates")
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
        valid_from=valid_from,
        valid_to=valid_to,
    )


def _number(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def _day(day: datetime.date | None) -> str:
    return "" if day is None else day.isoformat()
