"""Image and video generation, one after the other: a batch takes proportionally longer.

    t = steps of the counted kernels and the decoder (:mod:`gpuwise.serve.passes.diffusion`)

or, for a network whose kernels were not counted,

    t = evaluations x FLOP / (rate of long products x share), the share by the kind of network.
"""

from __future__ import annotations

import math

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.systems import Cluster, with_count
from gpuwise.facts.models.denoisers import Denoiser
from gpuwise.interval import Z80
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.kernels.run_formats import default_precision
from gpuwise.predict.kernels.single import reached
from gpuwise.serve.load.targets import Target
from gpuwise.serve.passes.batches import BatchTimes
from gpuwise.serve.passes.diffusion.generation import image_time, video_time
from gpuwise.serve.passes.diffusion.networks import MODELS
from gpuwise.serve.passes.kind import AS_USUAL, How, Model, PassKind, room
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


class Images(PassKind):
    """Images and videos that diffusion models make."""

    workloads = tuple(MADE)

    def target(self, workload: str) -> Target:
        return VIDEO_TARGET if workload == "video" else IMAGE_TARGET

    def takes(self, model: Model, workload: str) -> bool:
        return isinstance(model, Denoiser) or workload in MADE

    def shape(self, model: Model, workload: str, tokens: int | None) -> tuple[str, int]:
        if isinstance(model, Denoiser) and model.makes == MADE.get(workload):
            return model.makes, 0
        hint = "--workload image takes diffusion models like sdxl, flux-dev; video takes wan-2.1-14b, hunyuan-video"
        raise InputError(f"--workload {workload} with {model.name}", hint=hint)

    def times(self, model: Model, cluster: Cluster, tokens: int, how: How = AS_USUAL) -> BatchTimes:
        assert isinstance(model, Denoiser)
        short = min(model.device_bytes(bits) for bits in model.bits) - room(cluster.accelerator)
        if short > 0:
            raise InputError(
                f"{model.name} does not fit {cluster.accelerator.name}: {short / GIB:.1f} GiB short",
                hint="take one with more memory",
            )
        rate = images_per_s(model, cluster)
        return BatchTimes((1,), (1.0 / rate.expected,), math.log(rate.high / rate.expected) / Z80, rate.basis)


def images_per_s(denoiser: Denoiser, cluster: Cluster) -> Estimate:
    """One after the other on one accelerator. Raises UnpredictableError without a rate."""
    if denoiser.network:
        steps = denoiser.evaluations // MODELS[denoiser.network].passes
        one = with_count(cluster.system, 1)
        high, wide, frames = denoiser.pixels, denoiser.width, denoiser.frames
        try:
            if frames:
                return video_time(denoiser.network, one, steps=steps, height=high, width=wide, frames=frames).inverse(1.0)
            return image_time(denoiser.network, one, steps=steps, pixels=high).inverse(1.0)
        except UnpredictableError:
            pass  # a device without a kernel of the network
    accelerator = cluster.accelerator
    product = reached(accelerator, default_precision(accelerator)[0])
    if product is None:
        raise UnpredictableError(f"no rate of 16-bit products is known of {accelerator.name}")
    expected = product.expected * PRODUCT_SHARE[denoiser.kind] / (denoiser.flop * denoiser.evaluations)
    sigma = math.hypot(SHARE_LOG_SIGMA, product.log_sigma)
    return Estimate.from_log_sigma(expected, sigma, product.basis)
