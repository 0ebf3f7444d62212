"""Device memory of measured training jobs under ``memory/``: networks with analytic dimensions are predicted, the others are
counted with a reason.

Sources: ``gpumemnet mlp`` (layer lists, Adam, A100), ``gpumemnet timm`` and ``gpumemnet paper`` (A100), ``timm fit bounds``
(the batch that fitted and the next that did not), ``xmem`` (RTX 3060), ``lambda nvidia-smi``, ``context`` (non-PyTorch MiB).
The baseline is the median of the source's fit rows.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.scores import Scores
from gpuwise.calibrate.tables import each, read_records
from gpuwise.errors import GpuwiseError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture, Patches
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.columns import Columns
from gpuwise.predict.memory.context import communicator_bytes, context_bytes
from gpuwise.predict.memory.device import StackMemory, usable_bytes
from gpuwise.predict.memory.library_workspaces import library_workspace_bytes
from gpuwise.predict.memory.saved import saved_of_points
from gpuwise.predict.memory.strategies import MemoryColumns, memory_columns
from gpuwise.predict.step.evaluate import points_of
from gpuwise.units import GIGA, MIB
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import Strategy

F64 = NDArray[np.float64]
CAPTURE = "needs a captured module (no analytic dimensions)"
TRUNCATED = "measurement truncated by out-of-memory"


@dataclass(frozen=True, slots=True)
class MemoryFigure:
    """One measured number; ``group`` decides the split (a model, never a row)."""

    source: str
    gpu: str
    group: str
    measured: float
    predicted: float
    reason: str


def score(folder: Path, all_check: bool) -> Scores | None:
    """Predict every row of the tables in ``folder``/memory; None without any."""
    rows = [row for name, (_, reader) in TABLES.items() for row in each(records(folder, name), reader, name)]
    if not rows:
        return None
    split = ["check" if all_check or is_check(r) else "fit" for r in rows]
    sigma = load_json("memory")["jobs"]
    return Scores(
        source=[r.source for r in rows],
        gpu=[r.gpu for r in rows],
        split=split,
        measured=np.array([r.measured for r in rows]),
        predicted=np.array([r.predicted for r in rows]),
        log_sigma=np.array([sigma.get(r.source, {"log_sigma": np.nan})["log_sigma"] for r in rows]),
        baseline=_medians(rows, split),
        reason=[r.reason for r in rows],
    )


def records(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of one of :data:`TABLES` as dicts; none when it is not there."""
    return read_records(folder / "memory" / name, TABLES[name][0]) or []


def is_check(row: MemoryFigure) -> bool:
    """A third of a source's models are held out of the fit."""
    return hashlib.sha256(f"{row.source}/{row.group}".encode()).digest()[0] % 3 == 0


def _medians(rows: Sequence[MemoryFigure], split: Sequence[str]) -> F64:
    """The median of the fit rows of each row's source (of all its rows if there are no fit rows)."""
    out = np.full(len(rows), np.nan)
    sources = np.array([r.source for r in rows], dtype=object)
    measured, is_fit = np.array([r.measured for r in rows]), np.array([s == "fit" for s in split])
    for source in sorted(set(sources)):
        mask = sources == source
        sample = mask & is_fit if (mask & is_fit).any() else mask
        out[mask] = np.median(measured[sample])
    return out


def _row(source: str, gpu: str, group: str, measured: float, predict: Callable[[], float]) -> MemoryFigure:
    """A row with its prediction, or with the reason for none."""
    try:
        return MemoryFigure(source, gpu, group, measured, predict(), "")
    except GpuwiseError as error:
        reason = error.reason if isinstance(error, UnpredictableError) else error.message.split("\n")[0][:80]
        return MemoryFigure(source, gpu, group, measured, float("nan"), reason)


# --- transformers -------------------------------------------------------------------------------------------

VIT_WIDTHS = {
    # hidden, layers, heads (arXiv 2010.11929 table 1, 2012.12877 table 1, 2106.04560 table 2)
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "huge": (1280, 32, 16),
}
_VIT = re.compile(r"(?:vit|deit)_(tiny|small|base|large|huge)_patch(\d+)_(?:clip_)?(\d+)(?:_miil)?")


