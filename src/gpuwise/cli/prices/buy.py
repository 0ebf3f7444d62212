"""``gpuwise prices --buy``: what accelerators cost to buy, new and used."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwise.errors import UnpredictableError
from gpuwise.money.cost import STALE_DAYS

if TYPE_CHECKING:
    from gpuwise.facts.hardware.accelerators import Accelerator
    from gpuwise.facts.offers.purchases import Condition, Purchase, PurchaseRange

CONDITIONS: tuple[Condition, ...] = ("new", "used")
GIVES_WAY = ("$/PFLOP/s", "$/GB", "from", "to", "kind")
"""Columns left out, in this order, until the others stand whole."""


@dataclass(frozen=True, slots=True)
class _Bought:
    """One accelerator in one condition."""

    accelerator: Accelerator
    condition: Condition
    price: PurchaseRange
    seen: tuple[Purchase, ...]

    def age_days(self, day: datetime.date) -> int | None:
        return None if self.price.as_of is None else (day - self.price.as_of).days


def show_purchases(
    query: str, day: datetime.date, min_memory: float | None, max_usd: float | None, *, every: bool, json: bool
) -> int:
    """Print what the accelerators that ``query`` means cost to buy. Raises UnpredictableError when nothing is
    known."""
    offers = sorted(_bought(query, min_memory or 0.0, max_usd), key=lambda b: (b.price.median, b.accelerator.name))
    if not offers:
        raise UnpredictableError(
            "no purchase price",
            f"no purchase price{f' of {query!r}' if query else ''} matches",
            hint="`gpuwise prices --buy` lists those that are",
        )
    if json:
        from gpuwise.cli.out import print_json

        print_json({"as_of": day.isoformat(), "purchases": [_document(b, day) for b in offers]})
    else:
        _print(offers, day, every)
    return 0


def _bought(query: str, min_memory: float, max_usd: float | None) -> Iterator[_Bought]:
    from gpuwise.facts.hardware.accelerators import accelerators
    from gpuwise.facts.offers.purchases import purchases_for, typical_purchase_usd
    from gpuwise.facts.offers.search import accelerators_of

    for name in accelerators_of(query) if query else accelerators():
        accelerator = accelerators()[name]
        for condition in CONDITIONS:
            try:
                price = typical_purchase_usd(name, condition)
            except UnpredictableError:
                continue
            cheap = max_usd is None or price.median <= max_usd
            if cheap and accelerator.memory_bytes >= min_memory:
                yield _Bought(accelerator, condition, price, purchases_for(name, condition))


def _print(offers: list[_Bought], day: datetime.date, every: bool) -> None:
    from gpuwise.cli.out import console, table_of
    from gpuwise.units import GIGA, PETA, format_usd

    to = console()
    columns = ["accelerator", "condition", "price", "from", "to", "$/PFLOP/s", "$/GB", "kind", "age"]
    table = table_of(columns, left=("accelerator", "condition", "kind"), wrap=("accelerator", "kind"), gives_way=GIVES_WAY)
    for b in offers:
        peak = b.accelerator.peak_flop_per_s.get("bf16")
        low, high = ("", "") if b.price.low == b.price.high else (format_usd(b.price.low), format_usd(b.price.high))
        age = b.age_days(day)
        table.add_row(
            b.accelerator.name,
            b.condition,
            format_usd(b.price.median),
            low,
            high,
            "-" if peak is None else format_usd(b.price.median / (peak / PETA)),
            format_usd(b.price.median / (b.accelerator.memory_bytes / GIGA)),
            _kind(b.price.kind, age),
            _age(age),
        )
        if every:
            for one in b.seen:
                table.add_row(
                    f"  {one.region or '-'}",
                    "",
                    format_usd(one.usd_per_accelerator),
                    "",
                    "",
                    "",
                    "",
                    _kind(one.kind, one.age_days(day)),
                    _age(one.age_days(day)),
                )
    to.print(table)
    to.print(
        "US dollars for one accelerator without tax; the age is that of the oldest price it rests on "
        f"(old: more than {STALE_DAYS} days); undated: the vendor's list or launch price",
        style="dim",
    )


def _kind(kind: str, age: int | None) -> str:
    words = kind.replace("+", ", ")
    return f"{words}, old" if age is not None and age > STALE_DAYS else words


def _age(days: int | None) -> str:
    return "undated" if days is None else f"{max(days, 0)} d"


def _document(b: _Bought, day: datetime.date) -> dict[str, object]:
    p = b.price
    return {
        "accelerator": b.accelerator.id,
        "condition": b.condition,
        "usd": {"low": p.low, "median": p.median, "high": p.high},
        "kind": p.kind,
        "as_of": None if p.as_of is None else p.as_of.isoformat(),
        "age_days": b.age_days(day),
        "observations": [
            {
                "usd": o.usd_per_accelerator,
                "region": o.region,
                "kind": o.kind,
                "as_of": o.as_of.isoformat(),
                "age_days": o.age_days(day),
                "source": o.source_key,
            }
            for o in b.seen
        ],
    }
