"""A person's own training step planned: how long, how much, on which card, and how it scales over several."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from gpuwise.errors import GpuwiseError, InputError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.offers.offer import book
from gpuwise.money.cost import Price, price_of, rent
from gpuwise.money.energy import Energy, energy
from gpuwise.plan.changes.batch_search import BatchSearch
from gpuwise.plan.changes.step_speedups import find_speedups
from gpuwise.plan.changes.trial import StepRemedy
from gpuwise.plan.step.estimates import StepEstimate, measure
from gpuwise.plan.step.fit import Batch, OtherCard, Tell, captured_at, check_batch, silent, source_of
from gpuwise.plan.step.scaling import Scaling, scaling_of
from gpuwise.plan.step.source import capability_of
from gpuwise.predict.estimate import Estimate
from gpuwise.workload.capture.heap import frozen_heap
from gpuwise.workload.capture.record.capture import Capture

REFERENCE_CARD = "a100-sxm-80gb"
"""The card a step is captured for when none is named: every fused kernel of PyTorch runs on its generation."""
CARDS = 12
MOST_SAMPLES = 1e15


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The answer to :func:`plan_step`. Times and costs are of ``samples`` on the whole cluster; None without them."""

    name: str
    cluster: Cluster
    batch: int | None
    """Of one GPU."""
    seq: int | None
    precision: str
    capture: Capture
    estimate: StepEstimate
    search: BatchSearch[StepEstimate] | None
    step_time_s: Estimate
    """Of the whole cluster, the gradients' exchange included."""
    scaling: tuple[Scaling, ...]
    samples: float | None
    run_time_s: Estimate | None
    price: Price | None
    cost_usd: Estimate | None
    energy: Energy | None
    cards: tuple[OtherCard, ...]
    """Without ``on``: the cards compared, cheapest for the work first."""
    captures: int
    speedups: tuple[StepRemedy, ...] | None = None
    """Changes that make it faster, fastest first; None when they were not asked for."""

    @property
    def samples_per_s(self) -> Estimate | None:
        """Over the whole cluster; None when the step takes no batch."""
        if self.batch is None:
            return None
        n, t = self.batch * self.cluster.n_accelerators, self.step_time_s
        return Estimate(n / t.high, n / t.expected, n / t.low, t.basis)


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
) -> StepPlan:
    """How long one's own training step takes on ``on``, where the time goes, and what ``samples`` of it cost.

    ``subject`` and the options are those of :func:`fit_step`; ``batch`` is of one GPU and ``"auto"`` finds the smallest
    that is nearly as fast as any. Without ``on``, rented cards are compared, one of each. ``remedies``: changes that may
    make it faster are tried, each on the step itself.

    Raises InputError for bad input, the user's own error where their code raises, UnpredictableError where no time can be
    predicted.
    """
    check_batch(batch)
    if samples is not None and not 1 <= samples <= MOST_SAMPLES:
        raise InputError(f"{samples:g} samples", hint="from 1 to 1e15, like --samples 1.28M")
    if on is None and batch == "auto":
        raise InputError("--batch auto needs a GPU", hint="name one with --on, or give the batch as a number")
    day = today or datetime.date.today()
    named = on if on is not None else REFERENCE_CARD
    cluster = find_cluster(named) if isinstance(named, str) else named
    card = cluster.accelerator

    def judge(capture: Capture) -> StepEstimate:
        return measure(capture, card, allocator_conf=allocator_conf, compiled=compiled)

    chosen, search, n, sites, source = None, None, 0, None, None
    if isinstance(subject, Capture):
        capture, name = subject, subject.name
    else:
        source = source_of(subject, precision=precision, optimizer=optimizer, options=options)
        capture, sites, chosen, search, n = captured_at(source, card, batch, seq, judge, tell or silent, fastest=True)
        name = source.name
    size = chosen or capture.batch
    _check_samples(samples, size)
    estimate = search.point(chosen).estimate if search is not None and chosen is not None else judge(capture)
    cards: tuple[OtherCard, ...] = ()
    if on is None:
        cards = compare_cards(capture, day, allocator_conf, compiled)
        best = next((c for c in cards if c.estimate.fits and c.estimate.step_time_s is not None and c.price is not None), None)
        if best is not None:
            cluster, estimate = best.cluster, best.estimate
    one = _time_of(estimate)
    scaling = scaling_of(cluster, capture, estimate, one, size or 1)
    whole = next(s.step_time_s for s in scaling if s.n == cluster.n_accelerators)
    speedups, more = None, 0
    if remedies and sites is not None and source is not None:
        speedups, more = find_speedups(
            source,
            cluster.accelerator,
            capture,
            sites,
            estimate,
            batch=chosen or size,
            seq=seq,
            conf=allocator_conf,
            compiled=compiled,
            tell=tell or silent,
        )
    run = None if samples is None or size is None else whole.scaled(max(samples / (size * cluster.n_accelerators), 1.0))
    price = price_of(cluster, day, usd_per_hour=usd_per_hour, provider=provider)
    cost = None if run is None or price is None else rent(run, cluster.n_accelerators, price)
    used = None if run is None else energy(run, cluster)
    return StepPlan(
        name,
        cluster,
        size,
        seq,
        precision,
        capture,
        estimate,
        search,
        whole,
        scaling,
        samples,
        run,
        price,
        cost,
        used,
        cards,
        n + more,
        speedups,
    )


def _check_samples(samples: float | None, batch: int | None) -> None:
    if samples is not None and batch is None:
        raise InputError("--samples needs to know how many a step takes", hint="give --batch too")


def _time_of(estimate: StepEstimate) -> Estimate:
    """Raises UnpredictableError with the reason when there is no time."""
    from gpuwise.errors import UnpredictableError

    if estimate.step_time_s is None:
        raise UnpredictableError("no time", estimate.no_time, hint="`gpuwise gpus` says what is known of a card")
    return estimate.step_time_s


def compare_cards(capture: Capture, today: datetime.date, conf: str | None, compiled: bool | None) -> tuple[OtherCard, ...]:
    """The step on one of each rented card whose kernels are chosen as in the capture, those that fit first, then by what
    a step costs."""
    found: list[OtherCard] = []
    for name in sorted({o.accelerator_id for o in book(today)}):
        card = accelerators()[name]
        if card.vendor != "NVIDIA" or capability_of(card) < capture.settings.capability:
            continue
        try:
            cluster = find_cluster(name)
            price = price_of(cluster, today)
            estimate = measure(capture, card, allocator_conf=conf, compiled=compiled)
        except GpuwiseError:
            continue
        if price is not None and estimate.step_time_s is not None:
            found.append(OtherCard(cluster, estimate, price))

    def order(row: OtherCard) -> tuple[bool, float]:
        time = row.estimate.step_time_s
        assert time is not None and row.price is not None
        return (not row.estimate.fits, time.expected * row.price.expected)

    return tuple(sorted(found, key=order)[:CARDS])
