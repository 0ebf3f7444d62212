"""Rental prices as ``--json`` has them."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from gpuwise.money.cost import STALE_DAYS

if TYPE_CHECKING:
    from gpuwise.facts.offers.search import PricedOffer
    from gpuwise.facts.offers.table import Offer


def is_stale(offer: Offer, day: datetime.date) -> bool:
    """Whether a price is too old to be believed as it stands; a contract that holds is not."""
    return offer.kind != "contract" and offer.age_days(day) > STALE_DAYS


def document(row: PricedOffer, day: datetime.date) -> dict[str, object]:
    """One price for ``--json``."""
    o = row.offer
    return {
        "accelerator": row.accelerator.id,
        "provider": o.provider,
        "regions": [r for r in o.region.split(";") if r],
        "instance": o.instance,
        "count": o.count,
        "kind": row.kind,
        "usd_per_hour": row.usd_per_hour,
        "usd_per_pflop_hour": row.usd_per_pflop_hour,
        "usd_per_gb_hour": row.usd_per_gb_hour,
        "on_demand_usd_per_hour": o.on_demand_usd_per_hour,
        "spot_usd_per_hour": o.spot_usd_per_hour,
        "spot_kind": o.spot_kind or None,
        "reserved_usd_per_hour": o.reserved_usd_per_hour,
        "reserved_3y_usd_per_hour": o.reserved_3y_usd_per_hour,
        "network": o.network or None,
        "in_stock": o.in_stock,
        "price_kind": o.kind,
        "as_of": o.as_of.isoformat(),
        "age_days": o.age_days(day),
        "stale": is_stale(o, day),
        "valid_from": None if o.valid_from is None else o.valid_from.isoformat(),
        "valid_to": None if o.valid_to is None else o.valid_to.isoformat(),
        "source": o.source_key,
    }
