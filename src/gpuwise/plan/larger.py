"""Accelerators with more memory than the current one, cheapest first. A price from few offers counts as higher, as in a plan
without GPUs."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator

from gpuwise.errors import DataError, InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.facts.hardware.naming import counted
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.offers.offer import book, offers
from gpuwise.facts.offers.table import Offer
from gpuwise.money.cost import Price, market_factor, price_of
from gpuwise.plan.answer import OtherHardware
from gpuwise.plan.changes.remedy import E

BIGGER = 3
"""Larger accelerators shown, cheapest first."""


def known_price(cluster: Cluster, today: datetime.date) -> Price | None:
    """Dollars per hour of ``cluster``; None if no offer exists or the user's stored prices are damaged, since fit does not
    depend on price."""
    try:
        return price_of(cluster, today)
    except (DataError, InputError, UnpredictableError):
        return None


def _offered(today: datetime.date) -> Iterable[Offer]:
    """Every offer of the day; those of the catalogue alone where a person's stored ones are damaged."""
    try:
        return book(today)
    except DataError:
        return offers()


def larger_hardware(
    cluster: Cluster,
    today: datetime.date,
    estimate: Callable[[Cluster], E],
    *,
    is_known: Callable[[Accelerator], bool] = lambda _: True,
) -> Iterator[OtherHardware[E]]:
    """The same estimate on as many of the cheapest rented accelerators with more memory on which it fits. ``estimate``
    evaluates a cluster and may raise InputError or UnpredictableError if it cannot."""
    least = cluster.accelerator.memory_bytes
    candidates: list[tuple[float, Price, Cluster]] = []
    for name in sorted({o.accelerator_id for o in _offered(today)}):
        accelerator = accelerators()[name]
        if accelerator.memory_bytes <= least or not is_known(accelerator):
            continue
        try:
            other = counted(accelerator, cluster.n_accelerators)
        except (InputError, UnpredictableError):
            continue
        price = known_price(other, today)
        if price is not None:
            candidates.append((price.expected * market_factor(name, price, today), price, other))
    count = 0
    for _, price, other in sorted(candidates, key=lambda row: row[0]):
        try:
            on_other = estimate(other)
        except (InputError, UnpredictableError):
            continue
        if on_other.fits:
            yield OtherHardware(other, on_other, price)
            count += 1
        if count == BIGGER:
            return
