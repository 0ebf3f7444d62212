"""Rows of the NeuSight, Lambda, DeepLearningExamples and MLPerf tables, each with the step that is captured for it.

What a table leaves out is taken from the scripts that made it:

- NeuSight (github.com/sitar-lab/NeuSight): fp32 without TF32, eager attention, forward and backward, no optimizer; the
  device's cache is emptied before every pass, which costs AMD devices their allocations anew.
- Lambda (github.com/lambdal/deeplearning-benchmark, ``pytorch/scripts/config_v*``): NVIDIA's DeepLearningExamples in NVIDIA's
  containers, where fp32 is TF32 from Ampere on. BERT, NCF, GNMT and Transformer-XL in mixed precision keep fp32 copies of fp16
  weights (Apex level O2); SSD does in suite v0 only; the others are under autocast. Transformer-XL gives every word a logit
  (``adaptive=False`` in the logs), its base model under LAMB, its large one under Adam. ResNet-50 lies channels-first (the
  default of its script), SSD channels-last from suite v1 on. BERT's fp32 optimizer goes parameter by parameter. WaveGlow's rows
  in mixed precision ran in fp32 from suite v1 on (equal times on every card). From suite v1 on every script sets
  NCCL_P2P_DISABLE=1; Transformer-XL on several devices sums no gradients (``multi_gpu=None`` in the logs). The others sum them
  with Apex's DistributedDataParallel or after the backward pass (WaveGlow): taken as hidden behind nothing, for on machines
  with PCIe every task's step on several devices is longer by the whole all-reduce.
- DeepLearningExamples: the same scripts with the settings of their README (channels-last under AMP).
- MLPerf: what submitters run is hand-fused; taken as compiled, channels-last, fp16 autocast, batch over devices, the sums of
  batch norms taken in the convolutions beside them (cuDNN's fused convolution with statistics, NVIDIA's submissions);
  gradients are all-reduced in fp32 behind the backward pass.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpuwise.calibrate.tables import read_records
from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.units import MILLI, MINUTE_S
from studies.neusight.tables import MODELS_FILE
from studies.published.mlperf import FEWEST_SAMPLES, spelling_of

SCALES = (0.25, 4.0)
"""Batch of a row over the batch captured for it."""


@dataclass(frozen=True, slots=True)
class StepJob:
    """A step that is captured: network and source of ``zoo.build``, batch, and the builder's settings."""

    network: str
    source: str
    batch: int
    settings: tuple[tuple[str, Any], ...] = ()
    training: bool = True


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One measured step. ``job`` is None where ``reason`` says why it cannot be captured."""

    source: str
    group: str
    """Rows that share a constant in the baseline."""
    gpu: str
    accelerator: Accelerator | None
    job: StepJob | None
    batch: float
    step_s: float
    tf32: bool = False
    compiled: bool = False
    reason: str = ""
    baseline_s: float = float("nan")
    """Prediction that the source itself publishes."""
    empties_cache: bool = False
    """Every pass asks the driver for its memory again."""
    devices: int = 1
    """That hold a copy each."""
    reduces: bool = True
    """Several devices sum their gradients; else each trains for itself."""
    unseen_stack: bool = False
    """Ran on software that nothing was fitted on (torch 1 with Apex)."""
    overlaps: bool = True
    """Gradients are summed behind the backward pass; else after it."""
    peer_access: bool = True
    """The devices write into each other's memory (False: NCCL_P2P_DISABLE, through the host's)."""
    fused_moments: bool = False
    """Convolutions sum up what batch norms and their gradients need (cuDNN's fused convolutions with statistics)."""


def job(network: str, source: str, *, training: bool = True, **settings: Any) -> StepJob:
    """A job whose batch is still to be chosen."""
    return StepJob(network, source, 0, tuple(sorted(settings.items())), training)


_MASTER = {"precision": "fp16_master", "optimizer": "adam", "fused": True}
_AUTOCAST = {"precision": "amp", "scaler": True}
_ADAM = {"optimizer": "adam"}
_LOOP = {"optimizer": "adam", "foreach": False}
_BERT_ADAM = {"optimizer": "bert-adam"}
_LAMB, _FP16 = {"optimizer": "lamb"}, {"precision": "fp16_master"}
_FULL = {"adaptive": False, "divide": 1}
LAMBDA: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], float]] = {
    "resnet50": ("resnet50", "timm", {}, _AUTOCAST, 1.0),
    "bert_base_squad": ("bert-base-squad", "transformers", _BERT_ADAM, _MASTER, 1.0),
    "bert_large_squad": ("bert-large-squad", "transformers", _BERT_ADAM, _MASTER, 1.0),
    "ssd": ("ssd300-resnet50", "own", {}, _AUTOCAST, 1.0),
    "maskrcnn": ("benchmark-mask-rcnn", "own", {}, {"precision": "amp"}, 1.0),
    "waveglow": ("waveglow", "own", _ADAM, _ADAM | _AUTOCAST, 8000.0),
    "gnmt": ("gnmt", "own", _LOOP, _MASTER, 49.0),
    "transformerxlbase": ("transformer-xl-base", "own", _LAMB | _FULL, _LAMB | _FULL | _FP16, 192.0),
    "transformerxllarge": ("transformer-xl-large", "own", _LOOP | _FULL, _LOOP | _FULL | _FP16, 0.0),
}
"""Task: network, source, settings in fp32 and in mixed precision, units of the table in a sample. GNMT counts the tokens of both
sentences (rate times iteration time of the runs' logs, over the batch), Transformer-XL the words of a
segment, whose length the row says."""
LAMBDA_REASONS = {
    "ncf": "samples a second of a pipeline that the device waits for",
    "tacotron2": "waits for the host (recurrent decoder of single steps)",
}
SEVERAL = ", several GPUs"
COUNTED_ON_ONE_RANK = {"v0": ("ssd",)}
"""Suites and tasks whose scripts log the images of rank 0 alone: two GPUs give what one gives."""
EXAMPLES: dict[str, tuple[str, str]] = {
    "resnet50v1.5": ("resnet50", "timm"),
    "resnext101-32x4d": ("resnext101_32x4d", "timm"),
    "se-resnext101-32x4d": ("seresnext101_32x4d", "timm"),
    "SSD": ("ssd300-resnet50", "own"),
    "BERT": ("bert-large-squad", "transformers"),
    "GNMT": ("gnmt", "own"),
}
MLPERF: dict[str, tuple[str, str, dict[str, Any]]] = {
    "resnet": ("resnet50", "timm", {}),
    "retinanet": ("mlperf-retinanet", "own", {"optimizer": "adam"}),
    "ssd": ("mlperf-retinanet", "own", {"optimizer": "adam"}),
    "maskrcnn": ("benchmark-mask-rcnn", "own", {}),
    "unet3d": ("mlperf-unet3d", "own", {}),
}
"""Network, source and settings of its step. ``ssd`` is RetinaNet's name up to round v2.1."""
MLPERF_REASONS = {
    "bert": "fused attention on unpadded tokens has no builder",
    "llama2_70b_lora": "layout and precision not stated",
    "llama31_8b": "layout and precision not stated",
}


