"""Purchases: prices of accelerators and whole machines, new or second-hand, with dates.

One row is one dated observation: a vendor's list price, a shop's price, an auction's closing price, or a reported payment. A
second-hand card of 2023 says little about today, so a typical price is taken from the newest observations alone and has the
date of the oldest one used. Tax, shipping, hosts, networks and storage are excluded unless the row is a whole machine.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal, NamedTuple

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators, check_accelerator
from gpuwise.facts.hardware.systems import systems
from gpuwise.facts.loading import Field, Record, ShippedData, parse_csv, shipped_text
from gpuwise.facts.offers.seal import check_seal
from gpuwise.facts.sources import check_shipped_sources
from gpuwise.interval import Z80

Condition = Literal["new", "used"]

RECENT_DAYS = 270
"""An observation counts towards a typical price when it is at most nine months older than the newest one of the
same accelerator and condition: memory prices moved shop prices by a third in half of that in 2026."""

PRICE_SIGMA = 0.2
"""Standard deviation of the logarithm of a card's price after a year: used RTX 3090 cost 704, 800, 894 and 632 dollars within 27
months, new cards a third more in 2026 than in 2025 (rows of purchases.csv)."""

_MOST_USD = 1.0e7
"""Above any machine one buys (an NVL72 rack is three to four million)."""


@dataclass(frozen=True, slots=True)
class Purchase:
    """One observed purchase price in US dollars, for everything in the row together."""

    accelerator_id: str
    system_id: str
    """A system of ``systems.toml``; empty for the accelerator alone (for a chip that is only sold inside a
    machine, ``product`` names the machine)."""
    condition: Condition
    low_usd: float
    """Equal to ``usd`` where the source gives one figure."""
    usd: float
    """As stated; the geometric mean of ``low_usd`` and ``high_usd`` if the source has only a range."""
    high_usd: float
    count: int
    """Accelerators in it."""
    region: str
    as_of: datetime.date
    """The day, or the first day of the month or year, the source dates the price to."""
    kind: str
    """``list`` (vendor), ``street`` (what shops ask), ``auction`` (what it sold for) or ``report``."""
    source_key: str
    product: str = ""
    """The priced product, if it is more than the bare accelerator."""

    @property
    def usd_per_accelerator(self) -> float:
        """``usd / count``."""
        return self.usd / self.count

    def age_days(self, today: datetime.date) -> int:
        """Days since the price was observed; negative for a date to come."""
        return (today - self.as_of).days


def month_or_year(day: datetime.date) -> str:
    """``2026-03``, or ``2026`` for the first of January, which is how a source that names the year alone is dated."""
    return f"{day:%Y}" if (day.month, day.day) == (1, 1) else f"{day:%Y-%m}"


class PurchaseRange(NamedTuple):
    """US dollars for one accelerator."""

    low: float
    median: float
    high: float
    as_of: datetime.date | None
    """The oldest observation used; None if only the catalogue's undated list price is known."""
    kind: str
    """The kinds of the observations, joined with ``+``; ``launch``, ``list`` or ``street`` for a catalogue
    price."""
    observations: int
    """How many the range is over; 0 for a catalogue price."""


PURCHASE_SCHEMA: dict[str, Field] = {
    "accelerator": Field("text"),
    "system": Field("text", required=False),
    "product": Field("text", required=False),
    "condition": Field("text", choices=("new", "used")),
    "low_usd": Field("number", required=False, maximum=_MOST_USD),
    "usd": Field("number", required=False, maximum=_MOST_USD),
    "high_usd": Field("number", required=False, maximum=_MOST_USD),
    "count": Field("integer", maximum=100_000),
    "region": Field("text"),
    "as_of": Field("date"),
    "kind": Field("text", choices=("list", "street", "auction", "report")),
    "source": Field("text"),
}


@cache
def purchases() -> tuple[Purchase, ...]:
    """The shipped purchase prices in the order of the file. Raises DataError when it is corrupt."""
    with ShippedData():
        parsed = parse_purchases(check_seal(shipped_text("purchases.csv"), "purchases.csv"), "purchases.csv")
    check_shipped_sources("purchases.csv", (one.source_key for one in parsed))
    return parsed


def parse_purchases(text: str, file: str) -> tuple[Purchase, ...]:
    """Purchases from CSV text. Raises FieldError with file, line and hint."""
    return tuple(_purchase(record) for record in parse_csv(text, PURCHASE_SCHEMA, file))


def purchases_for(accelerator_id: str, condition: Condition | None = None) -> tuple[Purchase, ...]:
    """Prices of the accelerator alone, cheapest first; may be empty."""
    return tuple(
        one for one in _by_accelerator().get(accelerator_id, ()) if not one.system_id and condition in (None, one.condition)
    )


