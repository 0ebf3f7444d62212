"""A person's own step: does it fit on a card, what fills the memory, what would change that, and how fast is it.

The step is captured (:mod:`gpuwise.workload.capture`), its memory replayed and its time predicted; no formula lives here.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from gpuwise.errors import GpuwiseError, InputError, UnknownNameError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.offers.offer import book
from gpuwise.money.cost import Price, price_of
from gpuwise.plan.changes.batch_search import BatchSearch, search_batches
from gpuwise.plan.changes.step_remedies import Remedies, find_remedies
from gpuwise.plan.step.estimates import StepEstimate, measure
from gpuwise.plan.step.source import PRECISIONS, Source
from gpuwise.workload.capture.heap import frozen_heap
from gpuwise.workload.capture.record.capture import Capture
from gpuwise.workload.changes.change import Change, Sites

BIGGER = 3
"""Larger cards shown, cheapest first."""
Batch = int | Literal["auto"] | None
Tell = Callable[[str], None]


def silent(_: str) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True)
class OtherCard:
    """The same step on another card; ``price`` is of one hour of one, None when nobody rents it out."""

    cluster: Cluster
    estimate: StepEstimate
    price: Price | None


@dataclass(frozen=True, slots=True)
class StepFit:
    """The answer to :func:`fit_step`."""

    name: str
    cluster: Cluster
    batch: int | None
    """Of one accelerator; None when the step chooses its own and takes none."""
    seq: int | None
    precision: str
    capture: Capture
    estimate: StepEstimate
    sites: Sites
    search: BatchSearch[StepEstimate] | None
    """With ``batch="auto"``: the batches tried."""
    remedies: Remedies | None
    """None when they were not asked for."""
    bigger: tuple[OtherCard, ...]
    captures: int
    """Captures that were run for all of it."""

    @property
    def fits(self) -> bool:
        return self.estimate.fits


def source_of(
    subject: object,
    *,
    precision: str = "as-is",
    optimizer: str | None = None,
    name: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Source:
    """``subject`` (``train.py:make_step``, a function that makes a step, a module class, a transformers configuration) with the
    precision and the optimizer asked for. Raises UnknownNameError for a precision or an optimizer nobody knows."""
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS, hint="it is one of " + ", ".join(PRECISIONS))
    changes = PRECISIONS[precision]
    if optimizer is not None:
        known = ("adamw", "adam", "sgd", "momentum", "adafactor", "rmsprop", "adagrad", "adamw8bit")
        if optimizer not in known:
            raise UnknownNameError("optimizer", optimizer, known, hint="it is one of " + ", ".join(known))
        changes = (*changes, Change("optimizer", optimizer))
    if isinstance(subject, str):
        from gpuwise.workload.capture.target import find_target

        subject = find_target(subject)
    said = name or getattr(subject, "text", None) or getattr(subject, "__name__", type(subject).__name__)
    return Source(subject, str(said), changes, dict(options or {}))


@frozen_heap()
def fit_step(
    subject: object,
    on: str | Cluster,
    *,
    batch: Batch = None,
    seq: int | None = None,
    precision: str = "as-is",
    optimizer: str | None = None,
    allocator_conf: str | None = None,
    compiled: bool | None = None,
    remedies: bool | None = None,
    today: datetime.date | None = None,
    options: Mapping[str, object] | None = None,
    tell: Tell | None = None,
) -> StepFit:
    """Whether a training step fits on ``on``, what fills the memory, and what would make it fit.

    ``subject`` is ``"train.py:make_step"``, what :func:`gpuwise.capture` takes, or a capture that was made before (then no
    batch can be searched and no change tried). ``batch="auto"`` finds the largest batch that fits. ``precision`` is
    ``as-is`` or what the step is put under (bf16, fp16, fp32, tf32); ``optimizer`` stands in for the step's own.
    ``remedies`` are searched when it does not fit, unless said otherwise. ``tell`` hears what is being done.

    Raises InputError for bad input, the user's own error where their code raises, UnpredictableError where no batch fits.
    """
    cluster = find_cluster(on) if isinstance(on, str) else on
    card = cluster.accelerator
    check_batch(batch)

    def judge(capture: Capture) -> StepEstimate:
        return measure(capture, card, allocator_conf=allocator_conf, compiled=compiled)

    day = today or datetime.date.today()
    if isinstance(subject, Capture):
        _check_ready(batch, precision, optimizer)
        estimate = judge(subject)
        bigger = () if estimate.fits else tuple(larger_cards(subject, cluster, day, allocator_conf, compiled))
        return StepFit(subject.name, cluster, subject.batch, seq, precision, subject, estimate, Sites([]), None, None, bigger, 0)
    source = source_of(subject, precision=precision, optimizer=optimizer, options=options)
    capture, sites, chosen, search, n = captured_at(source, card, batch, seq, judge, tell or silent)
    estimate = search.point(chosen).estimate if search is not None and chosen is not None else judge(capture)
    found = None
    if remedies or (remedies is None and not estimate.fits):
        found = find_remedies(
            source,
            card,
            capture,
            sites,
            estimate,
            batch=chosen or capture.batch,
            seq=seq,
            conf=allocator_conf,
            compiled=compiled,
            tell=tell or silent,
        )
    bigger = () if estimate.fits else tuple(larger_cards(capture, cluster, day, allocator_conf, compiled))
    n += found.captures if found is not None else 0
    return StepFit(
        source.name, cluster, chosen or capture.batch, seq, precision, capture, estimate, sites, search, found, bigger, n
    )


def check_batch(batch: object) -> None:
    """Raises InputError unless ``batch`` is a whole number of at least 1, ``auto`` or None."""
    if batch is not None and batch != "auto" and (not isinstance(batch, int) or batch < 1):
        raise InputError(f"a batch of {batch} has nothing in it", hint="give a whole number of at least 1, or auto")


def _check_ready(batch: Batch, precision: str, optimizer: str | None) -> None:
    """Raises InputError for what would need another capture."""
    if batch is not None or precision != "as-is" or optimizer is not None:
        raise InputError(
            "a capture that was made before cannot change its batch, precision or optimizer",
            hint="give the function that makes the step instead",
        )


def captured_at(
    source: Source,
    card: Accelerator,
    batch: Batch,
    seq: int | None,
    judge: Callable[[Capture], StepEstimate],
    tell: Tell,
    *,
    fastest: bool = False,
) -> tuple[Capture, Sites, int | None, BatchSearch[StepEstimate] | None, int]:
    """The step at the batch asked for, or at the one searched: the largest that fits, or the smallest that is nearly as
    fast as any. With it where the user does things, the batch, the search, and the captures run.

    Raises UnpredictableError when no batch fits.
    """
    if batch != "auto":
        tell(source.name)
        capture, sites = source.captured(card, batch, seq)
        return capture, sites, batch, None, 1
    seen: dict[int, tuple[Capture, Sites]] = {}

    def capture_at(size: int) -> Capture:
        tell(f"{source.name} at batch {size}")
        seen[size] = source.captured(card, size, seq)
        return seen[size][0]

    search = search_batches(capture_at, judge)
    sites = next(iter(seen.values()))[1]
    wanted = search.largest
    if fastest and search.knee is not None:
        wanted = search.knee
    if wanted == 0:
        wanted = search.points[0].batch if search.points else min(seen)
    capture = seen[wanted][0] if wanted in seen else None
    if capture is None:
        capture = capture_at(wanted)
        return capture, sites, wanted, search, search.captures + 1
    return capture, sites, wanted, search, search.captures


def larger_cards(
    capture: Capture, cluster: Cluster, today: datetime.date, conf: str | None, compiled: bool | None
) -> Iterable[OtherCard]:
    """The cheapest rented cards with more memory on which the step fits, cheapest first."""
    least = cluster.accelerator.memory_bytes
    names = {o.accelerator_id for o in book(today) if accelerators()[o.accelerator_id].memory_bytes > least}
    priced: list[tuple[float, Cluster, Price]] = []
    for name in names:
        if accelerators()[name].vendor != "NVIDIA":
            continue  # contexts and kernel choices of others are not known to the captures
        try:
            other = find_cluster(f"{cluster.n_accelerators}x{name}")
        except GpuwiseError:
            continue
        price = price_of(other, today)
        if price is not None:
            priced.append((price.expected, other, price))
    shown = 0
    for _, other, price in sorted(priced, key=lambda row: row[0]):
        estimate = measure(capture, other.accelerator, allocator_conf=conf, compiled=compiled)
        if estimate.fits:
            yield OtherCard(other, estimate, price)
            shown += 1
        if shown == BIGGER:
            return
