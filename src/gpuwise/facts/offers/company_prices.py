"""A company's own prices from a CSV file: checked as strictly as the shipped table, in any currency and unit
that the file states.

Beyond the columns of ``offers.csv`` a file may have ``currency`` with ``usd_per_unit``, and ``unit``; of the
columns only the accelerator and the price must be there.
"""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuwise.errors import AmbiguousNameError, FieldError, InputError, UnknownNameError, UnpredictableError
from gpuwise.facts.loading import Field, Record, Value, parse_csv
from gpuwise.facts.offers.currency import UNITS, USD, Quote, parse_quote
from gpuwise.facts.offers.offer import typical_price_usd_per_hour
from gpuwise.facts.offers.table import OFFER_SCHEMA, Offer, offer_from_record
from gpuwise.files import read_text

PRICES = ("on_demand_usd_h", "spot_usd_h", "reserved_usd_h", "reserved_3y_usd_h")
_SHORT = {"price": PRICES[0], "spot_price": PRICES[1], "reserved_price": PRICES[2], "reserved_3y_price": PRICES[3]}
"""Other names of the price columns, for amounts that are no dollars an hour."""
_MOST_AMOUNT = 1e12
MOST_BYTES = 10 * 2**20
_MOST_ROWS = 100_000

_amount = Field("number", required=False, maximum=_MOST_AMOUNT)
IMPORT_SCHEMA: dict[str, Field] = {
    **{
        name: Field(f.kind, required=name == "accelerator", minimum=f.minimum, maximum=f.maximum, choices=f.choices)
        for name, f in OFFER_SCHEMA.items()
    },
    **dict.fromkeys((*PRICES, *_SHORT), _amount),
    "currency": Field("text", required=False),
    "usd_per_unit": Field("number", required=False, maximum=1e9),
    "unit": Field("text", required=False),
}

TEMPLATE = """\
# Your own prices for `gpuwise prices --import FILE`. Only accelerator and price are required.
# accelerator: a name `gpuwise gpus` knows. count: accelerators in the instance (1 when left out).
# price, spot_price, reserved_price (one year), reserved_3y_price: numbers with a decimal point.
# currency: USD when left out; any other needs usd_per_unit, the US dollars one unit buys, or --usd-rate.
# unit: per_accelerator_hour when left out; per_instance_hour, per_accelerator_month, per_instance_month.
# kind: contract when left out (yours, preferred to the market); list, marketplace.
# valid_from, valid_to: the days it holds, like 2026-01-31; empty: always.
provider,accelerator,count,price,reserved_price,currency,usd_per_unit,unit,region,instance,kind,valid_from,valid_to
acme,h100-sxm-80gb,8,16.8,,EUR,1.08,per_instance_hour,eu-west,hgx-h100,contract,2026-01-01,2027-12-31
acme,l40s,1,0.92,,,,,,,contract,,
"""


@dataclass(frozen=True, slots=True)
class PriceImport:
    """The prices of an imported file."""

    offers: tuple[Offer, ...]
    """All of them, including outdated ones: they are kept as history."""
    expired: tuple[Offer, ...]
    to_come: tuple[Offer, ...]
    converted: tuple[str, ...]
    """How amounts were converted, in words; empty when they were dollars per accelerator and hour."""
    undated: int
    """Rows without as_of, which were dated today."""


def import_offers(
    path: Path, today: datetime.date, *, provider: str | None = None, usd_per_unit: float | None = None
) -> PriceImport:
    """The offers of a person's CSV file. Raises FieldError with file, line and hint."""
    try:
        size = path.stat().st_size
    except (OSError, ValueError):
        size = 0  # the reader reports the error
    if size > MOST_BYTES:
        raise FieldError(f"is larger than {MOST_BYTES / 2**20:g} MiB", file=str(path), hint="a price file has a line a price")
    return parse_import(read_text(path), str(path), today, provider=provider, usd_per_unit=usd_per_unit)


