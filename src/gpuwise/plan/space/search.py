"""From a goal to strategies: enumerate, evaluate all, rank; if nothing is left, name the rule that excludes them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Protocol, TypeVar

import numpy as np

from gpuwise.errors import LayoutError
from gpuwise.plan.defaults import TRAINER_WHY, default_stack
from gpuwise.plan.goal import Goal, on_stack, usual_recompute
from gpuwise.plan.space.conditions import Setting
from gpuwise.plan.space.nearest import nearest_batch, nearest_clusters
from gpuwise.plan.space.rules import check_strategy
from gpuwise.plan.space.strategies import Block, Space, advised, blocks, default_space, fixed_space, full_space, offloads
from gpuwise.plan.space.sweep import SQUEEZED, Candidates, Sweep, beside, least_bytes_on, sweep
from gpuwise.predict.columns import base_of
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.predict.step.training import TrainingEstimate, estimates
from gpuwise.workload.optimizer import BITSANDBYTES, PAGED_FORM, on_host
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import Strategy

FRONT_LENGTH, SLOWEST = 8, 3.0
OFFLOADS = ("offload_optimizer", "offload_activations")


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search, fastest first. ``smallest`` is the strategy that needs least memory, fitting or not."""

    ranked: tuple[TrainingEstimate, ...]
    """The best of each distinct (tp, pp, cp, ep, dp) layout, at most ``n``."""
    front: tuple[TrainingEstimate, ...]
    """Strategies that no other beats in both time and memory, thinned to those worth looking at."""
    smallest: TrainingEstimate
    n_strategies: int
    n_fit: int
    seconds: float
    notes: tuple[str, ...]
    goal: Goal
    """The goal searched: as requested, or on the stack that fits if the stack was open."""
    by_choice: bool = False
    """True if parts are in host memory because that is faster, although they fit on the device."""

    @property
    def first(self) -> tuple[TrainingEstimate, ...]:
        return self.ranked[:1]


NOT_HALF = ("fp32", "tf32", "fp16")
"""Formats of the products beside which gradients are not in bf16."""
WORTH_HALF_GRADIENTS = 1.25
"""Minimum step-time ratio with the optimizer in host memory for which gradients in bf16 are planned instead."""
HALF_GRADIENTS = (
    "with gradients in fp32 the optimizer would have to be in host memory, which is much slower, so they are in bf16: "
    "--gradient-dtype fp32 keeps them"
)
HALF_MOMENTS = (
    "with gradients and moments in fp32 the optimizer would have to be in host memory, which is much slower, so both are in bf16 "
    "as in Megatron-Bridge's recipes of models with experts: --optimizer adamw --gradient-dtype fp32 keeps them"
)


def find_strategies(goal: Goal, n: int = 6, *, only_best: bool = False) -> SearchResult:
    """Search the goal's space on its cluster, then the ways of :func:`_best_way`. ``only_best`` omits the rest of ``ranked``,
    the front, and the smallest if something fits. Raises LayoutError naming the rule when no layout is possible."""
    made: list[SearchResult] = []

    def search(way: Goal) -> SearchResult | None:
        try:
            made.append(_result(way, n, only_best or way is not goal))
        except LayoutError:
            if not made:
                raise
            return None  # another stack cannot lay out the request
        return made[-1]

    best, note = _best_way(goal, search)
    assert best is not None
    if best is not made[0] and not only_best:
        best = _result(best.goal, n, only_best=False)
    n_strategies, seconds = sum(r.n_strategies for r in made), sum(r.seconds for r in made)
    return replace(best, n_strategies=n_strategies, seconds=seconds, notes=(*best.notes, *filter(None, [note])))


AGAIN, MOVED = "everything would be computed again", "parts would be in host memory"
"""Why a fit of adapters on the device is still worth a lighter option."""


class _Found(Protocol):
    """Result of a search of one goal."""

    @property
    def first(self) -> Sequence[TrainingEstimate]: ...
    @property
    def by_choice(self) -> bool: ...


F = TypeVar("F", bound=_Found)


