"""Prices of storage and egress at providers. The table is ``data/storage.csv``."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import median
from types import MappingProxyType

from gpuwise.facts.loading import Field, ShippedData
from gpuwise.facts.sources import cited_rows

STORAGE_SCHEMA: dict[str, Field] = {
    "provider": Field("text"),
    "usd_per_gb_month": Field("number", maximum=10),
    "egress_usd_per_gb": Field("number", minimum=0.0, maximum=10),
    "free_egress_gb_month": Field("number", minimum=0.0),
    "as_of": Field("date"),
    "source": Field("text"),
}


@dataclass(frozen=True, slots=True)
class StoragePrice:
    """US dollars for a gigabyte (1e9 bytes)."""

    provider: str
    """``median of 10 providers`` when the provider publishes nothing here."""
    usd_per_gb_month: float
    egress_usd_per_gb: float
    """Price of a gigabyte to the internet beyond the free ones; 0 if the provider states that it is free."""
    free_egress_gb_month: float
    as_of: datetime.date
    source_key: str


@cache
def storage_prices() -> Mapping[str, StoragePrice]:
    """Prices by provider. Raises DataError when the file is corrupt."""
    with ShippedData():
        by_provider: dict[str, StoragePrice] = {}
        for r in cited_rows("storage.csv", STORAGE_SCHEMA):
            if r.text("provider") in by_provider:
                raise r.error(f"{r.text('provider')} appears twice", field="provider")
            by_provider[r.text("provider")] = StoragePrice(
                r.text("provider"),
                r.number("usd_per_gb_month"),
                r.number("egress_usd_per_gb"),
                r.number("free_egress_gb_month"),
                r.date("as_of"),
                r.text("source"),
            )
        return MappingProxyType(by_provider)


def storage_price(provider: str | None) -> StoragePrice:
    """A provider's price, else the median of the known ones (without free ones)."""
    by_provider = storage_prices()
    if provider is not None and provider.lower() in by_provider:
        return by_provider[provider.lower()]
    listed = list(by_provider.values())
    return StoragePrice(
        f"median of {len(listed)} providers",
        median(p.usd_per_gb_month for p in listed),
        median(p.egress_usd_per_gb for p in listed),
        0.0,
        min(p.as_of for p in listed),
        "object-storage-2026",
    )
