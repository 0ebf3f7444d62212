"""Published text-to-image and text-to-video latencies (ML.ENERGY), predicted as forward passes of diffusion
transformers.

A generation is ``steps`` passes over the latent tokens (twice the batch where guidance needs an unconditional
pass), the tokens spread over the devices by sequence parallelism, then one decode of the latents to pixels:

    t = max(steps s kernels, h launches) + exchanges + decoder + o

Products, attention, elementwise chains and decoders of images are the kernels that diffusers launches
(``diffusion_networks``). ``s`` (products, attention and chains each have theirs), ``h`` (the host issues a kernel), ``v`` (a
video's decoder is ``v pixels / peak``: it convolves over frames too, in tiles that overlap), what the host does to a picture and
``o`` are fitted on two thirds of the models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.serving.diffusion_networks import MODELS, Diffuser, decoder_table, spread_table, step_table
from gpuwise.calibrate.tables import read_columns
from gpuwise.calibrate.validation import Scores
from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import System
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.comm.collectives import curve
from gpuwise.predict.kernels.attention.fused import attention_forward_time
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.serve.engine import EngineConfig
from gpuwise.serve.iteration import Iterations, device_times
from gpuwise.workload.step import Kind, OpTable

F64 = NDArray[np.float64]
TABLE = "serving/diffusion.csv"


KERNEL = "fa2"
"""What PyTorch's scaled_dot_product_attention and xDiT's ring and Ulysses attention run by default."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Seconds of the parts of one row before the fitted costs."""

    matmul_s: float
    attention_s: float
    memory_s: float
    exchange_s: float
    exchanges: float
    """Calls between devices, all steps together."""
    launches: float
    """Kernels launched, all steps together (a batch counts once)."""
    decode_s: float
    """Of an image's decoder; 0 for video."""
    video_pixels_s: float
    """Pixels of video over the peak rate, in pixel seconds a FLOP; 0 for images."""
    images: int
    """Pictures handed to the host as such; 0 for video."""

    def seconds(self, c: dict[str, Any]) -> float:
        decoded = c["video_decode_flop_per_pixel"] * self.video_pixels_s + c["memory_slowdown"] * self.decode_s
        kernels = self.matmul_s * c["matmul_slowdown"] + self.attention_s * c["attention_slowdown"]
        kernels += self.memory_s * c["memory_slowdown"]
        between = self.exchange_s + self.exchanges * c["exchange_call_s"]
        return max(kernels, self.launches * c["launch_s"]) + between + decoded + c["image_s"] * self.images + c["call_s"]


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
    device = system.accelerator
    size = float(c["height"][i]), float(c["width"][i])
    latents = model.latents(*size, c["num_frames"][i])
    tokens = latents + model.text
    prompt = model.text if model.text % n else model.text // n  # one that does not divide is on every device
    batch = np.array([int(c["batch_size"][j]) * model.passes for j in at], np.int64)
    mine = np.full(len(at), max(1, latents // n + prompt))
    seen = np.full(len(at), model.cross if model.linear else tokens)
    times = device_times(model.architecture(), system, EngineConfig(attention=KERNEL), Iterations(batch, mine, seen))
    attention_s = times.attention_s + (0.0 if model.linear or not model.cross else _cross_attention(model, device, batch, mine))
    degrees = int(c["ulysses_degree"][i]), int(c["ring_degree"][i])
    result: list[Generation] = []
    for k, j in enumerate(at):
        steps = float(c["inference_steps"][j])
        frames = max(1.0, float(np.nan_to_num(c["num_frames"][j])))
        images = int(c["batch_size"][j])
        decode_s = 0.0
        if model.decoder is not None:
            decode_s = float(_seconds(decoder_table(model.decoder, images, *(int(s) for s in size)), device).sum())
        table = step_table(model, int(batch[k]), max(1, latents // n) if model.filters else int(mine[k]))
        beside = _seconds(table, device)
        moving = table.kind == Kind.MEMORY
        layers = model.layers * steps
        moved = float(batch[k]) * float(mine[k]) * model.hidden * 2.0
        exchange, calls = _exchange(system, *degrees, moved, float(attention_s[k]) / model.layers)
        around = _seconds(spread_table(model, int(batch[k]), int(mine[k]), *degrees), device).sum()
        products = times.kernels_s[k] - times.attention_s[k] - times.memory_s[k]
        result.append(
            Generation(
                matmul_s=steps * float(products + beside[~moving].sum()),
                attention_s=steps * float(attention_s[k]),
                memory_s=steps * float(beside[moving].sum() + around),
                exchange_s=exchange * layers,
                exchanges=calls * layers,
                launches=model.kernels * layers,
                decode_s=decode_s,
                video_pixels_s=0.0 if model.decoder else size[0] * size[1] * frames * images / device.peak("bf16"),
                images=images if model.decoder else 0,
            )
        )
    return result


def _seconds(table: OpTable, device: Accelerator) -> F64:
    """[R] seconds of each row, its launches together."""
    return kernel_times(table, device).time_s * table.count


def _cross_attention(model: Diffuser, device: Accelerator, batch: NDArray[np.int64], mine: NDArray[np.int64]) -> F64:
    """[R] seconds in which every layer of one pass attends to the prompt."""
    width = model.hidden // model.heads
    one = attention_forward_time(
        device, "bf16", batch, mine, model.cross, model.heads, model.heads, width, causal=False, kernel=KERNEL
    )
    return model.layers * one.time_s


def _exchange(system: System, ulysses: int, ring: int, payload: float, attention_s: float) -> tuple[float, float]:
    """Seconds and calls of a layer whose attention takes ``attention_s``: queries, keys, values and outputs swapped between
    tokens and heads (Ulysses); keys and values passed round the ring, while the attention over those before runs."""
    calls = (4.0 if ulysses > 1 else 0.0) + 2.0 * (ring - 1)
    seconds = 0.0
    if ulysses > 1:
        seconds += 4.0 * float(curve(system, "all_to_all", ulysses, ulysses).time_s(np.array([payload]))[0])
    if ring > 1:
        passed = float(curve(system, "send_recv", 2, 2).time_s(np.array([2.0 * payload]))[0])
        seconds += (ring - 1) * max(0.0, passed - attention_s / ring)
    return seconds, calls