def _best_way(goal: Goal, search: Callable[[Goal], F | None]) -> tuple[F | None, str]:
    """The best result of ``search`` for ``goal`` and for common memory-saving options, tried if nothing fits on the device
    with the requested probability or only with full recomputation; and a note if one was taken."""
    result = search(goal)
    return (None, "") if result is None else _improved(goal, result, search)


def _improved(goal: Goal, result: F, search: Callable[[Goal], F | None]) -> tuple[F, str]:
    """:func:`_best_way` of the ``result`` of ``goal``."""
    best, best_note, on_device = result, "", result.by_choice or _surely(goal, result.first)
    for half, note in () if on_device else _with_half(goal, result.first):
        again = search(half)
        if again is not None and _is_worth_it(half, again.first, result.first):
            return again, note
    why = AGAIN if _repeats(goal, result.first) else MOVED if result.by_choice and goal.wishes.fine_tuning else ""
    for lighter, note in _lighter(goal, why if on_device else _nothing(goal)) if why or not on_device else ():
        again = search(lighter)
        if again is None:
            continue
        if not on_device and _surely(goal, again.first) and not _is_faster(goal, result.first, again.first):
            further, why = _improved(lighter, again, search)
            return further, "; ".join(filter(None, [note, why]))
        taken = _is_faster if on_device else _brings_to_device
        if taken(goal, again.first, best.first):
            best, best_note = again, note
    for moved, note in _with_parameters(goal, best.first):
        again = search(moved)
        if again is not None and _worth(goal, again.first) > _worth(goal, best.first):
            best, best_note = again, note
    for whole, note in _as_pretrained(goal, best.first):
        again = search(whole)
        if again is None:
            continue
        held, was_held = _worth(goal, again.first)[0], _worth(goal, best.first)[0]
        if held > was_held or (held == was_held > 0 and _is_surely_faster(goal, again.first[0], best.first[0])):
            best, best_note = again, note
    return best, best_note


def _on_device(ranked: Sequence[TrainingEstimate]) -> bool:
    """Whether the first fits with nothing in host memory."""
    return any(e.fits and not on_host(e.strategy) for e in ranked)


def _surely(goal: Goal, ranked: Sequence[TrainingEstimate]) -> bool:
    """Whether the first fits on the device with the requested probability."""
    return _on_device(ranked) and _holds(goal, ranked)


def _is_faster(goal: Goal, one: Sequence[TrainingEstimate], other: Sequence[TrainingEstimate]) -> bool:
    """Whether ``one`` fits with the requested probability, and is faster by more than a less certain fit may cost."""
    return _holds(goal, one) and one[0].step_time_s.expected * SQUEEZED < other[0].step_time_s.expected


def _is_surely_faster(goal: Goal, one: TrainingEstimate, other: TrainingEstimate) -> bool:
    """Whether ``one`` is faster with the probability that a fit is asked with. The errors of two stacks are taken as independent:
    less of a gain is no reason for other software."""
    sigma = math.hypot(one.step_time_s.log_sigma, other.step_time_s.log_sigma)
    gain = math.log(other.step_time_s.expected / one.step_time_s.expected)
    return gain > NormalDist().inv_cdf(1 - goal.wishes.risk) * sigma


def _brings_to_device(goal: Goal, lighter: Sequence[TrainingEstimate], best: Sequence[TrainingEstimate]) -> bool:
    """Whether a lighter option fits on the device, while ``best`` neither does nor fits with the requested probability."""
    return _on_device(lighter) and not (_on_device(best) or _holds(goal, best))


def _holds(goal: Goal, ranked: Sequence[TrainingEstimate]) -> bool:
    """Whether the first fits with the requested probability, on the device or with host offload."""
    return any(e.fits and e.fit_probability >= 1 - goal.wishes.risk for e in ranked[:1])


def _worth(goal: Goal, ranked: Sequence[TrainingEstimate]) -> tuple[int, float]:
    """Certainty that the first fits (2: with the requested probability, 1: expected to fit), then steps per second."""
    rates = [1.0 / e.step_time_s.expected for e in ranked[:1] if e.fits]
    return (2 if _holds(goal, ranked) else len(rates)), max(rates, default=0.0)


