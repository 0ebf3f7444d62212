"""Changes that make a step fit on an accelerator: each is applied to the user's own step, captured again and predicted again.

A change that saves nothing in the capture is not shown. A change that cannot be made (no repeated blocks, no head over a
vocabulary, a step that fails with it) is listed with its reason. If no single change suffices, changes are stacked in the
order of step time per freed byte, and each stack is captured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.plan.changes.remedy import remedy_order
from gpuwise.plan.changes.trial import StepRemedy, Trial
from gpuwise.plan.checkpointing.selection import select_checkpoints
from gpuwise.plan.step.estimates import StepEstimate
from gpuwise.plan.step.source import StepSource, capability_of
from gpuwise.plan.step.time_parts import op_seconds
from gpuwise.workload.capture.captured import Capture, Category, OpFlag
from gpuwise.workload.changes.change import Change, Sites
from gpuwise.workload.changes.registry import KINDS, SAME, clash
from gpuwise.workload.changes.strategy import LORA_RANK

Changes = tuple[Change, ...]
LOSS_CHUNKS = 8
MOST_MICRO_BATCHES = 64
WORTH = 0.002
"""Share of the accelerator's memory below which a saving is not shown."""
EXPANDABLE = "expandable_segments:True"
LOW = frozenset({"bf16", "fp16"})
KEPT = 2**20
"""Minimum bytes that stay allocated from the previous step for which freeing them is tried."""
ONE_STATE = 4.0
"""Bytes a weight of one state in 32 bits: where an optimizer has more, also one of a person's own, lighter ones are tried."""
CHECKPOINT_TARGETS = (0.98, 0.9, 0.8)
"""Shares of what tensors may take that checkpoints are chosen for, in turn: gaps between blocks take the rest."""


@dataclass(frozen=True, slots=True)
class Remedies:
    """``singles``: first those that suffice, then by slowdown. ``combinations``: at most one of each kind, all of which fit.
    ``failed``: changes that broke the step, with the error."""

    singles: tuple[StepRemedy, ...]
    combinations: tuple[StepRemedy, ...]
    captures: int
    failed: tuple[tuple[str, str], ...] = ()