def vision_transformer(name: str) -> Architecture:
    """A plain ViT by its timm name. Raises UnpredictableError for any other network."""
    match = _VIT.fullmatch(name)
    if match is None:
        raise UnpredictableError(CAPTURE)
    hidden, layers, heads = VIT_WIDTHS[match[1]]
    patches = Patches(image_size=int(match[3]), patch_size=int(match[2]))
    return Architecture(
        id=name,
        name=name,
        kind="vision",
        n_layers=layers,
        hidden=hidden,
        ffn=4 * hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        vocab=0,
        max_seq_len=patches.n_tokens,
        gated_mlp=False,
        activation="gelu",
        norm="layer",
        qkv_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        position="learned",
        lm_head=False,
        patches=patches,
        n_classes=1000,
    )


def job_memory(
    arch: Architecture,
    system: System,
    strategy: Strategy,
    seq_len: int,
    *,
    eager_modules: bool,
    constants: StackMemory | None = None,
    more_logits: float = 0.0,
) -> MemoryColumns:
    """Memory of a one-device training job; ``more_logits``: fp32 copies of the logits beyond those of today's loss."""
    rules = find_stack(strategy.stack).memory
    rules = replace(rules, eager_modules=eager_modules, loss_fp32=rules.loss_fp32 + more_logits)
    columns = Columns.from_strategies([strategy])
    points, index = points_of(columns, seq_len)
    return memory_columns(arch, system, saved_of_points(arch, points, rules), columns, index, rules, constants)


def job_bytes(
    arch: Architecture, system: System, strategy: Strategy, seq_len: int, *, eager_modules: bool, more_logits: float = 0.0
) -> float:
    """Process memory in nvidia-smi of a one-device training job."""
    memory = job_memory(arch, system, strategy, seq_len, eager_modules=eager_modules, more_logits=more_logits)
    return float(memory.shown.flat[0])


EAGER = Strategy(precision="fp32", stack="eager", sequence_parallel=False, master_weights=False)


def _system(name: str) -> System:
    return find_cluster(f"1x{name}").system


# --- tables -------------------------------------------------------------------------------------------------


def _timm(r: dict[str, Any]) -> MemoryFigure:
    """GPUMemNet: fp32, momentum, A100 40 GB, all CUDA modules loaded at start."""

    def predict() -> float:
        return float(timm_job(r).shown.flat[0])

    return _row("gpumemnet timm", r["gpu"], r["model"], r["measured_peak_GB"] * GIGA, predict)


def timm_job(r: dict[str, Any], constants: StackMemory | None = None) -> MemoryColumns:
    """Memory of one row of GPUMemNet's table of timm models. Raises UnpredictableError for all but plain
    ViTs."""
    if r["oom_suspect"]:
        raise UnpredictableError(TRUNCATED)
    arch = vision_transformer(r["model"])
    strategy = EAGER.with_(optimizer="momentum", micro_batch=int(r["batch"]))
    system = _system("A100-SXM4-40GB")
    return job_memory(arch, system, strategy, arch.max_seq_len, eager_modules=True, constants=constants)


def mlp_bytes(layers: Sequence[tuple[str, int, int]], inputs: int, batch: int, accelerator: Accelerator) -> float:
    """An fp32 perceptron trained with Adam: ``layers`` are (kind, outputs, parameters).

    16 bytes per parameter and the foreach update's 4; saved: a linear's output before batch normalisation, an activation's
    output, a dropout's output with its mask of one byte per element.
    """
    parameters = sum(p for _, _, p in layers)
    saved_floats = float(inputs)
    for i, (kind, outputs, _) in enumerate(layers):
        following = layers[i + 1][0] if i + 1 < len(layers) else ""
        if kind == "dropout":
            saved_floats += 1.25 * outputs
        elif kind == "linear":
            saved_floats += outputs * (following == "batch_normalization")
        elif kind != "batch_normalization":
            saved_floats += outputs
    outside = context_bytes(accelerator, "eager", cudnn=False)
    return outside + library_workspace_bytes(accelerator) + 20.0 * parameters + 4.0 * batch * saved_floats