def _with_parameters(goal: Goal, ranked: Sequence[TrainingEstimate]) -> Iterator[tuple[Goal, str]]:
    """``goal`` with the weights offloaded beside the optimizer, then with a chunked loss too, each with a note. Tried if weights
    are already in host memory or the first does not fit with the requested probability, the user left it open, and the stack has
    the option (or no layout of it fits but another stack has)."""
    wishes, first = goal.wishes, goal.bases[0]
    open_ = wishes.fixed.get("offload_optimizer") is not False and wishes.fixed.get("sharding") in (None, "zero3")
    on_gpu = first.step_in_backward or first.optimizer in BITSANDBYTES
    held = _holds(goal, ranked)
    if not open_ or on_gpu or first.offload_parameters or (held and not ranked[0].strategy.offload_optimizer):
        return
    moved, how = goal, "ZeRO-3's offload_param"
    if not find_stack(first.stack).layout.offload_parameters or first.quantized_base:
        asked = held or wishes.stack is not None or any(f in wishes.fixed for f in LAYOUT)
        other = None if asked else _offloads_parameters(goal)
        if other is None:
            return
        moved, how = on_stack(goal, other, f"{first.stack}, the usual one, keeps the weights on the device"), f"stack {other}"
    by_option = find_stack(moved.bases[0].stack).layout.offload_parameters
    bases = tuple(b.with_(offload_parameters=by_option) for b in moved.bases)
    moved = replace(moved, bases=bases, wishes=replace(wishes, fixed={**wishes.fixed, "offload_optimizer": True}))
    why = "larger micro-batches fit than" if held else _nothing(goal)
    note = f"{why} with the weights on the device, so they are in host memory too ({how})"
    yield moved, note
    for lighter, words in _without_logits(moved, why):
        yield lighter, f"{note}; {words}"


def _as_pretrained(goal: Goal, ranked: Sequence[TrainingEstimate]) -> Iterator[tuple[Goal, str]]:
    """``goal`` on the usual stack of pre-training, and a note about it. Tried if every weight is fine-tuned on several
    accelerators with states in host memory or without a fit, and the stack and the layout were left open."""
    wishes, usual = goal.wishes, goal.bases[0].stack
    open_ = wishes.stack is None and not any(f in wishes.fixed for f in LAYOUT) and not wishes.offload_parameters
    held = _holds(goal, ranked)
    if not (open_ and goal.task.checkpoint and goal.task.method == "full" and goal.cluster.n_accelerators > 1):
        return
    if held and not ranked[0].strategy.offload_optimizer:
        return
    options = {**wishes.fixed, "fused_loss": bool(wishes.fused_loss)}
    stack, _ = default_stack(goal.arch, goal.cluster, fine_tuning=False, options=options, year=goal.year)
    if stack == usual:
        return
    why = f"{usual}, the usual one, is much slower with states in host memory" if held else f"it does not fit under {usual}"
    yield on_stack(goal, stack, why), f"stack {stack}: {why} (--stack {usual} keeps it)"


def _offloads_parameters(goal: Goal) -> str | None:
    """The first replacement of the goal's stack that can offload weights in the requested layout; FSDP on several
    accelerators, DeepSpeed with weights that are not 4-bit."""
    first, alone = goal.bases[0], goal.cluster.n_accelerators == 1
    for name in find_stack(first.stack).instead.asked:
        rules = find_stack(name).layout.under(adapters=first.lora_rank > 0)
        offloads = rules.offload_optimizer and (
            (rules.offload_parameters and not first.quantized_base) or (find_stack(name).offloads_parameters and not alone)
        )
        if offloads and rules.has(goal.wishes.fixed):
            return name
    return None


