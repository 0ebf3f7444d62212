"""Electricity grids: the carbon of a kilowatt-hour and its price, by country, US state and cloud region.

Carbon is location-based: the grid's own emissions, regardless of certificates that an operator buys. A cloud region without a
published figure has that of its state, else of its country. The tables are ``data/grid.csv`` and ``data/electricity.csv``.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.errors import AmbiguousNameError, InputError, UnknownNameError
from gpuwise.facts.loading import Field, Record, ShippedData, parse_csv, shipped_text
from gpuwise.facts.sources import check_source
from gpuwise.units import KILO

PROVIDERS = ("aws", "azure", "gcp")
"""Clouds whose regions have a grid."""

LEAST_USD_PER_KWH, MOST_USD_PER_KWH = 0.001, 2.0
"""A price outside is in another unit (cents, or by the megawatt-hour): no country charges it."""

GRID_SCHEMA: dict[str, Field] = {
    "key": Field("text"),
    "scope": Field("text", choices=("country", "state", "region")),
    "iso2": Field("text", required=False),
    "country": Field("text"),
    "state": Field("text", required=False),
    "name": Field("text", required=False),
    "aliases": Field("names", required=False),
    "place": Field("text", required=False),
    "g_co2e_per_kwh": Field("number", required=False, maximum=2000),
    "year": Field("integer", required=False, minimum=2000, maximum=2100),
    "source": Field("text"),
}

ELECTRICITY_SCHEMA: dict[str, Field] = {
    "key": Field("text"),
    "sector": Field("text", choices=("industrial", "household")),
    "amount": Field("number", maximum=1000),
    "currency": Field("text"),
    "usd_per_unit": Field("number", maximum=100),
    "as_of": Field("date"),
    "source": Field("text"),
}


@dataclass(frozen=True, slots=True)
class PowerPrice:
    """US dollars for a kilowatt-hour in one sector, at the exchange rate the file states."""

    usd_per_kwh: float
    as_of: datetime.date
    source_key: str

    def age_days(self, today: datetime.date) -> int:
        """Days since the price; negative for a date to come."""
        return (today - self.as_of).days


@dataclass(frozen=True, slots=True)
class Grid:
    """One place that electricity comes from."""

    key: str
    """``DEU``, ``US-VA`` or ``aws:eu-central-1``."""
    name: str
    scope: str
    """``country``, ``state`` (of the USA) or ``region`` (of a cloud)."""
    country: str
    """ISO 3166-1 alpha-3."""
    state: str
    """``US-VA``; empty outside the USA."""
    kg_co2e_per_kwh: float
    year: int | None
    """Year of the carbon intensity; None when the source does not say."""
    source_key: str
    industrial: PowerPrice | None
    household: PowerPrice | None
    inherited_from: str = ""
    """The grid whose carbon intensity a cloud region has; empty when it is its own."""

    @property
    def usd_per_kwh(self) -> float | None:
        """Price for a business; None when unknown."""
        return None if self.industrial is None else self.industrial.usd_per_kwh

    def price(self, sector: str) -> PowerPrice | None:
        """The price of ``industrial`` or ``household`` electricity; None when unknown."""
        return self.household if sector == "household" else self.industrial


def find_grid(text: str) -> Grid:
    """A grid by ISO code (``DE``, ``DEU``), name (``Germany``), US state (``US-VA``, ``Virginia``) or cloud
    region (``aws:eu-central-1``, ``eu-central-1``).

    Raises UnknownNameError with the nearest names, AmbiguousNameError for a name of two places, InputError
    for an empty one.
    """
    spelling = " ".join(text.lower().split()).replace(": ", ":")
    if not spelling:
        raise InputError("no country is named", hint="for example --country DE or --country aws:us-east-1")
    keys = _names().get(spelling, ())
    if len(keys) > 1:
        raise AmbiguousNameError("country or cloud region", text, keys)
    if not keys:
        hint = None
        if spelling.partition(":")[0] in PROVIDERS:
            hint = "no such region is in the catalogue: name the country instead"
        names = [name for name in _names() if len(name) > 3]
        otherwise = "give a country (DE, Germany), a US state (US-VA) or a region (aws:us-east-1)"
        raise UnknownNameError("country or cloud region", text[:80], names, hint=hint, otherwise=otherwise)
    return grids()[keys[0]]


@cache
def grids() -> Mapping[str, Grid]:
    """Every grid by its key, countries first. Raises DataError when a shipped file is corrupt."""
    with ShippedData():
        return MappingProxyType(parse_grids(shipped_text("grid.csv"), shipped_text("electricity.csv")))


def parse_grids(grid_csv: str, electricity_csv: str) -> dict[str, Grid]:
    """Grids from the text of the two tables. Raises FieldError."""
    records: dict[str, Record] = {}
    for record in parse_csv(grid_csv, GRID_SCHEMA, "grid.csv"):
        if record.text("key") in records:
            raise record.error(f"{record.text('key')} appears twice", field="key", hint="remove one")
        check_source(record)
        records[record.text("key")] = record
    prices = _prices(electricity_csv, records)
    return {key: _grid(record, records, prices) for key, record in records.items()}


def _prices(text: str, records: Mapping[str, Record]) -> dict[tuple[str, str], PowerPrice]:
    prices: dict[tuple[str, str], PowerPrice] = {}
    for record in parse_csv(text, ELECTRICITY_SCHEMA, "electricity.csv"):
        key = (record.text("key"), record.text("sector"))
        if key in prices:
            raise record.error(f"{key[0]} {key[1]} appears twice", field="key", hint="remove one")
        if record.text("currency") == "USD" and record.number("usd_per_unit") != 1:
            raise record.error("a US dollar is one US dollar", field="usd_per_unit", hint="write 1")
        if key[0] not in records:
            raise record.error(f"{key[0]!r} is not a key of grid.csv", field="key")
        check_source(record)
        usd = record.number("amount") * record.number("usd_per_unit")
        if not LEAST_USD_PER_KWH <= usd <= MOST_USD_PER_KWH:
            raise record.error(f"{usd:g} USD a kilowatt-hour is not credible", field="amount", hint="check the unit")
        prices[key] = PowerPrice(usd, record.date("as_of"), record.text("source"))
    return prices


def _grid(record: Record, records: Mapping[str, Record], prices: Mapping[tuple[str, str], PowerPrice]) -> Grid:
    key, country, state = record.text("key"), record.text("country"), record.text("state")
    for column, other in (("country", country), ("state", state)):
        if other and other not in records:
            raise record.error(f"{column} {other!r} is not a key of grid.csv", field=column)
    lineage = [k for k in (key, state, country) if k]
    origin = next((k for k in lineage if records[k].maybe("g_co2e_per_kwh") is not None), None)
    if origin is None:
        raise record.error("no carbon intensity", field="g_co2e_per_kwh", hint="give it, or that of the country")
    intensity = records[origin]
    place = record.text("place")
    return Grid(
        key=key,
        name=record.text("name") or (f"{key} ({place})" if place else key),
        scope=record.text("scope"),
        country=country,
        state=key if record.text("scope") == "state" else state,
        kg_co2e_per_kwh=intensity.number("g_co2e_per_kwh") / KILO,
        year=intensity.maybe_integer("year"),
        source_key=intensity.text("source"),
        industrial=next((prices[k, "industrial"] for k in lineage if (k, "industrial") in prices), None),
        household=next((prices[k, "household"] for k in lineage if (k, "household") in prices), None),
        inherited_from="" if origin == key else origin,
    )


@cache
def _names() -> Mapping[str, tuple[str, ...]]:
    """Accepted names, in lower case, and the keys they may mean."""
    keys_by_name: dict[str, list[str]] = {}
    for record in parse_csv(shipped_text("grid.csv"), GRID_SCHEMA, "grid.csv"):
        key = record.text("key")
        names = {key, record.text("name"), record.text("iso2"), *record.names("aliases")}
        if record.text("scope") == "region":
            names.add(key.partition(":")[2])
        for name in {n.lower() for n in names if n}:
            keys_by_name.setdefault(name, []).append(key)
    return MappingProxyType({name: tuple(keys) for name, keys in keys_by_name.items()})
