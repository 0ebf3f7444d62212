"""Seconds of making images or video with a diffusion transformer, as diffusers and xDiT run it without a compiler.

A generation is ``steps`` passes over the latent tokens (twice the batch where guidance needs an unconditional
pass), the tokens spread over the devices by sequence parallelism, then one decode of the latents to pixels:

    t = max(steps s kernels, h launches) + exchanges + decoder + o

Products, attention, elementwise chains and decoders of images are the kernels that diffusers launches
(:mod:`.networks`). ``s`` (products, attention and chains each have theirs), ``h`` (the host issues a
kernel), ``v`` (a video's decoder is ``v pixels / peak``: it convolves over frames too, in tiles that overlap), what the host does
to a picture and ``o`` are fitted on two thirds of the models of ML.ENERGY's leaderboard
(``coefficients/serving/diffusion.json``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import System
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.comm.collectives import curve
from gpuwise.predict.estimate import Basis, Estimate, weakest
from gpuwise.predict.kernels.attention.fused import attention_forward_time
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.iteration import Iterations, device_times
from gpuwise.serve.iteration_kernels import half_format
from gpuwise.serve.passes.diffusion.networks import MODELS, Diffuser, decoder_table, spread_table, step_table
from gpuwise.serve.passes.diffusion.unets import UNETS, UNet
from gpuwise.serve.passes.host import host_pace
from gpuwise.workload.row_codes import Kind
from gpuwise.workload.step import OpTable

F64 = NDArray[np.float64]
UNET_LOG_SIGMA = 0.17
"""Spread of eight published times of U-Nets that nothing was fitted on (``benchmarks/records/serving/jobs_2026-11-29.md``)."""
LAUNCH_YEAR = 2023
"""Of the machines whose launches were fitted: between the H100's and the B200's."""
KERNEL = "fa2"
"""Default kernel of PyTorch's scaled_dot_product_attention and of xDiT's ring and Ulysses attention."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Seconds of the parts of one generation before the fitted costs."""

    matmul_s: float
    attention_s: float
    memory_s: float
    exchange_s: float
    exchanges: float
    """Calls between devices, all steps together."""
    launches: float
    """Kernels launched, all steps together (a batch counts once)."""
    decode_s: float
    """Seconds of an image's decoder; 0 for video."""
    video_pixels_s: float
    """Pixels of video over the peak rate, in pixel seconds a FLOP; 0 for images."""
    images: int
    """Pictures handed to the host as such; 0 for video."""
    log_sigma: float
    basis: Basis
    """Basis of the kernels of a step."""

    def seconds(self, c: dict[str, Any]) -> float:
        """Seconds of the whole call with the coefficients ``c`` of its program."""
        decoded = c["video_decode_flop_per_pixel"] * self.video_pixels_s + c["memory_slowdown"] * self.decode_s
        kernels = self.matmul_s * c["matmul_slowdown"] + self.attention_s * c["attention_slowdown"]
        kernels += self.memory_s * c["memory_slowdown"]
        between = self.exchange_s + self.exchanges * c["exchange_call_s"]
        return max(kernels, self.launches * c["launch_s"]) + between + decoded + c["image_s"] * self.images + c["call_s"]


def passes_of(network: str) -> int:
    """Evaluations a step of the network of :data:`MODELS` or :data:`UNETS`: 2 with classifier-free guidance."""
    return UNETS[network].passes if network in UNETS else MODELS[network].passes


