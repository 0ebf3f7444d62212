"""Peak memory of published LLM training runs: errors of the prediction, and correctness of verdicts.

Each run that states a peak is a row of its source, in its own metric (allocated, reserved or nvidia-smi). Every run is also a row
of ``<source> verdict``: measured 1 when it ran, 2 when memory ran out, and predicted likewise; such a row's error is 0 or not,
and its coverage is the share of right verdicts.

The baseline is a rule of thumb with one constant factor per source, the median over the same fit rows: 16 or 18 bytes a
parameter, sharded as the strategy says, and the activations of Korthikanti et al. (arXiv 2205.05198, table 2).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.llm_training.rows import SYSTEMS, LlmRow, read_rows
from gpuwise.calibrate.llm_training.score import is_check
from gpuwise.calibrate.scores import Scores
from gpuwise.errors import GpuwiseError, UnpredictableError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.columns import Columns
from gpuwise.predict.memory.device import StackMemory
from gpuwise.predict.memory.saved import saved_of_points
from gpuwise.predict.memory.strategies import MemoryColumns, memory_columns
from gpuwise.predict.step.evaluate import points_of
from gpuwise.units import GIB
from gpuwise.workload.stacks.memory import MemoryRules
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.transformer.parameters import count_parameters

F64 = NDArray[np.float64]
RAN, OUT_OF_MEMORY = 1.0, 2.0


@dataclass(frozen=True, slots=True)
class Target:
    """One measured number: bytes of ``metric`` of the run ``row``, or the verdict on it (``metric``
    ``verdict``)."""

    row: int
    source: str
    metric: str
    measured: float


def metric_of(row: LlmRow) -> str:
    """The metric of the source's figure: ``allocated``, ``reserved`` or ``device``."""
    kind, source = row.memory_kind, row.source
    if "nvidia-smi" in kind:
        return "device"
    if "max_memory_reserved" in kind or source.startswith(("torchtitan", "nanotron")):
        # torchtitan logs max_reserved; nanotron logs max_memory_allocated and max_memory_reserved side by
        # side, and the plotted figure behaves as the second (no row is below what its formulas say is
        # allocated)
        return "reserved"
    return "allocated"


def measured_bytes(row: LlmRow) -> float:
    """The run's peak; nanotron's "GB" are 2**30 bytes (helpers.py create_table_log)."""
    return row.memory_bytes * GIB / 1e9 if row.source.startswith("nanotron") else row.memory_bytes


def targets(rows: Sequence[LlmRow]) -> list[Target]:
    """Every number the runs state, in table order: the peak, a reserved figure in the notes, and the
    verdict."""
    metrics: list[Target] = []
    for i, row in enumerate(rows):
        if math.isfinite(row.memory_bytes):
            metrics.append(Target(i, row.source, metric_of(row), measured_bytes(row)))
        if match := re.search(r"real_reserved_gib=([0-9.]+)", row.notes):
            metrics.append(Target(i, f"{row.source} reserved", "reserved", float(match[1]) * GIB))
        verdict = OUT_OF_MEMORY if row.out_of_memory else RAN
        metrics.append(Target(i, f"{row.source} verdict", "verdict", verdict))
    return metrics


# --- prediction ---------------------------------------------------------------------------------------------


def system_of(row: LlmRow) -> System | None:
    """The row's system; memory does not depend on a power limit that keeps a run from being timed."""
    if row.system is not None or "power limit" not in row.reason:
        return row.system
    name = re.sub(r"\s*\(.*\)", "", row.gpu)
    return find_cluster(f"{row.n_accelerators}x{SYSTEMS.get(name, name)}").system


