"""Published text-to-image and text-to-video latencies (ML.ENERGY), predicted as forward passes of diffusion
transformers.

A generation is ``steps`` passes over the latent tokens (twice the batch where guidance needs an unconditional
pass), the tokens spread over the devices by sequence parallelism, then one decode of the latents to pixels:

    t = max(steps s kernels, h layers) + exchanges + v pixels / peak + o

``s`` (products, attention and unfused elementwise chains each have theirs), ``h`` (the host issues a layer),
``v`` (one of images; one of video, whose decoder convolves over frames too, in tiles that overlap) and ``o`` are fitted on two
thirds of the models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.tables import read_columns
from gpuwise.calibrate.validation import Scores
from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.comm.collectives import curve
from gpuwise.serve.engine import EngineConfig
from gpuwise.serve.iteration import Iterations, device_times

F64 = NDArray[np.float64]
TABLE = "serving/diffusion.csv"


@dataclass(frozen=True, slots=True)
class Diffuser:
    """Dimensions of a diffusion transformer. ``width`` of the MLP, with the hidden size added where each
    layer attends to the prompt besides (its query and output projections); ``text`` tokens beside the
    latents; ``shrink`` pixels in a token's side; ``frames`` of video in a latent frame; ``passes`` 2 with
    classifier-free guidance."""

    layers: int
    hidden: int
    width: int
    heads: int
    text: int = 0
    shrink: int = 16
    frames: int = 4
    passes: int = 2
    linear_attention: bool = False

    def architecture(self) -> Architecture:
        return Architecture(
            id="diffuser",
            name="diffusion transformer",
            kind="encoder",
            n_layers=self.layers,
            hidden=self.hidden,
            ffn=self.width,
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=self.hidden // self.heads,
            vocab=64,
            max_seq_len=1,
            gated_mlp=False,
            activation="gelu",
            norm="layer",
            position="none",
        )

    def tokens(self, height: float, width: float, n_frames: float) -> int:
        frames = 1 if not n_frames > 0 else 1 + (int(n_frames) - 1) // self.frames
        return int(height // self.shrink) * int(width // self.shrink) * frames + self.text


KERNEL = "fa2"
"""What PyTorch's scaled_dot_product_attention and xDiT's ring and Ulysses attention run by default."""
MODELS = {
    "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS": Diffuser(28, 1152, 4608 + 1152, 16),
    "Tencent-Hunyuan/HunyuanDiT-v1.2-Diffusers": Diffuser(40, 1408, 6144 + 1408 + 704, 16),
    "black-forest-labs/FLUX.1-dev": Diffuser(57, 3072, 12288, 24, text=512, passes=1),
    "stabilityai/stable-diffusion-3.5-large": Diffuser(38, 2432, 9728, 38, text=333),
    "Efficient-Large-Model/SANA1.5_1.6B_1024px_diffusers": Diffuser(
        20, 2240, 3 * 5600 // 2 + 2240, 20, shrink=32, linear_attention=True
    ),
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": Diffuser(30, 1536, 8960 + 1536, 12),
    "Wan-AI/Wan2.1-T2V-14B-Diffusers": Diffuser(40, 5120, 13824 + 5120, 40),
    "tencent/HunyuanVideo": Diffuser(60, 3072, 12288, 24, text=256, passes=1),
}
"""From each model's transformer/config.json on Hugging Face (layers, hidden, heads, MLP width, patch and VAE
factors). FLUX and HunyuanVideo are distilled to one pass. SANA's attention is linear and its MLP gated."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Seconds of the parts of one row before the fitted costs."""

    matmul_s: float
    attention_s: float
    memory_s: float
    exchange_s: float
    exchanges: float
    """Calls between devices, all steps together."""
    layers: float
    """Layers run, all steps together (a batch counts once)."""
    pixels: float
    peak: float
    video: bool

    def seconds(self, c: dict[str, Any]) -> float:
        decoded = c["video_decode_flop_per_pixel" if self.video else "decode_flop_per_pixel"] * self.pixels / self.peak
        kernels = self.matmul_s * c["matmul_slowdown"] + self.attention_s * c["attention_slowdown"]
        kernels += self.memory_s * c["memory_slowdown"]
        between = self.exchange_s + self.exchanges * c["exchange_call_s"]
        return max(kernels, self.layers * c["layer_s"]) + between + decoded + c["call_s"]


