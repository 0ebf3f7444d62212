"""``gpuwise prices --buy``: what accelerators cost to buy, new and used."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuwise.errors import UnpredictableError

if TYPE_CHECKING:
    from gpuwise.facts.hardware.accelerators import Accelerator
    from gpuwise.facts.offers.purchases import Condition, Purchase, PurchaseRange

CONDITIONS: tuple[Condition, ...] = ("new", "used")


@dataclass(frozen=True, slots=True)
class _Bought:
    """One accelerator in one condition."""

    accelerator: Accelerator
    condition: Condition
    price: PurchaseRange
    seen: tuple[Purchase, ...]

    def age_days(self, day: datetime.date) -> int | None:
        return None if self.price.as_of is None else (day - self.price.as_of).days


def purchases(query: str, day: datetime.date, min_memory: float | None, max_usd: float | None) -> dict[str, Any]:
    """What the accelerators that ``query`` means cost to buy. Raises UnpredictableError when nothing is known."""
    offers = sorted(_bought(query, min_memory or 0.0, max_usd), key=lambda b: (b.price.median, b.accelerator.name))
    if not offers:
        raise UnpredictableError(
            "no purchase price",
            f"no purchase price{f' of {query!r}' if query else ''} matches",
            hint="`gpuwise prices --buy` lists those that are",
        )
    return {"as_of": day.isoformat(), "purchases": [_document(b, day) for b in offers]}


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
