"""Does the training fit, and if not, which change makes it fit at the lowest cost.

A remedy is one change. Its saving is in bytes on the fullest rank; its cost is step time relative to the requested strategy
(as if that fitted). When no single change suffices, or to save more, the fastest combination of each kind is searched.
"""

from __future__ import annotations

import datetime
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from gpuwise.errors import InputError, LayoutError, UnpredictableError
from gpuwise.facts.hardware.links import with_links
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import Cluster, with_host_memory
from gpuwise.facts.models.architecture import Architecture
from gpuwise.plan.answer import Fit, OtherHardware
from gpuwise.plan.changes.remedy import Remedy, changed, remedy_of, remedy_order, strategy_label
from gpuwise.plan.goal import Goal, Wishes, as_asked, batch_as_asked, make_goal, usual_recompute
from gpuwise.plan.larger import known_price, larger_hardware
from gpuwise.plan.promise import promised
from gpuwise.plan.space.rules import check_strategy
from gpuwise.plan.space.search import completed, estimate_all, find_in, setting_of
from gpuwise.plan.space.strategies import default_space, divisors
from gpuwise.predict.columns import base_of
from gpuwise.predict.kernels.run_formats import default_precision
from gpuwise.predict.practice import practice_of
from gpuwise.predict.step.training import TrainingEstimate, estimates
from gpuwise.workload.changes.change import Change
from gpuwise.workload.changes.registry import ADAPTERS, CHANGES, SAME, STATES
from gpuwise.workload.changes.strategy import LORA_RANK, StrategyEffect, changes_between
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import Strategy

LARGEST_MICRO_BATCH = 256
"""Sizes of micro-batches that are tried."""
STRICTER = ("zero1", "zero2", "zero3")
"""Shardings over all data-parallel ranks, the mildest first."""
WORTH = 0.005
"""Share of the device's memory below which a saving is not shown."""


def check_fit(arch: Architecture, cluster: Cluster, wishes: Wishes, today: datetime.date | None = None) -> Fit[TrainingEstimate]:
    """Whether training with ``wishes`` fits on ``cluster``, and what would change that.

    What the wishes leave open is taken plainly: micro-batch 1 of a decoder, no sharding, no recompute,
    nothing offloaded. Raises LayoutError, InputError and UnpredictableError.
    """
    if wishes.task is None and not wishes.fine_tuning:
        wishes = replace(wishes, task="full")
    goal = make_goal(arch, cluster, wishes)
    return _at_level(goal, _tuned_fit(goal, today))


def _at_level(goal: Goal, tuned: Fit[TrainingEstimate]) -> Fit[TrainingEstimate]:
    """The answer at the level of published runs: the request, its changes and other hardware, each at its own level."""

    def level_of(e: TrainingEstimate) -> TrainingEstimate:
        return practice_of(goal.arch, e.strategy, tuned.cluster).of(e)

    level = level_of(tuned.estimate)

    def at(remedies: Iterable[Remedy[TrainingEstimate]]) -> tuple[Remedy[TrainingEstimate], ...]:
        told = (
            remedy_of(r.changes, level, level_of(r.estimate), name=r.name, lines=r.lines, work=_work(level, r.estimate))
            for r in remedies
        )
        return tuple(sorted(told, key=remedy_order))

    def on(alternatives: Iterable[OtherHardware[TrainingEstimate]]) -> tuple[OtherHardware[TrainingEstimate], ...]:
        return tuple(replace(o, estimate=promised(goal.arch, o.cluster, o.estimate)) for o in alternatives)

    return replace(
        tuned,
        estimate=level,
        remedies=None if tuned.remedies is None else at(tuned.remedies),
        combinations=at(tuned.combinations),
        bigger=on(tuned.bigger),
        more=on(tuned.more),
    )