def find_remedies(
    source: StepSource,
    accelerator: Accelerator,
    capture: Capture,
    sites: Sites,
    base: StepEstimate,
    *,
    batch: int | None,
    seq: int | None = None,
    conf: str | None = None,
    compiled: bool | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Remedies:
    """Try every change that may save memory on the step; ``tell`` receives the name of each before its capture."""
    trial = Trial(source, accelerator, capture, sites, base, batch, seq, conf, compiled, tell)
    remedies: list[StepRemedy] = []
    listed = list(source.lighter(accelerator) or memory_changes(capture, sites, accelerator, conf))
    trial.of = len(listed)
    for changes in listed:
        _keep(remedies, trial.tried(changes), accelerator)
    for changes in _micro_batches(batch, base):
        remedy = trial.tried(changes)
        _keep(remedies, remedy, accelerator)
        if remedy is not None and remedy.fits:
            break
    for changes in _fewest_checkpoints(trial):
        remedy = trial.tried(changes)
        _keep(remedies, remedy, accelerator)
        if remedy is None or remedy.estimate.fits_easily:
            break
    remedies = _last_of_each(remedies)
    singles = sorted(remedies, key=remedy_order)
    enough = base.fits or any(r.fits and r.kind == SAME for r in singles)
    combinations = () if enough else _stacked(trial, remedies)
    return Remedies(tuple(singles), combinations, trial.captures, tuple(trial.failed))


def _keep(remedies: list[StepRemedy], remedy: StepRemedy | None, accelerator: Accelerator) -> None:
    if remedy is not None and remedy.saved_bytes > WORTH * accelerator.memory_bytes:
        remedies.append(remedy)


def _last_of_each(remedies: Sequence[StepRemedy]) -> list[StepRemedy]:
    """Among several tries at choosing modules keep only the one that fits, since every block saves more than that one."""
    return [r for r in remedies if r.fits or not (r.changes[0].name == "checkpointing" and r.changes[0].argument)]


def _fewest_checkpoints(trial: Trial) -> Iterator[Changes]:
    """The cheapest modules whose recomputation makes the step fit, by exact selection; asked again for more memory freed
    while the capture of it does not fit easily.

    What tensors may take is what the card has beside context and communicators, less what the blocks and hidden
    workspaces take beyond the tensors at the peak.
    """
    capture, base, memory = trial.capture, trial.base, trial.base.memory
    if base.fits or base.time is None or bool((capture.op_flags & OpFlag.CHECKPOINTED).any()) or len(trial.sites.forward) != 1:
        return
    times = op_seconds(capture, base.time)
    if times is None:
        return
    beyond = max(memory.steady.allocated_bytes - capture.peak_bytes(), 0)
    room = memory.capacity_bytes - memory.context.expected - memory.communicators.expected - beyond
    before: tuple[str, ...] = ()
    for share in CHECKPOINT_TARGETS:
        try:
            paths = select_checkpoints(capture, int(share * room), times[0]).paths if room > 0 else ()
        except UnpredictableError:
            return
        if paths and paths != before:
            yield (Change("checkpointing", paths),)
        before = paths


def memory_changes(capture: Capture, sites: Sites, accelerator: Accelerator, conf: str | None) -> Iterator[Changes]:
    """The changes that the step, as seen, has something for; whether they help is for the capture to say."""
    s = capture.settings
    major, _ = capability_of(accelerator)
    adam = any(o.split("/")[0] in ("Adam", "AdamW") for o in s.optimizers)
    weights = {p.dtype for p in capture.parameters if p.trainable} or set(capture.storage_dtype) & LOW
    if "expandable_segments" not in (conf or s.allocator_conf):
        yield (Change("allocator", EXPANDABLE),)
    if any(o.endswith("/foreach") for o in s.optimizers):
        yield (Change("fused_optimizer"),)
    if sites.zero_grad_keeps:
        yield (Change("set_to_none"),)
    elif _alive_between(capture, Category.GRADIENT) and sites.step is not None:
        yield (Change("zero_after_step"),)
    if _alive_between(capture, Category.ACTIVATION, Category.TEMPORARY):
        yield (Change("free_outputs"),)
    if s.cudnn_benchmark:
        yield (Change("cudnn_benchmark", False),)
    if sites.has_blocks and not bool((capture.op_flags & OpFlag.CHECKPOINTED).any()):
        yield (Change("checkpointing"),)
    if sites.large_linear and sites.loss is not None:
        yield (Change("chunked_loss", LOSS_CHUNKS),)
    if len(sites.optimizers) == 1:
        yield (Change("step_in_backward"),)
    if adam and not accelerator.unified_memory:
        yield (Change("offload_optimizer"),)
    yield (Change("attention"),)
    yield from half_precision(capture, weights, major)
    if major >= 8 and "fp32" in weights:
        yield (Change("low_precision", "bf16"),)
    if adam or _state_bytes_per_weight(capture) > ONE_STATE:
        yield (Change("optimizer", "adamw8bit"),)
        yield (Change("optimizer", "adafactor"),)
        yield (Change("optimizer", "momentum"),)
    if sites.n_linear >= 4 and sites.n_conv == 0 and sites.has_blocks and len(sites.optimizers) == 1:
        yield (Change("lora", LORA_RANK),)


def half_precision(capture: Capture, weights: Set[str], major: int) -> Iterator[Changes]:
    """Autocast in the format for compute capability ``major``, for a step that computes in none of half precision."""
    if not LOW & (set(capture.settings.autocast_dtypes) | weights) and major >= 7:
        yield (Change("autocast", "bf16" if major >= 8 else "fp16"),)


def _state_bytes_per_weight(capture: Capture) -> float:
    """Bytes of optimizer states for each value that is trained; 0 where no parameter of the model is known."""
    n_values = sum(math.prod(p.shape) for p in capture.parameters if p.trainable)
    states = capture.bytes_by_category(len(capture.event_sign) - 1).get(Category.OPTIMIZER, 0)
    return states / n_values if n_values else 0.0


def _alive_between(capture: Capture, *categories: Category) -> bool:
    """Whether something of ``categories`` that a step made is alive when the next one begins."""
    if len(capture.steps) < 2:
        return False
    before, span = capture.steps[-2], capture.steady
    window = slice(0, span.first_event)
    alive = (
        np.bincount(capture.event_storage[window], weights=capture.event_sign[window], minlength=capture.storage_bytes.size) > 0
    )
    is_inside = (capture.storage_op >= before.first_op) & (capture.storage_op < before.end_op)
    is_live = alive & is_inside & np.isin(capture.storage_category, [int(c) for c in categories])
    return bool(capture.storage_bytes[is_live].sum() >= KEPT)


def _micro_batches(batch: int | None, base: StepEstimate) -> Iterator[Changes]:
    """The batch split into the number of micro-batches that the activations suggest, then into more; the capture confirms."""
    if batch is None:
        return
    divisors = [n for n in range(2, min(batch, MOST_MICRO_BATCHES) + 1) if batch % n == 0]
    fixed = base.memory.context.expected + sum(
        b for c, b in base.memory.by_category.items() if c.name in ("PARAMETER", "GRADIENT", "OPTIMIZER", "BUFFER")
    )
    room = base.memory.capacity_bytes - fixed
    n_micro_batches = (base.memory_bytes.expected - fixed) / room if room > 0 else float(MOST_MICRO_BATCHES)
    enough = [n for n in divisors if n >= n_micro_batches][:3] or divisors[-1:]
    for n in enough:
        yield (Change("micro_batches", n),)


def _stacked(trial: Trial, remedies: Sequence[StepRemedy]) -> tuple[StepRemedy, ...]:
    """For each kind, with the kinds before it allowed: add changes by step time per freed byte until the step fits."""
    combinations: list[StepRemedy] = []
    for rank, kind in enumerate(KINDS):
        allowed = [r for r in remedies if KINDS.index(r.kind) <= rank]
        if not any(r.kind == kind for r in allowed) or any(r.fits for r in allowed):
            continue
        stack: Changes = ()
        for single in sorted(allowed, key=lambda r: (r.slower or 0.0) / max(r.saved_bytes, 1.0)):
            if clash(single.changes, stack):
                continue
            alone = not stack
            stack = (*stack, *single.changes)
            remedy = None if alone else trial.tried(stack)
            if remedy is not None and remedy.fits:
                combinations.append(remedy)
                break
        if combinations:
            break
    return tuple(combinations)
