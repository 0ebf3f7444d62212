"""Lambda's training benchmarks: fine-tuning of BERT on many GPUs, predicted from the models' dimensions.

The other tasks are captured (``calibrate.capture_time.tables``). The source has no licence: nothing is fitted on it and
every row is a check. ``fp32`` on Ampere and later is taken as TF32, as NVIDIA's containers run it. The baseline is one
constant efficiency per task and precision: the median over these very rows, so a generous one.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.scores import Scores
from gpuwise.calibrate.tables import read_columns
from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import Cluster
from studies.published.reference_transformers import CAPTURED, TransformerRun, arithmetic_format, run_times

F64 = NDArray[np.float64]
TABLE = "models/lambda_training.csv"
TRANSFORMER_TASKS = {"bert_base_squad": "bert-base", "bert_large_squad": "bert-large"}


def score(folder: Path, all_check: bool) -> Scores | None:
    """Predict every row of ``models/lambda_training.csv`` under ``folder``; None when it is not there."""
    text = dict.fromkeys(("gpu", "task", "precision", "torch", "suite"), "str")
    c = read_columns(folder / TABLE, {**text, **dict.fromkeys(("n_gpus", "batch_per_gpu", "throughput", "seq"), "float")})
    if c is None:
        return None
    n = len(c["gpu"])
    predicted, sigma, peak = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
    reason = np.array(["" if t in TRANSFORMER_TASKS else CAPTURED for t in c["task"]], dtype=object)
    runs: dict[int, TransformerRun] = {}
    for i in np.flatnonzero(reason == "").tolist():
        row = {k: v[i] for k, v in c.items()}
        try:
            cluster = _cluster(row)
            precision = arithmetic_format(cluster.accelerator, "fp32" if row["precision"] == "fp32" else "fp16")
            peak[i] = cluster.accelerator.peak(precision) * row["n_gpus"]
            runs[i] = _transformer(row, cluster, precision)
        except GpuwiseError as error:
            reason[i] = error.message.split("\n")[0][:80]
    for i, result in run_times(runs).items():
        if isinstance(result, str):
            reason[i] = result
        else:
            predicted[i], sigma[i] = result[0] / (c["batch_per_gpu"][i] * c["n_gpus"][i]), result[1]
    measured = 1.0 / c["throughput"]
    return Scores(
        source=["lambda " + t for t in c["task"]],
        gpu=list(c["gpu"]),
        split=["check"] * n,
        measured=measured,
        predicted=predicted,
        log_sigma=sigma,
        baseline=_constant(c, measured, peak),
        reason=list(reason),
    )


def _cluster(row: dict[str, Any]) -> Cluster:
    if not (row["throughput"] > 0 and row["batch_per_gpu"] > 0):
        from gpuwise.errors import UnpredictableError

        raise UnpredictableError("batch or throughput not stated")
    name = {"GH200": "GH200 96GB", "A100-SXM4-40GB": "A100-SXM4-40GB"}.get(row["gpu"], row["gpu"].replace("_", " "))
    return find_cluster(f"{int(row['n_gpus'])}x{name}")


def _transformer(row: dict[str, Any], cluster: Cluster, precision: str) -> TransformerRun:
    """NVIDIA's BERT fine-tuning: SQuAD at 384 tokens; its head of two outputs a token is left out."""
    seq = 384 if math.isnan(row["seq"]) else int(row["seq"])
    return TransformerRun(
        model=TRANSFORMER_TASKS[row["task"]],
        cluster=cluster,
        precision=precision,
        micro_batch=int(row["batch_per_gpu"]),
        seq_len=seq,
        stack="apex",
    )


def _constant(c: dict[str, Any], measured: F64, peak: F64) -> F64:
    out = np.full(len(measured), np.nan)
    for task in set(c["task"]):
        for precision in set(c["precision"]):
            here = (c["task"] == task) & (c["precision"] == precision) & np.isfinite(peak) & (measured > 0)
            if here.any():
                out[here] = np.median(measured[here] * peak[here]) / peak[here]
    return out
