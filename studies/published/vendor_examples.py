"""NVIDIA's DeepLearningExamples: BERT by the vendor's tuned scripts on V100 and A100 systems. All rows are checks; other
models are captured (``calibrate.capture_time.tables``)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.scores import Scores
from gpuwise.calibrate.tables import read_columns
from gpuwise.errors import GpuwiseError, UnpredictableError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import Cluster
from studies.published.reference_transformers import CAPTURED, TransformerRun, arithmetic_format, run_times
from studies.spreads import constant_efficiency

F64 = NDArray[np.float64]
TABLE = "models/deeplearningexamples.csv"
PRETRAINING_MICRO_BATCH = {
    (128, "A100-80GB", True): 256,
    (128, "A100-80GB", False): 128,
    (512, "A100-80GB", True): 32,
    (512, "A100-80GB", False): 16,
    (128, "V100-32GB", True): 64,
    (128, "V100-32GB", False): 32,
    (512, "V100-32GB", True): 8,
    (512, "V100-32GB", False): 4,
}
"""Sequences at once by (length, GPU, mixed precision): NVIDIA BERT README, batch over accumulation of its
scripts."""
REASONS = {
    "DLRM": "embedding tables and all-to-all without analytic form",
    "NCF": "embedding lookups bound by the input pipeline",
    "Efficientdet": "image size and batch not stated",
    "Transformer": "mean sequence length not stated",
    "wav2vec2": "audio length not stated",
    "FastPitch": "utterance length not stated",
    "HiFiGAN": "adversarial audio network without analytic form",
    "QuartzNet": "audio length not stated",
    "SE3Transformer": "graph network without analytic form",
    "MoFlow": "molecule flow network without analytic form",
    "BART": "summary lengths not stated",
    "Tacotron2": "waits for the host (recurrent decoder of single steps)",
    "WaveGlow": "unit of the table not stated",
}
LOG_SIGMA = 0.25


def score_examples(folder: Path) -> Scores | None:
    """Predict every row of ``models/deeplearningexamples.csv`` under ``folder``; None when it is not
    there."""
    text = dict.fromkeys(("model", "gpu", "precision", "section", "batch_text"), "str")
    c = read_columns(
        folder / TABLE,
        {**text, **dict.fromkeys(("n_gpus", "batch_per_gpu", "seq_len", "throughput"), "float")},
    )
    if c is None:
        return None
    n = len(c["model"])
    predicted, sigma, peak = np.full(n, np.nan), np.full(n, LOG_SIGMA), np.full(n, np.nan)
    reason = np.array(["" if m == "BERT" else REASONS.get(m, CAPTURED) for m in c["model"]], dtype=object)
    runs: dict[int, TransformerRun] = {}
    for i in np.flatnonzero(reason == "").tolist():
        row = {k: v[i] for k, v in c.items()}
        try:
            cluster = find_cluster(f"{int(row['n_gpus'])}x{device_of(row['gpu'])}")
            precision = arithmetic_format(cluster.accelerator, row["precision"])
            peak[i] = cluster.accelerator.peak(precision) * row["n_gpus"]
            runs[i] = _bert(row, cluster, precision)
        except GpuwiseError as error:
            reason[i] = error.reason if isinstance(error, UnpredictableError) else error.message.split("\n")[0][:80]
    for i, result in run_times(runs).items():
        if isinstance(result, str):
            reason[i] = result
        else:
            run = runs[i]
            predicted[i] = result[0] / (run.micro_batch * run.accumulation * c["n_gpus"][i])
            sigma[i] = result[1]
    measured = 1.0 / c["throughput"]
    group = np.array([f"{m} {s}" for m, s in zip(c["model"], c["seq_len"], strict=True)], dtype=object)
    return Scores(
        source=["deeplearningexamples " + m for m in c["model"]],
        gpu=list(c["gpu"]),
        split=["check"] * n,
        measured=measured,
        predicted=predicted,
        log_sigma=sigma,
        baseline=constant_efficiency(group, 1.0 / peak, measured),
        reason=list(reason),
    )


def device_of(name: str) -> str:
    """The other tables' name of the device that NVIDIA's examples call ``name``."""
    return {
        "A100-80GB": "A100-SXM4-80GB",
        "A100-40GB": "A100-SXM4-40GB",
        "V100-16GB": "V100-SXM2-16GB",
        "V100-32GB": "V100-SXM2-32GB",
    }.get(name, name)


def _bert(row: dict[str, Any], cluster: Cluster, precision: str) -> TransformerRun:
    """Pre-training at 128 and 512 tokens, LAMB every many micro-batches; fine-tuning on SQuAD at 384."""
    mixed = row["precision"].startswith("amp")
    seq = 384 if math.isnan(row["seq_len"]) else int(row["seq_len"])
    micro = float(row["batch_per_gpu"])
    accumulation = 1
    if seq != 384:
        micro = float(PRETRAINING_MICRO_BATCH.get((seq, row["gpu"], mixed), micro))
        accumulation = 64
    if math.isnan(micro):
        raise UnpredictableError("batch not stated")
    # fine-tuning marks a span (two outputs, left out); pre-training predicts the masked tokens only
    length = round(seq * FILLED.get(seq, 1.0))
    predicted = 0.0 if seq == 384 else MASKED[seq] / length
    return TransformerRun("bert-large", cluster, precision, int(micro), length, BERT_STACK, predicted, accumulation)


BERT_STACK = "apex"
MASKED = {128: 20, 512: 80}
"""Masked tokens of a sequence (max_predictions_per_seq of NVIDIA's BERT scripts)."""
FILLED = {512: 0.5}
"""Share of a sequence that is no padding, which the scripts' unpadded encoder skips (arXiv 2107.02027)."""
