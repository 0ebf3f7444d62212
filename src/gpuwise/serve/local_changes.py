"""Changes that would alter the answer of a model on your own device: format, cache, context, other cards with their price."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.facts.hardware.naming import counted
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.offers.purchases import PurchaseRange, purchases_for, typical_purchase_usd
from gpuwise.predict.estimate import Estimate
from gpuwise.serve.engines.engine import ENGINES, LOCAL_ENGINE
from gpuwise.serve.local_machine import LocalMachine
from gpuwise.serve.local_run import NEAR, FormatFit, LocalRun, format_fit, longest_with_cache
from gpuwise.serve.memory import most_bytes
from gpuwise.serve.streams import vendors

CACHE_TYPES = ("fp16", "q8_0", "q4_0")
"""Of the cache (llama.cpp ``--cache-type-k``), the default first."""
COUNTS = (2, 3, 4, 6, 8)
"""Times as many cards."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one change brings. ``sets`` are the options that ask for it; ``usd`` what it costs to buy, on ``as_of``."""

    name: str
    weights: str
    memory_bytes: float | None
    """On one device; None: as before."""
    longest_context: int
    tokens_per_s: Estimate | None
    sets: tuple[tuple[str, str], ...]
    usd: float | None = None
    as_of: datetime.date | None = None


def changes(run: LocalRun) -> Iterator[Change]:
    """What helps, the cheapest first: of a run that fits, what reaches further or loses less; of one that does not, what makes it
    fit. A place in RAM is :attr:`LocalRun.offload`."""
    if run.chosen is not None:
        yield from _of_a_fit(run, run.chosen)
    else:
        yield from _of_none(run)


def _of_a_fit(run: LocalRun, chosen: FormatFit) -> Iterator[Change]:
    most = run.arch.max_seq_len
    for dtype in CACHE_TYPES[1:]:
        longest = longest_with_cache(run.arch, run.machine, chosen, dtype)
        if chosen.longest_context < most and longest > chosen.longest_context:
            yield Change(f"{dtype} cache", chosen.weights, None, longest, None, (("cache_type", dtype),))
    narrower = next((f for f in run.formats if f.memory.fits and f.bits < chosen.bits), None)
    if narrower is not None:
        yield _format(narrower, f"{narrower.weights} weights", (("weights", narrower.weights),))
    if run.formats[0] is not chosen:
        yield from _cards(run, run.formats[:1])


def _of_none(run: LocalRun) -> Iterator[Change]:
    for dtype in CACHE_TYPES[1:]:
        fitting = ((f, longest_with_cache(run.arch, run.machine, f, dtype)) for f in run.formats)
        found = next(((f, longest) for f, longest in fitting if longest >= run.context), None)
        if found is not None:
            yield Change(f"{dtype} cache", found[0].weights, None, found[1], None, (("cache_type", dtype),))
            break
    shorter = max(run.formats, key=lambda f: (f.longest_context, f.bits))
    if shorter.longest_context >= NEAR:
        sets = (("context", str(shorter.longest_context)),)
        yield _format(shorter, f"{shorter.longest_context:,} tokens of context", sets)
    yield from _cards(run, run.formats)


def _format(f: FormatFit, name: str, sets: tuple[tuple[str, str], ...]) -> Change:
    return Change(name, f.weights, f.memory.total, f.longest_context, f.tokens_per_s, sets)


def _cards(run: LocalRun, formats: Iterable[FormatFit]) -> Iterator[Change]:
    """More of the same card, and the cheapest other one, on which one of ``formats`` fits, the first that does."""
    names = [f.weights for f in formats]
    cluster = run.machine.cluster
    if cluster is not None and not cluster.accelerator.unified_memory:
        for times in COUNTS:
            n = times * cluster.n_accelerators
            if n > ENGINES[LOCAL_ENGINE].in_turn:
                break
            try:
                more = counted(cluster.accelerator, n)
            except GpuwiseError:
                continue
            found = _first(run, more, names)
            if found is not None:
                price = _price(cluster.accelerator)
                added = n - cluster.n_accelerators
                yield _bought(f"{n}x {cluster.accelerator.name}", more, found, price, added)
                break
    wanted = names if run.chosen is not None else _usual(run, names)
    for price, accelerator in _sold():
        other = counted(accelerator, 1)
        if cluster is not None and most_bytes(accelerator) <= most_bytes(cluster.accelerator):
            continue
        found = _first(run, other, wanted)
        if found is not None:
            yield _bought(accelerator.name, other, found, price, 1)
            return


def _usual(run: LocalRun, names: list[str]) -> list[str]:
    """Formats that one buys a card for: those of small loss, or the one that was asked for."""
    good = [f.weights for f in run.formats if f.loss != "large"]
    return good or names


def _first(run: LocalRun, cluster: Cluster, names: Iterable[str]) -> FormatFit | None:
    machine = LocalMachine(cluster, None, 0.0)
    for name in names:
        found = format_fit(run.arch, machine, name, run.context)
        if found.memory.fits:
            return found
    return None


def _bought(name: str, cluster: Cluster, found: FormatFit, price: PurchaseRange | None, cards: int) -> Change:
    accelerator, n = cluster.accelerator, cluster.n_accelerators
    change = _format(found, name, (("on", accelerator.typed if n == 1 else f"{n}x{accelerator.typed}"),))
    return change if price is None else replace(change, usd=cards * price.median, as_of=price.as_of)


def _price(accelerator: Accelerator) -> PurchaseRange | None:
    """The lower of its observed prices, new and used; None without an observation."""
    found = [typical_purchase_usd(accelerator.id, c) for c in ("new", "used") if purchases_for(accelerator.id, c)]
    return min(found, key=lambda price: price.median, default=None)


def _sold() -> list[tuple[PurchaseRange, Accelerator]]:
    """Cards of a PC with an observed price, the cheapest first."""
    known = vendors()
    cards = [a for a in accelerators().values() if a.form == "PCIe" and a.vendor in known and not a.unified_memory]
    priced = [(price, a) for a in cards if (price := _price(a)) is not None]
    return sorted(priced, key=lambda item: item[0].median)