def _with_half(goal: Goal, ranked: Sequence[TrainingEstimate]) -> Iterator[tuple[Goal, str]]:
    """``goal`` with bf16 gradients if the first offloads the optimizer, the user gave no format and the stack has the option;
    then in Megatron-Core with AdamW's moments in bf16 as well; each with a note."""
    wishes, bases = goal.wishes, tuple(b for b in goal.bases if b.precision not in NOT_HALF and b.gradient_dtype == "fp32")
    open_ = wishes.gradient_dtype is None and wishes.fixed.get("offload_optimizer") is None and not wishes.fine_tuning
    if not (open_ and bases and ranked and ranked[0].strategy.offload_optimizer):
        return
    rules = find_stack(bases[0].stack).layout
    if not rules.half_gradients:
        return
    half = tuple(b.with_(gradient_dtype="bf16") for b in bases)
    yield replace(goal, bases=half), HALF_GRADIENTS
    if wishes.optimizer is None and rules.half_moments and goal.arch.moe is not None:
        yield replace(goal, bases=tuple(b.with_(optimizer="adamw-bf16") for b in half)), HALF_MOMENTS


def _is_worth_it(goal: Goal, half: Sequence[TrainingEstimate], offloaded: Sequence[TrainingEstimate]) -> bool:
    """Whether 16 bits keep all of it on the device, and are much faster than the optimizer in host memory."""
    return _surely(goal, half) and half[0].step_time_s.expected * WORTH_HALF_GRADIENTS <= offloaded[0].step_time_s.expected


def _repeats(goal: Goal, ranked: Sequence[TrainingEstimate]) -> bool:
    """Whether adapters are trained with full recomputation that the user did not request."""
    again = any(e.strategy.recompute == "full" for e in ranked[:1])
    return again and goal.wishes.fine_tuning and "recompute" not in goal.wishes.fixed


def _lighter(goal: Goal, why: str) -> Iterator[tuple[Goal, str]]:
    """Options to add for adapters when nothing fits, or only with full recomputation or parts in host memory; each on top of
    those before it, with a note that ends in ``why``. First the chunked loss, by the stack's option. Then for QLoRA, if nothing
    fits, optimizer states in unified memory, as published (arXiv 2305.14314). Then weights sharded over the GPUs, if the stack
    replicates them. Never for full fine-tuning, and no option that the user already set."""
    if why == AGAIN and goal.cluster.n_accelerators == 1 and find_stack(goal.bases[0].stack).per_op:
        # replayed, a step may need less than the columns of a search have it
        yield replace(goal, wishes=replace(goal.wishes, fixed={**goal.wishes.fixed, "recompute": "none"})), ""
    yield from _without_logits(goal, why)
    if (divided := _by_fsdp(goal)) is not None:
        yield divided, f"{why} with the whole model on every GPU, so its weights are divided (FSDP)"
        yield from _without_logits(divided, why)


def _by_fsdp(goal: Goal) -> Goal | None:
    """Adapters on the stack that divides the weights; None where that was not left open, or they are divided already."""
    stack = goal.bases[0].stack
    whole = find_stack(stack).layout.under(adapters=True).shardings == frozenset({"none"})
    open_ = goal.wishes.stack is None and goal.wishes.fixed.get("sharding") is None
    if not (open_ and goal.wishes.fine_tuning and whole and goal.cluster.n_accelerators > 1):
        return None
    instead = find_stack(stack).instead.asked[0]
    return on_stack(goal, instead, f"{TRAINER_WHY}; the whole model on every GPU does not fit, or fills it: FSDP")


def _nothing(goal: Goal) -> str:
    return f"nothing fits with {100 * (1 - goal.wishes.risk):g} %"


def _without_logits(goal: Goal, why: str) -> Iterator[tuple[Goal, str]]:
    """The chunked loss and the paged optimizer of :func:`_lighter`, which an offload leaves out: it is the GPU's alone."""
    wishes, option = goal.wishes, find_stack(goal.bases[0].stack).chunked_loss_option
    open_ = wishes.fused_loss is None and not goal.bases[0].fused_loss
    if open_ and wishes.fine_tuning and goal.arch.lm_head and option:
        goal = replace(goal, bases=tuple(b.with_(fused_loss=True) for b in goal.bases))
        yield goal, f"{why} with whole logits, so the loss is in chunks ({option})"
    if (
        why not in (AGAIN, MOVED)
        and wishes.optimizer is None
        and wishes.quantized_base
        and not wishes.fixed.get("offload_optimizer")
    ):
        goal = replace(goal, bases=tuple(b.with_(optimizer=PAGED_FORM[b.optimizer]) for b in goal.bases))
        yield goal, f"{why} with the optimizer's states on the device, so they are paged: {goal.bases[0].optimizer}"


