"""Published serving runs: score what is one iteration (or one stream, or one image), count the rest with its
reason.

Sources: batch sweeps (median time between tokens), InferenceX closed loops (mean time per output token),
llama.cpp single streams, diffusion latencies, MLPerf inference; runs under load of vLLM, SGLang and TensorRT-LLM, replayed on the
simulated engines, and the cache that start logs of vLLM show. Separate prefill fleets are not simulated. The baseline is
weights over bandwidth or arithmetic over peak, whichever is longer, times one constant per source and GPU:
the median of the same fit rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.scores import Scores, joined
from gpuwise.calibrate.serving.diffusion import score_diffusion
from gpuwise.calibrate.serving.engine_loads import score_engine_runs
from gpuwise.calibrate.serving.load_score import score_load
from gpuwise.calibrate.serving.pool import score_pool
from gpuwise.calibrate.serving.predict import build_groups
from gpuwise.calibrate.serving.rows import ServingRow, is_check, read_rows
from gpuwise.calibrate.tables import read_columns
from gpuwise.serve.engines.costs import engine_costs
from gpuwise.serve.formats import FORMATS, weight_bytes_read
from gpuwise.serve.streams import token_time
from gpuwise.workload.transformer.parameters import count_parameters

F64 = NDArray[np.float64]


def score(folder: Path, all_check: bool) -> Scores | None:
    """Predict every row of the tables under ``folder/serving``; None when none is there."""
    return joined(
        [
            _score_engines(folder, all_check),
            score_load(folder, all_check),
            score_engine_runs(folder, all_check),
            score_pool(folder, all_check),
            score_diffusion(folder, all_check),
            _score_mlperf(folder),
        ]
    )


def _score_engines(folder: Path, all_check: bool) -> Scores | None:
    rows = read_rows(folder)
    if rows is None:
        return None
    n = len(rows)
    predicted, sigma = np.full(n, np.nan), np.full(n, np.nan)
    groups, reasons = build_groups(rows)
    for g in groups:
        costs = engine_costs(g.config)
        predicted[list(g.at)] = g.seconds(costs)
        sigma[list(g.at)] = costs.log_sigma
    for i, row in enumerate(rows):
        if row.bits and not row.reason and row.architecture is not None and row.system is not None:
            result = token_time(
                row.architecture,
                row.system.accelerator,
                row.bits,
                context=row.prompt + row.output / 2,
                n_devices=row.n_devices,
            )
            predicted[i], sigma[i] = result.expected, result.log_sigma
    measured = np.array([r.measured_s for r in rows])
    check = [all_check or is_check(r) for r in rows]
    return Scores(
        source=[r.source for r in rows],
        gpu=[r.gpu for r in rows],
        split=["check" if c else "fit" for c in check],
        measured=measured,
        predicted=predicted,
        log_sigma=sigma,
        baseline=roofline_baseline(rows, measured, ~np.array(check, dtype=bool)),
        reason=[r.reason or reasons.get(i, "") for i, r in enumerate(rows)],
    )


def roofline_baseline(rows: Sequence[ServingRow], measured: F64, fit: NDArray[np.bool_]) -> F64:
    """Seconds [R] by the naive rule, scaled by the median of each source and GPU."""
    ideal = np.array([_ideal(r) for r in rows])
    keys = np.array([f"{r.source}|{r.gpu}" for r in rows], dtype=object)
    out = np.full(len(rows), np.nan)
    for key in set(keys):
        mine = (keys == key) & np.isfinite(ideal) & (measured > 0)
        learn = mine & fit if (mine & fit).any() else mine
        if learn.any():
            out[mine] = ideal[mine] * np.median(measured[learn] / ideal[learn])
    return out


def _ideal(r: ServingRow) -> float:
    if r.reason or r.architecture is None or r.system is None:
        return math.nan
    device = r.system.accelerator
    if r.bits:
        return weight_bytes_read(r.architecture, r.bits) / device.memory_bandwidth_bytes_per_s
    if r.config is None:
        return math.nan
    ranks = r.config.ranks
    total = count_parameters(r.architecture).total
    weights = (
        total
        * FORMATS[r.config.expert_weights or r.config.weights].bytes_per_weight
        / ranks
        / device.memory_bandwidth_bytes_per_s
    )
    peak = device.peak_flop_per_s.get("bf16") or device.peak_flop_per_s.get("fp16")
    return max(weights, 2.0 * total * r.sequences / ranks / peak) if peak else math.nan


def _score_mlperf(folder: Path) -> Scores | None:
    """MLPerf inference: throughput under a load generator; language models need the engine, the rest their
    networks."""
    text = dict.fromkeys(("Model", "Accelerator", "Scenario"), "str")
    c = read_columns(folder / "serving/mlperf_inference.csv", {**text, "Performance_Result": "float"})
    if c is None:
        return None
    n = len(c["Model"])
    language = ("llama", "mixtral", "deepseek", "gpt")
    reason = [
        "a processor, not an accelerator"
        if not a
        else "lengths of its prompts and answers are not published with the results"
        if m.startswith(language)
        else "quantised network or tables without published totals"
        for m, a in zip(c["Model"], c["Accelerator"], strict=True)
    ]
    nothing = np.full(n, np.nan)
    return Scores(
        source=["mlperf inference " + s for s in c["Scenario"]],
        gpu=[a or "none" for a in c["Accelerator"]],
        split=["check"] * n,
        measured=1.0 / c["Performance_Result"],
        predicted=nothing,
        log_sigma=nothing,
        baseline=nothing,
        reason=reason,
    )