def neusight_rows(folder: Path) -> list[MeasuredStep]:
    """One device, eager or under torch.compile; empty without the table."""
    text, numbers = ("gpu", "model", "mode", "option"), ("seq_len", "batch", "measured_ms", "pred_neusight_ms")
    kinds = dict.fromkeys(text, "str") | dict.fromkeys(numbers, "float")
    out: list[MeasuredStep] = []
    for one in read_records(folder / MODELS_FILE, kinds) or ():
        compiled, training = one["option"] == "fusion", one["mode"] == "training"
        what = "compiled" if compiled else one["mode"]
        source = f"neusight captured, {what}" if one["option"] in ("", "fusion") else "neusight captured, 4 GPUs"
        step_job = job(
            "neusight-" + one["model"], "transformers", training=training, optimizer="none", seq_len=int(one["seq_len"])
        )
        row = MeasuredStep(
            source,
            source,
            one["gpu"],
            _accelerator(one["gpu"].replace("_", " ")),
            replace(step_job, batch=int(one["batch"])),
            one["batch"],
            one["measured_ms"] * MILLI,
            compiled=compiled,
            baseline_s=one["pred_neusight_ms"] * MILLI,
            empties_cache=True,
        )
        out.append(row if one["option"] in ("", "fusion") else replace(row, job=None, reason="several devices"))
    return out


def lambda_rows(folder: Path) -> list[MeasuredStep]:
    """Rows of any number of devices; empty without the table. Nothing may be fitted on them."""
    text = dict.fromkeys(("gpu", "task", "precision", "suite"), "str")
    numbers = dict.fromkeys(("n_gpus", "batch_per_gpu", "throughput", "seq"), "float")
    records = read_records(folder / "models/lambda_training.csv", {**text, **numbers}) or ()
    return _with_batches(_lambda_row(r) for r in records)