def _result(goal: Goal, n: int, only_best: bool) -> SearchResult:
    """Search the goal's space as it is.

    The default space offloads to the host only if nothing fits without (with the requested probability), or if that is faster
    by more than :data:`SQUEEZED`. Raises LayoutError naming the rule when no layout is possible.
    """
    space_of = full_space if goal.wishes.exhaustive else default_space
    offload = goal.wishes.exhaustive or any(goal.wishes.fixed.get(f) is not None for f in OFFLOADS)
    done, on_device, notes = _swept(goal, space_of, offload=offload)
    if done is None:
        raise _with_nearest(goal, no_layout(goal))
    counts, by_choice = (done.n_strategies, done.n_fit, done.seconds), on_device is not None
    if only_best and len(done.rows):
        first = _estimated(goal, done, done.rows, [0])
        if not _is_settled(goal, done, first):
            others = (_estimated(goal, done, done.rows, [i])[0] for i in _distinct(done, n)[1:])
            sure = _surest(goal, done, first[0])
            least = (_estimated(goal, done, done.front, [i])[0] for i in _least(done))
            one = sure or next((e for e in itertools.chain(first, others, least) if e.fits), None)
            return SearchResult(() if one is None else (one,), (), one or first[0], *counts, notes, goal, by_choice)
        return SearchResult(first, (), first[0], *counts, notes, goal, by_choice)
    ranked = _fitting_first(goal, done, _estimated(goal, done, done.rows, _distinct(done, n)))
    front = _estimated(goal, done, done.front, thinned(done.front))
    smallest = _estimated(goal, done, done.smallest, [0])[0]
    notes += (
        () if on_device is None or not ranked or not on_host(ranked[0].strategy) else _offload_note(goal, ranked[0], on_device)
    )
    return SearchResult(ranked, front, smallest, *counts, notes, goal, by_choice)


@dataclass(frozen=True, slots=True)
class Fastest:
    """``estimate`` is the fastest strategy that fits, None when none does; ``smallest_bytes`` what the strategy that needs
    least memory takes of the fullest device."""

    estimate: TrainingEstimate | None
    smallest_bytes: float
    by_choice: bool = False
    """True if parts are in host memory because that is faster, although they fit on the device."""
    least: Callable[[], TrainingEstimate] | None = None
    """Makes the estimate of the strategy that needs least memory, where none fits."""

    @property
    def first(self) -> tuple[TrainingEstimate, ...]:
        return () if self.estimate is None else (self.estimate,)


def find_fastest(goal: Goal, space_of: Callable[[Setting], Space] = default_space) -> Fastest | None:
    """The strategy that :func:`find_strategies` ranks first, without its alternatives: in ``space_of``, offload included
    when nothing fits without. None when no layout is possible."""
    return _best_way(goal, lambda way: _fastest(way, space_of))[0]


def _fastest(goal: Goal, space_of: Callable[[Setting], Space]) -> Fastest | None:
    done, on_device, _ = _swept(goal, space_of, offload=False)
    if done is None:
        return None
    fitting = _fitting_first(goal, done, _estimated(goal, done, done.rows, [0])) if len(done.rows) else ()
    best = next(iter(fitting), None)

    def smallest() -> TrainingEstimate:
        return _estimated(goal, done, done.smallest, [0])[0]

    least = smallest if best is None else None
    return Fastest(best, float(done.smallest.memory_bytes[0]), on_device is not None, least)


def find_in(goal: Goal, space_of: Callable[[Setting], Space]) -> TrainingEstimate | None:
    """The fastest strategy that fits in a given space; None when none does."""
    fastest = find_fastest(goal, space_of)
    return None if fastest is None else fastest.estimate


