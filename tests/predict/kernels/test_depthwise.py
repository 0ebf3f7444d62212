"""Depthwise convolutions, images of few channels and products that lie plainly: measured ones."""

from __future__ import annotations

import pytest

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.kernels.conditions import STEP
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.workload.row_codes import CHANNELS_LAST, FILTER_GRADIENT, IMAGE_GRADIENT, Kind, Phase
from gpuwise.workload.step import OpTableBuilder

H100 = "h100-sxm-80gb"
FLAGS = {"forward": 0, "image": IMAGE_GRADIENT, "filter": FILTER_GRADIENT}


def seconds(
    card: str,
    dtype: str,
    way: str,
    last: bool,
    sizes: tuple[int, int, int, int, int, int, int],
) -> float:
    """Of a convolution (batch, channels in, out, width of the filter, stride, side, groups)."""
    batch, c_in, c_out, width, stride, side, groups = sizes
    out = side // stride
    element = 4.0 if dtype in ("fp32", "tf32") else 2.0
    image, result = batch * c_in * side**2 * element, batch * c_out * out**2 * element
    table = OpTableBuilder()
    table.add(
        "convolution",
        Kind.CONVOLUTION,
        Phase.FORWARD if way == "forward" else Phase.BACKWARD,
        dtype,
        (batch, c_in, c_out, out, out, width**2, groups),
        flop=2.0 * batch * out**2 * c_out * c_in / groups * width**2,
        read_bytes=result if way == "image" else image if way == "forward" else image + result,
        written_bytes=result if way == "forward" else image if way == "image" else 0.0,
        flag=FLAGS[way] | (CHANNELS_LAST if last else 0),
        n_kernels=1.0,
        family="convolution",
        detail=(float(side), float(side), float(stride)),
    )
    return float(kernel_times(table.build(), find_accelerator(card), STEP).time_s[0])


# benchmarks/records/gpu/steps_and_sweep_2026-11-26.jsonl: one H100 SXM, torch 2.11, cuDNN 9.19, in microseconds.
@pytest.mark.parametrize(
    ("dtype", "way", "last", "sizes", "microseconds", "within"),
    [
        ("bf16", "forward", False, (64, 96, 96, 7, 1, 56, 96), 649, 0.2),
        ("bf16", "image", False, (64, 96, 96, 7, 1, 56, 96), 849, 0.2),
        ("bf16", "filter", False, (64, 96, 96, 7, 1, 56, 96), 1311, 0.2),
        ("bf16", "forward", False, (128, 96, 96, 3, 1, 112, 96), 1446, 0.2),
        ("bf16", "image", False, (128, 96, 96, 3, 1, 112, 96), 2579, 0.2),
        ("bf16", "filter", False, (128, 96, 96, 3, 1, 112, 96), 2319, 0.2),
        ("bf16", "forward", False, (64, 144, 144, 5, 1, 56, 144), 496, 0.2),
        ("bf16", "forward", True, (64, 96, 96, 7, 1, 56, 96), 142, 0.2),
        ("bf16", "image", True, (64, 96, 96, 7, 1, 56, 96), 335, 0.2),
        ("bf16", "filter", True, (64, 96, 96, 7, 1, 56, 96), 131, 0.2),
        ("bf16", "filter", True, (128, 96, 96, 3, 1, 112, 96), 372, 0.3),
        ("bf16", "image", True, (64, 144, 144, 5, 1, 56, 144), 201, 0.4),
        ("fp32", "forward", False, (64, 96, 96, 7, 1, 56, 96), 628, 0.2),
        ("fp32", "image", True, (128, 96, 96, 3, 1, 112, 96), 483, 0.2),
        ("bf16", "forward", True, (128, 3, 64, 7, 2, 224, 1), 920, 0.3),
        ("bf16", "filter", True, (128, 3, 64, 7, 2, 224, 1), 609, 0.3),
        ("bf16", "forward", True, (64, 3, 768, 16, 16, 224, 1), 467, 0.3),
        ("bf16", "forward", False, (128, 3, 64, 7, 2, 224, 1), 1273, 0.3),
        ("bf16", "forward", False, (128, 64, 64, 1, 1, 56, 1), 41, 0.3),
        ("bf16", "forward", False, (128, 64, 256, 1, 1, 56, 1), 100, 0.3),
        ("bf16", "image", False, (128, 64, 256, 1, 1, 56, 1), 97, 0.3),
    ],
)
def test_measured(
    dtype: str, way: str, last: bool, sizes: tuple[int, int, int, int, int, int, int], microseconds: float, within: float
) -> None:
    assert seconds(H100, dtype, way, last, sizes) * 1e6 == pytest.approx(microseconds, rel=within)


@pytest.mark.parametrize("card", [H100, "a100-sxm-80gb", "v100-sxm-16gb", "b200-sxm"])
@pytest.mark.parametrize("way", FLAGS)
@pytest.mark.parametrize("last", [False, True])
def test_more_of_everything_takes_no_less(card: str, way: str, last: bool) -> None:
    plain = seconds(card, "fp16", way, last, (32, 128, 128, 3, 1, 28, 128))
    for more in ((64, 128, 128, 3, 1, 28, 128), (32, 256, 256, 3, 1, 28, 256), (32, 128, 128, 5, 1, 28, 128)):
        assert seconds(card, "fp16", way, last, more) >= plain
    assert seconds(card, "fp16", way, last, (32, 128, 128, 3, 1, 56, 128)) > plain


def test_channels_last_has_the_faster_kernels_in_half_precision() -> None:
    sizes = (64, 96, 96, 7, 1, 56, 96)
    for way in FLAGS:
        assert seconds(H100, "bf16", way, True, sizes) < seconds(H100, "bf16", way, False, sizes) / 2
