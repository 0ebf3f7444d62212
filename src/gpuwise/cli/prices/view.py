"""How rental prices look."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuwise.facts.offers.search import Order, PricedOffer
from gpuwise.money.cost import STALE_DAYS

if TYPE_CHECKING:
    from gpuwise.facts.offers.table import Offer

WIDE = 110
"""Columns from which region and instance are shown too."""
GIVES_WAY = ("$/GB-h", "region", "$/PFLOP-h", "instance")
"""Columns left out, in this order, until the others stand whole."""
_KIND = {"list": "list", "marketplace": "market", "contract": "contract"}


def show_offers(rows: Sequence[PricedOffer], day: datetime.date, order: Order, *, more: int) -> None:
    """A table of offers with their age in words, and what the words mean."""
    from gpuwise.cli.out import console, table_of

    to = console()
    wide = to.width >= WIDE
    kind = rows[0].kind
    columns = ["accelerator", "provider", "GPUs", "$/h", "$/PFLOP-h", "$/GB-h", "age", "remarks"]
    if kind != "on-demand":
        columns.insert(4, "of list" if kind == "spot" else "3 years")
    if wide:
        columns[2:2] = ["region", "instance"]
    elif kind != "on-demand":
        columns.remove("$/GB-h")
    left = ("accelerator", "provider", "region", "instance", "remarks")
    table = table_of(columns, left=left, wrap=("accelerator", "region", "instance", "remarks"), gives_way=GIVES_WAY)
    for row in rows:
        cells = _cells(row, day)
        table.add_row(*(cells[name] for name in columns))
    to.print(table)
    for line in _footer(rows, day, order, more):
        to.print(line, style="dim")


def _cells(row: PricedOffer, day: datetime.date) -> dict[str, str]:
    offer = row.offer
    per_pflop = row.usd_per_pflop_hour
    regions = offer.region.split(";")
    three = offer.reserved_3y_usd_per_hour
    return {
        "accelerator": row.accelerator.name,
        "provider": offer.provider,
        "region": regions[0] + (f" +{len(regions) - 1}" if len(regions) > 1 else "") or "-",
        "instance": offer.instance or "-",
        "GPUs": str(offer.count),
        "$/h": usd(row.usd_per_hour),
        "of list": f"{100 * row.usd_per_hour / offer.on_demand_usd_per_hour:.0f} %",
        "3 years": "-" if three is None else usd(three),
        "$/PFLOP-h": "-" if per_pflop is None else usd(per_pflop),
        "$/GB-h": f"{row.usd_per_gb_hour:.4f}",
        "age": f"{max(offer.age_days(day), 0)} d",
        "remarks": ", ".join(remarks(offer, row.kind, day)),
    }


def usd(price: float) -> str:
    """Cents, and for what costs less than a dime one digit more."""
    return f"{price:.2f}" if price >= 0.1 else f"{price:.3f}"


def remarks(offer: Offer, kind: str, day: datetime.date) -> list[str]:
    """What kind of price it is and what to beware of, in words."""
    words = [_KIND[offer.kind]]
    if is_stale(offer, day):
        words.append("old")
    if kind == "spot" and offer.spot_kind == "policy":
        words.append("fixed share")
    if offer.in_stock is False:
        words.append("no stock")
    if offer.region == "cheapest":
        words.append("cheapest")
    if offer.valid_to is not None:
        words.append(f"to {offer.valid_to}")
    return words


def is_stale(offer: Offer, day: datetime.date) -> bool:
    """Whether a price is too old to be believed as it stands; a contract that holds is not."""
    return offer.kind != "contract" and offer.age_days(day) > STALE_DAYS


def _footer(rows: Sequence[PricedOffer], day: datetime.date, order: Order, more: int) -> list[str]:
    words = {word for row in rows for word in remarks(row.offer, row.kind, day)}
    by = {"price": "", "per-pflop": ", by $/PFLOP-h", "per-gb": ", by $/GB-h", "age": ", newest first"}[order]
    hidden = f"; {more} more with --all" if more else ""
    count_text = f"{len(rows)} price{'s' if len(rows) > 1 else ''}{by}{hidden}"
    lines = [f"{count_text}; US dollars an hour and accelerator, PFLOP at the dense bf16 peak"]
    old = sum(is_stale(row.offer, day) for row in rows)
    if old:
        fresh = "`gpuwise prices --refresh` fetches new ones"
        lines.append(f"old: read more than {STALE_DAYS} days ago ({old} of {len(rows)}); {fresh}")
    meanings = {
        "market": "market: what one host asked on a marketplace",
        "contract": "contract: your own, and what other commands reckon with",
        "fixed share": "fixed share: this provider's spot price is a set share of its list price and says nothing of demand",
        "no stock": "no stock: it could not be had on that day",
        "cheapest": "cheapest: the provider's cheapest configuration that day, any region",
    }
    return lines + [text for word, text in meanings.items() if word in words]


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
