"""From what a stack's authors reach to what published runs reached.

A step is timed at the level that the authors of its stack publish: tuned, on quiet machines, over some hundred steps. Runs
that are published whole are slower, and the more so the better the tuned level is: their seconds over the tuned ones are

    slowdown = max(1, exp(a + b ln(u / 0.5) + c ln(p / p_A100) + d))

where u is the model FLOP utilisation of the tuned step, ``a`` of the kind of run (dense pre-training, experts, adapters), p
the accelerator's dense 16-bit peak and ``d`` of one host, where less can be lost. Fitted on published runs with the time for
failures, checkpoints and evaluation taken out (:mod:`gpuwise.calibrate.practice`): a run that is slow on paper loses little
more in practice. The interval is that of runs whose family was left out of the fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.step.training import IN_PRACTICE, TrainingEstimate
from gpuwise.units import TERA
from gpuwise.workload.strategy import Strategy

MIDDLE = 0.5
"""Utilisation at which a slowdown is exp(a)."""
A100_FLOP_PER_S = 312.0 * TERA
RULE_MFU = 0.40
"""The rule of thumb that a plan is shown beside: "assume 40 % MFU"."""


@dataclass(frozen=True, slots=True)
class Practice:
    """What runs of a kind take over the tuned level: seconds over seconds, and the spread of its logarithm."""

    kind: str
    slowdown: float
    log_sigma: float

    def of(self, tuned: TrainingEstimate) -> TrainingEstimate:
        """``tuned`` as a team can expect it. The interval is that of runs, or the prediction's own where that is wider."""
        step = tuned.step_time_s
        sigma = max(self.log_sigma, step.log_sigma)
        slower = Estimate.from_log_sigma(step.expected * self.slowdown, sigma, step.basis)

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
        )


def practice_of(tuned: TrainingEstimate, arch: Architecture, cluster: Cluster) -> Practice:
    """What published runs of the kind of ``tuned`` took over it."""
    found = load_json("practice")
    kind = kind_of(arch, tuned.strategy)
    log = float(found["level"][kind]) + float(found["slope"]) * math.log(tuned.mfu.expected / MIDDLE)
    log += float(found["generation"]) * math.log(half_peak(cluster.accelerator, tuned.strategy.precision) / A100_FLOP_PER_S)
    log += float(found["one_host"]) * (cluster.n_systems == 1)
    return Practice(kind, math.exp(max(log, 0.0)), float(found["log_sigma"][kind]))


def kind_of(arch: Architecture, strategy: Strategy) -> str:
    """``adapters``, ``experts`` or ``dense``."""
    if strategy.lora_rank:
        return "adapters"
    return "dense" if arch.moe is None else "experts"


def half_peak(accelerator: Accelerator, precision: str) -> float:
    """Dense FLOP/s in a 16-bit format, or in ``precision`` where there is none."""
    peaks = accelerator.peak_flop_per_s
    return peaks.get("bf16", peaks.get("fp16", accelerator.peak(precision)))
