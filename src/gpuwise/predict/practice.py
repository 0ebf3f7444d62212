"""Slowdown of published runs relative to the tuned level of a stack's authors.

A step is timed at the level that the authors of its stack publish: tuned, on quiet machines, over some hundred steps. Runs
that are published whole are slower; their seconds over the tuned ones are

    slowdown = max(1, exp(a + b ln(P / 1e10) + c ln(T / P) + d ln(R / 312e12) + s))

where P are the parameters that a token uses, T all parameters and R the GPU's dense 16-bit rate (of an A100 or less: 312e12);
``a`` depends on the kind of run (dense pre-training, experts, adapters). ``s``, negative, is for PyTorch's own FSDP, which has
few options to get wrong: teams come near its authors' results. A single GPU takes its tuned time: it waits for no network or
other rank, and its recipes are run as their authors wrote them (torchtune's and Qwen's tables of fine-tuning, nanoGPT's
benchmark: benchmarks/records/practice). Small models run in young code, large ones are tuned close to the level of the stack's
authors; a faster GPU loses more time outside matrix products. The slowdown depends only on the stack, model and cluster: the
ratio of two strategies, formats or amounts of recompute is that of their tuned times. Fitted on published runs with the time
for failures, checkpoints and evaluation taken out (:mod:`studies.practice`), of experts without the tables of their stacks'
authors, which are tuned. The interval comes from runs whose family was left out of the fit. Memory has the interval of
published fine-tuning runs, whose versions and scripts differ; the fit decision uses the memory that a step needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.step.training import IN_PRACTICE, KERNELS, TrainingEstimate
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.transformer.parameters import count_parameters

MIDDLE = 1.0e10
"""Parameters a token uses at which the slowdown of a dense run is exp(a)."""
SMALLEST, LARGEST = 1.0e8, 5.0e11
"""Parameters a token uses of the runs that were fitted: beyond them the level stays that of the ends."""
SLOWEST, FASTEST = 312e12, 989e12
"""Dense 16-bit FLOP/s of the accelerators that were fitted, A100 and H100; below and above the level stays that of the ends."""
LEAST_OF_KERNELS = 0.95
"""No published run with experts took less of its kernels' seconds (79 runs, benchmarks/records/practice). 19 of 425 others did:
their spread is half as wide, and not bounded by it."""
RULE_MFU = 0.40
"""The rule of thumb that a plan is shown beside: "assume 40 % MFU"."""


@dataclass(frozen=True, slots=True)
class Practice:
    """Time of runs of a kind relative to the tuned level, and the standard deviation of its logarithm."""

    kind: str
    slowdown: float
    log_sigma: float
    memory_log_sigma: float = 0.0
    """Least spread of memory: that of what people published of tools that run in scripts of their own."""

    def of(self, tuned: TrainingEstimate) -> TrainingEstimate:
        """``tuned`` as a team can expect it. The interval is that of runs, or the prediction's own where that is wider."""
        step = tuned.step_time_s
        sigma = max(self.log_sigma, step.log_sigma)
        least = step.expected * tuned.hfu.expected
        if self.kind == "experts":
            least = max(least, LEAST_OF_KERNELS * sum(tuned.breakdown_s[part] for part in KERNELS))
        slower = Estimate.from_log_sigma(step.expected * self.slowdown, sigma, step.basis).bounded_below(least)

        def rate(value: Estimate) -> Estimate:
            return slower.inverse(value.expected * step.expected)

        return replace(
            tuned,
            step_time_s=slower,
            tokens_per_s=rate(tuned.tokens_per_s),
            tokens_per_s_per_gpu=rate(tuned.tokens_per_s_per_gpu),
            mfu=rate(tuned.mfu),
            hfu=rate(tuned.hfu),
            breakdown_s={**tuned.breakdown_s, IN_PRACTICE: step.expected * (self.slowdown - 1.0)},
            memory_bytes=self._memory(tuned.memory_bytes),
            allocated_bytes=self._memory(tuned.allocated_bytes),
        )

    def _memory(self, one: Estimate) -> Estimate:
        return Estimate.from_log_sigma(one.expected, max(self.memory_log_sigma, one.log_sigma), one.basis)


def practice_of(arch: Architecture, strategy: Strategy, cluster: Cluster) -> Practice:
    """Slowdown of published runs of the kind of ``strategy``; only its stack and whether it trains adapters count."""
    document = load_json("practice")
    kind = kind_of(arch, strategy)
    size, sparsity = scale_of(*_parameters(arch))
    log = float(document["level"][kind]) + float(document["size"]) * size + float(document["sparsity"]) * sparsity
    log += float(document["rate"]) * rate_of(cluster.accelerator)
    log += float(document["sharded"]) if is_sharded(kind, strategy.stack) else 0.0
    slowdown = 1.0 if cluster.n_accelerators == 1 else math.exp(max(log, 0.0))
    memory = float(document["memory_log_sigma"]) if find_stack(strategy.stack).in_scripts else 0.0
    return Practice(kind, slowdown, float(document["log_sigma"][kind]), memory)


def is_sharded(kind: str, stack: str) -> bool:
    """Whether a run of ``kind`` takes PyTorch's own FSDP."""
    return kind != "adapters" and find_stack(stack).shards_by_layer


def scale_of(parameters: float, active: float) -> tuple[float, float]:
    """ln of the parameters a token uses over :data:`MIDDLE`, and of all parameters over those."""
    return math.log(min(max(active, SMALLEST), LARGEST) / MIDDLE), math.log(parameters / active)


def rate_of(accelerator: Accelerator) -> float:
    """ln of the accelerator's 16-bit rate over :data:`SLOWEST`, between that of the ends."""
    peaks = accelerator.peak_flop_per_s
    peak = peaks.get("bf16") or peaks.get("fp16") or SLOWEST
    return math.log(min(max(peak, SLOWEST), FASTEST) / SLOWEST)


@lru_cache(maxsize=64)
def _parameters(arch: Architecture) -> tuple[int, int]:
    count = count_parameters(arch)
    return count.total, count.active


def kind_of(arch: Architecture, strategy: Strategy) -> str:
    """``adapters`` (also where every weight is tuned by a recipe of the stack's authors), ``experts`` or ``dense``."""
    if strategy.lora_rank or find_stack(strategy.stack).recipes:
        return "adapters"
    return "dense" if arch.moe is None else "experts"
