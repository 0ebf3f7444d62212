"""MLPerf training results and NVIDIA's DeepLearningExamples tables: step times of whole systems.

Every row is a check: nothing is fitted here. Assumptions a row does not state, by benchmark:

- language models: fp8 on Hopper and later and on MI300 and later; NVFP4 from round v5.1 on Blackwell (its
  published recipes); the layout is the fastest that fits (``layout_search``). LoRA of rank 16 on sequences
  packed to 8,192.
- the whole iteration is one CUDA graph in NVIDIA's BERT (``--use_cuda_graph``), Llama 2 70B LoRA
  (``MCORE_CUDA_GRAPH=1``) and Llama 3.1 8B (``FULL_CUDA_GRAPH``), mlcommons/training_results.
- BERT: sequences of 512 of which half is padding that kernels skip (arXiv 2107.02027: 2.0 times fewer
  tokens), fp8 from Hopper on, fp16 before.
- image networks are captured (``calibrate.capture_time.tables``).

The baseline is one constant efficiency per benchmark and precision: the median over these very rows.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.scores import Scores, joined
from gpuwise.calibrate.tables import read_columns
from gpuwise.errors import GpuwiseError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.predict.step.training import estimate
from gpuwise.units import MILLI, MINUTE_S
from studies.llm_training.layout_search import TunedRun, best_layout
from studies.published.reference_transformers import CAPTURED
from studies.published.vendor_examples import score_examples
from studies.spreads import constant_efficiency

F64 = NDArray[np.float64]
TABLE = "models/mlperf_training.csv"
LOG_SIGMA_ASSUMED = 0.155
"""Spread beside the model's own of a step whose layout, precision and padding are assumed: covers 80 % of the rows when every
benchmark weighs as the root of its rows; a benchmark left out of it (0.08 to 0.21 then) is inside in 80 %."""
WHOLE_GRAPH = ("bert", "llama2_70b_lora", "llama31_8b")
LANGUAGE_BENCHMARKS = {
    "bert": "bert-large",
    "llama2_70b_lora": "llama-2-70b",
    "llama31_8b": "llama-3.1-8b",
    "llama31_405b": "llama-3.1-405b",
    "gpt3": "gpt3-175b",
}
REASONS = {
    "resnet": CAPTURED,
    "ssd": CAPTURED,
    "retinanet": CAPTURED,
    "maskrcnn": CAPTURED,
    "unet3d": CAPTURED,
    "dlrm": "embedding tables and all-to-all without analytic form",
    "dlrm_dcnv2": "embedding tables and all-to-all without analytic form",
    "rgat": "graph sampling without analytic form",
    "minigo": "reinforcement learning waits for self-play",
    "rnnt": "recurrent network without analytic form",
    "stable_diffusion": "activations of the network not stated",
    "flux1": "image size and token count not stated",
}
FEWEST_SAMPLES = {"ssd": 3 * 1_170_301, "retinanet": 3 * 1_170_301}
"""Samples below which nobody has converged (three epochs of OpenImages; references need more than four): a
step time that would leave fewer in the stated time to train is in another unit."""


def score(folder: Path, all_check: bool) -> Scores | None:
    """Predict every row of the two tables under ``folder``; None when neither is there."""
    return joined([_score_mlperf(folder), score_examples(folder)])


@dataclass(frozen=True, slots=True)
class _Row:
    benchmark: str
    round: str
    device: str
    n: int
    per_node: int
    batch: int
    accumulation: int
    seq_len: int


def _score_mlperf(folder: Path) -> Scores | None:
    text = dict.fromkeys(("round", "benchmark", "accelerator"), "str")
    numbers = dict.fromkeys(
        ("n_accel", "accel_per_node", "gbs", "grad_accum", "seq", "step_time_ms", "time_to_train_min"),
        "float",
    )
    c = read_columns(folder / TABLE, {**text, **numbers})
    if c is None:
        return None
    n = len(c["round"])
    predicted, sigma, peak = np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan)
    reason = np.empty(n, dtype=object)
    for i in range(n):
        row = {k: v[i] for k, v in c.items()}
        reason[i] = _unusable(row)
        if reason[i]:
            continue
        try:
            predicted[i], sigma[i], peak[i] = _predict(_row(row))
        except GpuwiseError as error:
            reason[i] = error.reason if isinstance(error, UnpredictableError) else error.message.split("\n")[0][:80]
    measured = c["step_time_ms"] * MILLI
    return Scores(
        source=["mlperf " + b for b in c["benchmark"]],
        gpu=[spelling_of(a) for a in c["accelerator"]],
        split=["check"] * n,
        measured=measured,
        predicted=predicted,
        log_sigma=sigma,
        baseline=constant_efficiency(c["benchmark"], c["gbs"] / (peak * c["n_accel"]), measured),
        reason=list(reason),
    )


def _unusable(r: dict[str, Any]) -> str:
    if not r["step_time_ms"] > 0:
        return "step time not measured"
    if r["benchmark"] in REASONS:
        return REASONS[r["benchmark"]]
    if r["benchmark"] not in LANGUAGE_BENCHMARKS:
        return "benchmark without analytic form"
    if not (r["n_accel"] > 0 and r["gbs"] > 0):
        return "devices or batch not stated"
    fewest = FEWEST_SAMPLES.get(r["benchmark"], 0)
    rate = r["gbs"] / (r["step_time_ms"] * MILLI)
    if fewest and rate * r["time_to_train_min"] * MINUTE_S < fewest:
        return "step time contradicts the time to train"
    return ""


def _row(r: dict[str, Any]) -> _Row:
    seq_len = {"bert": 512, "llama2_70b_lora": 8192, "llama31_8b": 8192, "llama31_405b": 8192, "gpt3": 2048}
    return _Row(
        r["benchmark"],
        r["round"],
        spelling_of(r["accelerator"]),
        int(r["n_accel"]),
        int(r["accel_per_node"]) if r["accel_per_node"] > 0 else 8,
        int(r["gbs"]),
        int(r["grad_accum"]) if r["grad_accum"] > 0 else 1,
        seq_len.get(r["benchmark"], 0),
    )


def spelling_of(name: str) -> str:
    """The device in the catalogue's words: the part in brackets names it on Blackwell."""
    inside = re.search(r"\(((?:B|GB)[23]00)", name)
    if inside:
        return inside[1] + ("-SXM" if inside[1].startswith("B") else "")
    name = re.sub(r"NVIDIA |AMD Instinct |GeForce | HBM\w+| CTS| DLC|Intel\(R\) |\(R\)| AI Accelerator", "", name)
    name = re.sub(r"\b\d+GB\b(?= ?$)", "", name) if name.startswith("MI") else name
    return name.replace("A100-SXM-", "A100-SXM4-").replace("Pro 6000 SE PCIe 96GB", "PRO 6000 Blackwell Server").strip(" -")