def settings(row: LlmRow) -> tuple[Strategy, MemoryRules]:
    """The row's strategy and its software's rules, with what the published recipes do beyond the table's
    columns.

    Raises UnpredictableError where a recipe does what no strategy expresses.
    """
    strategy = row.strategy
    if strategy is None:
        raise UnpredictableError(row.reason)
    rules = find_stack(strategy.stack).memory
    if row.software == "litgpt":
        # chunked_cross_entropy in the compute format; its recipes accumulate (global batch 8 to 64)
        return strategy.with_(accumulation=2), replace(rules, loss_half=2.0, loss_fp32=0.0)
    if "torchtune" in row.software or "torchtune" in row.source:
        if not strategy.lora_rank and not strategy.offload_optimizer:
            raise UnpredictableError("the recipe updates inside the backward")
        return strategy.with_(master_weights=False, gradient_dtype="bf16", accumulation=2, fused_loss=True), rules
    if "AutoModel" in row.software:
        # Hugging Face models loaded in bfloat16: states follow the parameters
        return strategy.with_(master_weights=False, gradient_dtype="bf16"), rules
    if "DeepSpeed" in row.software and "Liger" in row.software:
        # ml-engineering: ZeRO-3, the update on the host; Liger's fused linear cross-entropy never has the logits
        sharded = strategy.with_(sharding="zero3", offload_optimizer=True, gradient_dtype="bf16")
        return sharded, replace(rules, loss_half=0.0, loss_fp32=0.0)
    if "composer" in row.software:
        # llm-foundry's fused_crossentropy: half-precision logits and their gradient
        return strategy, replace(rules, loss_half=2.0, loss_fp32=0.0)
    if "torchtitan" in row.software and "Grand Teton" in row.gpu:
        # measured by January 2025 (d4c86e3), before the loss was compiled (bbb1b61, April 2025)
        return strategy, replace(rules, loss_half=0.0, loss_fp32=3.0)
    return strategy, rules


def predict(row: LlmRow, strategy: Strategy, rules: MemoryRules, constants: StackMemory | None = None) -> MemoryColumns:
    """Memory of ``row`` under ``strategy``. Raises UnpredictableError where the row states too little."""
    system, arch = system_of(row), row.architecture
    if system is None or arch is None:
        raise UnpredictableError(row.reason)
    columns = Columns.from_strategies([strategy])
    points, index = points_of(columns, row.seq_len)
    if row.software == "litgpt":  # its own model code, which repeats grouped keys and values to every head
        points = [replace(p, stack=replace(p.stack, native_gqa=False, masks_windows=False)) for p in points]
    saved = saved_of_points(arch, points, rules)
    return memory_columns(arch, system, saved, columns, index, rules, constants)


def value_of(memory: MemoryColumns, metric: str) -> float:
    """Bytes of ``metric`` of the one strategy in ``memory``."""
    shown = memory.shown
    parts = {"allocated": memory.allocated, "reserved": shown - memory.context, "device": shown}
    return float(parts[metric].flat[0])


def could_be(row: LlmRow, strategy: Strategy) -> Iterator[Strategy]:
    """``strategy``, then every one that differs only in values that the table does not state."""
    yield strategy
    recomputes = ("selective", "full") if "recompute" in row.unstated else (strategy.recompute,)
    shardings = ("zero3",) if "sharding" in row.unstated else (strategy.sharding,)
    micro = 1 if "micro_batch" in row.unstated else strategy.micro_batch
    for sharding in shardings:
        for recompute in recomputes:
            yield strategy.with_(recompute=recompute, sharding=sharding, micro_batch=micro)


def verdict(row: LlmRow, strategy: Strategy, rules: MemoryRules) -> float:
    """:data:`RAN` when some strategy the row's columns allow fits, else :data:`OUT_OF_MEMORY`."""
    system = system_of(row)
    if system is None:
        raise UnpredictableError(row.reason)
    for one in could_be(row, strategy):
        if bool(predict(row, one, rules).fits().flat[0]):
            return RAN
    return OUT_OF_MEMORY


# --- score --------------------------------------------------------------------------------------------------