def thinned(front: Candidates, n: int = FRONT_LENGTH) -> list[int]:
    """Positions of at most ``n`` strategies of the time-memory front, none slower than ``SLOWEST`` times the best, spread over
    memory, both ends included."""
    if not len(front):
        return []
    rows = np.flatnonzero(front.rank_s <= SLOWEST * front.rank_s[0])
    memory = front.memory_bytes[rows]
    wanted = memory[0] + (memory[-1] - memory[0]) * np.arange(n) / (n - 1)
    nearest = np.abs(memory[:, None] - wanted[None, :]).argmin(axis=0)
    return [int(rows[i]) for i in sorted(set(nearest.tolist()))]


def setting_of(goal: Goal, base: Strategy) -> Setting:
    """The rules' view of a goal."""
    return Setting.of(goal.arch, goal.cluster, base, goal.seq_len, goal.global_batch)


def _space(goal: Goal, base: Strategy, space_of: Callable[[Setting], Space]) -> Space:
    """The search space: requested values, and for the other fields those that the stack's own tool has options for."""
    setting, fixed = setting_of(goal, base), goal.wishes.fixed
    return advised(fixed_space(space_of(setting), fixed), setting, fixed)


def without_offload(space: Space) -> Space:
    """``space`` without the choices that keep anything in host memory."""
    return replace(
        space,
        states=tuple(s for s in space.states if not offloads(s)),
        activations=tuple(a for a in space.activations if not offloads(a)),
    )


def only_offload(space: Space) -> tuple[Space, ...]:
    """The choices of ``space`` that :func:`without_offload` leaves out."""
    on_device = tuple(s for s in space.states if not offloads(s))
    return (
        replace(space, states=tuple(s for s in space.states if offloads(s))),
        replace(space, states=on_device, activations=tuple(a for a in space.activations if offloads(a))),
    )


Swept = tuple[Sweep | None, Sweep | None, tuple[str, ...]]


def _swept(goal: Goal, space_of: Callable[[Setting], Space], *, offload: bool) -> Swept:
    """The goal's space evaluated (None when no layout is possible); what of it keeps all on the device, where something in host
    memory is faster than that; and a note where offload was searched as well because nothing fits without. What cannot fit for
    its states alone is counted, not evaluated."""
    spaces = [_space(goal, base, space_of) for base in goal.bases]
    if offload:
        return _sweep(goal, _blocks(goal, spaces)), None, ()
    first = _blocks(goal, [without_offload(s) for s in spaces])
    refused = first if _is_surely_full(goal, first) else ()
    done = None if refused else _sweep(goal, first)
    if done is not None and not _wants_offload(goal, done):
        faster = _with_faster_offload(goal, done, spaces)
        return (done, None, ()) if faster is None else (faster, done, ())
    again = _sweep(goal, _blocks(goal, spaces))
    if again is None or not (done is None or _is_surer(again, done)):
        return done, None, ()
    sure = "" if done is None or not len(done.rows) else f" with {100 * (1 - goal.wishes.risk):g} %"
    notes = (f"nothing fits{sure} without offload to host memory, so offload was searched too",) * bool(len(again.rows))
    before = sum(len(b.columns) for b in refused) if done is None else done.n_strategies
    return replace(again, n_strategies=again.n_strategies + before), None, notes


def _with_faster_offload(goal: Goal, done: Sweep, spaces: Sequence[Space]) -> Sweep | None:
    """``done`` and what keeps something in host memory beside it; None where nothing of that is faster. Searched only where
    memory holds the best back: of layouts that would be faster with as much memory as they want."""
    if done.n_fit == done.n_strategies or not done.n_likely:
        return None
    limit = float(done.rows.rank_s[0])
    parts = [b for kind in zip(*map(only_offload, spaces), strict=True) for b in _blocks(goal, kind)]
    offloaded = _sweep(goal, parts, faster_than_s=limit / SQUEEZED)
    if offloaded is None or not len(offloaded.rows) or offloaded.rows.rank_s[0] >= limit:
        return None
    return beside(done, offloaded)


def _offload_note(goal: Goal, best: TrainingEstimate, on_device: Sweep) -> tuple[str, ...]:
    """Cost of keeping everything on the device, as a note for an offloaded ``best``."""
    kept = next(iter(_fitting_first(goal, on_device, _estimated(goal, on_device, on_device.rows, [0]))), None)
    if kept is None:
        return ()
    times = kept.step_time_s.expected / best.step_time_s.expected
    what = " and ".join(on_host(best.strategy))
    return (f"{what} in host memory: with everything on the device it would take {times:.3g} times as long",)