def _tuned_fit(goal: Goal, today: datetime.date | None) -> Fit[TrainingEstimate]:
    """The answer with its times as the stack's authors reach."""
    cluster = goal.cluster
    baseline = _plain(goal)
    plain = baseline.strategy
    if plain.sharding != completed(goal, goal.bases[0]).sharding:
        goal = replace(goal, assumed=(*goal.assumed, f"sharding {plain.sharding}, the mildest that fits"))
    singles = _remedies(goal, baseline)
    if baseline.fits:
        return Fit(goal, cluster, baseline, singles, micro_batch=_largest(goal, plain), seq_len=_longest(goal, plain))
    day = today or datetime.date.today()

    def on(other: Cluster) -> TrainingEstimate:
        return estimates(goal.arch, other, [plain], goal.seq_len)[0]

    bigger, more = tuple(larger_hardware(cluster, day, on)), tuple(islice(enough_accelerators(goal, day), 1))
    return Fit(goal, cluster, baseline, singles, _together(goal, baseline, singles), bigger, more)


def _plain(goal: Goal) -> TrainingEstimate:
    """The plainest layout: whole copies of the states on each of several GPUs where they surely fit, or where that is asked for,
    else the mildest sharding that does, or the strictest. Raises LayoutError where none is legal."""
    plain = in_usual_batches(goal)
    is_open = plain.dp > 1 and "sharding" not in goal.wishes.fixed
    layouts = [plain, *(s for s in (plain.with_(sharding=name) for name in STRICTER) if is_open and s != plain)]
    legal = [s for s in layouts if _is_legal(goal, s)]
    if not legal:
        try:
            check_strategy(setting_of(goal, plain), plain)
        except LayoutError as error:
            raise _with_batch(goal, plain, error) from None
    made = estimate_all(goal, legal)
    return next((e for e in made if _surely(goal, e)), min(made, key=lambda e: e.needed_bytes.expected))


