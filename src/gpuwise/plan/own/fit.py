"""A person's own step: does it fit on a card, what fills the memory, what would change that, and how fast is it.

The step is captured (:mod:`gpuwise.workload.capture`), its memory replayed and its time predicted; no formula lives here.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.naming import USUAL, find_cluster
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.plan.answer import CapturedStep, Fit
from gpuwise.plan.changes.batch_search import search_batches
from gpuwise.plan.changes.step_remedies import find_remedies
from gpuwise.plan.changes.trial import Trial
from gpuwise.plan.larger import larger_hardware
from gpuwise.plan.own.named import NamedStep, OnCards
from gpuwise.plan.step.estimates import StepEstimate, measure
from gpuwise.plan.step.source import PRECISIONS, Source, StepSource
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.capture.heap import frozen_heap
from gpuwise.workload.changes.change import Change, Sites
from gpuwise.workload.changes.registry import Why, clash, label

Batch = int | Literal["auto"] | None
Tell = Callable[[str], None]


def silent(_: str) -> None:
    """A progress callback that shows nothing."""


def source_of(
    subject: object,
    *,
    precision: str = "as-is",
    optimizer: str | None = None,
    name: str | None = None,
    options: Mapping[str, object] | None = None,
    ranks: int = 1,
) -> StepSource:
    """``subject`` (``train.py:make_step``, a function that makes a step, a module class, a transformers configuration) with
    the requested precision and optimizer. Raises UnknownNameError for an unknown precision or optimizer."""
    if isinstance(subject, NamedStep):
        return subject
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS, hint="it is one of " + ", ".join(PRECISIONS))
    changes = PRECISIONS[precision]
    if optimizer is not None:
        optimizers = ("adamw", "adam", "sgd", "momentum", "adafactor", "rmsprop", "adagrad", "adamw8bit")
        if optimizer not in optimizers:
            raise UnknownNameError("optimizer", optimizer, optimizers, hint="it is one of " + ", ".join(optimizers))
        changes = (*changes, Change("optimizer", optimizer))
    if isinstance(subject, str):
        from gpuwise.workload.capture.target import find_target

        subject = find_target(subject, whole=True)
    label = name or getattr(subject, "text", None) or getattr(subject, "__name__", type(subject).__name__)
    return Source(subject, str(label), changes, dict(options or {}), ranks)


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
    changes: Sequence[Change] = (),
    remedies: bool | None = None,
    today: datetime.date | None = None,
    options: Mapping[str, object] | None = None,
    tell: Tell | None = None,
) -> Fit[StepEstimate]:
    """Whether a training step fits on ``on``, its memory by part, and changes that would make it fit.

    ``subject`` is ``"train.py:make_step"``, what :func:`gpuwise.capture` takes, or a capture that was made before (then no batch
    can be searched and no change tried). ``batch="auto"`` finds the largest batch that fits. ``precision`` is ``as-is`` or the
    one to apply (bf16, fp16, fp32, tf32); ``optimizer`` replaces the step's own. ``changes``, by their names in remedies, are
    applied first; then no remedies are searched. ``remedies``: by default searched only when it does not fit. ``tell`` receives
    progress messages.

    Raises InputError for bad input, the user's own error where their code raises, UnpredictableError where no batch fits.
    """
    cluster = find_cluster(on, prefer=USUAL) if isinstance(on, str) else on
    card = cluster.accelerator
    check_batch(batch)
    if changes and (remedies or batch == "auto"):
        what = "a search for remedies" if remedies else "a search for a batch"
        raise InputError(f"changes and {what} do not go together", hint="search first, then use changes that it names")

    def judge(capture: Capture) -> StepEstimate:
        return measure(capture, card, allocator_conf=allocator_conf, compiled=compiled)

    day = today or datetime.date.today()
    search_result, at_bound = None, None
    if isinstance(subject, Capture):
        _check_ready(batch, precision, optimizer, changes)
        step, estimate = CapturedStep(subject.name, subject, subject.batch, seq, precision), judge(subject)
    else:
        source = source_of(subject, precision=precision, optimizer=optimizer, options=options, ranks=cluster.n_accelerators)
        if isinstance(source, NamedStep):
            source = OnCards(source, allocator_conf=allocator_conf, compiled=compiled).settled(card)
        step, estimate = captured_at(source, card, batch, seq, precision, judge, tell or silent)
        if changes:
            trial = Trial(
                source, card, step.capture, step.sites, estimate, step.batch, seq, allocator_conf, compiled, tell or silent
            )
            step, estimate = _changed(trial, step, tuple(changes))
        at_bound = None if changes else estimate_at_bound(source, card, step, judge, tell or silent)
        if at_bound is not None:
            step = replace(step, captures=step.captures + 1)
        if not changes and (remedies or (remedies is None and not estimate.fits)):
            search_result = find_remedies(
                source,
                card,
                step.capture,
                step.sites,
                estimate,
                batch=step.batch,
                seq=seq,
                conf=allocator_conf,
                compiled=compiled,
                tell=tell or silent,
            )
            step = replace(step, captures=step.captures + search_result.captures)

    def on_other(other: Cluster) -> StepEstimate:
        return measure(step.capture, other.accelerator, allocator_conf=allocator_conf, compiled=compiled)

    bigger = () if estimate.fits else tuple(larger_hardware(cluster, day, on_other, is_known=is_known))
    if search_result is None:
        return Fit(step, cluster, estimate, None, bigger=bigger, at_bound=at_bound)
    return Fit(
        step,
        cluster,
        estimate,
        search_result.singles,
        search_result.combinations,
        bigger,
        failed=search_result.failed,
        at_bound=at_bound,
    )


def _changed(trial: Trial, step: CapturedStep, changes: tuple[Change, ...]) -> tuple[CapturedStep, StepEstimate]:
    """The step with ``changes`` made to it. Raises InputError where they do nothing, clash, or the step breaks under them."""
    name = trial.name(changes)
    for i, change in enumerate(changes):
        effect = trial.source.effect_of(change)
        if isinstance(effect, Why) or (effect == "ranks" and change.name != "offload_optimizer"):
            why = effect.text if isinstance(effect, Why) else "it takes several ranks"
            raise InputError(f"{label(change)} is not a change to a step: {why}", hint="take one that `fit --remedies` names")
        if clash((change,), changes[:i]):
            raise InputError(f"{label(change)} does not go with what comes before it in {name}", hint="leave one of them out")
        if change.name == "micro_batches" and not step.batch:
            raise InputError(f"{name}: the number of samples in the step is unknown", hint="give --batch")
    made = trial.measured(changes)
    if made is None:
        raise InputError(f"{name}: it changes nothing in this step", hint="`fit --remedies` lists changes that do")
    capture, estimate = made
    return replace(step, name=f"{step.name} with {name}", capture=capture, captures=step.captures + trial.captures), estimate


def estimate_at_bound(
    source: StepSource, card: Accelerator, step: CapturedStep, judge: Callable[[Capture], StepEstimate], tell: Tell
) -> StepEstimate | None:
    """The step with every size that depends on values the most it can be; None where none does, or where shares were given."""
    if (
        not isinstance(source, Source)
        or "guess" in source.options
        or not any(f.kind == "data-dependent" for f in step.capture.findings)
    ):
        return None
    tell(f"{source.name} at its upper bound")
    largest = replace(source, options={**source.options, "guess": "bound"})
    batch, seq = (None, None) if source.is_script else (step.batch, step.seq_len)
    return judge(largest.captured(card, batch, seq)[0])


def is_known(accelerator: Accelerator) -> bool:
    """Whether captures know the contexts and kernel choices of a vendor's accelerators."""
    return accelerator.vendor == "NVIDIA"


