"""A person's own training step planned: how long, how much, on which card, and how it scales over several."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import replace

from gpuwise.errors import GpuwiseError, InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.facts.hardware.naming import USUAL, find_cluster
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.offers.offer import book
from gpuwise.money.cost import Price, price_of, rent
from gpuwise.money.energy import energy
from gpuwise.plan.answer import CapturedStep, Option, Plan
from gpuwise.plan.changes.step_speedups import find_speedups
from gpuwise.plan.own.fit import Batch, Tell, captured_at, check_batch, is_known, silent, source_of
from gpuwise.plan.own.named import NamedStep, OnCards
from gpuwise.plan.step.estimates import StepEstimate, measure
from gpuwise.plan.step.scaling import FSDP, scaling_of
from gpuwise.plan.step.source import capability_of
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.memory.capture import Replayed, captured_memory
from gpuwise.predict.parallel.sharding import Sharding, sharded
from gpuwise.predict.step.capture_time import step_rows
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.capture.heap import frozen_heap

REFERENCE_CARD = "a100-sxm-80gb"
"""The card a step is captured for when none is named: every fused kernel of PyTorch runs on its generation."""
CARDS = 12
MOST_SAMPLES = 1e15


@frozen_heap()
def plan_step(
    subject: object,
    on: str | Cluster | None = None,
    *,
    batch: Batch = None,
    seq: int | None = None,
    precision: str = "as-is",
    optimizer: str | None = None,
    allocator_conf: str | None = None,
    compiled: bool | None = None,
    samples: float | None = None,
    usd_per_hour: float | None = None,
    provider: str | None = None,
    remedies: bool = False,
    today: datetime.date | None = None,
    options: Mapping[str, object] | None = None,
    tell: Tell | None = None,
) -> Plan[StepEstimate]:
    """Time of the user's own training step on ``on``, by part, and the cost of ``samples`` samples.

    ``subject`` and the options are those of :func:`fit_step`; ``batch`` is per GPU; ``"auto"`` finds the smallest that is nearly
    as fast as any. Without ``on``, rented cards are compared, one of each. ``remedies``: changes that may make it faster are
    tried, each on the step itself.

    Raises InputError for bad input, the user's own error where their code raises, UnpredictableError where no time can be
    predicted.
    """
    check_batch(batch)
    if samples is not None and not 1 <= samples <= MOST_SAMPLES:
        raise InputError(f"{samples:g} samples", hint="from 1 to 1e15, like --samples 1.28M")
    if on is None and batch == "auto":
        raise InputError("--batch auto needs a GPU", hint="name one with --on, or give the batch as a number")
    day = today or datetime.date.today()
    hardware = on if on is not None else REFERENCE_CARD
    cluster = find_cluster(hardware, prefer=USUAL) if isinstance(hardware, str) else hardware
    card = cluster.accelerator

    def judge(capture: Capture) -> StepEstimate:
        return measure(capture, card, allocator_conf=allocator_conf, compiled=compiled)

    source = None
    cards: tuple[Option[StepEstimate], ...] = ()
    if isinstance(subject, Capture):
        step, estimate = CapturedStep(subject.name, subject, subject.batch, seq, "as-is"), judge(subject)
    else:
        source = source_of(subject, precision=precision, optimizer=optimizer, options=options, ranks=cluster.n_accelerators)
        if isinstance(source, NamedStep):
            many = OnCards(source, allocator_conf=allocator_conf, compiled=compiled)
            if on is None:
                cards = compare_cards(lambda other: many.measured(many.settled(other), other), day)
                cluster = next((c.cluster for c in cards if c.estimate.fits), cluster)
                card = cluster.accelerator
            source = many.settled(card)
        step, estimate = captured_at(source, card, batch, seq, precision, judge, tell or silent, fastest=True)
    capture, size = step.capture, step.batch
    _check_samples(samples, size)
    if on is None and not isinstance(source, NamedStep):
        cards = compare_cards(capture_on(capture, allocator_conf, compiled), day)
        best = next((c for c in cards if c.estimate.fits), None)
        if best is not None:
            cluster, estimate = best.cluster, best.estimate
    one = _time_of(estimate)
    scaling = scaling_of(cluster, capture, estimate, one, size or 1)
    chosen = next(s for s in scaling if s.n == cluster.n_accelerators)
    if isinstance(source, NamedStep) and cluster.n_accelerators > 1 and chosen.fits is False:
        split = next((s for s in scaling if s.n == chosen.n and s.how == FSDP and s.fits), None)
        if split is not None:
            rank = sharded(capture, Sharding("zero3", split.n)).capture
            estimate = replace(estimate, memory=captured_memory(rank, cluster.accelerator, allocator_conf=allocator_conf))
            chosen, note = split, f"weights, gradients and optimizer states split over {split.n} GPUs (FSDP)"
            step = replace(step, notes=(*step.notes, note))
            scaling = (*(s for s in scaling if s is not split and s.n < split.n), split)
    whole = chosen.step_time_s
    speedups = None
    if remedies and source is not None:
        speedups, more = find_speedups(
            source,
            cluster.accelerator,
            capture,
            step.sites,
            estimate,
            batch=size,
            seq=seq,
            conf=allocator_conf,
            compiled=compiled,
            tell=tell or silent,
        )
        step = replace(step, captures=step.captures + more)
    steps = 1.0 if samples is None or size is None else max(samples / (size * cluster.n_accelerators), 1.0)
    price = price_of(cluster, day, usd_per_hour=usd_per_hour, provider=provider)
    option = option_of(cluster, estimate, whole.scaled(steps), price)
    return Plan(step, cluster, option, speedups, hardware=cards, scaling=scaling, samples=samples)


def option_of(cluster: Cluster, estimate: StepEstimate, time_s: Estimate, price: Price | None) -> Option[StepEstimate]:
    """The step on ``cluster`` with what ``time_s`` of it costs."""
    cost = None if price is None else rent(time_s, cluster.n_accelerators, price)
    power_w = None if estimate.time is None else estimate.time.power_w
    return Option(cluster, estimate, time_s, price, cost, energy(time_s, cluster, accelerator_w=power_w))


def _check_samples(samples: float | None, batch: int | None) -> None:
    if samples is not None and batch is None:
        raise InputError("--samples needs to know how many a step takes", hint="give --batch too")


def _time_of(estimate: StepEstimate) -> Estimate:
    """Raises UnpredictableError with the reason when there is no time."""
    if estimate.step_time_s is None:
        raise UnpredictableError("no time", estimate.no_time, hint="`gpuwise gpus NAME` shows what is known about a GPU")
    return estimate.step_time_s


def capture_on(capture: Capture, conf: str | None, compiled: bool | None) -> Callable[[Accelerator], StepEstimate]:
    """The estimate of ``capture`` on one accelerator after the other. It raises UnpredictableError for one whose kernels are not
    chosen as in the capture."""
    replays: dict[object, Replayed] = {}
    rows = step_rows(capture)

    def on(card: Accelerator) -> StepEstimate:
        if capability_of(card) < capture.settings.capability:
            raise UnpredictableError(f"{card.name} runs other kernels than those that were captured")
        return measure(capture, card, allocator_conf=conf, compiled=compiled, replays=replays, rows=rows)

    return on


def compare_cards(estimate_on: Callable[[Accelerator], StepEstimate], today: datetime.date) -> tuple[Option[StepEstimate], ...]:
    """The step on one of each rented accelerator that captures know, those that fit first, then by what a step costs."""
    options: list[tuple[bool, float, Option[StepEstimate]]] = []
    for name in sorted({o.accelerator_id for o in book(today)}):
        card = accelerators()[name]
        if not is_known(card):
            continue
        try:
            cluster = find_cluster(name)
            price = price_of(cluster, today)
            estimate = estimate_on(card)
        except GpuwiseError:
            continue
        time = estimate.step_time_s
        if price is not None and time is not None:
            usd = time.expected * price.expected
            options.append((not estimate.fits, usd, option_of(cluster, estimate, time, price)))
    return tuple(option for _, _, option in sorted(options, key=lambda row: row[:2])[:CARDS])