def parse_import(
    text: str, file: str, today: datetime.date, *, provider: str | None = None, usd_per_unit: float | None = None
) -> PriceImport:
    """The offers of CSV text. Raises FieldError."""
    _check_separator(text, file)
    try:
        records = parse_csv(text, IMPORT_SCHEMA, file)
    except FieldError as error:
        raise _explanation(error, file) from None
    if not records:
        raise FieldError("holds no prices", file=file, hint="gpuwise prices --template prints an example")
    if len(records) > _MOST_ROWS:
        raise FieldError(f"holds more than {_MOST_ROWS:,} prices", file=file, hint="leave out what is not yours")
    rows: list[tuple[Offer, Record]] = []
    words: list[str] = []
    for record in records:
        offer, how = _offer(record, file, today, provider, usd_per_unit)
        rows.append((offer, record))
        words += [how] if how else []
    if usd_per_unit is not None and not any(_foreign(record) for record in records):
        raise FieldError(
            "a rate is given but no price is in another currency than USD",
            file=file,
            field="currency",
            hint="add a column currency, with EUR for example, or leave out --usd-rate",
        )
    _check_overlaps(rows)
    _check_units(rows)
    offers = tuple(offer for offer, _ in rows)
    return PriceImport(
        offers,
        expired=tuple(o for o in offers if o.valid_to is not None and o.valid_to < today),
        to_come=tuple(o for o in offers if o.valid_from is not None and o.valid_from > today),
        converted=tuple(dict.fromkeys(words)),
        undated=sum("as_of" not in record.values for record in records),
    )


def _check_separator(text: str, file: str) -> None:
    line, head = next(
        ((i, row) for i, row in enumerate(text.splitlines(), 1) if row.strip() and not row.startswith("#")), (1, "")
    )
    for mark, name in ((";", "semicolons"), ("\t", "tabs")):
        if head.count(mark) > head.count(","):
            raise FieldError(
                f"is separated by {name}",
                file=file,
                line=line,
                hint="save it with commas between the cells and decimal points in numbers",
            )


def _explanation(error: FieldError, file: str) -> FieldError:
    """A refusal of the reader with what a person most likely did."""
    hint = error.hint
    field = IMPORT_SCHEMA.get(error.field or "")
    if field is not None and field.kind == "number" and re.search(r"'-?[\d.]+,\d+'", error.message):
        hint = "write a decimal point: 2.5"
    elif error.line is not None and "cells where the header has" in error.message:
        hint = "numbers take a decimal point; quote a cell that holds a comma"
    elif error.message.endswith("is empty") and error.line is None:
        hint = "gpuwise prices --template prints an example"
    elif error.field == "provider" and "missing" in error.message:
        hint = "add the column, or give --provider"
    if hint == error.hint:
        return error
    text = error.message.removeprefix(file).lstrip(f":{error.line}").lstrip()
    return FieldError(text, file=file, line=error.line, field=error.field, hint=hint)


def _offer(
    record: Record, file: str, today: datetime.date, provider: str | None, usd_per_unit: float | None
) -> tuple[Offer, str]:
    """A row as an offer, and how its amounts were converted. Raises FieldError."""
    values: dict[str, Value] = {k: v for k, v in record.values.items() if k in OFFER_SCHEMA and k not in PRICES}
    name = record.text("provider") or provider or ""
    if not name.strip():
        raise record.error("provider is empty", field="provider", hint="fill it in, or give --provider")
    values["provider"] = name.strip()
    values["accelerator"] = _accelerator_id(record)
    values.setdefault("count", 1)
    as_of = values["as_of"] = record.maybe_date("as_of") or today
    values.setdefault("kind", "contract")
    values.setdefault("source", Path(file).name)
    try:
        how = _quote_of(record, usd_per_unit)
    except InputError as error:
        field = "unit" if "unit" in error.message.split() else "currency"
        raise record.error(error.message, field=field, hint=error.hint) from None
    prices = {
        name: (column, record.maybe(column))
        for column, name in (*_SHORT.items(), *zip(PRICES, PRICES, strict=True))
        if column in record.values
    }
    for short, full in _SHORT.items():
        if short in record.values and full in record.values:
            raise record.error(f"{short} and {full} are both given", field=short, hint="keep one of them")
    if PRICES[0] not in prices:
        raise record.error("price is empty", field="price", hint="give a number above zero, like 2.5")
    count = values["count"]
    assert isinstance(count, int)
    for full, (column, amount) in prices.items():
        assert amount is not None
        usd = how.usd_per_hour(amount, count)
        if not 0 < usd <= (OFFER_SCHEMA[full].maximum or 0):
            raise record.error(
                f"{column} is {usd:,.2f} US dollars per accelerator and hour, which is not plausible",
                field=column,
                hint=f"check the unit and the currency; units are {', '.join(UNITS)}",
            )
        values[full] = usd
    if PRICES[1] in values:
        values.setdefault("spot_kind", "market")
    if as_of > today:
        raise record.error(f"as_of {as_of} is in the future", field="as_of", hint="use valid_from")
    offer = offer_from_record(replace(record, values=values))
    return offer, _in_words(how)


