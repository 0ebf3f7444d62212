"""Training runs of transformers that published tables describe by task: model, cluster, precision and
batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.columns import Columns
from gpuwise.predict.stack_costs import find_stack_costs
from gpuwise.predict.step.evaluate import evaluate
from gpuwise.workload.strategy import Strategy

CAPTURED = "captured: the family captured_time has it"
UNSEEN_STACK_SIGMA = 0.25
"""Added spread of a training script that none of the fitted stacks is: judgement."""


@dataclass(frozen=True, slots=True)
class TransformerRun:
    """``micro_batch`` sequences on each data-parallel rank. ``predicted`` > 0: a head over the vocabulary, which sees that share
    of the tokens (masked ones)."""

    model: str
    cluster: Cluster
    precision: str
    micro_batch: int
    seq_len: int
    stack: str
    predicted: float = 0.0
    accumulation: int = 1
    fused_attention: bool = False

    def architecture(self) -> Architecture:
        arch = find_model(self.model)
        if self.predicted:
            # as wide as the share of the tokens that it sees; the tied embedding keeps its gather
            width = round(arch.vocab * self.predicted)
            arch = replace(arch, vocab=width, lm_head=True, extras=(), extra_parameters=0, published_parameters=None)
        return arch

    def strategy(self) -> Strategy:
        return Strategy(
            precision=self.precision,
            micro_batch=self.micro_batch,
            accumulation=self.accumulation,
            dp=self.cluster.n_accelerators,
            stack=self.stack,
            fused_attention=self.fused_attention,
            optimizer="adamw",
        )


def run_times(runs: Mapping[int, TransformerRun]) -> dict[int, tuple[float, float] | str]:
    """Step seconds and their log sigma by key, or why there are none. Runs that differ in batch only are
    evaluated together."""
    together: dict[tuple[object, ...], list[int]] = {}
    for key, run in runs.items():
        group = (
            run.model,
            run.cluster.system,
            run.precision,
            run.seq_len,
            run.stack,
            run.predicted,
            run.fused_attention,
        )
        together.setdefault(group, []).append(key)
    out: dict[int, tuple[float, float] | str] = {}
    for keys in together.values():
        first = runs[keys[0]]
        try:
            columns = Columns.from_strategies([runs[k].strategy() for k in keys])
            done = evaluate(first.architecture(), first.cluster.system, columns, first.seq_len)
        except GpuwiseError as error:
            out.update(dict.fromkeys(keys, error.message.split("\n")[0][:80]))
            continue
        sigma = math.hypot(find_stack_costs(first.stack).log_sigma_many, UNSEEN_STACK_SIGMA)
        seconds = np.broadcast_to(done.times.step_s, (len(keys),))
        out.update({k: (float(s), sigma) for k, s in zip(keys, seconds, strict=True)})
    return out


def arithmetic_format(device: Accelerator, stated: str) -> str:
    """What ran, for what a table calls ``fp32`` or ``amp``: from Ampere on, frameworks' fp32 is TF32 (NVIDIA
    containers turn it on); half precision without matrix units is computed in fp32."""
    if stated in ("fp32", "tf32"):
        return "tf32" if "tf32" in device.peak_flop_per_s else "fp32"
    half = device.peak_flop_per_s.get("fp16", 0.0)
    if half <= 1.5 * device.peak_flop_per_s.get("fp32", np.inf):
        return "fp32"
    return "bf16" if stated == "bf16" else "fp16"
