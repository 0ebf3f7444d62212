"""Lambda's training benchmarks: eleven tasks on many GPUs, predicted from the tasks' published dimensions.

The source has no licence: nothing is fitted on it and every row is a check. ``fp32`` on Ampere and later is
taken as TF32, as NVIDIA's containers run it. What waits for the host (recurrent decoders, input pipelines) is
counted with its reason. The baseline is one constant efficiency per task and precision: the median over these
very rows, so a generous one.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.published.reference_networks import arithmetic_format, step_time
from gpuwise.calibrate.published.reference_transformers import TransformerRun, run_times
from gpuwise.calibrate.tables import read_columns
from gpuwise.calibrate.validation import Scores
from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import Cluster

F64 = NDArray[np.float64]
TABLE = "models/lambda_training.csv"
NETWORK_TASKS = {
    "resnet50": "resnet50",
    "ssd": "ssd300-resnet50",
    "maskrcnn": "mask-rcnn-r50-fpn",
    "waveglow": "waveglow-segment",
}
TRANSFORMER_TASKS = {"bert_base_squad": "bert-base", "bert_large_squad": "bert-large"}
REASONS = {
    "tacotron2": "waits for the host (recurrent decoder of single steps)",
    "ncf": "embedding lookups bound by the input pipeline",
    "gnmt": "recurrent network without analytic form",
    "transformerxlbase": "segment recurrence and adaptive softmax without analytic form",
    "transformerxllarge": "segment recurrence and adaptive softmax without analytic form",
}
WAVEGLOW_SEGMENT = 8000.0
"""Audio samples in one training segment: the table's unit is audio samples."""


def score(folder: Path, all_check: bool) -> Scores | None:
    """Predict every row of ``models/lambda_training.csv`` under ``folder``; None when it is not there."""
    text = dict.fromkeys(("gpu", "task", "precision", "torch", "suite"), "str")
    c = read_columns(folder / TABLE, {**text, **dict.fromkeys(("n_gpus", "batch_per_gpu", "throughput", "seq"), "float")})
    if c is None:
        return None
    n = len(c["gpu"])
    predicted, sigma, peak = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
    reason = np.array([REASONS.get(t, "") for t in c["task"]], dtype=object)
    runs: dict[int, TransformerRun] = {}
    for i in np.flatnonzero(reason == "").tolist():
        row = {k: v[i] for k, v in c.items()}
        try:
            cluster = _cluster(row)
            precision = arithmetic_format(cluster.accelerator, "fp32" if row["precision"] == "fp32" else "fp16")
            peak[i] = cluster.accelerator.peak(precision) * row["n_gpus"]
            if row["task"] in TRANSFORMER_TASKS:
                runs[i] = _transformer(row, cluster, precision)
            elif row["task"] in NETWORK_TASKS:
                predicted[i], sigma[i] = _network(row, cluster, precision)
            else:
                reason[i] = "task without analytic form"
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


def _network(row: dict[str, Any], cluster: Cluster, precision: str) -> tuple[float, float]:
    """Seconds per unit of the table, and the spread."""
    units = WAVEGLOW_SEGMENT if row["task"] == "waveglow" else 1.0
    counted = 1 if row["task"] in COUNTED_ON_ONE_RANK.get(row["suite"], ()) else row["n_gpus"]
    modern = not str(row["torch"]).startswith("1.")
    result = step_time(
        NETWORK_TASKS[row["task"]],
        cluster.system,
        int(row["n_gpus"]),
        precision,
        row["batch_per_gpu"],
        channels_last=False,
        modern=modern,
    )
    seconds = float(result.time_s[0]) / (row["batch_per_gpu"] * counted * units)
    return seconds, math.hypot(float(result.log_sigma[0]), LOG_SIGMA_TASK[row["task"]])


LOG_SIGMA_TASK = {"resnet50": 0.0, "ssd": 0.1, "maskrcnn": 0.3, "waveglow": 0.2}
"""Spread beside the network's own of a task whose script does more than its totals say (matching, proposals,
audio): judgement, as nothing may be fitted on this table."""
COUNTED_ON_ONE_RANK = {"v0": ("ssd",)}
"""Suites and tasks whose scripts log the images of rank 0 alone: two GPUs give what one gives."""


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