def _lambda_row(r: dict[str, Any]) -> MeasuredStep:
    task, mixed = r["task"], r["precision"] != "fp32"
    gpu: str = r["gpu"]
    name = "GH200 96GB" if gpu == "GH200" else gpu.replace("_", " ")
    devices = int(r["n_gpus"])
    # torch 1.4 to 1.10, data read from disk where later suites make it up
    suite = ", suite v0" if r["suite"] == "v0" else ""
    source = f"lambda captured {task}{suite}" + (SEVERAL if devices > 1 else "")
    group = f"{source} {r['precision']}"
    builder = LAMBDA.get(task)
    reason = LAMBDA_REASONS.get(task, "" if builder else "task has no builder")
    if not (r["throughput"] > 0 and r["batch_per_gpu"] > 0):
        reason = "batch or throughput not stated"
    if reason or builder is None:
        return MeasuredStep(source, group, r["gpu"], _accelerator(name), None, 1.0, 1.0, reason=reason)
    network, package, plain, other, units = builder
    settings: dict[str, Any] = dict(other if mixed else plain)
    if task == "ssd":
        settings = {"precision": "fp16_master"} if mixed and r["suite"] == "v0" else settings
        settings |= {"channels_last": True} if r["suite"] != "v0" else {}
    if task == "waveglow" and r["suite"] != "v0":
        settings = dict(plain)
    if task == "transformerxllarge":
        units, settings = float(r["seq"]), settings | {"length": int(r["seq"])}
    counted = 1 if task in COUNTED_ON_ONE_RANK.get(r["suite"], ()) else devices
    return MeasuredStep(
        source,
        group,
        r["gpu"],
        _accelerator(name),
        job(network, package, **settings),
        r["batch_per_gpu"],
        r["batch_per_gpu"] * counted * units / r["throughput"],
        tf32=True,
        devices=devices,
        reduces=not task.startswith("transformerxl"),
        unseen_stack=True,
        overlaps=False,
        peer_access=r["suite"] == "v0",
    )


def examples_rows(folder: Path) -> list[MeasuredStep]:
    """Rows of NVIDIA's DeepLearningExamples on any number of devices; empty without the table."""
    text = dict.fromkeys(("model", "gpu", "precision", "section", "row"), "str")
    numbers = dict.fromkeys(("n_gpus", "batch_per_gpu", "seq_len", "throughput"), "float")
    records = read_records(folder / "models/deeplearningexamples.csv", {**text, **numbers}) or ()
    return _with_batches(_examples_row(r) for r in records)


UNSTATED_BATCH = {True: 256.0, False: 128.0}
"""By mixed precision, assumed where the table leaves the batch of an image network out: ResNet-50's of the same scripts."""
UNSTATED_BATCH_B4 = {True: 128.0, False: 64.0}
"""Of EfficientNet-B4, whose images are 380 a side: assumed, half as many."""


def example_network(model: str, text: str) -> tuple[str, str] | None:
    """Network and source of a model of the table; some say in the section or the row (``text``) which of several it is."""
    words = f"{model} {text}".lower()
    if model.lower().startswith("efficientnet"):
        match = re.search(r"efficientnet-(b\d)", words)
        return None if match is None or "widese" in words else (f"efficientnet_{match[1]}", "timm")
    if model.lower() in ("transformer-xl", "transformerxl"):
        sizes = [size for size in ("base", "large") if f"{size} model" in words]
        return (f"transformer-xl-{sizes[0]}", "own") if len(sizes) == 1 else None
    return EXAMPLES.get(model)


def _examples_row(r: dict[str, Any]) -> MeasuredStep:
    model, mixed = r["model"], r["precision"].startswith("amp")
    from studies.published.vendor_examples import REASONS, device_of

    devices, gpu = int(r["n_gpus"]), r["gpu"]
    source = f"deeplearningexamples captured {model}" + (SEVERAL if devices > 1 else "")
    accelerator = _accelerator(device_of(gpu))
    builder = example_network(model, f"{r['section']} {r['row']}")
    reason = "" if builder else REASONS.get(model, "model has no builder")
    if model == "BERT" and np.isfinite(r["seq_len"]):
        reason = "pre-training heads see masked tokens only: no builder"
    if reason or builder is None or not r["throughput"] > 0:
        return MeasuredStep(source, source, gpu, accelerator, None, 1.0, 1.0, reason=reason or "throughput not stated")
    name, package = builder
    usual = UNSTATED_BATCH_B4 if name == "efficientnet_b4" else UNSTATED_BATCH
    batch = usual[mixed] if np.isnan(r["batch_per_gpu"]) else r["batch_per_gpu"]
    settings, units = _example_settings(name, mixed)
    return MeasuredStep(
        source,
        source + r["precision"],
        gpu,
        accelerator,
        job(name, package, **settings),
        batch,
        batch * devices * units / r["throughput"],
        tf32=r["precision"] == "tf32",
        devices=devices,
        unseen_stack=True,
    )


