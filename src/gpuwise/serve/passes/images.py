"""Image and video generation, one after the other: a batch takes proportionally longer.

    t = steps of the counted kernels and the decoder (:mod:`gpuwise.serve.passes.diffusion`)

or, on a device without the kernels' rates,

    t = evaluations x FLOP / (rate of long products x share), the share by the kind of network.

Weights in the host's memory are copied over the link: once an image where whole networks take turns on the device (``model``,
diffusers' ``enable_model_cpu_offload``), at every step where layers do (``sequential``, ``enable_sequential_cpu_offload``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster, with_count
from gpuwise.facts.models.denoisers import Denoiser
from gpuwise.predict.estimate import Estimate, weakest
from gpuwise.predict.kernels.run_formats import default_precision
from gpuwise.predict.kernels.single import reached
from gpuwise.predict.kernels.transfer import transfer_time
from gpuwise.serve.load.targets import Target
from gpuwise.serve.passes.batches import BatchTimes
from gpuwise.serve.passes.diffusion.generation import linear_and_attention, made_time, passes_of
from gpuwise.serve.passes.kind import AS_USUAL, How, Model, PassKind, Way, room
from gpuwise.units import GIB

PRODUCT_SHARE = {"transformer": 0.47, "unet": 0.45}
"""Share of the rate of long products reached by a denoiser whose kernels were not counted, or on a device without their rates:
FLUX.1-dev on H100 338 of 721 TFLOP/s and SD 3.5 Large 283 (ML.ENERGY leaderboard, bf16, batch 8); SDXL on A100 109 to 142 of
254 (PyTorch, "Accelerating generative AI part III")."""
SHARE_LOG_SIGMA = 0.25
"""Spread of that share between GPUs: 0.26 to 0.47 on the two of the leaderboard, about 0.6 on cards with slower products."""
IMAGE_TARGET = Target("e2e", 95.0, 10.0)
"""Default target of an image: attention is lost after ten seconds (Nielsen, Usability Engineering, 1993, section 5.5)."""
VIDEO_TARGET = Target("e2e", 95.0, 3600.0)
"""Default target of a video, an assumption: a user does not watch it being generated, and needs it within an hour."""
MADE = {"image": "images", "video": "videos"}


OFFLOADS = ("model", "sequential")
"""What may lie in the host's memory until it is needed: whole networks, or each layer."""
OFFLOADED_BITS = 16
COPY_LOG_SIGMA = 0.3
"""Layers copied one by one reach two thirds of the rate of long copies from pinned memory, and hosts with too little memory far
less: Stable Diffusion 1.5 on a 4090 27 steps a second, 73 without (vladmandic/sdnext, wiki: Benchmark); FLUX.1 1.86 s a step,
0.49 without (huggingface.co/datasets/diffusers/benchmarks); FLUX.1 on a 3090 about 18 s a step (black-forest-labs/flux issue
138)."""
MOST_STEPS, MOST_SIDE, MOST_FRAMES = 1000, 8192, 10_000


class Images(PassKind):
    """Images and videos that diffusion models make."""

    workloads = tuple(MADE)

    def check(self, how: How, workload: str) -> None:
        if how.offload and how.offload not in OFFLOADS:
            raise InputError(f"--offload {how.offload}", hint="model (networks take turns) or sequential (layer by layer)")
        if how.frames is not None and workload != "video":
            raise InputError(f"--frames {how.frames}: an image has one", hint="--workload video")
        super().check(replace(how, steps=None, size=None, frames=None, offload=""), workload)

    def target(self, workload: str) -> Target:
        return VIDEO_TARGET if workload == "video" else IMAGE_TARGET

    def takes(self, model: Model, workload: str) -> bool:
        return isinstance(model, Denoiser) or workload in MADE

    def shape(self, model: Model, workload: str, tokens: int | None) -> tuple[str, int]:
        if isinstance(model, Denoiser) and model.makes == MADE.get(workload):
            return model.makes, 0
        hint = "--workload image takes diffusion models like sdxl, flux-dev; video takes wan-2.1-14b, hunyuan-video"
        raise InputError(f"--workload {workload} with {model.name}", hint=hint)

    def ways(self, model: Model, accelerator: Accelerator, tokens: int) -> Iterator[Way]:
        assert isinstance(model, Denoiser)
        yield from (Way(f"{bits}-bit weights", AS_USUAL, model.device_bytes(bits)) for bits in model.bits)
        if not accelerator.unified_memory:
            yield Way("weights in RAM, layer by layer", How(offload="sequential"), model.other_bytes)

    def times(self, model: Model, cluster: Cluster, tokens: int, how: How = AS_USUAL) -> BatchTimes:
        assert isinstance(model, Denoiser)
        needed = min(model.device_bytes(bits) for bits in model.bits) if how.offload != "sequential" else model.other_bytes
        short = needed - room(cluster.accelerator)
        if short > 0:
            raise InputError(
                f"{model.name} does not fit {cluster.accelerator.name}: {short / GIB:.1f} GiB short",
                hint="take one with more memory" if how.offload else "take one with more memory, or --offload sequential",
            )
        seconds = making_time(as_asked(model, how), cluster, how.offload)
        return BatchTimes((1,), (seconds.expected,), seconds.log_sigma, seconds.basis)


