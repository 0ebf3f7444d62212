"""Training and fine-tuning on one cluster: does it fit, with which remedies, how long.

The search of ``plan`` for one fallback after the other (as asked, then lighter): the first with a strategy that fits gives its
fastest, so both commands say the same hours. A bound in front of it costs a division: no plan beats every peak reached to
``BEST_MFU``, and no sharding holds less than a share of the weights on each device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.pick.jobs import ModelJob
from gpuwise.pick.outcomes import CHANGED, SAME
from gpuwise.plan.changes.remedy import changed
from gpuwise.plan.defaults import FROZEN_BYTES
from gpuwise.plan.explain import layout
from gpuwise.plan.goal import Wishes, make_goal
from gpuwise.plan.hardware import BEST_MFU
from gpuwise.plan.promise import promised
from gpuwise.plan.rl.answer import RlWishes, plan_rl
from gpuwise.plan.space.search import Fastest, find_fastest, no_layout
from gpuwise.predict.kernels.run_formats import default_precision
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.workload.blocks.point import NF4_BYTES_PER_PARAMETER
from gpuwise.workload.changes.change import Change
from gpuwise.workload.changes.registry import label
from gpuwise.workload.changes.strategy import LORA_RANK, adapter_argument, changes_between
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.transformer.parameters import count_parameters


@dataclass(frozen=True, slots=True)
class Fallback:
    """One training method: the changes to the request, and the minimum bytes per parameter on a device."""

    changes: tuple[Change, ...]
    tier: int
    wishes: Wishes
    least_bytes: float

    @property
    def name(self) -> str:
        """``8-bit AdamW, bf16 gradients``; empty for the request itself."""
        return ", ".join(label(c) for c in self.changes)


@dataclass(frozen=True, slots=True)
class TrainingChoice:
    """The fastest fitting strategy of the first fallback that has one."""

    estimate: TrainingEstimate
    fallback: Fallback
    changes: tuple[str, ...]
    layout: str
    device_high: float
    """Time factor at the pessimistic end of the device uncertainty (:func:`device_high`). The estimate's own interval is that
    of runs, which is the same for all."""


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The job does not fit: the smallest strategy tried, or the bound, needs ``short_bytes`` more on each device."""

    short_bytes: float
    needed_bytes: float


QLORA = (Change("qlora", LORA_RANK),)
LIGHTER: tuple[tuple[Change, ...], ...] = (
    (Change("optimizer", "adamw8bit"), Change("gradient_dtype", "bf16")),
    (Change("optimizer", "adamw8bit"), Change("low_precision", "bf16")),
)
"""Fallbacks of full training, the mildest first."""
FULL_BYTES, LIGHT_BYTES = 6.0, 4.0
"""Bytes per fully trained weight with the optimizer in host memory: 2 weight and 4 gradient, or both in 16 bits."""


def fallbacks(job: ModelJob) -> tuple[Fallback, ...]:
    """The job as asked, then what the job permits when that does not fit."""
    plain = Wishes(tokens=job.tokens, seq_len=job.seq_len, lora_targets=job.lora_targets)
    if job.method == "full":
        judged = job.purpose in ("train", "vision")
        plain = replace(plain, task=job.task if judged else "full")
        if job.phased is not None:
            return (Fallback((), SAME, plain, FULL_BYTES),)
        light = (Fallback(changes, CHANGED, plain, LIGHT_BYTES) for changes in LIGHTER)
        return (Fallback((), SAME, plain, FULL_BYTES), *light)
    lora = Fallback((), SAME, replace(plain, lora_rank=LORA_RANK), FROZEN_BYTES)
    if job.method == "lora":
        if job.method_fixed:
            return (lora,)
        changes = (Change("qlora", adapter_argument(LORA_RANK, job.lora_targets)),)
        return lora, Fallback(changes, CHANGED, replace(lora.wishes, quantized_base=True), NF4_BYTES_PER_PARAMETER)
    return (Fallback((), SAME, replace(plain, lora_rank=LORA_RANK, quantized_base=True), NF4_BYTES_PER_PARAMETER),)


def possible_fallbacks(job: ModelJob, accelerator: Accelerator, n: int) -> tuple[Fallback, ...]:
    """The fallbacks whose weights alone do not overflow ``n`` devices."""
    layers = _layer_parameters(job.arch)
    room = usable_bytes(accelerator) * n
    return tuple(r for r in fallbacks(job) if layers * r.least_bytes <= room)


def least_short_bytes(job: ModelJob, accelerator: Accelerator, n: int) -> TooLarge:
    """How far the weights alone overflow, when no fallback is possible."""
    layers = _layer_parameters(job.arch)
    least = min(r.least_bytes for r in fallbacks(job)) * layers / n
    return TooLarge(least - usable_bytes(accelerator), least)


def least_time_s(job: ModelJob, accelerator: Accelerator, n: int) -> float:
    """Lower bound of the time of any plan. Raises UnpredictableError when the accelerator has no training rate."""
    peak = accelerator.peak(default_precision(accelerator)[0])
    return job.flop / (n * peak * BEST_MFU)


