"""The convolution networks that public training benchmarks run, as totals of one sample.

GMACs and million activations from timm's table of the same name where it lists them; the detectors and the
volumetric U-Net are summed over their layers as published (each entry says how). ``timm`` names the backbone
its traits come from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import System
from gpuwise.predict.comm.collectives import curve
from gpuwise.predict.kernels.image_network import network, network_time
from gpuwise.predict.kernels.image_network_traits import traits_of
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.units import GIGA, MEGA


@dataclass(frozen=True, slots=True)
class Reference:
    """Totals of one sample; ``side`` is the image side in pixels that gives the same number of positions."""

    gmacs: float
    mactivations: float
    mparameters: float
    side: float
    timm: str
    source: str


NETWORKS: dict[str, Reference] = {
    "resnet50": Reference(4.11, 11.11, 25.56, 224, "resnet50", "timm resnet50"),
    "resnext101-32x4d": Reference(8.01, 21.23, 44.18, 224, "resnext101_32x4d", "timm resnext101_32x4d"),
    "se-resnext101-32x4d": Reference(8.02, 21.26, 48.96, 224, "seresnext101_32x4d", "timm seresnext101_32x4d"),
    "ssd300-resnet50": Reference(
        20.2,
        31.5,
        26.3,
        300,
        "resnet50",
        "300 px, ResNet-50 to conv4 with stride 1 there (38 x 38 x 1024): stem 0.2, conv2 1.2, conv3 "
        "1.9, conv4 10.2 GMACs; "
        "extra stages 1.0; 3x3 heads of 4 or 6 boxes of 81 + 4 on six maps 5.7 (NVIDIA SSD300 v1.1, "
        "model.py)",
    ),
    "mask-rcnn-r50-fpn": Reference(
        260.0,
        350.0,
        44.4,
        1012,
        "resnet50",
        "mmdetection configs/mask_rcnn: 260 GMACs at 1280 x 800; activations: ResNet-50's per pixel, pyramid, heads",
    ),
    "unet3d-kits19": Reference(
        477.0,
        360.0,
        31.2,
        1448,
        "unet",
        "128^3 patch, 32 to 320 channels, two 3^3 convolutions a level down and up (MLPerf image_segmentation, unet3d.py)",
    ),
    "waveglow-segment": Reference(
        264.0,
        440.0,
        268.0,
        1000,
        "waveglow",
        "8,000 samples in groups of 8: 12 flows x 8 layers of conv 3 512->1024, condition 640->1024 and "
        "512->1024 at 1,000 "
        "positions (NVIDIA WaveGlow, wn_channels 512, segment_length 8000)",
    ),
}
"""By name used in this package; a sample of WaveGlow is one segment."""


def step_time(
    name: str,
    system: System,
    n: int,
    precision: str,
    batch: float,
    *,
    channels_last: bool,
    modern: bool,
    compiled: bool = False,
) -> KernelTime:
    """One data-parallel training step of ``batch`` samples on each of ``n`` devices. Raises
    UnpredictableError."""
    r = NETWORKS[name]
    one = network(
        r.gmacs * GIGA,
        r.mactivations * MEGA,
        r.mparameters * MEGA,
        batch,
        image_side=r.side,
        training=True,
        channels_last=channels_last,
        modern=modern,
        compiled=compiled,
        traits=traits_of(r.timm),
    )
    alone = network_time(system.accelerator, precision, one)
    exposed = exposed_reduction_s(system, n, 4.0 * r.mparameters * MEGA, float(alone.time_s[0]))
    return KernelTime(alone.time_s + exposed, alone.log_sigma, alone.basis)


def exposed_reduction_s(system: System, n: int, gradient_bytes: float, step_s: float) -> float:
    """Gradient all-reduce that the backward pass (two thirds of the step) does not hide; buckets leave the
    last of ten to run alone."""
    if n == 1:
        return 0.0
    local = max(d for d in range(1, min(n, system.count) + 1) if n % d == 0)
    ring = float(curve(system, "all_reduce", n, local).time_s(np.array([gradient_bytes]))[0])
    return max(ring - 2.0 / 3.0 * step_s, 0.1 * ring)


def arithmetic_format(device: Accelerator, stated: str) -> str:
    """What ran, for what a table calls ``fp32`` or ``amp``: from Ampere on, frameworks' fp32 is TF32 (NVIDIA
    containers turn it on); half precision without matrix units is computed in fp32."""
    if stated in ("fp32", "tf32"):
        return "tf32" if "tf32" in device.peak_flop_per_s and stated != "fp64" else "fp32"
    half = device.peak_flop_per_s.get("fp16", 0.0)
    if half <= 1.5 * device.peak_flop_per_s.get("fp32", np.inf):
        return "fp32"
    return "bf16" if stated == "bf16" else "fp16"