def system_purchases(accelerator_id: str, condition: Condition | None = None) -> tuple[Purchase, ...]:
    """Prices of whole machines with this accelerator, cheapest first; may be empty."""
    return tuple(one for one in _by_accelerator().get(accelerator_id, ()) if one.system_id and condition in (None, one.condition))


def typical_purchase_usd(accelerator_id: str, condition: Condition = "new") -> PurchaseRange:
    """Lowest, median and highest recent price of one accelerator bought alone.

    Over the observations of that condition at most :data:`RECENT_DAYS` older than the newest; of several list prices of one
    product only the newest counts. A new one without an observation falls back to the catalogue's list price, with its kind
    and without a date. Raises UnpredictableError without any price.
    """
    prices = purchases_for(accelerator_id, condition)
    if prices:
        return recent_range(prices)
    accelerator: Accelerator | None = accelerators().get(accelerator_id)
    if condition == "new" and accelerator is not None and accelerator.list_price_usd is not None:
        price = accelerator.list_price_usd
        return PurchaseRange(price, price, price, None, accelerator.list_price_kind or "list", 0)
    raise UnpredictableError(
        "no purchase price for accelerator",
        f"no {condition} purchase price is known for {accelerator_id}",
        hint="give a price of your own",
    )


def recent_range(prices: Sequence[Purchase]) -> PurchaseRange:
    """The range of :func:`typical_purchase_usd` over these observations (at least one)."""
    newest = max(one.as_of for one in prices)
    recent = [one for one in prices if (newest - one.as_of).days <= RECENT_DAYS]
    return _range([one for one in recent if not _superseded(one, recent)])


def aged(price: PurchaseRange, today: datetime.date) -> PurchaseRange:
    """``price`` as it may be today: the ends move apart with the root of its age, :data:`PRICE_SIGMA` in a year.

    A price without a date is taken as it is.
    """
    if price.as_of is None or price.as_of >= today:
        return price
    years = (today - price.as_of).days / 365.25
    wider = math.exp(Z80 * PRICE_SIGMA * math.sqrt(years))
    return price._replace(low=min(price.low, price.median / wider), high=max(price.high, price.median * wider))


def _superseded(one: Purchase, among: Iterable[Purchase]) -> bool:
    """A vendor's list price that the same product has had a newer one since."""
    return one.kind == "list" and any(
        other.kind == "list" and other.product == one.product and other.as_of > one.as_of for other in among
    )


def _range(prices: Iterable[Purchase]) -> PurchaseRange:
    chosen = sorted(prices, key=lambda one: one.usd_per_accelerator)
    middle = len(chosen) // 2
    upper = chosen[middle].usd_per_accelerator
    median = upper if len(chosen) % 2 else (chosen[middle - 1].usd_per_accelerator + upper) / 2
    return PurchaseRange(
        min(one.low_usd / one.count for one in chosen),
        median,
        max(one.high_usd / one.count for one in chosen),
        min(one.as_of for one in chosen),
        "+".join(sorted({one.kind for one in chosen})),
        len(chosen),
    )


@cache
def _by_accelerator() -> Mapping[str, tuple[Purchase, ...]]:
    by_accelerator: dict[str, list[Purchase]] = {}
    for one in sorted(purchases(), key=lambda one: one.usd_per_accelerator):
        by_accelerator.setdefault(one.accelerator_id, []).append(one)
    return MappingProxyType({name: tuple(listed) for name, listed in by_accelerator.items()})


def _purchase(record: Record) -> Purchase:
    accelerator_id, system_id = record.text("accelerator"), record.text("system")
    check_accelerator(record)
    if system_id and system_id not in systems():
        raise record.error(
            f"system {system_id!r} is not an id of the catalogue",
            field="system",
            hint="use an id such as dgx-h100, or leave it empty for the accelerator alone",
        )
    low, usd, high = _prices(record)
    return Purchase(
        accelerator_id=accelerator_id,
        system_id=system_id,
        condition="used" if record.text("condition") == "used" else "new",
        low_usd=low,
        usd=usd,
        high_usd=high,
        count=record.integer("count"),
        region=record.text("region"),
        as_of=record.date("as_of"),
        kind=record.text("kind"),
        source_key=record.text("source"),
        product=record.text("product"),
    )


def _prices(record: Record) -> tuple[float, float, float]:
    low, usd, high = (record.maybe(name) for name in ("low_usd", "usd", "high_usd"))
    if (low is None) != (high is None):
        raise record.error(
            "a range needs both ends",
            field="high_usd" if high is None else "low_usd",
            hint="give low_usd and high_usd, or neither",
        )
    if usd is None:
        if low is None or high is None:
            raise record.error("no price", field="usd", hint="give usd, or low_usd and high_usd")
        usd = math.sqrt(low * high)
    low, high = low or usd, high or usd
    if not low <= usd <= high:
        raise record.error(
            f"usd {usd:g} is not between {low:g} and {high:g}",
            field="usd",
            hint="low_usd <= usd <= high_usd",
        )
    return low, usd, high