def _quote_of(record: Record, usd_per_unit: float | None) -> Quote:
    """How a row's amounts are meant: its own rate first; a rate given for the file is for what is not USD."""
    rate = record.maybe("usd_per_unit")
    if rate is None and _foreign(record):
        rate = usd_per_unit
    return parse_quote(record.text("currency"), rate, record.text("unit"))


def _foreign(record: Record) -> bool:
    return record.text("currency").strip().upper() not in ("", USD)


def _in_words(how: Quote) -> str:
    parts = [] if how.usd_per_unit == 1.0 else [f"{how.currency} at {how.usd_per_unit:g} US dollars"]
    parts += [] if how.unit == UNITS[0] else [how.unit.replace("_", " ")]
    return ", ".join(parts)


def _accelerator_id(record: Record) -> str:
    """The id a row means; a name that means several devices is refused with them. Raises FieldError."""
    from gpuwise.facts.hardware.naming import find_accelerator

    name = record.text("accelerator")
    try:
        return find_accelerator(name).id
    except AmbiguousNameError as error:
        message = f"accelerator {name[:60]!r} may be {', '.join(error.candidates[:6])}"
        raise record.error(message, field="accelerator", hint="write one of them") from None
    except UnknownNameError as error:
        hint = error.hint or "`gpuwise gpus` lists the known names"
        raise record.error(f"unknown accelerator {name[:60]!r}", field="accelerator", hint=hint) from None


def _check_overlaps(rows: Sequence[tuple[Offer, Record]]) -> None:
    """Two prices for one thing on one day are refused with both lines. Raises FieldError."""
    first, last = datetime.date.min, datetime.date.max
    by_thing: dict[tuple[object, ...], list[tuple[Offer, Record]]] = {}
    for offer, record in rows:
        key = (offer.provider, offer.region, offer.instance, offer.accelerator_id, offer.count, offer.kind)
        by_thing.setdefault(key, []).append((offer, record))
    for listed in by_thing.values():
        listed.sort(key=lambda row: (row[0].valid_from or first, row[1].line or 0))
        for (a, earlier), (b, later) in itertools.pairwise(listed):
            if (b.valid_from or first) <= (a.valid_to or last):
                one, two = sorted((earlier.line or 0, later.line or 0))
                raise FieldError(
                    f"lines {one} and {two} price the same {a.accelerator_id} of {a.provider} on the same days",
                    file=later.file,
                    line=two,
                    field="valid_from",
                    hint="end one before the other begins, or distinguish them by region or instance",
                )


def _check_units(rows: Sequence[tuple[Offer, Record]]) -> None:
    """A price above all others that becomes ordinary in another unit is refused, unless the row states its
    unit. Raises FieldError."""
    for offer, record in rows:
        if "unit" in record.values:
            continue
        try:
            low, _, high = typical_price_usd_per_hour(offer.accelerator_id)
        except UnpredictableError:
            continue
        usd = offer.on_demand_usd_per_hour
        if usd <= high:
            continue
        for unit in UNITS[1:]:
            other = Quote(unit=unit).usd_per_hour(usd, offer.count)
            if other != usd and low <= other <= high:
                raise record.error(
                    f"{usd:g} US dollars per accelerator and hour is above every known price of "
                    f"{offer.accelerator_id} (at most {high:g}), but {other:.3g} if it is {unit}",
                    field="unit",
                    hint=f"add a column unit with {unit}, or per_accelerator_hour if it is right as it stands",
                )
