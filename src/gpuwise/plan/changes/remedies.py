"""Does it fit, and if not, what is the cheapest change that makes it fit.

A remedy is one change; its saving is in bytes on the fullest rank, its price in step time against the
strategy asked for (as if that had fitted). When no single change suffices, or to go further, the fastest
combination of each kind is searched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpuwise.errors import DataError, InputError, LayoutError, UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.offers.offer import offers, typical_price_usd_per_hour
from gpuwise.plan.defaults import default_precision
from gpuwise.plan.goal import LORA_RANK, Goal, Wishes, make_goal
from gpuwise.plan.space.rules import check_strategy
from gpuwise.plan.space.search import base_of, completed, estimate_all, find_in, setting_of
from gpuwise.plan.space.strategies import default_space
from gpuwise.predict.step.training import TrainingEstimate, estimates
from gpuwise.workload.strategy import Strategy

SAME, STATES, ADAPTERS = "same training", "lighter states", "adapters"
"""Kinds of remedies: the run computes the same; the optimizer or its formats change; only adapters are
trained."""
BIGGER = 3
"""Larger accelerators shown, cheapest first."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change (or combination). ``saved_bytes`` may be negative; ``slower`` is the step time's ratio
    minus one."""

    name: str
    kind: str
    estimate: TrainingEstimate
    saved_bytes: float
    slower: float

    @property
    def fits(self) -> bool:
        return self.estimate.fits


@dataclass(frozen=True, slots=True)
class Bigger:
    """The same strategy on another accelerator, or the fastest one on more of the same."""

    cluster: Cluster
    estimate: TrainingEstimate
    usd_per_hour: float | None


@dataclass(frozen=True, slots=True)
class Fit:
    """``estimate`` is the strategy asked for. ``remedies`` are single changes: those that suffice first,
    each group in order of least slowdown; ``combinations`` the fastest fitting one of each kind.
    ``micro_batch`` is the largest that fits as it stands, ``seq_len`` the longest (both 0 when nothing
    does)."""

    goal: Goal
    estimate: TrainingEstimate
    remedies: tuple[Remedy, ...]
    combinations: tuple[Remedy, ...]
    bigger: tuple[Bigger, ...]
    more: tuple[Bigger, ...]
    micro_batch: int
    seq_len: int

    @property
    def fits(self) -> bool:
        return self.estimate.fits


def check_fit(arch: Architecture, cluster: Cluster, wishes: Wishes) -> Fit:
    """Whether training with ``wishes`` fits on ``cluster``, and what would change that.

    What the wishes leave open is taken plainly: micro-batch 1, no sharding, no recompute, nothing
    offloaded. Raises LayoutError, InputError and UnpredictableError.
    """
    goal = make_goal(arch, cluster, wishes, fine_tuning=True)
    plain = completed(goal, goal.bases[0])
    check_strategy(setting_of(goal, plain), plain)
    asked = estimate_all(goal, [plain])[0]
    singles = _remedies(goal, asked)
    combinations = () if asked.fits else tuple(_combinations(goal, asked))
    bigger = () if asked.fits else tuple(_bigger(goal, plain))
    more = () if asked.fits else tuple(_more(goal))
    return Fit(
        goal,
        asked,
        singles,
        combinations,
        bigger,
        more,
        *((_largest(goal, plain), _longest(goal, plain)) if asked.fits else (0, 0)),
    )


def _remedies(goal: Goal, asked: TrainingEstimate) -> tuple[Remedy, ...]:
    legal: list[tuple[str, str, Strategy]] = []
    for name, kind, strategy in _changes(goal, asked.strategy):
        try:
            check_strategy(setting_of(goal, strategy), strategy)
        except LayoutError:
            continue
        legal.append((name, kind, strategy))
    done = estimate_all(goal, [s for _, _, s in legal])
    found = [_remedy(name, kind, asked, e) for (name, kind, _), e in zip(legal, done, strict=True)]
    helpful = [r for r in found if r.saved_bytes > 0.005 * asked.device_bytes]
    return tuple(sorted(helpful, key=lambda r: (not r.fits, r.slower)))


def _remedy(name: str, kind: str, asked: TrainingEstimate, e: TrainingEstimate) -> Remedy:
    saved = asked.memory_bytes.expected - e.memory_bytes.expected
    return Remedy(name, kind, e, saved, e.step_time_s.expected / asked.step_time_s.expected - 1)


def _changes(goal: Goal, s: Strategy) -> Iterator[tuple[str, str, Strategy]]:
    """(name, kind, strategy) of every single change worth trying."""
    micro = s.micro_batch // 2
    while micro >= 1:
        if (s.micro_batch * s.accumulation) % micro == 0:
            yield (
                f"micro-batch {micro}",
                SAME,
                s.with_(micro_batch=micro, accumulation=s.micro_batch * s.accumulation // micro),
            )
        micro //= 2
    if s.precision in ("fp32", "tf32"):
        usual, _ = default_precision(goal.cluster.accelerator)
        if usual not in ("fp32", "tf32"):
            yield f"{usual} mixed precision", SAME, s.with_(precision=usual)
    if not s.fused_attention:
        yield "fused attention", SAME, s.with_(fused_attention=True)
    if not s.fused_loss:
        yield "chunked loss", SAME, s.with_(fused_loss=True)
    for recompute, every, name in (
        ("selective", 1, "selective recompute"),
        ("full", 2, "full recompute of every second layer"),
        ("full", 1, "full recompute"),
    ):
        if (recompute, every) != (s.recompute, s.recompute_every):
            yield name, SAME, s.with_(recompute=recompute, recompute_every=every)
    yield from _shardings(s)
    if not s.offload_activations:
        yield "activations in host memory", SAME, s.with_(offload_activations=True)
        yield (
            "recompute, checkpoints in host memory",
            SAME,
            s.with_(recompute="full", recompute_every=1, offload_activations=True),
        )
    if not s.offload_optimizer:
        yield "optimizer in host memory", SAME, s.with_(offload_optimizer=True)
    yield from _lighter(s)
    yield from _adapters(s)


def _shardings(s: Strategy) -> Iterator[tuple[str, str, Strategy]]:
    for sharding, what in (
        ("zero1", "optimizer states"),
        ("zero2", "states and gradients"),
        ("zero3", "states, gradients and weights"),
    ):
        if s.dp * s.cp > 1 and sharding != s.sharding:
            yield f"{sharding}: shard {what}", SAME, s.with_(sharding=sharding)
    degree = 2
    while degree <= s.dp and s.tp == 1:
        if s.dp % degree == 0 and s.global_batch % (s.dp // degree * s.micro_batch) == 0:
            dp = s.dp // degree
            sharding = s.sharding if dp * s.cp > 1 else "none"
            accumulation = s.global_batch // (dp * s.micro_batch)
            yield (
                f"tensor parallel {degree}",
                SAME,
                s.with_(tp=degree, dp=dp, accumulation=accumulation, sharding=sharding),
            )
        degree *= 2


def _lighter(s: Strategy) -> Iterator[tuple[str, str, Strategy]]:
    if s.lora_rank:
        return  # adapter states are a hundredth of the weights
    for optimizer, name in (("adamw8bit", "8-bit AdamW"), ("lion", "Lion"), ("adafactor", "Adafactor")):
        if optimizer != s.optimizer:
            yield name, STATES, s.with_(optimizer=optimizer)
    if s.gradient_dtype == "fp32" and s.precision not in ("fp32", "tf32"):
        yield "bf16 gradients", STATES, s.with_(gradient_dtype="bf16")
    if s.master_weights and s.precision == "bf16":
        yield "bf16 weights without fp32 copies", STATES, s.with_(master_weights=False, gradient_dtype="bf16")


def _adapters(s: Strategy) -> Iterator[tuple[str, str, Strategy]]:
    if not s.lora_rank:
        yield f"LoRA, rank {LORA_RANK}", ADAPTERS, s.with_(lora_rank=LORA_RANK)
    if not s.quantized_base:
        rank = s.lora_rank or LORA_RANK
        yield f"QLoRA, rank {rank} on 4-bit weights", ADAPTERS, s.with_(lora_rank=rank, quantized_base=True)


def _combinations(goal: Goal, asked: TrainingEstimate) -> Iterator[Remedy]:
    """The fastest fitting strategy of each kind, each kind allowed what the kinds before it are."""
    base = base_of(asked.strategy)
    losses = [base.with_(fused_loss=loss) for loss in (False, True)]
    lighter = [
        b.with_(optimizer=optimizer, gradient_dtype="bf16", master_weights=master)
        for b in losses
        for optimizer in ("adamw8bit", "lion", "adafactor")
        for master in (True, False)
    ]
    lora = [b.with_(lora_rank=base.lora_rank or LORA_RANK) for b in losses]
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
        found = find_in(replace(goal, bases=tuple(bases)), default_space)
        if found is not None:
            yield _remedy(_words(found.strategy, asked.strategy), kind, asked, found)


def _words(s: Strategy, asked: Strategy) -> str:
    """The differences between two strategies, in the words of the single remedies."""
    parts: list[str] = []
    if s.quantized_base and not asked.quantized_base:
        parts.append(f"QLoRA, rank {s.lora_rank}")
    elif s.lora_rank and not asked.lora_rank:
        parts.append(f"LoRA, rank {s.lora_rank}")
    parts += [
        f"{n} {getattr(s, f)}"
        for f, n in (("tp", "tensor parallel"), ("pp", "pipeline parallel"), ("cp", "context parallel"))
        if getattr(s, f) != getattr(asked, f)
    ]
    if s.micro_batch != asked.micro_batch:
        parts.append(f"micro-batch {s.micro_batch}")
    if s.sharding != asked.sharding:
        parts.append(s.sharding)
    if (s.recompute, s.recompute_every) != (asked.recompute, asked.recompute_every):
        every = f" of 1 in {s.recompute_every}" if s.recompute_every > 1 else ""
        parts.append(f"{s.recompute} recompute{every}" if s.recompute != "none" else "no recompute")
    if s.optimizer != asked.optimizer:
        parts.append({"adamw8bit": "8-bit AdamW", "lion": "Lion", "adafactor": "Adafactor"}.get(s.optimizer, s.optimizer))
    if not s.master_weights and asked.master_weights:
        parts.append("bf16 weights without fp32 copies")
    elif s.gradient_dtype != asked.gradient_dtype:
        parts.append(f"{s.gradient_dtype} gradients")
    if s.fused_loss and not asked.fused_loss:
        parts.append("chunked loss")
    if s.offload_optimizer and not asked.offload_optimizer:
        parts.append("optimizer in host memory")
    if s.offload_activations and not asked.offload_activations:
        parts.append("activations in host memory")
    return " + ".join(parts) or "as asked"


def _bigger(goal: Goal, plain: Strategy) -> Iterator[Bigger]:
    """The asked strategy on the cheapest rented accelerators with more memory that hold it."""
    from gpuwise.facts.hardware.naming import find_cluster

    least = goal.cluster.accelerator.memory_bytes
    priced: list[tuple[float, str]] = []
    for accelerator_id in {o.accelerator_id for o in offers()}:
        if accelerators()[accelerator_id].memory_bytes > least:
            with contextlib.suppress(UnpredictableError, DataError):  # no price: not among the cheapest
                priced.append((typical_price_usd_per_hour(accelerator_id).median, accelerator_id))
    shown = 0
    for price, accelerator_id in sorted(priced):
        try:
            cluster = find_cluster(f"{goal.cluster.n_accelerators}x{accelerator_id}")
            e = estimates(goal.arch, cluster, [plain], goal.seq_len)[0]
        except (InputError, UnpredictableError):
            continue
        if e.fits:
            yield Bigger(cluster, e, price)
            shown += 1
        if shown == BIGGER:
            return


def _more(goal: Goal) -> Iterator[Bigger]:
    """The fewest accelerators of the same kind on which some strategy of the same training fits."""
    n = goal.cluster.n_accelerators
    for times in (2, 4, 8, 16, 32, 64):
        from gpuwise.facts.hardware.naming import find_cluster

        try:
            cluster = find_cluster(f"{n * times}x{goal.cluster.accelerator.id}")
            wider = replace(goal, cluster=cluster, wishes=replace(goal.wishes, fixed={}))
            found = find_in(wider, default_space)
        except (InputError, UnpredictableError):
            continue
        if found is not None:
            try:
                price = typical_price_usd_per_hour(cluster.accelerator.id).median
            except (DataError, InputError, UnpredictableError):
                price = None
            yield Bigger(cluster, found, price)
            return


def _largest(goal: Goal, plain: Strategy) -> int:
    """The largest power-of-two micro-batch that fits with everything else as it is."""
    best = plain.micro_batch
    batch = plain.micro_batch * 2
    candidates: list[Strategy] = []
    while batch <= 256:
        candidates.append(plain.with_(micro_batch=batch, accumulation=max(plain.micro_batch * plain.accumulation // batch, 1)))
        batch *= 2
    for e in estimate_all(goal, candidates):
        if e.fits:
            best = max(best, e.strategy.micro_batch)
    return best


def _longest(goal: Goal, plain: Strategy) -> int:
    """The longest sequence, by doublings up to what the model's positions allow, that fits."""
    best, length = goal.seq_len, goal.seq_len * 2
    while length <= goal.arch.max_seq_len:
        if not estimates(goal.arch, goal.cluster, [plain], length)[0].fits:
            break
        best, length = length, length * 2
    return best
