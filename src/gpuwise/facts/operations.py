"""Operation of training runs: power, interruptions, writes, embodied emissions.

Every figure is a range with a source. The tables are ``data/operations.toml``, ``data/power_shares.csv``,
``data/sites.csv``, ``data/failures.csv`` and ``data/embodied.csv``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TypeVar

from gpuwise.errors import FieldError, UnknownNameError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.loading import Field, Record, ShippedData, parse_toml, shipped_text
from gpuwise.facts.sources import check_source, cited_rows
from gpuwise.units import DAY_S

WORKLOADS = ("training", "serving", "diffusion", "idle")
"""Workloads of an accelerator for which its power was measured."""

_text, _optional, _number = Field("text"), Field("text", required=False), Field("number")
QUANTITY_SCHEMA: dict[str, Field] = {
    "low": _number,
    "expected": _number,
    "high": _number,
    "unit": _text,
    "source": _text,
    "note": _optional,
}
POWER_SHARE_SCHEMA: dict[str, Field] = {
    "workload": Field("text", choices=WORKLOADS),
    "family": _optional,
    "low": Field("number", maximum=1.2),
    "expected": Field("number", maximum=1.2),
    "high": Field("number", maximum=1.2),
    "rows": Field("integer", required=False, minimum=1),
    "source": _text,
}
SITE_SCHEMA: dict[str, Field] = {
    "key": _text,
    "name": _text,
    "providers": Field("names", required=False),
    "low": Field("number", minimum=1.0, maximum=4.0),
    "expected": Field("number", minimum=1.0, maximum=4.0),
    "high": Field("number", minimum=1.0, maximum=4.0),
    "source": _text,
}
FAILURE_SCHEMA: dict[str, Field] = {
    "key": _text,
    "name": _text,
    "family": _text,
    "accelerators": Field("integer", minimum=1),
    "days": _number,
    "interruptions": _number,
    "source": _text,
    "note": _optional,
}
EMBODIED_SCHEMA: dict[str, Field] = {
    "family": _optional,
    "form": _optional,
    "low": _number,
    "expected": _number,
    "high": _number,
    "source": _text,
    "note": _optional,
}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Quantity:
    """``low`` and ``high`` bound the central 80 %, ``expected`` is the middle."""

    low: float
    expected: float
    high: float
    unit: str
    source_key: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Site:
    """A kind of site for computers, with its power usage effectiveness."""

    key: str
    name: str
    pue: Quantity
    providers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """How often one large training, or one cluster, was interrupted against its will."""

    key: str
    name: str
    family: str
    accelerators: int
    days: float
    interruptions: float
    source_key: str
    note: str = ""

    @property
    def accelerator_s_per_interruption(self) -> float:
        """Seconds of one accelerator between interruptions: N t / n."""
        return self.accelerators * self.days * DAY_S / self.interruptions


@cache
def operations() -> Mapping[str, Quantity]:
    """The figures of ``operations.toml`` by name. Raises DataError when the file is corrupt."""
    with ShippedData():
        records = parse_toml(shipped_text("operations.toml"), QUANTITY_SCHEMA, "operations.toml")
        found = {name: _quantity(r, r.text("unit")) for name, r in records.items()}
    return MappingProxyType(found)


def power_share(workload: str, family: str) -> Quantity:
    """Mean power over design power of a device of ``family`` at ``workload``. Raises UnknownNameError."""
    shares = _power_shares()
    if workload not in WORKLOADS:
        raise UnknownNameError("workload", workload, WORKLOADS, hint="it is one of " + ", ".join(WORKLOADS))
    return shares.get((workload, family)) or shares[workload, ""]


@cache
def sites() -> Mapping[str, Site]:
    """Kinds of places by key. Raises DataError when the file is corrupt."""
    with ShippedData():
        all_sites = [
            Site(r.text("key"), r.text("name"), _quantity(r, "x"), r.names("providers"))
            for r in cited_rows("sites.csv", SITE_SCHEMA)
        ]
        found = {s.key: s for s in all_sites}
    return MappingProxyType(found)


def find_site(text: str) -> Site:
    """A site by key, or that of a provider's machines. Raises UnknownNameError."""
    spelling = text.strip().lower()
    for site in sites().values():
        if spelling in (site.key, site.name.lower(), *site.providers):
            return site
    raise UnknownNameError("site", text[:80], sites(), hint="it is one of " + ", ".join(sites()))


def site_of_provider(provider: str | None) -> Site:
    """Site of a provider's machines; an average data centre if it publishes nothing."""
    for site in sites().values():
        if provider is not None and provider.lower() in site.providers:
            return site
    return sites()["data-centre"]


@cache
def failure_records() -> tuple[FailureRecord, ...]:
    """Published interruption counts. Raises DataError when the file is corrupt."""
    with ShippedData():
        return tuple(
            FailureRecord(
                r.text("key"),
                r.text("name"),
                r.text("family"),
                r.integer("accelerators"),
                r.number("days"),
                r.number("interruptions"),
                r.text("source"),
                r.text("note"),
            )
            for r in cited_rows("failures.csv", FAILURE_SCHEMA)
        )


def embodied_kgco2e(accelerator: Accelerator) -> Quantity:
    """Carbon of making one accelerator: of its family, else of its form, else of any."""
    table = _embodied()
    return table.get((accelerator.family, "")) or table.get(("", accelerator.form)) or table["", ""]


@cache
def _power_shares() -> Mapping[tuple[str, str], Quantity]:
    with ShippedData():
        shares = {
            (r.text("workload"), r.text("family")): _quantity(r, "of the design power")
            for r in cited_rows("power_shares.csv", POWER_SHARE_SCHEMA)
        }
        missing = [w for w in WORKLOADS if (w, "") not in shares]
        if missing:
            raise FieldError(f"no row without family for {missing[0]}", file="power_shares.csv")
    return MappingProxyType(shares)


@cache
def _embodied() -> Mapping[tuple[str, str], Quantity]:
    with ShippedData():
        rows = cited_rows("embodied.csv", EMBODIED_SCHEMA)
        quantities = {(r.text("family"), r.text("form")): _quantity(r, "kgCO2e") for r in rows}
        if ("", "") not in quantities:
            raise FieldError("no row without family and form", file="embodied.csv")
    return MappingProxyType(quantities)


def _quantity(record: Record, unit: str) -> Quantity:
    low, expected, high = (record.number(n) for n in ("low", "expected", "high"))
    if not low <= expected <= high:
        raise record.error(f"{low:g}, {expected:g}, {high:g} are not in order", field="expected")
    check_source(record)
    return Quantity(low, expected, high, unit, record.text("source"), record.text("note"))
