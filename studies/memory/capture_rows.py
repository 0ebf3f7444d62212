"""Measured training and inference jobs whose model can be built and captured: one table's row each, as a job to run.

What the sources' scripts do that the tables do not say is written here once, with where it was read: torch version,
whether CUDA loaded all its modules at the start, cuDNN's benchmark mode, what the loop keeps alive.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpuwise.calibrate.tables import read_records
from gpuwise.units import GIGA, MIB


@dataclass(frozen=True, slots=True)
class Setup:
    """A source's software and habits."""

    torch: str
    eager_modules: bool
    benchmark: bool
    """``torch.backends.cudnn.benchmark``."""
    keeps_inputs: bool
    """The loop holds a step's inputs and outputs until the next step has its own."""
    set_to_none: bool = True
    foreach: bool = True
    prefetches: bool = False
    """Batches come through timm's PrefetchLoader, on streams of their own."""


GPUMEMNET = Setup("2.4.0", True, True, True, prefetches=True)
"""timm's train.py sets benchmark mode; models of its list appeared in timm 1.0.9 to 1.0.11 (autumn 2024, torch 2.4); a job
of one neuron takes 1237 MiB, which only eager loading explains."""
GPUMEMNET_PAPER = Setup("2.4.0", True, False, True)
"""Test_Pipeline/cnn_models/*.py: a plain loop with Adam, torchvision models, no benchmark mode."""
XMEM = Setup("2.6.0", False, False, True)


@dataclass(frozen=True, slots=True)
class MemoryJob:
    """One thing to capture and what was measured of it."""

    source: str
    model: str
    library: str
    """``timm``, ``torchvision``, ``transformers`` or ``mlp``."""
    gpu: str
    batch: int
    train: bool
    setup: Setup
    measured_bytes: float = float("nan")
    """The process's peak; NaN for a verdict."""
    fits: bool | None = None
    """Whether this batch ran, where that is what was measured."""
    image_size: int | None = None
    """None: the model's own."""
    tokens: int | None = None
    precision: str = "fp32"
    """``fp32``, ``amp`` (fp16), ``amp_bf16``, ``bf16``."""
    optimizer: str = "none"
    channels_last: bool = False
    compiled: bool = False
    total_bytes: float | None = None
    """The card's memory as the source gives it."""
    layers: tuple[tuple[str, int], ...] = ()
    """Of a perceptron."""
    inputs: int = 0
    peers: dict[str, float] = field(default_factory=dict[str, float])
    """What other tools predicted for the row, bytes."""
    skip: str = ""
    """Why the row cannot be used; empty where it can."""

    @property
    def family(self) -> str:
        return self.model if self.library == "mlp" else family_of(self.model)

    @property
    def split(self) -> str:
        """A third of the families is kept from every fit."""
        return "check" if hashlib.sha256(self.family.encode()).digest()[0] % 3 == 0 else "fit"


_PREFIXES = ("tf_", "legacy_", "gluon_", "dm_", "ssl_", "swsl_", "ig_", "cs3", "test_", "lamhalobot", "ese_")


def family_of(model: str) -> str:
    """The family a model name belongs to: its leading letters, without tags, authors and prefixes of ports.

    ``tf_efficientnetv2_b0`` -> ``efficientnetv``, ``vit_base_patch16_224`` -> ``vit``, ``EleutherAI/gpt-neo-125M`` -> ``gpt``.
    """
    name = model.split("/")[-1].lower().split(".")[0]
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    match = re.match(r"[a-z]+", name)
    return match[0] if match else name


CARD_BYTES = 40960 * MIB
"""A job whose tensors alone are more than the card cannot have finished, flagged or not (cait_m48_448 reads 21,949 MiB at
every batch)."""


def _gpumemnet(r: dict[str, Any]) -> list[MemoryJob]:
    """A100 40 GB, fp32 with TF32 convolutions, SGD; image size is the model's own."""
    fake = r["their_fake_total_MB"] * MIB
    skip = "measurement truncated by out-of-memory" if r["oom_suspect"] or fake > CARD_BYTES else ""
    peer = {"naive fake-tensor sum": fake}
    return [
        MemoryJob(
            "gpumemnet timm",
            r["model"],
            "timm",
            "A100-SXM4-40GB",
            int(r["batch"]),
            True,
            GPUMEMNET,
            measured_bytes=r["measured_MiB"] * MIB,
            optimizer="sgd",
            peers=peer,
            skip=skip,
        )
    ]


PAPER_MODELS = {
    "resnet50": "resnet50",
    "xception": "xception",
    "mobilenetv2": "mobilenet_v2",
    "vgg16": "vgg16",
    "efficientnet_b0": "efficientnet_b0",
    "efficientnetb0": "efficientnet_b0",
    "inceptionv3": "inception_v3",
    "inception": "inception_v3",
}