def check_batch(batch: object) -> None:
    """Raises InputError unless ``batch`` is a whole number of at least 1, ``auto`` or None."""
    if batch is not None and batch != "auto" and (not isinstance(batch, int) or batch < 1):
        raise InputError(f"a batch of {batch} is empty", hint="give a whole number of at least 1, or auto")


def _check_ready(batch: Batch, precision: str, optimizer: str | None, changes: Sequence[Change]) -> None:
    """Raises InputError for what would need another capture."""
    if batch is not None or precision != "as-is" or optimizer is not None or changes:
        raise InputError(
            "a finished capture cannot be changed (batch, precision, optimizer or others)",
            hint="give the function that makes the step instead",
        )


def captured_at(
    source: StepSource,
    card: Accelerator,
    batch: Batch,
    seq: int | None,
    precision: str,
    judge: Callable[[Capture], StepEstimate],
    tell: Tell,
    *,
    fastest: bool = False,
) -> tuple[CapturedStep, StepEstimate]:
    """The step at the given batch, or at the searched one (the largest that fits, or the smallest that is nearly as fast as
    any), and its estimate. Raises UnpredictableError when no batch fits."""
    if batch != "auto":
        tell(source.name)
        capture, sites = source.captured(card, batch, seq)
        step = CapturedStep(source.name, capture, batch or capture.batch, seq, precision, sites, None, 1, source.notes)
        return step, judge(capture)
    cache: dict[int, tuple[Capture, Sites]] = {}

    def capture_at(size: int) -> Capture:
        tell(f"{source.name} at batch {size}")
        cache[size] = source.captured(card, size, seq)
        return cache[size][0]

    search = search_batches(capture_at, judge)
    sites = next(iter(cache.values()))[1]
    largest_batch = search.largest
    if fastest and search.knee is not None:
        largest_batch = search.knee
    if largest_batch == 0:
        largest_batch = search.points[0].batch if search.points else min(cache)
    n = search.captures + (largest_batch not in cache)
    capture = cache[largest_batch][0] if largest_batch in cache else capture_at(largest_batch)
    step = CapturedStep(source.name, capture, largest_batch, seq, precision, sites, search, n, source.notes)
    return step, search.point(largest_batch).estimate