def as_asked(model: Denoiser, how: How) -> Denoiser:
    """``model`` with the steps, the size and the frames of ``how``. Raises InputError."""
    steps = model.evaluations // passes_of(model.network) if how.steps is None else how.steps
    wide, high = (model.width or model.pixels, model.pixels) if how.size is None else how.size
    frames = model.frames if how.frames is None else how.frames
    for value, least, most, option in (
        (steps, 1, MOST_STEPS, "--steps"),
        (wide, 64, MOST_SIDE, "--resolution"),
        (high, 64, MOST_SIDE, "--resolution"),
        (frames, 1 if model.frames else 0, MOST_FRAMES, "--frames"),
    ):
        if not least <= value <= most:
            raise InputError(f"{option} {value}", hint=f"between {least} and {most:,}")
    before, after = (
        linear_and_attention(model.network, *of)
        for of in ((model.pixels, model.width or model.pixels, model.frames), (high, wide, frames))
    )
    attention = min(before[1], model.flop)
    flop = (model.flop - attention) * after[0] / before[0] + attention * after[1] / max(before[1], 1.0)
    evaluations = steps * passes_of(model.network)
    return replace(model, evaluations=evaluations, flop=flop, pixels=high, width=wide, frames=frames)


def made_words(model: Denoiser) -> str:
    """``1024 x 1024, 28 steps``."""
    steps = model.evaluations // passes_of(model.network)
    frames = f", {model.frames} frames" if model.frames else ""
    return f"{model.width or model.pixels} x {model.pixels}{frames}, {steps} steps"


def images_per_s(denoiser: Denoiser, cluster: Cluster) -> Estimate:
    """One after the other on one accelerator. Raises UnpredictableError without a rate."""
    return making_time(denoiser, cluster).inverse(1.0)


def making_time(denoiser: Denoiser, cluster: Cluster, offload: str = "") -> Estimate:
    """Seconds of one image or video on one accelerator. Raises UnpredictableError without a rate."""
    steps, wide = denoiser.evaluations // passes_of(denoiser.network), denoiser.width or denoiser.pixels
    one, accelerator = with_count(cluster.system, 1), cluster.accelerator
    try:
        seconds = made_time(denoiser.network, one, steps=steps, height=denoiser.pixels, width=wide, frames=denoiser.frames)
    except UnpredictableError:  # a device without a kernel of the network
        product = reached(accelerator, default_precision(accelerator)[0])
        if product is None:
            raise UnpredictableError(f"no rate of 16-bit products is known of {accelerator.name}") from None
        flop = denoiser.flop * denoiser.evaluations
        expected = flop / (product.expected * PRODUCT_SHARE[denoiser.kind])
        seconds = Estimate.from_log_sigma(expected, math.hypot(SHARE_LOG_SIGMA, product.log_sigma), product.basis)
    if not offload or accelerator.unified_memory:
        return seconds
    copied = denoiser.parameters * OFFLOADED_BITS / 8 * (steps if offload == "sequential" else 1)
    copies = float(transfer_time(accelerator, copied).time_s[0])
    total = seconds.expected + copies
    share = copies / total
    return Estimate.from_log_sigma(
        total, math.hypot((1 - share) * seconds.log_sigma, share * COPY_LOG_SIGMA), weakest(seconds.basis, "derived")
    )