def _paper(r: dict[str, Any]) -> list[MemoryJob]:
    """Six torchvision networks trained with Adam; language models state no length."""
    name = r["model"].lower()
    model = PAPER_MODELS.get(name, "")
    language = re.match(r"bert|gpt|xlnet", name)
    skip = "" if model and model != "xception" else "sequence length not stated" if language else "no builder for this model"
    peers = {"naive fake-tensor sum": float(r["faketensor_MiB"]) * MIB} if r["faketensor_MiB"] not in ("", "-") else {}
    peers |= {"Horus": float(r["horus_MiB"]) * MIB} if r["horus_MiB"] not in ("", "-") else {}
    return [
        MemoryJob(
            "gpumemnet paper",
            model or r["model"],
            "torchvision",
            "A100-SXM4-40GB",
            int(r["batch"]),
            True,
            GPUMEMNET_PAPER,
            measured_bytes=r["actual_MiB"] * MIB,
            optimizer="adam",
            peers=peers,
            skip=skip,
        )
    ]


def _mlp(r: dict[str, Any]) -> list[MemoryJob]:
    """Perceptrons with Adam on an A100 (NeuroNetGen_scripts/MLP/mlp_next.py)."""
    inputs = re.search(r"input:(\d+)", r["filename"])
    layers = tuple((str(kind).lower(), int(width)) for kind, width, _ in ast.literal_eval(r["layers"]))
    name = "_".join(r["filename"].split("_")[:4])
    return [
        MemoryJob(
            "gpumemnet mlp",
            name,
            "mlp",
            "A100-SXM4-40GB",
            int(r["batch"]),
            True,
            GPUMEMNET_PAPER,
            measured_bytes=r["measured_peak_GB"] * GIGA,
            optimizer="adam",
            layers=layers,
            inputs=int(inputs[1]) if inputs else 0,
            skip="" if inputs else "input width not stated",
        )
    ]


XMEM_MODELS = {
    "ConvNeXtBase": ("torchvision", "convnext_base"),
    "ConvNeXtTiny": ("torchvision", "convnext_tiny"),
    "MnasNet": ("torchvision", "mnasnet1_0"),
    "ResNet101": ("torchvision", "resnet101"),
    "ResNet152": ("torchvision", "resnet152"),
    "VGG16": ("torchvision", "vgg16"),
    "VGG19": ("torchvision", "vgg19"),
    "MobileNetV2": ("torchvision", "mobilenet_v2"),
    "T5-small": ("transformers", "t5-small"),
}


XMEM_OPTIMIZERS = {"SGD": "sgd-plain"}
"""Inferred: with momentum, convnext_tiny would hold 218 MiB more than its row leaves room for."""


def _xmem(r: dict[str, Any]) -> list[MemoryJob]:
    """RTX 3060 12 GB, torch 2.6, fp32; the process's peak as NVML saw it."""
    library, model = XMEM_MODELS.get(r["model"], ("transformers", r["model"]))
    size = str(r["seq_or_image"]).split("x")
    image = int(size[0]) if library == "torchvision" and len(size) == 2 else None
    tokens = None if library == "torchvision" else int(float(size[0]))
    peers = {
        name: float(r[column]) * GIGA
        for name, column in (
            ("xMem", "xmem_pred_GB"),
            ("DNNMem", "dnnmem_pred_GB"),
            ("SchedTune", "schedtune_pred_GB"),
            ("LLMem", "llmem_pred_GB"),
        )
        if np.isfinite(r[column])
    }
    oom = bool(r["real_oom"])
    return [
        MemoryJob(
            "xmem",
            model,
            library,
            "RTX 3060 12GB",
            int(r["batch"]),
            True,
            XMEM,
            measured_bytes=float("nan") if oom else r["measured_peak_GB"] * GIGA,
            fits=False if oom else None,
            image_size=image,
            tokens=tokens,
            peers=peers,
            optimizer=XMEM_OPTIMIZERS.get(r["optimizer"], str(r["optimizer"]).lower()),
        )
    ]


CARDS = {
    "rtx3090": "RTX 3090",
    "rtx4090": "RTX 4090",
    "4090": "RTX 4090",
    "5090": "RTX 5090",
    "pro6000maxq": "RTX PRO 6000 Max-Q",
}


VERSIONS = {"pt112": "1.12.0", "pt113": "1.13.0", "pt210": "2.1.0", "pt240": "2.4.0", "pt291": "2.9.1"}