@cache
def _predict(row: _Row) -> tuple[float, float, float]:
    """Step seconds, log sigma, peak FLOP/s of one device in the assumed precision."""
    cluster = _cluster(row)
    device = cluster.accelerator
    precision = language_precision(device, row.benchmark, row.round)
    job = _job(row, cluster, precision)
    strategy, _ = best_layout(job)
    step = estimate(job.architecture, cluster, strategy, seq_len=job.seq_len).step_time_s
    return step.expected, math.hypot(step.log_sigma, LOG_SIGMA_ASSUMED), device.peak(precision)


def _cluster(row: _Row) -> Cluster:
    from gpuwise.facts.hardware.naming import find_cluster

    return find_cluster(f"{row.n}x{row.device}")


def language_precision(device: Accelerator, benchmark: str, round_: str) -> str:
    """fp8 where the device has it; NVFP4 from v5.1 on Blackwell, but for BERT, which left before."""
    if "nvfp4" in device.peak_flop_per_s and round_ >= "v5.1" and benchmark != "bert" and device.vendor == "NVIDIA":
        return "nvfp4"
    has_fp8 = "fp8" in device.peak_flop_per_s and device.year >= 2022
    return "fp8" if has_fp8 else "fp16" if benchmark == "bert" else "bf16"


def _job(row: _Row, cluster: Cluster, precision: str) -> TunedRun:
    from gpuwise.facts.models.catalogue import find_model

    arch, seq = find_model(LANGUAGE_BENCHMARKS[row.benchmark]), row.seq_len
    if row.benchmark == "bert":
        # half the tokens are padding; the head sees the masked ones, at most 76 of 512
        arch, seq = replace(arch, vocab=round(arch.vocab * 76 / 256), published_parameters=None), seq // 2
    return TunedRun(
        arch,
        cluster,
        precision,
        seq,
        row.batch,
        row.accumulation,
        lora_rank=16 if row.benchmark.endswith("lora") else 0,
        cuda_graphs="full" if row.benchmark in WHOLE_GRAPH and cluster.accelerator.vendor == "NVIDIA" else "partial",
    )
