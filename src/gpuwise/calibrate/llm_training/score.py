"""Step time of published LLM training runs: score the model on them, and fit what each software stack costs.

Rows are split by model within a source (:func:`is_check`), never by row. The baseline beside each prediction is one
constant MFU per source, GPU and precision: the median of the same fit rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.llm_training.rows import LlmRow, read_rows
from gpuwise.calibrate.scores import Scores
from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.columns import Columns, base_of
from gpuwise.predict.stack_costs import StackCosts, find_stack_costs
from gpuwise.predict.step.costs import PointCosts, point_costs
from gpuwise.predict.step.evaluate import points_of
from gpuwise.predict.step.times import step_times
from gpuwise.predict.step.training import spread
from gpuwise.workload.transformer.tables import model_flop_per_token

F64 = NDArray[np.float64]
CHECK_MODELS: dict[str, tuple[str, ...]] = {
    "nanotron-ultrascale": ("llama-8.86B",),
    "torchtitan": ("llama3-70b", "llama2-70b"),
    "simumax-b200": ("deepseekv2-L4",),
    "vTrain-single": ("gpt-L16-h2048",),
    "vTrain-multi": ("gpt-L40-h6144",),
    "dgxc-benchmarking": ("nemotron-340b", "gpt3-5b"),
    "megatron-bridge": ("llama3-70b", "qwen3-235b-a22b"),
    "megatron-lm-readme": ("gpt-39B", "gpt-145B", "gpt-16B", "gpt-314B"),
    "calculon-seqsel-tab5": ("gpt-530B",),
}
"""Held-out models in sources with few models, chosen before any fit; elsewhere a third of them, by hash."""


def is_check(row: LlmRow) -> bool:
    """Whether the row's whole model is held out of the fit."""
    if row.source in CHECK_MODELS:
        return row.model in CHECK_MODELS[row.source]
    return hashlib.sha256(f"{row.source}/{row.model}".encode()).digest()[0] % 3 == 0


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Rows that share a model, a system, a sequence length and everything that is no column, evaluated together.

    ``rows`` are positions in the table; ``costs`` do not depend on the stack's fitted costs, so a fit reuses them.
    """

    rows: tuple[int, ...]
    architecture: Architecture
    system: System
    columns: Columns
    costs: PointCosts
    point_index: NDArray[np.int64]

    def step_s(self, stack_costs: StackCosts) -> F64:
        return step_times(self.architecture, self.system, self.costs, self.columns, self.point_index, stack_costs).step_s


def build_groups(rows: Sequence[LlmRow]) -> tuple[list[RunGroup], dict[int, str]]:
    """Groups of every row that can be predicted, and for the others why not."""
    together: dict[tuple[object, ...], list[int]] = {}
    reasons: dict[int, str] = {}
    for i, row in enumerate(rows):
        if row.reason or row.strategy is None:
            reasons[i] = row.reason
        elif not math.isfinite(row.step_time_s):
            reasons[i] = "out of memory (no step time)" if row.out_of_memory else "step time not measured"
        else:
            base = base_of(row.strategy)
            key = (row.architecture, row.system, base, row.seq_len, row.packed_document_len)
            together.setdefault(key, []).append(i)
    groups: list[RunGroup] = []
    for (arch, system, _, seq_len, document), members in together.items():
        assert isinstance(arch, Architecture) and isinstance(system, System) and isinstance(seq_len, int)
        assert document is None or isinstance(document, int)
        strategies = [s for i in members if (s := rows[i].strategy) is not None]
        columns = Columns.from_strategies(strategies)
        try:
            points, index = points_of(columns, seq_len, document)
            groups.append(RunGroup(tuple(members), arch, system, columns, point_costs(arch, points, system), index))
        except GpuwiseError as error:
            reasons.update(dict.fromkeys(members, error.message[:80]))
    return groups, reasons


def score(folder: Path, all_check: bool) -> Scores | None:
    """Predict every row of ``llm_training.csv`` under ``folder``; None when it is not there."""
    rows = read_rows(folder)
    if rows is None:
        return None
    groups, reasons = build_groups(rows)
    predicted, sigma = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for group in groups:
        sc = find_stack_costs(group.columns.base.stack, group.architecture.moe is not None)
        predicted[list(group.rows)] = group.step_s(sc)
        for i, at in zip(group.rows, group.point_index, strict=True):
            sigma[i], _ = spread(sc, group.costs, int(at), rows[i].n_accelerators / group.system.count)
    split = ["check" if all_check or is_check(r) else "fit" for r in rows]
    return Scores(
        source=[_label(r) for r in rows],
        gpu=[r.gpu for r in rows],
        split=split,
        measured=np.array([r.step_time_s for r in rows]),
        predicted=predicted,
        log_sigma=sigma,
        baseline=constant_mfu(rows, groups, split),
        reason=[reasons.get(i, "") for i in range(len(rows))],
    )


def _label(row: LlmRow) -> str:
    """NVIDIA's tables mix dense models and models with experts, which are two questions; elsewhere the source itself."""
    experts = row.architecture is not None and row.architecture.moe is not None
    return f"{row.source} experts" if experts and row.source in ("megatron-bridge", "dgxc-benchmarking") else row.source


def constant_mfu(rows: Sequence[LlmRow], groups: Sequence[RunGroup], split: Sequence[str]) -> F64:
    """Step time if every row of a source, GPU and precision had the median MFU of its fit rows (without any, of its check
    rows: the baseline is then optimistic)."""
    at_peak = np.full(len(rows), np.nan)
    for group in groups:
        peak = group.system.accelerator.peak(group.columns.base.precision)
        for i in group.rows:
            row = rows[i]
            flop = model_flop_per_token(group.architecture, row.seq_len) * row.global_batch * row.seq_len
            at_peak[i] = flop / (peak * row.n_accelerators)
    measured = np.array([r.step_time_s for r in rows])
    mfu = at_peak / measured
    out = np.full(len(rows), np.nan)
    keys = [(r.source, r.gpu, r.strategy.precision if r.strategy else "") for r in rows]
    for width in (1, 2, 3):  # the most specific key that has fit rows wins
        for key in {k[:width] for k in keys}:
            member = np.array([k[:width] == key for k in keys]) & np.isfinite(mfu)
            fit = member & (np.array(split) == "fit")
            use = fit if fit.any() else member if width == 1 else fit
            if use.any():
                out[member] = at_peak[member] / np.median(mfu[use])
    return out
