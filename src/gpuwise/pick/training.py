"""Training and fine-tuning on one cluster: does it fit, with which remedies, how long.

The search of ``plan`` for one rung after the other (as asked, then lighter): the first with a strategy that fits gives its
fastest, so both commands say the same hours. A bound in front of it costs a division: no plan beats every peak reached to
``BEST_MFU``, and no sharding holds less than a share of the weights on each device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.pick.jobs import Job
from gpuwise.pick.outcomes import CHANGED, SAME
from gpuwise.plan.defaults import default_precision
from gpuwise.plan.explain import layout
from gpuwise.plan.goal import Goal, Wishes, make_goal
from gpuwise.plan.hardware import BEST_MFU
from gpuwise.plan.space.search import find_fastest, no_layout
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.transformer.parameters import count_parameters

QUANTIZED_BYTES = 0.516
"""Of a weight held in 4 bits (``Strategy.quantized_base``)."""
LORA_RANK = 16


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to train: how it is called, what it changes, and the least a device holds of a parameter, in bytes."""

    name: str
    tier: int
    wishes: Wishes
    least_bytes: float
    master_weights: bool = True


@dataclass(frozen=True, slots=True)
class Trained:
    """The fastest fitting strategy of the first rung that has one."""

    estimate: TrainingEstimate
    rung: Rung
    changes: tuple[str, ...]
    layout: str


@dataclass(frozen=True, slots=True)
class TooLarge:
    """Nothing fits: the smallest strategy tried, or the bound, needs ``short_bytes`` more on each device."""

    short_bytes: float
    needed_bytes: float


def rungs(job: Job) -> tuple[Rung, ...]:
    """The job as asked, then what the job permits when that does not fit."""
    plain = Wishes(tokens=job.tokens, seq_len=job.seq_len)
    lora = replace(plain, lora_rank=LORA_RANK)
    quantized = Rung("4-bit base weights (QLoRA)", CHANGED, replace(lora, quantized_base=True), QUANTIZED_BYTES)
    if job.method == "qlora":
        return (replace(quantized, tier=SAME, name=""),)
    if job.method == "lora":
        asked = Rung("", SAME, lora, 2.0)
        return (asked,) if job.method_fixed else (asked, quantized)
    light = replace(plain, optimizer="adamw8bit", gradient_dtype="bf16")
    return (
        Rung("", SAME, plain, 2.0),
        Rung("8-bit AdamW, bf16 gradients", CHANGED, light, 2.0),
        Rung("8-bit AdamW, bf16 weights without fp32 copies", CHANGED, light, 2.0, master_weights=False),
    )


def possible_rungs(job: Job, accelerator: Accelerator, n: int) -> tuple[Rung, ...]:
    """The rungs whose weights alone do not overflow ``n`` devices."""
    layers = _layer_parameters(job.arch)
    room = usable_bytes(accelerator) * n
    return tuple(r for r in rungs(job) if layers * r.least_bytes <= room)


def least_short_bytes(job: Job, accelerator: Accelerator, n: int) -> TooLarge:
    """How far the weights alone overflow, when no rung is possible."""
    layers = _layer_parameters(job.arch)
    least = min(r.least_bytes for r in rungs(job)) * layers / n
    return TooLarge(least - usable_bytes(accelerator), least)


def least_time_s(job: Job, accelerator: Accelerator, n: int) -> float:
    """What no plan beats. Raises UnpredictableError when the accelerator has no rate to train with."""
    peak = accelerator.peak(default_precision(accelerator)[0])
    return job.flop / (n * peak * BEST_MFU)


STATE_BYTES = {"full": 16.0, "lora": 2.0, "qlora": QUANTIZED_BYTES}
"""Of a parameter in plain mixed precision with AdamW: 2 weight, 2 gradient or 4, 4 copy, 8 moments (ZeRO, arXiv 1910.02054,
section 3.1); frozen weights have none of it."""


def crowding(job: Job, accelerator: Accelerator, n: int) -> float:
    """How much slower than the bound ``n`` devices may be because they are full: 1 while the states leave a third free,
    4/3 (everything computed again) when they nearly fill it, up to 3 where they must go to the host. Only for the order
    in which hardware is predicted."""
    full = _layer_parameters(job.arch) * STATE_BYTES[job.method] / (n * usable_bytes(accelerator))
    return float(np.interp(full, (0.6, 0.9, 1.5), (1.0, 4 / 3, 3.0)))


def train_on(job: Job, cluster: Cluster) -> Trained | TooLarge:
    """The job on ``cluster``. Raises InputError and UnpredictableError."""
    smallest: TooLarge | None = None
    for rung in possible_rungs(job, cluster.accelerator, cluster.n_accelerators):
        goal = _goal(job, cluster, rung)
        found = find_fastest(goal)
        if found is None:
            raise no_layout(goal)
        best = found.estimate
        if best is not None:
            return Trained(best, rung, tuple(_changes(rung, best.strategy)), layout(best.strategy))
        needed = found.smallest_bytes
        if smallest is None or needed < smallest.needed_bytes:
            smallest = TooLarge(max(needed - usable_bytes(cluster.accelerator), 0.0), needed)
    return smallest or least_short_bytes(job, cluster.accelerator, cluster.n_accelerators)


@cache
def _layer_parameters(arch: Architecture) -> int:
    return count_parameters(arch).layers


def _goal(job: Job, cluster: Cluster, rung: Rung) -> Goal:
    wishes, accelerator = rung.wishes, cluster.accelerator
    if default_precision(accelerator)[0] in ("fp32", "tf32"):
        wishes = replace(wishes, gradient_dtype="fp32")
    goal = make_goal(job.arch, cluster, wishes, fine_tuning=job.purpose != "train")
    if rung.master_weights:
        return goal
    return replace(goal, bases=tuple(b.with_(master_weights=False) for b in goal.bases))


def _changes(rung: Rung, s: Strategy) -> Iterator[str]:
    """What it takes to fit, in words."""
    if rung.name:
        yield rung.name
    if s.recompute != "none":
        yield f"{s.recompute} recompute"
    if s.sharding == "zero3":
        yield "sharded weights"
    if s.offload_optimizer:
        yield "optimizer in host memory"
    if s.offload_activations:
        yield "activations in host memory"