def _bounds(r: dict[str, Any]) -> list[MemoryJob]:
    """timm's benchmark.py: a batch that ran and the next larger one that did not (benchmark mode, SGD with momentum)."""
    fails = r["next_larger_batch_that_failed"]
    if not np.isfinite(fails) or r["gpu"] not in CARDS:
        return []
    number = VERSIONS.get(r["torch"], "")
    old = number.startswith("1.")
    setup = Setup(number, r["cuda"] == "cu113", True, False, set_to_none=not old, foreach=not old)
    compiled = str(r["dynamo"]).lower() == "true"
    skip = "compiled: inductor's buffers are not captured" if compiled else "" if number else f"unknown torch {r['torch']}"
    return [
        MemoryJob(
            f"timm bounds {r['mode']}",
            r["model"],
            "timm",
            CARDS[r["gpu"]],
            int(batch),
            r["mode"] == "train",
            setup,
            fits=fits,
            image_size=int(r["image_size"]),
            precision=r["precision"],
            optimizer="sgd" if r["mode"] == "train" else "none",
            channels_last=r["layout"] == "nhwc",
            total_bytes=r["gpu_total_MiB"] * MIB,
            skip=skip,
        )
        for batch, fits in ((r["batch_that_fits"], True), (fails, False))
    ]


_PEAK = {"model": "str", "batch": "float", "measured_peak_GB": "float"}
TABLES: dict[str, tuple[dict[str, str], Callable[[dict[str, Any]], list[MemoryJob]]]] = {
    "gpumemnet_timm_train.csv": (
        {**_PEAK, "measured_MiB": "float", "their_fake_total_MB": "float", "oom_suspect": "float"},
        _gpumemnet,
    ),
    "gpumemnet_paper_table.csv": ({**_PEAK, "actual_MiB": "float", "faketensor_MiB": "str", "horus_MiB": "str"}, _paper),
    "gpumemnet_mlp_train.csv": ({**_PEAK, "filename": "str", "layers": "str"}, _mlp),
    "xmem_rtx3060.csv": (
        {
            **_PEAK,
            "seq_or_image": "str",
            "optimizer": "str",
            "real_oom": "float",
            "xmem_pred_GB": "float",
            "dnnmem_pred_GB": "float",
            "schedtune_pred_GB": "float",
            "llmem_pred_GB": "float",
        },
        _xmem,
    ),
    "timm_fit_bounds.csv": (
        {
            "model": "str",
            "mode": "str",
            "batch_that_fits": "float",
            "next_larger_batch_that_failed": "float",
            "image_size": "float",
            "gpu": "str",
            "gpu_total_MiB": "float",
            "torch": "str",
            "cuda": "str",
            "layout": "str",
            "dynamo": "str",
            "precision": "str",
        },
        _bounds,
    ),
}


CONTRADICTED = "the same network took less memory at a larger batch"
SURE_BYTES = 38000 * MIB
"""What a job on the 40 GB card can need without having run out of memory."""
LESS = 0.95


def without_contradicted(jobs: list[MemoryJob]) -> list[MemoryJob]:
    """``jobs`` with rows of GPUMemNet's timm table left out that the table itself contradicts.

    Its monitor reads the whole device, so another job's memory can be in a reading (resnetv2_50: 6,929 MiB at batch 8, 3,581
    at 16). A row is left out where a larger batch of the same network read at least 5 % less, provided the larger one really
    ran (it read more than the sum of its fake tensors and 1 GiB) and cannot have run out of memory (half as much again as
    that sum and 2,000 MiB stay below the card's). No prediction of ours has a part in it.
    """
    peers = "naive fake-tensor sum"
    lowest: dict[str, list[tuple[int, float]]] = {}
    for job in jobs:
        ours = job.source == "gpumemnet timm"
        if ours and job.measured_bytes > job.peers[peers] + 1024 * MIB and 1.5 * job.peers[peers] + 2000 * MIB < SURE_BYTES:
            lowest.setdefault(job.model, []).append((job.batch, job.measured_bytes))
    return [
        replace(job, skip=CONTRADICTED)
        if job.source == "gpumemnet timm"
        and not job.skip
        and any(b > job.batch and size < LESS * job.measured_bytes for b, size in lowest.get(job.model, ()))
        else job
        for job in jobs
    ]


def read_jobs(folder: Path) -> list[MemoryJob] | None:
    """Every job of the tables in ``folder``/memory; None when none of them is there."""
    jobs: list[MemoryJob] = []
    any_table = False
    for name, (kinds, make) in TABLES.items():
        records = read_records(folder / "memory" / name, kinds)
        if records is None:
            continue
        any_table = True
        for record in records:
            jobs += make(record)
    return without_contradicted(jobs) if any_table else None