def score(folder: Path, all_check: bool) -> Scores | None:
    """Predict the memory of every run in ``llm_training.csv`` under ``folder``; None when it is not there."""
    rows = read_rows(folder)
    if rows is None:
        return None
    row_targets = targets(rows)
    predicted, sigma = np.full(len(row_targets), np.nan), np.full(len(row_targets), np.nan)
    reasons = [""] * len(row_targets)
    done: dict[int, MemoryColumns] = {}
    for k, target in enumerate(row_targets):
        row = rows[target.row]
        try:
            strategy, rules = settings(row)
            if target.metric == "verdict":
                predicted[k] = verdict(row, strategy, rules)
                continue
            if target.row not in done:
                done[target.row] = predict(row, strategy, rules)
            predicted[k] = value_of(done[target.row], target.metric)
            sigma[k] = done[target.row].constants.log_sigma[target.metric]
        except GpuwiseError as error:
            reasons[k] = error.message.split("\n")[0][:80] or "layout not stated"
    split = ["check" if all_check or is_check(rows[t.row]) else "fit" for t in row_targets]
    return Scores(
        source=[t.source for t in row_targets],
        gpu=[rows[t.row].gpu for t in row_targets],
        split=split,
        measured=np.array([t.measured for t in row_targets]),
        predicted=predicted,
        log_sigma=sigma,
        baseline=rule_of_thumb(rows, row_targets, split),
        reason=reasons,
    )


# --- baseline -----------------------------------------------------------------------------------------------


def thumb_bytes(arch: Architecture, s: Strategy, seq_len: int) -> float:
    """States at 16 (18 with fp32 gradients beside half weights) bytes a parameter and Korthikanti's
    activations: s b h L / p x (34 + 5 a s / h) / t, or 2 s b h L / p under full recomputation, times the
    micro-batches in flight."""
    parameters = count_parameters(arch).total / (s.tp * s.pp)
    each = 18.0 if s.gradient_dtype == "fp32" else 16.0
    split = {"none": (each, 0.0), "zero1": (each - 12, 12.0), "zero2": (2.0, each - 2)}
    resident, sharded = split.get(s.sharding, (0.0, each))
    states = parameters * (2.0 if s.lora_rank else resident + sharded / (s.dp * s.cp))
    tokens = s.micro_batch * seq_len / s.cp
    scores = 0.0 if s.fused_attention or s.recompute != "none" else 5 * arch.heads * seq_len / arch.hidden
    per_token = 2.0 if s.recompute == "full" else (34 + scores) / s.tp
    return states + tokens * arch.hidden * arch.n_layers / s.pp * per_token * min(s.pp, s.accumulation)


def rule_of_thumb(rows: Sequence[LlmRow], row_targets: Sequence[Target], split: Sequence[str]) -> F64:
    """The rule of thumb for every target, scaled by the median of measured / rule over the source's fit rows (without any,
    over its check rows: the baseline is then optimistic)."""
    thumb = np.full(len(row_targets), np.nan)
    for k, target in enumerate(row_targets):
        row = rows[target.row]
        if row.architecture is not None and row.strategy is not None:
            thumb[k] = thumb_bytes(row.architecture, row.strategy, row.seq_len)
    measured = np.array([t.measured for t in row_targets])
    sources = np.array([t.source for t in row_targets], dtype=object)
    is_fit = np.array([p == "fit" for p in split])
    out = np.full(len(row_targets), np.nan)
    for source in sorted({t.source for t in row_targets if t.metric != "verdict"}):
        mask = (sources == source) & np.isfinite(thumb)
        sample = mask & is_fit if (mask & is_fit).any() else mask
        if sample.any():
            out[mask] = thumb[mask] * float(np.median(measured[sample] / thumb[sample]))
    for k, target in enumerate(row_targets):
        system = system_of(rows[target.row]) if target.metric == "verdict" else None
        if system is not None and math.isfinite(thumb[k]):
            out[k] = RAN if thumb[k] <= system.accelerator.memory_bytes else OUT_OF_MEMORY
    return out