def _mlp(r: dict[str, Any]) -> MemoryFigure:
    def predict() -> float:
        layers = ast.literal_eval(r["layers"])
        inputs = re.search(r"input:(\d+)", r["filename"])
        if inputs is None:
            raise UnpredictableError("input width not stated")
        a100 = _system("A100-SXM4-40GB").accelerator
        return mlp_bytes(layers, int(inputs[1]), int(r["batch"]), a100)

    group = "_".join(r["filename"].split("_")[:4])
    return _row("gpumemnet mlp", "A100 40GB", group, r["measured_peak_GB"] * GIGA, predict)


def _paper(r: dict[str, Any]) -> MemoryFigure:
    def predict() -> float:
        if re.match("bert|gpt|xlnet", r["model"], re.IGNORECASE):
            raise UnpredictableError("sequence length not stated")
        raise UnpredictableError(CAPTURE)

    return _row("gpumemnet paper", r["gpu"], r["model"], r["measured_peak_GB"] * GIGA, predict)


GPT2_VARIANTS = {"distilgpt2": (6, 1024, "gelu_new"), "cerebras-gpt-111m": (10, 2048, "gelu")}
"""Layers, positions and activation of models whose other dimensions are GPT-2 small's (their config.json on the hub)."""


def hub_model(name: str) -> Architecture:
    """A Hugging Face model by the last part of its id."""
    if name in GPT2_VARIANTS:
        layers, positions, activation = GPT2_VARIANTS[name]
        return replace(
            find_model("gpt2"),
            id=name,
            name=name,
            n_layers=layers,
            max_seq_len=positions,
            activation=activation,
            published_parameters=None,
        )
    return find_model(name)


XMEM_OPTIMIZERS = {"SGD": "sgd", "Adam": "adamw", "AdamW": "adamw", "Adafactor": "adafactor"}


def _xmem(r: dict[str, Any]) -> MemoryFigure:
    """Hugging Face models in fp32; the process's NVML peak on an RTX 3060."""

    def predict() -> float:
        if r["real_oom"]:
            raise UnpredictableError(TRUNCATED)
        if not re.fullmatch(r"[0-9.]+", r["seq_or_image"]):
            raise UnpredictableError(CAPTURE)
        optimizer = XMEM_OPTIMIZERS.get(r["optimizer"])
        if optimizer is None:
            raise UnpredictableError(f"optimizer {r['optimizer']} is not modelled")
        arch = hub_model(r["model"].split("/")[-1].lower())
        tokens = int(float(r["seq_or_image"]))
        if arch.encoder is not None:
            arch = replace(arch, encoder=replace(arch.encoder, seq_len=tokens))
        strategy = EAGER.with_(optimizer=optimizer, micro_batch=int(r["batch"]))
        # transformers 4.x copied all but the last position of the logits: the gradient of them all fits no block of that
        # size again (loss_utils.py before ForCausalLMLoss padded the labels instead)
        shifted = 0.0 if arch.encoder is not None else 1.0
        return job_bytes(arch, _system("RTX 3060"), strategy, tokens, eager_modules=False, more_logits=shifted)

    return _row("xmem", r["gpu"], r["model"], r["measured_peak_GB"] * GIGA, predict)


TIMM_GPUS = {
    "rtx3090": "RTX 3090",
    "rtx4090": "RTX 4090",
    "rtx5090": "RTX 5090",
    "rtxpro6000": "RTX PRO 6000",
}