def _is_surely_full(goal: Goal, parts: Sequence[Block]) -> bool:
    """Whether the states alone of every strategy are more than the device has."""
    return bool(parts) and least_bytes_on(goal.arch, goal.cluster, parts) > usable_bytes(goal.cluster.accelerator)


def _blocks(goal: Goal, spaces: Sequence[Space]) -> tuple[Block, ...]:
    alike: dict[tuple[Setting, Space], list[Strategy]] = {}
    for base, space in zip(goal.bases, spaces, strict=True):
        if space.states and space.activations:
            alike.setdefault((setting_of(goal, base), space), []).append(base)
    return tuple(b for (setting, space), bases in alike.items() for b in blocks(setting, space, *bases))


def _sweep(goal: Goal, parts: Sequence[Block], faster_than_s: float | None = None) -> Sweep | None:
    if not parts:
        return None
    packed, risk = goal.wishes.packed_document_len, goal.wishes.risk
    return sweep(goal.arch, goal.cluster, parts, goal.seq_len, packed, risk, faster_than_s)


def _distinct(done: Sweep, n: int) -> list[int]:
    """Positions of the first row of each distinct layout, at most ``n``."""
    rows = done.rows
    keys: list[np.ndarray] = []
    offset = 0
    starts: list[int] = []
    for block in done.blocks:
        c = block.columns
        keys.append(np.column_stack([getattr(c, f)[:, 0, 0] for f in ("tp", "pp", "cp", "ep", "dp")]))
        starts.append(offset)
        offset += block.n_rows
    key = np.concatenate(keys)
    per_row = np.array([b.n_choices for b in done.blocks])
    at = np.array(starts)[rows.block] + rows.flat // per_row[rows.block]
    _, first = np.unique(key[at], axis=0, return_index=True)
    return [int(i) for i in np.sort(first)[:n]]


def _estimated(goal: Goal, done: Sweep, candidates: Candidates, at: Iterable[int]) -> tuple[TrainingEstimate, ...]:
    """Full estimates of candidates, in the order of ``at``."""
    return estimate_all(goal, [candidates.strategy(done.blocks, i) for i in at])


def _is_settled(goal: Goal, done: Sweep, ranked: Sequence[TrainingEstimate]) -> bool:
    """Whether the first still fits when its step is replayed, as surely as any other result."""
    return ranked[0].fits and (ranked[0].fit_probability >= 1 - goal.wishes.risk or not done.n_likely)


def _fitting_first(goal: Goal, done: Sweep, ranked: tuple[TrainingEstimate, ...]) -> tuple[TrainingEstimate, ...]:
    """``ranked`` without strategies that do not fit when their step is replayed. The fastest of the time-memory front that fits
    with the requested probability comes first, or the smallest if only that fits.

    The columns of a search use average allocator fragmentation; the answer replays the step where possible. A candidate of the
    front is replayed only if it would fit with the same extra bytes as those replayed before.
    """
    fits = tuple(e for e in ranked if e.fits)
    if not ranked or _is_settled(goal, done, ranked):
        return fits
    one = _surest(goal, done, ranked[0])
    if one is not None:
        return (one, *(e for e in fits if e.strategy != one.strategy))
    return fits or tuple(e for e in _estimated(goal, done, done.front, _least(done)) if e.fits)


def _least(done: Sweep) -> list[int]:
    """Position of the smallest of the time-memory front."""
    return [int(np.argmin(done.front.memory_bytes))] if len(done.front) else []


def _surest(goal: Goal, done: Sweep, first: TrainingEstimate) -> TrainingEstimate | None:
    """The fastest of the time-memory front that fits with the requested probability, if the ``first`` of the ranked does not."""
    sure = 1 - goal.wishes.risk
    more = first.needed_bytes.expected / float(done.rows.memory_bytes[0])
    for i in np.argsort(done.front.rank_s, kind="stable").tolist():
        columns = float(done.front.memory_bytes[i])
        if columns * more > first.device_bytes:
            continue
        one = _estimated(goal, done, done.front, [i])[0]
        if one.fits and one.fit_probability >= sure:
            return one
        more = max(more, one.needed_bytes.expected / columns)
    return None