def score_diffusion(folder: Path, all_check: bool) -> Scores | None:
    """Predict every row of ``serving/diffusion.csv`` under ``folder``; None when it is not there."""
    c = read_table(folder)
    if c is None:
        return None
    parts, reason = generations(c)
    costs = load_json("diffusion")
    n = len(reason)
    predicted = np.array([g.seconds(costs["costs"]) if g is not None else np.nan for g in parts])
    check = np.array([all_check or is_check(m) for m in c["model_id"]])
    measured = c["batch_latency_s"]
    ideal = np.array([g.matmul_s + g.attention_s if g is not None else np.nan for g in parts])
    baseline = np.full(n, np.nan)
    for gpu in set(c["gpu_model"]):
        mine = (c["gpu_model"] == gpu) & np.isfinite(ideal)
        learn = mine & ~check if (mine & ~check).any() else mine
        if learn.any():
            baseline[mine] = ideal[mine] * np.median(measured[learn] / ideal[learn])
    return Scores(
        source=["diffusion " + t for t in c["task"]],
        gpu=list(c["gpu_model"]),
        split=np.where(check, "check", "fit").tolist(),
        measured=measured,
        predicted=predicted,
        log_sigma=np.full(n, costs["log_sigma"]),
        baseline=baseline,
        reason=reason,
    )


def is_check(model: str) -> bool:
    """A third of the models, by hash."""
    return hashlib.sha256(model.encode()).digest()[0] % 3 == 0


def read_table(folder: Path) -> dict[str, NDArray[Any]] | None:
    """Columns of the table, None when it is not there."""
    text = dict.fromkeys(("task", "gpu_model", "model_id"), "str")
    numbers = (
        "batch_latency_s",
        "batch_size",
        "inference_steps",
        "num_gpus",
        "ulysses_degree",
        "ring_degree",
        "height",
        "width",
        "num_frames",
    )
    return read_columns(folder / TABLE, {**text, **dict.fromkeys(numbers, "float")})


def generations(c: dict[str, NDArray[Any]]) -> tuple[list[Generation | None], list[str]]:
    """The parts of every row, or why there are none. Rows of one model, GPU count and resolution are
    evaluated together."""
    n = len(c["model_id"])
    out: list[Generation | None] = [None] * n
    reason = [""] * n
    together: dict[tuple[object, ...], list[int]] = {}
    for i in range(n):
        if c["model_id"][i] not in MODELS:
            reason[i] = "diffusion model without published dimensions here"
            continue
        frames = c["num_frames"][i] if c["num_frames"][i] > 0 else 0.0
        key = (
            c["model_id"][i],
            c["gpu_model"][i],
            int(c["num_gpus"][i]),
            c["height"][i],
            c["width"][i],
            frames,
            int(c["ulysses_degree"][i]),
            int(c["ring_degree"][i]),
        )
        together.setdefault(key, []).append(i)
    for at in together.values():
        try:
            for i, g in zip(at, _group(c, at), strict=True):
                out[i] = g
        except GpuwiseError as error:
            for i in at:
                reason[i] = error.message.split("\n")[0][:80]
    return out, reason


def _group(c: dict[str, NDArray[Any]], at: Sequence[int]) -> list[Generation]:
    from gpuwise.facts.hardware.naming import find_cluster

    i = at[0]
    model, n = MODELS[c["model_id"][i]], int(c["num_gpus"][i])
    names = {"H100": "H100-SXM5-80GB", "B200": "B200-SXM"}
    system = find_cluster(f"{n}x{names.get(c['gpu_model'][i], c['gpu_model'][i])}").system
    tokens = model.tokens(c["height"][i], c["width"][i], c["num_frames"][i])
    batch = np.array([int(c["batch_size"][j]) * model.passes for j in at], np.int64)
    mine = np.full(len(at), max(1, tokens // n))
    kv_tokens = np.full(len(at), mine[0] if model.linear_attention else tokens)
    times = device_times(model.architecture(), system, EngineConfig(attention=KERNEL), Iterations(batch, mine, kv_tokens))
    degrees = int(c["ulysses_degree"][i]), int(c["ring_degree"][i])
    result: list[Generation] = []
    for k, j in enumerate(at):
        steps = float(c["inference_steps"][j])
        exchange, calls = _exchange(system, *degrees, float(batch[k]) * float(mine[k]) * model.hidden * 2.0)
        frames = max(1.0, float(np.nan_to_num(c["num_frames"][j])))
        pixels = float(c["height"][j] * c["width"][j]) * frames * float(c["batch_size"][j])
        attention, memory = float(times.attention_s[k]), float(times.memory_s[k])
        layers = model.layers * steps
        result.append(
            Generation(
                matmul_s=steps * (float(times.kernels_s[k]) - attention - memory),
                attention_s=steps * attention,
                memory_s=steps * memory,
                exchange_s=exchange * layers,
                exchanges=calls * layers,
                layers=layers,
                pixels=pixels,
                peak=system.accelerator.peak("bf16"),
                video=frames > 1.0,
            )
        )
    return result


def _exchange(system: System, ulysses: int, ring: int, payload: float) -> tuple[float, float]:
    """Seconds and calls of a layer: queries, keys, values and outputs swapped between tokens and heads
    (Ulysses); keys and values passed round the ring, which its attention hides but for the calls."""
    calls = (4.0 if ulysses > 1 else 0.0) + 2.0 * (ring - 1)
    if ulysses == 1:
        return 0.0, calls
    return 4.0 * float(curve(system, "all_to_all", ulysses, ulysses).time_s(np.array([payload]))[0]), calls