def in_usual_batches(goal: Goal) -> Strategy:
    """What is asked for, with the rest as it is by default: a decoder's sequences one at a time; other models, whose recipes
    accumulate nothing, in the largest micro-batch that surely fits."""
    plain = completed(goal, goal.bases[0])
    if goal.arch.kind == "decoder" or {"micro_batch", "accumulation"} & set(goal.wishes.fixed):
        return plain
    n = plain.accumulation
    sizes = [plain.with_(micro_batch=plain.micro_batch * size, accumulation=n // size) for size in reversed(divisors(n))]
    sizes = [s for s in sizes if s.micro_batch <= LARGEST_MICRO_BATCH and _is_legal(goal, s)]
    return next((e.strategy for e in estimate_all(goal, sizes) if _surely(goal, e)), plain) if sizes else plain


def _with_batch(goal: Goal, plain: Strategy, error: LayoutError) -> LayoutError:
    """``error`` with the nearest batches that the ranks divide, where the batch is at fault."""
    unit = plain.dp * plain.micro_batch * int(goal.wishes.fixed.get("accumulation", 1))
    if error.rule != "global-batch":
        return error
    near = sorted({max(goal.global_batch // unit, 1) * unit, (goal.global_batch // unit + 1) * unit})
    return LayoutError(error.rule, error.message.split(" (rule")[0], hint=" or ".join(f"--global-batch {b}" for b in near))


def _remedies(goal: Goal, baseline: TrainingEstimate) -> tuple[Remedy[TrainingEstimate], ...]:
    before = baseline.strategy
    legal: dict[Strategy, None] = {}
    for changes in lighter_changes(before, default_precision(goal.cluster.accelerator)[0]):
        strategy = on_its_stack(goal, before, changed(before, changes))
        if strategy is not None and strategy != before:
            legal[strategy] = None
    remedies = [_remedy(goal, baseline, e) for e in estimate_all(goal, list(legal))]
    helpful = [r for r in remedies if r.saved_bytes > WORTH * baseline.device_bytes]
    return tuple(sorted(helpful, key=remedy_order))


def on_its_stack(goal: Goal, before: Strategy, after: Strategy) -> Strategy | None:
    """``after`` on the same stack, or if that stack lacks it, on the default stack for it. Other adapters always take their
    own default stack, with its tool's recompute setting. None if neither has it."""
    if _adapters(after) == _adapters(before) and _is_legal(goal, after):
        return after
    asked, batch = as_asked(goal, after), batch_as_asked(goal, after)
    if batch != goal.global_batch and batch % (asked.dp * asked.micro_batch) == 0:
        asked = asked.with_(accumulation=batch // (asked.dp * asked.micro_batch))
    if "recompute" not in goal.wishes.fixed and after.recompute == "none":
        asked = asked.with_(recompute=usual_recompute(asked))
    return asked if _is_legal(replace(goal, global_batch=batch), asked) else None


def _is_legal(goal: Goal, strategy: Strategy) -> bool:
    try:
        check_strategy(setting_of(goal, strategy), strategy)
    except LayoutError:
        return False
    return True


def _adapters(s: Strategy) -> tuple[bool, bool]:
    return s.lora_rank > 0, s.quantized_base


def _remedy(goal: Goal, baseline: TrainingEstimate, e: TrainingEstimate) -> Remedy[TrainingEstimate]:
    """``e`` compared with the baseline. Its name includes the stack if that differs, or is not the default stack of the
    change."""
    before, after = baseline.strategy, e.strategy
    changes = changes_between(before, after)
    if after.recompute == before.recompute == "none" and usual_recompute(after) != "none":
        changes += (Change("checkpointing", "off"),)
    same = after.stack == before.stack == as_asked(goal, after).stack
    name = strategy_label(changes, before, after) + ("" if same else f" (stack {after.stack})")
    return remedy_of(changes, baseline, e, name=name, work=_work(baseline, e))


def _work(baseline: TrainingEstimate, e: TrainingEstimate) -> float:
    """Sequences of a step over those of the baseline: adapters are trained in smaller batches."""
    return e.strategy.global_batch / baseline.strategy.global_batch


def lighter_changes(s: Strategy, usual_precision: str) -> Iterator[tuple[Change, ...]]:
    """Every change to ``s`` that may take less memory, alone; activations on the host with recomputing as well."""
    for kind in CHANGES:
        if not isinstance(kind.strategy, StrategyEffect):
            continue
        for argument in kind.strategy.lighter(s):
            if kind.name != "autocast" or argument == usual_precision:
                yield (Change(kind.name, argument),)
    if not s.offload_activations:
        yield (Change("checkpointing"), Change("offload_activations"))


SIZES = ("micro_batch", "accumulation", "recompute", "recompute_every")
"""Sizes given as a starting point; a change that makes the training fit may alter these too."""


def _together(
    goal: Goal, baseline: TrainingEstimate, singles: Sequence[Remedy[TrainingEstimate]]
) -> tuple[Remedy[TrainingEstimate], ...]:
    """Ways to make it fit: combinations that leave the request unchanged; with other sizes too if none of those surely fits;
    else the fastest sufficient single change of each kind."""
    found = tuple(_combinations(goal, baseline))
    sure = any(r.estimate.fit_probability >= 1 - goal.wishes.risk for r in found)
    if not sure and any(name in goal.wishes.fixed for name in SIZES):
        fixed = {name: value for name, value in goal.wishes.fixed.items() if name not in SIZES}
        found = tuple(_combinations(replace(goal, wishes=replace(goal.wishes, fixed=fixed)), baseline)) or found
    return found or tuple({r.kind: r for r in reversed(singles) if r.fits}.values())


def _combinations(goal: Goal, baseline: TrainingEstimate) -> Iterator[Remedy[TrainingEstimate]]:
    """The fastest fitting strategy of each kind, each kind allowed what the kinds before it are; a strategy once."""
    strategies: set[Strategy] = set()
    base = base_of(baseline.strategy)
    losses = [base.with_(fused_loss=loss) for loss in (False, True)]
    lighter = [
        b.with_(optimizer=optimizer, gradient_dtype="bf16", master_weights=master)
        for b in losses
        for optimizer in ("adamw8bit", "lion", "adafactor")
        for master in (True, False)
    ]
    # frozen weights stay in the format of their checkpoint, with nothing to cast
    master = base.master_weights and not find_stack(base.stack).weight_cast_per_micro_batch
    lora = [b.with_(lora_rank=base.lora_rank or LORA_RANK, master_weights=master) for b in losses]
    groups = (
        (SAME, losses),
        (STATES, lighter),
        (ADAPTERS, lora),
        (ADAPTERS, [b.with_(quantized_base=True) for b in lora]),
    )
    for kind, bases in groups:
        if base.lora_rank and kind == STATES:
            continue
        bases = [b for b in bases if base.precision != "fp32" or b.gradient_dtype == "fp32"]
        bases = [b if _adapters(b) == _adapters(base) else as_asked(goal, b) for b in bases]
        fastest = find_in(replace(goal, bases=tuple(bases), global_batch=batch_as_asked(goal, bases[0])), default_space)
        if fastest is not None and fastest.fits and fastest.strategy not in strategies:
            strategies.add(fastest.strategy)
            yield _remedy(goal, baseline, fastest)


def enough_accelerators(goal: Goal, today: datetime.date) -> Iterator[OtherHardware[TrainingEstimate]]:
    """Twice, four times ... the accelerators of the same kind, where some strategy of the same training and stack fits."""
    n = goal.cluster.n_accelerators
    for times in (2, 4, 8, 16, 32, 64):
        try:
            found = find_cluster(f"{n * times}x{goal.cluster.accelerator.typed}")
            cluster = with_links(with_host_memory(found, goal.wishes.host_memory_bytes), goal.wishes.link)
            wider = replace(goal, cluster=cluster, wishes=replace(goal.wishes, fixed={}))
            fastest = find_in(wider, default_space)
        except (InputError, UnpredictableError):
            continue
        if fastest is not None:
            yield OtherHardware(cluster, fastest, known_price(cluster, today))


def _largest(goal: Goal, plain: Strategy) -> int:
    """The largest micro-batch that divides the batch and fits with everything else as it is."""

    def fits(batch: int) -> bool:
        one = plain.with_(micro_batch=batch, accumulation=max(plain.micro_batch * plain.accumulation // batch, 1))
        return _surely(goal, estimate_all(goal, [one])[0])

    sizes = (1,) if "accumulation" in goal.wishes.fixed else divisors(plain.micro_batch * plain.accumulation)
    larger = [size for size in sizes if plain.micro_batch < size <= LARGEST_MICRO_BATCH]
    return ([plain.micro_batch, *larger])[bisect_left(larger, True, key=lambda size: not fits(size))]


def _longest(goal: Goal, plain: Strategy) -> int:
    """The longest sequence that fits, up to what the model's positions allow: by doublings, then to an eighth between two."""

    def fits(length: int) -> bool:
        return _surely(goal, estimates(goal.arch, goal.cluster, [plain], length)[0])

    return _most(goal.seq_len, goal.arch.max_seq_len, fits)


def _surely(goal: Goal, e: TrainingEstimate) -> bool:
    """Whether it fits with the requested probability."""
    return e.fits and e.fit_probability >= 1 - goal.wishes.risk


def _most(start: int, limit: int, fits: Callable[[int], bool]) -> int:
    """The largest of ``start``, twice, four times ... that, and of the eighths between the last that ``fits`` and the next."""
    best = start
    while 2 * best <= limit and fits(2 * best):
        best *= 2
    step = max(best // 8, 1)
    inside, beyond = 0, min(8, best, (limit - best) // step + 1)
    while beyond - inside > 1:
        middle = (inside + beyond) // 2
        inside, beyond = (middle, beyond) if fits(best + middle * step) else (inside, middle)
    return max(best + inside * step, start)
