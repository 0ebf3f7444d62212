"""Hourly prices of an accelerator, month by month.

A series is one kind of price: ``median`` is the median over providers' list prices, any other name is the one provider or
marketplace whose price it is. Months without an observation are absent; nothing is interpolated. The spread between providers
is seven-fold, so series are never spliced into one another.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import check_accelerator
from gpuwise.facts.loading import Field, Record, ShippedData, parse_csv, shipped_text
from gpuwise.facts.offers.seal import check_seal
from gpuwise.facts.sources import check_shipped_sources

MEDIAN = "median"
"""The series over providers, the one to fit a market price on."""

_MOST_USD_PER_HOUR = 100.0


@dataclass(frozen=True, slots=True)
class PricePoint:
    """The price of one month in US dollars per hour and accelerator."""

    month: datetime.date
    """The first day of the month."""
    accelerator_id: str
    usd_per_hour: float
    kind: str
    """``list`` (providers' own prices), ``spot`` (a provider's price for what it may take back) or
    ``marketplace`` (what hosts asked)."""
    source_key: str
    series: str = MEDIAN


PRICE_HISTORY_SCHEMA: dict[str, Field] = {
    "month": Field("date"),
    "accelerator": Field("text"),
    "series": Field("text"),
    "usd_h": Field("number", maximum=_MOST_USD_PER_HOUR),
    "kind": Field("text", choices=("list", "spot", "marketplace")),
    "source": Field("text"),
}


@cache
def price_history() -> Mapping[str, tuple[PricePoint, ...]]:
    """Every series of every accelerator, oldest month first. Raises DataError when the file is corrupt."""
    with ShippedData():
        text = check_seal(shipped_text("price_history.csv"), "price_history.csv")
        by_accelerator = parse_price_history(text, "price_history.csv")
    check_shipped_sources("price_history.csv", (point.source_key for points in by_accelerator.values() for point in points))
    return by_accelerator


def parse_price_history(text: str, file: str) -> Mapping[str, tuple[PricePoint, ...]]:
    """Price points from CSV text by accelerator, oldest first. Raises FieldError."""
    by_accelerator: dict[str, list[PricePoint]] = {}
    keys: set[tuple[str, str, datetime.date]] = set()
    for record in parse_csv(text, PRICE_HISTORY_SCHEMA, file):
        point = _point(record)
        key = (point.accelerator_id, point.series, point.month)
        if key in keys:
            raise record.error(
                f"{point.accelerator_id} has two prices in series {point.series} for {point.month:%Y-%m}",
                field="month",
                hint="one price a month and series",
            )
        keys.add(key)
        by_accelerator.setdefault(point.accelerator_id, []).append(point)
    return MappingProxyType(
        {name: tuple(sorted(listed, key=lambda p: (p.month, p.series))) for name, listed in by_accelerator.items()}
    )


def series_of(accelerator_id: str) -> tuple[str, ...]:
    """The names of the series of one accelerator: ``median`` first, spot last, longer before shorter; may be empty."""
    months: dict[str, int] = {}
    spot: set[str] = set()
    for point in price_history().get(accelerator_id, ()):
        months[point.series] = months.get(point.series, 0) + 1
        if point.kind == "spot":
            spot.add(point.series)
    return tuple(sorted(months, key=lambda name: (name != MEDIAN, name in spot, -months[name], name)))


def history_of(accelerator_id: str, series: str | None = None) -> tuple[PricePoint, ...]:
    """One series of one accelerator, oldest month first, at most one point per month.

    Without ``series``: the first of :func:`series_of`. Raises UnpredictableError without one.
    """
    series_names = series_of(accelerator_id)
    if not series_names or (series is not None and series not in series_names):
        of = "" if series is None else f" in series {series!r}"
        raise UnpredictableError(
            "no price history for accelerator",
            f"no monthly rental prices are known for {accelerator_id}{of}",
            hint=f"known series: {', '.join(series_names)}" if series_names else "h100-sxm-80gb has the longest history",
        )
    name = series_names[0] if series is None else series
    return tuple(point for point in price_history()[accelerator_id] if point.series == name)


def _point(record: Record) -> PricePoint:
    accelerator_id, month = record.text("accelerator"), record.date("month")
    check_accelerator(record)
    if month.day != 1:
        raise record.error(f"month {month} is not the first of a month", field="month", hint=f"write {month:%Y-%m}-01")
    return PricePoint(
        month=month,
        accelerator_id=accelerator_id,
        usd_per_hour=record.number("usd_h"),
        kind=record.text("kind"),
        source_key=record.text("source"),
        series=record.text("series"),
    )