def linear_and_attention(network: str, height: int, width: int, frames: int) -> tuple[float, float]:
    """Of an evaluation for one picture or video: the places that its products count, and the FLOP of its attention."""
    if network in UNETS:
        looks = [(one, (height // one.divisor) * (width // one.divisor)) for one in UNETS[network].looks]
        flop = sum(4.0 * one.times * n * (one.keys or n) * one.heads * one.size for one, n in looks)
        return float(height * width), flop
    model = MODELS[network]
    tokens = model.latents(height, width, frames) + model.text
    return float(tokens), 0.0 if model.linear else 4.0 * model.layers * model.hidden * float(tokens) ** 2


def made_time(network: str, system: System, *, steps: int, height: int, width: int, frames: int = 0, images: int = 1) -> Estimate:
    """Seconds in which one device of ``system`` makes ``images`` pictures together, or a video of ``frames``, with the network of
    :data:`MODELS` or :data:`UNETS`, the prompt read already. Raises UnpredictableError where its kernels have no rate."""
    if network in UNETS:
        made = unet_generation(UNETS[network], system.accelerator, images, steps, height, width)
        made = replace(made, log_sigma=max(made.log_sigma, UNET_LOG_SIGMA))
    else:
        size = float(height), float(width)
        made = generations_on(MODELS[network], system, [images], [float(steps)], size, float(frames))[0]
    document = load_json("diffusion")
    sigma = max(document["log_sigma"], made.log_sigma)
    return Estimate.from_log_sigma(made.seconds(document["costs"]), sigma, weakest(made.basis, "fitted"))


def unet_generation(unet: UNet, device: Accelerator, images: int, steps: int, height: int, width: int) -> Generation:
    """``images`` pictures of a U-Net's together. Raises UnpredictableError where a kernel has no rate."""
    dtype, batch = half_format(device), images * unet.passes
    table = unet.table(dtype, batch, height, width)
    times = kernel_times(table, device)
    seconds, moving = times.time_s * table.count, table.kind == Kind.MEMORY
    looks_s = 0.0
    for look in unet.looks:
        places = (height // look.divisor) * (width // look.divisor)
        one = attention_forward_time(
            device, dtype, batch, places, look.keys or places, look.heads, look.heads, look.size, causal=False, kernel=KERNEL
        )
        looks_s += look.times * float(one.time_s[0])
    decoder = decoder_table(unet.decoder, images, height, width, dtype=dtype)
    return Generation(
        matmul_s=steps * float(seconds[~moving].sum()),
        attention_s=steps * looks_s,
        memory_s=steps * float(seconds[moving].sum()),
        exchange_s=0.0,
        exchanges=0.0,
        launches=steps * unet.kernels * host_pace(device.year, LAUNCH_YEAR),
        decode_s=float(_seconds(decoder, device).sum()),
        video_pixels_s=0.0,
        images=images,
        log_sigma=float((seconds * times.log_sigma).sum() / seconds.sum()),
        basis=times.basis,
    )


def generations_on(
    model: Diffuser,
    system: System,
    pictures: Sequence[int],
    steps: Sequence[float],
    size: tuple[float, float],
    frames: float = 0.0,
    degrees: tuple[int, int] = (1, 1),
) -> list[Generation]:
    """[R] generations, each of the given number of images (or videos of ``frames``) with ``size`` height and width, on devices of
    ``system``.

    Their tokens are split over the product of ``degrees``, Ulysses and ring. Raises UnpredictableError where a kernel has no
    rate.
    """
    device, n = system.accelerator, degrees[0] * degrees[1]
    latents = model.latents(*size, frames)
    tokens = latents + model.text
    prompt = model.text if model.text % n else model.text // n  # a tensor that does not divide is replicated on every device
    batch = np.array([b * model.passes for b in pictures], np.int64)
    mine = np.full(len(batch), max(1, latents // n + prompt))
    seen = np.full(len(batch), model.cross if model.linear else tokens)
    times = device_times(model.architecture(), system, EngineConfig(attention=KERNEL), Iterations(batch, mine, seen))
    attention_s = times.attention_s + (0.0 if model.linear or not model.cross else _cross_attention(model, device, batch, mine))
    result: list[Generation] = []
    for k, images in enumerate(pictures):
        decode_s = 0.0
        if model.decoder is not None:
            decode_s = float(_seconds(decoder_table(model.decoder, images, int(size[0]), int(size[1])), device).sum())
        table = step_table(model, int(batch[k]), max(1, latents // n) if model.filters else int(mine[k]))
        beside = _seconds(table, device)
        moving = table.kind == Kind.MEMORY
        layers = model.layers * steps[k]
        moved = float(batch[k]) * float(mine[k]) * model.hidden * 2.0
        exchange, calls = _exchange(system, *degrees, moved, float(attention_s[k]) / model.layers)
        around = _seconds(spread_table(model, int(batch[k]), int(mine[k]), *degrees), device).sum()
        products = times.kernels_s[k] - times.attention_s[k] - times.memory_s[k]
        result.append(
            Generation(
                matmul_s=steps[k] * float(products + beside[~moving].sum()),
                attention_s=steps[k] * float(attention_s[k]),
                memory_s=steps[k] * float(beside[moving].sum() + around),
                exchange_s=exchange * layers,
                exchanges=calls * layers,
                launches=model.kernels * layers,
                decode_s=decode_s,
                video_pixels_s=0.0
                if model.decoder
                else math.prod(size) * max(1.0, frames) * images / model.decoded**2 / device.peak("bf16"),
                images=images if model.decoder else 0,
                log_sigma=float(times.log_sigma[k]),
                basis=times.basis,
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