STATE_BYTES = {"full": 16.0, "lora": FROZEN_BYTES, "qlora": NF4_BYTES_PER_PARAMETER}
"""Bytes per parameter in plain mixed precision with AdamW: 2 weight, 2 gradient or 4, 4 copy, 8 moments (ZeRO, arXiv
1910.02054, section 3.1); frozen weights have none of these."""


def crowding(job: ModelJob, accelerator: Accelerator, n: int) -> float:
    """How much slower than the bound ``n`` devices may be because they are full: 1 while the states leave a third free,
    4/3 (everything computed again) when they nearly fill it, up to 3 where they must go to the host. Only for the order
    in which hardware is predicted."""
    full = _layer_parameters(job.arch) * STATE_BYTES[job.method] / (n * usable_bytes(accelerator))
    return float(np.interp(full, (0.6, 0.9, 1.5), (1.0, 4 / 3, 3.0)))


def fastest_with(
    changes: Sequence[Change],
    arch: Architecture,
    cluster: Cluster,
    wishes: Wishes,
) -> Fastest:
    """The fastest strategy of the search of ``plan`` with ``changes`` made to what ``wishes`` ask for, tuned, or what the
    smallest needs.

    Raises InputError (LayoutError where no layout is possible) and UnpredictableError.
    """
    whole = not wishes.precision and default_precision(cluster.accelerator)[0] in ("fp32", "tf32")
    if whole:
        wishes = replace(wishes, gradient_dtype="fp32")
    goal = make_goal(arch, cluster, wishes)
    # without 16-bit formats gradients and weights stay as they are
    step_changes = [c for c in changes if not (whole and c.name in ("gradient_dtype", "low_precision"))]
    goal = replace(goal, bases=tuple(changed(b, step_changes) for b in goal.bases))
    fastest = find_fastest(goal)
    if fastest is None:
        raise no_layout(goal)
    return fastest


def promised_with(changes: Sequence[Change], arch: Architecture, cluster: Cluster, wishes: Wishes) -> Fastest:
    """:func:`fastest_with` at the level that ``plan`` promises."""
    fastest = fastest_with(changes, arch, cluster, wishes)
    return fastest if fastest.estimate is None else replace(fastest, estimate=promised(arch, cluster, fastest.estimate))


def device_high(tuned: TrainingEstimate) -> float:
    """The worse end of the tuned prediction over its middle."""
    return tuned.step_time_s.high / tuned.step_time_s.expected


def train_on(job: ModelJob, cluster: Cluster) -> TrainingChoice | TooLarge:
    """The job on ``cluster``, with the first fallback that fits with the requested probability; else with the first that is
    expected to fit. Raises InputError and UnpredictableError."""
    if job.phased is not None:
        return _phased(job, job.phased, cluster)
    smallest: TooLarge | None = None
    unlikely: TrainingChoice | None = None
    for fallback in possible_fallbacks(job, cluster.accelerator, cluster.n_accelerators):
        fastest = fastest_with(fallback.changes, job.arch, cluster, fallback.wishes)
        tuned = fastest.estimate
        if tuned is not None:
            best, worse = promised(job.arch, cluster, tuned), device_high(tuned)
            trained = TrainingChoice(best, fallback, tuple(_changes(fallback, best.strategy)), layout(best.strategy), worse)
            if best.fit_probability >= 1 - fallback.wishes.risk:
                return trained
            unlikely = unlikely or trained
            continue
        least_bytes = fastest.smallest_bytes
        if smallest is None or least_bytes < smallest.needed_bytes:
            smallest = TooLarge(max(least_bytes - usable_bytes(cluster.accelerator), 0.0), least_bytes)
    return unlikely or smallest or least_short_bytes(job, cluster.accelerator, cluster.n_accelerators)


def _phased(job: ModelJob, asked: RlWishes, cluster: Cluster) -> TrainingChoice:
    """The job's step as an estimate of its update whose seconds for tokens are those of all phases. Raises LayoutError where it
    does not fit."""
    step = plan_rl(job.arch, cluster, asked).step
    update, tokens = step.training, step.recipe.rollouts.tokens
    whole = replace(
        update,
        step_time_s=step.step_time_s.scaled(update.tokens_per_step / tokens),
        tokens_per_s=step.step_time_s.inverse(tokens),
        tokens_per_s_per_gpu=step.step_time_s.inverse(tokens / cluster.n_accelerators),
    )
    where = "" if step.generation is None else f", engines of tensor parallel {step.generation.ranks}"
    return TrainingChoice(whole, fallbacks(job)[0], (), layout(update.strategy) + where, device_high(update))


@lru_cache(4096)
def _layer_parameters(arch: Architecture) -> int:
    return count_parameters(arch).layers


def _changes(fallback: Fallback, s: Strategy) -> Iterator[str]:
    """Changes required to fit, in words."""
    if fallback.changes:
        yield fallback.name
    names = ("checkpointing", "chunked_loss", "sharding", "offload_optimizer", "offload_activations")
    for change in changes_between(Strategy(), s):
        if change.name in names and change.argument not in ("zero1", "zero2"):
            yield label(change)