def _bounds(r: dict[str, Any]) -> MemoryFigure:
    """The largest batch that fits; inside the measured bounds counts as the batch that was seen to fit."""

    def predict() -> float:
        if r["mode"] != "train":
            raise UnpredictableError("inference memory is the serving model's")
        arch = vision_transformer(r["model"])
        gpu = next((v for k, v in TIMM_GPUS.items() if r["gpu"].startswith(k)), None)
        if gpu is None:
            raise UnpredictableError(f"accelerator {r['gpu']} is not in the table of names")
        patches = arch.patches
        if patches is None or int(r["image_size"]) != patches.image_size:
            raise UnpredictableError(CAPTURE)
        fits, fails = float(r["batch_that_fits"]), float(r["next_larger_batch_that_failed"])
        system = _system(gpu)
        room = replace(system.accelerator, memory_bytes=r["gpu_total_MiB"] * MIB, memory_visible_bytes=None)
        # timm takes torch's fused attention where torch has one (2.0 on)
        fused = not r["torch"].startswith("pt1")
        largest = largest_batch(arch, replace(system, accelerator=room), fused=fused)
        inside = fits <= largest and (np.isnan(fails) or largest < fails)
        return fits if inside else largest

    group = r["model"]
    return _row("timm fit bounds", r["gpu"], group, float(r["batch_that_fits"]), predict)


def largest_batch(arch: Architecture, system: System, *, fused: bool) -> float:
    """The largest micro-batch of an AMP training job that fits ``system``'s device (at least 1)."""
    strategy = EAGER.with_(precision="fp16", master_weights=True, optimizer="momentum", fused_attention=fused)
    usable = usable_bytes(system.accelerator)
    sizes = [job_bytes(arch, system, strategy.with_(micro_batch=b), arch.max_seq_len, eager_modules=False) for b in (512, 1024)]
    per_image = (sizes[1] - sizes[0]) / 512
    return max(1.0, float(np.floor(512 + (usable - sizes[0]) / per_image)))


def _lambda(r: dict[str, Any]) -> MemoryFigure:
    def predict() -> float:
        raise UnpredictableError("batch not stated")

    return _row("lambda nvidia-smi", r["gpu_system"], r["model"], r["measured_peak_GB"] * GIGA, predict)


def _named(text: str) -> Accelerator:
    """The device a row of the table of contexts names; one of no known size where it names none."""
    name = re.sub(r"^\d+x", "", text).split(" NVLink")[0]
    try:
        return _system("H100-SXM" if "H-class" in name else "A10" if "A10G" in name else name).accelerator
    except GpuwiseError:
        return replace(_system("A10").accelerator, id="", family="", compute_units=None)


def _context(r: dict[str, Any]) -> MemoryFigure:
    """Non-PyTorch MiB of a process. Raises ValueError without a measurement."""
    if not r["MiB"] > 0:
        raise ValueError("nothing measured")

    def predict() -> float:
        what = r["what"].lower()
        if "all_to_all" in what or ">=" in what:
            raise UnpredictableError("all-to-all buffers of many channels are not modelled")
        if "nccl" in what or "communicator" in what:
            ranks = re.match(r"(\d+)x", r["gpu"])
            return float(communicator_bytes(2 if "2-rank" in what and ">" not in what else int(ranks[1]) if ranks else 8)) / MIB
        return context_bytes(_named(r["gpu"]), "eager" if "eager" in r["torch/cuda"] else "lazy") / MIB

    return _row("context", r["gpu"], r["source"], float(r["MiB"]), predict)


_PEAK = {"model": "str", "measured_peak_GB": "float"}
TABLES: dict[str, tuple[dict[str, str], Callable[[dict[str, Any]], MemoryFigure]]] = {
    "gpumemnet_mlp_train.csv": ({**_PEAK, "batch": "float", "filename": "str", "layers": "str"}, _mlp),
    "gpumemnet_timm_train.csv": ({**_PEAK, "batch": "float", "gpu": "str", "oom_suspect": "float"}, _timm),
    "gpumemnet_paper_table.csv": ({**_PEAK, "batch": "float", "gpu": "str"}, _paper),
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
        },
        _bounds,
    ),
    "xmem_rtx3060.csv": (
        {**_PEAK, "batch": "float", "seq_or_image": "str", "optimizer": "str", "gpu": "str", "real_oom": "float"},
        _xmem,
    ),
    "lambda_nvidia_smi_peaks.csv": ({**_PEAK, "gpu_system": "str"}, _lambda),
    "context_and_nccl_overheads.csv": (
        {"source": "str", "gpu": "str", "torch/cuda": "str", "what": "str", "MiB": "float"},
        _context,
    ),
}