def _example_settings(network: str, mixed: bool) -> tuple[dict[str, Any], float]:
    """The builder's settings, and the units of the table in a sample: words of both sentences for GNMT, of a segment for
    Transformer-XL (192, large 384, as its scripts have it)."""
    if network in ("bert-large-squad", "gnmt"):
        return _MASTER if mixed else _LOOP if network == "gnmt" else _BERT_ADAM, 49.0 if network == "gnmt" else 1.0
    if network.startswith("transformer-xl"):
        return _LAMB | (_FP16 if mixed else {}), 384.0 if network.endswith("large") else 192.0
    settings: dict[str, Any] = _AUTOCAST | {"channels_last": True} if mixed else {}
    if network.startswith("efficientnet"):
        settings |= {"optimizer": "rmsprop"}
    return settings | ({"channels_last": True} if network == "ssd300-resnet50" else {}), 1.0


def mlperf_rows(folder: Path) -> list[MeasuredStep]:
    """Rows of any number of nodes; empty without the table."""
    text = dict.fromkeys(("round", "benchmark", "accelerator"), "str")
    numbers = ("n_accel", "nodes", "gbs", "grad_accum", "step_time_ms", "time_to_train_min")
    records = read_records(folder / "models/mlperf_training.csv", {**text, **dict.fromkeys(numbers, "float")}) or ()
    return _with_batches(_mlperf_row(r) for r in records if r["step_time_ms"] > 0)


def _mlperf_row(r: dict[str, Any]) -> MeasuredStep:
    benchmark, gpu = r["benchmark"], spelling_of(r["accelerator"])
    source, builder = f"mlperf captured {benchmark}", MLPERF.get(r["benchmark"])
    reason = "" if builder else MLPERF_REASONS.get(benchmark, "benchmark has no builder")
    step_s = r["step_time_ms"] * MILLI
    fewest = FEWEST_SAMPLES.get(benchmark, 0)
    if fewest and r["gbs"] / step_s * r["time_to_train_min"] * MINUTE_S < fewest:
        reason = "step time contradicts the time to train"
    if reason or builder is None or not (r["n_accel"] > 0 and r["gbs"] > 0):
        return MeasuredStep(
            source, source, gpu, _accelerator(gpu), None, 1.0, 1.0, reason=reason or "devices or batch not stated"
        )
    network, package, settings = builder
    batch = r["gbs"] / r["n_accel"] / max(r["grad_accum"], 1.0)
    if batch < 1.0:
        return MeasuredStep(source, source, gpu, _accelerator(gpu), None, 1.0, 1.0, reason="several devices share a sample")
    return MeasuredStep(
        source,
        source,
        gpu,
        _accelerator(gpu),
        job(network, package, precision="amp", channels_last=True, **settings),
        batch,
        step_s,
        tf32=True,
        compiled=True,
        devices=int(r["n_accel"]),
        fused_moments=True,
    )


def _accelerator(name: str) -> Accelerator | None:
    try:
        return find_accelerator(name)
    except GpuwiseError:
        return None


def _with_batches(rows: Iterable[MeasuredStep]) -> list[MeasuredStep]:
    """The rows with the batch that each one's job is captured at: the one that covers most rows within :data:`SCALES`, then
    the one that covers most of those left, until none is."""
    all_rows = list(rows)
    batches: dict[StepJob, Counter[int]] = defaultdict(Counter)
    for r in all_rows:
        if r.job is not None:
            batches[r.job][round(r.batch)] += 1
    chosen = {j: _cover(c) for j, c in batches.items()}
    return [r if r.job is None else replace(r, job=replace(r.job, batch=chosen[r.job][round(r.batch)])) for r in all_rows]


def _cover(counts: Counter[int]) -> dict[int, int]:
    uncovered, out = dict(counts), dict[int, int]()
    while uncovered:

        def covered(b: int) -> tuple[int, int, int]:
            return sum(n for q, n in uncovered.items() if SCALES[0] <= q / b <= SCALES[1]), uncovered[b], b  # noqa: B023

        best = max(uncovered, key=covered)
        near = [q for q in uncovered if SCALES[0] <= q / best <= SCALES[1]]
        out |= dict.fromkeys(near, best)
        uncovered = {q: n for q, n in uncovered.items() if q not in near}
    return out