LAYOUT = ("tp", "pp", "cp", "ep", "dp", "micro_batch", "sharding", "recompute")
"""Fields that only a user who knows the layout fixes: it is taken as given, with its memory."""


def _wants_offload(goal: Goal, done: Sweep | None) -> bool:
    """Whether a search without offload leaves nothing that fits, or nothing that fits with the requested probability."""
    if done is None or not len(done.rows):
        return True
    return done.n_likely == 0 and not any(f in goal.wishes.fixed for f in LAYOUT)


def _is_surer(again: Sweep, done: Sweep) -> bool:
    """Whether a search with offload is worth more than one without: it fits, or fits with the requested probability."""
    return again.n_likely > 0 or not len(done.rows)


def estimate_all(goal: Goal, strategies: Sequence[Strategy]) -> tuple[TrainingEstimate, ...]:
    """Full estimates of any strategies on the goal's cluster, in order; one pass for those that share a
    base."""
    groups: dict[Strategy, list[int]] = {}
    for i, s in enumerate(strategies):
        groups.setdefault(base_of(s), []).append(i)
    out: dict[int, TrainingEstimate] = {}
    for members in groups.values():
        results = estimates(
            goal.arch,
            goal.cluster,
            [strategies[i] for i in members],
            goal.seq_len,
            packed_document_len=goal.wishes.packed_document_len,
        )
        out.update(zip(members, results, strict=True))
    return tuple(out[i] for i in range(len(strategies)))


def completed(goal: Goal, base: Strategy) -> Strategy:
    """``base`` with the goal's fixed values and the plainest values for the rest."""
    fixed = dict(goal.wishes.fixed)
    n = goal.cluster.n_accelerators
    others = {f: int(fixed.get(f, 1)) for f in ("tp", "pp", "cp")}
    model_ranks = others["tp"] * others["pp"] * others["cp"]
    fixed.setdefault("dp", max(n // model_ranks, 1))
    fixed.setdefault("micro_batch", 1)
    fixed.setdefault("accumulation", max(goal.global_batch // (int(fixed["dp"]) * int(fixed["micro_batch"])), 1))
    if int(fixed.get("virtual_stages", 1)) > 1:
        fixed.setdefault("schedule", "interleaved")
    fixed.setdefault("recompute", "full" if int(fixed.get("recompute_every", 1)) > 1 else usual_recompute(base))
    fixed.setdefault("sequence_parallel", find_stack(base.stack).layout.sequence_parallel)
    return base.with_(**fixed)


def no_layout(goal: Goal) -> LayoutError:
    """The rule that the fixed values break, for the error of an empty space."""
    try:
        check_strategy(setting_of(goal, goal.bases[0]), completed(goal, goal.bases[0]))
    except LayoutError as error:
        return error
    return LayoutError(
        "no-layout",
        f"no layout of {goal.cluster.n_accelerators} accelerators works for {goal.arch.name} with a "
        "global batch of "
        f"{goal.global_batch} sequences of {goal.seq_len} tokens",
        hint="leave degrees open, or choose a batch that more data-parallel degrees divide",
    )


def _with_nearest(goal: Goal, error: LayoutError) -> LayoutError:
    """``error`` with the nearest batch and numbers of devices that work, where the batch is at fault."""
    if error.rule not in ("global-batch", "no-layout"):
        return error
    batch, clusters = nearest_batch(goal), nearest_clusters(goal)
    works = [] if batch is None else [f"--global-batch {batch}"]
    if clusters:
        works.append(" or ".join(str(c.n_accelerators) for c in clusters) + " accelerators")
    if not works:
        return error
    return LayoutError(
        error.rule,
        f"no layout of {goal.cluster.n_accelerators} accelerators splits a global batch of {goal.global_batch} sequences",
        hint=f"the nearest that work: {', or '.join(works)}",
    )
