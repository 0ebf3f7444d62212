"""Convolutions: measured kernels, the algorithms' order, and laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.convolution import Convolutions, convolution_time, winograd_filter_time


# torch.nn.Conv2d 3x3, fp32, NeuSight's per-operation tables (MIT): milliseconds less the launch that the table shows at their
# place in its run (0.055 to 0.78).
@pytest.mark.parametrize(
    ("card", "batch", "c_in", "c_out", "side", "milliseconds"),
    [
        ("v100-pcie-32gb", 59, 326, 824, 12, 1.32),
        ("v100-pcie-32gb", 55, 196, 1355, 14, 2.20),
        ("v100-pcie-32gb", 59, 465, 650, 12, 1.60),
        ("v100-pcie-32gb", 62, 1013, 827, 8, 2.38),
        ("v100-pcie-32gb", 57, 937, 4, 56, 4.26),
        ("v100-pcie-32gb", 55, 1658, 29, 11, 0.70),
        ("p100-pcie-16gb", 57, 937, 4, 56, 6.34),
        ("p100-pcie-16gb", 55, 1658, 29, 11, 0.77),
    ],
)
def test_measured(card: str, batch: int, c_in: int, c_out: int, side: int, milliseconds: float) -> None:
    time = convolution_time(find_accelerator(card), "fp32", batch, c_in, c_out, side, side, 9)
    assert time.time_s[0] * 1e3 == pytest.approx(milliseconds, rel=0.2)
    assert time.basis == "fitted"


def test_few_channels_fill_a_block_all_the_same() -> None:
    """A kernel gives a block 32 channels: with 4 of them it takes as long as with 32."""
    accelerator = find_accelerator("v100-pcie-32gb")
    few, full, more = (convolution_time(accelerator, "fp32", 64, 512, c, 56, 56, 9).time_s[0] for c in (4, 32, 256))
    assert few > 0.9 * full
    assert more > 3.0 * full


def test_winograd_beats_the_peak_of_the_direct_method() -> None:
    accelerator = find_accelerator("v100-pcie-32gb")
    seconds = convolution_time(accelerator, "fp32", 64, 512, 512, 28, 28, 9).time_s[0]
    flop = 2 * 64 * 28 * 28 * 512 * 512 * 9
    assert 1.2 < flop / seconds / accelerator.peak("fp32") < 4.0  # the limit of F(4x4, 3x3)
    strided = convolution_time(accelerator, "fp32", 64, 512, 512, 28, 28, 9, stride=2).time_s[0]
    assert strided > 1.3 * seconds


def test_matrix_unit_is_faster_and_depthwise_is_bound_by_memory() -> None:
    accelerator = find_accelerator("a100-sxm-80gb")
    full, half = (convolution_time(accelerator, d, 64, 256, 256, 28, 28, 9).time_s[0] for d in ("fp32", "bf16"))
    assert half < full / 3
    depthwise = convolution_time(accelerator, "bf16", 64, 256, 256, 28, 28, 9, groups=256).time_s[0]
    assert depthwise > 2 * 2 * 64 * 256 * 28 * 28 / accelerator.memory_bandwidth_bytes_per_s


def test_vgg_layers_on_rtx_4090() -> None:
    """VGG-19 less VGG-13 (8.32 GMAC an image) takes 104 us an image compiled in AMP (timm benchmark,
    Apache-2.0)."""
    c = np.array([256, 512, 512])
    side = np.array([56, 28, 14])
    time = convolution_time(find_accelerator("rtx-4090"), "fp16", 256, c, c, side, side, 9).time_s
    assert 2 * time.sum() / 256 == pytest.approx(104e-6, rel=0.3)


def test_an_unknown_rate_is_an_error() -> None:
    with pytest.raises(UnpredictableError):
        convolution_time(find_accelerator("v100-pcie-32gb"), "bf16", 1, 8, 8, 8, 8, 9)


@given(
    card=st.sampled_from(["v100-pcie-32gb", "l4", "h100-sxm-80gb", "rtx-4090", "mi210"]),
    dtype=st.sampled_from(["fp32", "fp16"]),
    batch=st.integers(1, 256),
    channels=st.integers(1, 1024),
    side=st.integers(1, 112),
    area=st.sampled_from([1, 9, 25, 49]),
    stride=st.sampled_from([1, 2]),
)
def test_laws(card: str, dtype: str, batch: int, channels: int, side: int, area: int, stride: int) -> None:
    accelerator = find_accelerator(card)
    assert accelerator.compute_units is not None
    ask = (dtype, [batch, 2 * batch], channels, channels, side, side, area, 1, stride)
    time = convolution_time(accelerator, *ask).time_s
    assert 0 < time[0] <= time[1] * (1 + 1e-12)
    bigger = replace(
        accelerator,
        compute_units=accelerator.compute_units * 2,
        tdp_w=2 * (accelerator.tdp_w or 300),
        peak_flop_per_s={d: 2 * r for d, r in accelerator.peak_flop_per_s.items()},
        fp32_matrix_flop_per_s=2 * (accelerator.fp32_matrix_flop_per_s or 0) or None,
        memory_bandwidth_bytes_per_s=2 * accelerator.memory_bandwidth_bytes_per_s,
    )
    assert np.all(convolution_time(bigger, *ask).time_s <= time * 1.001)


def test_gradients_of_filters_have_winograd_too() -> None:
    """cuDNN's backward filter of wide 3 x 3 convolutions beats the vector lanes' peak; a stride or 5 x 5 rules it out."""
    card = find_accelerator("V100 PCIe 32GB")
    model = load_json("convolution")

    def conv(**changes: float) -> Convolutions:
        sizes = {"batch": 32.0, "c_in": 256.0, "c_out": 256.0, "h_out": 38.0, "w_out": 38.0, "area": 9.0, "groups": 1.0}
        return Convolutions(**{k: np.array([v]) for k, v in (sizes | {"stride": 1.0} | changes).items()})

    wide = conv()
    time_s = winograd_filter_time(card, wide, model)[0]
    assert wide.flop[0] / time_s > card.peak("fp32")
    assert wide.flop[0] / time_s < 4.0 * card.peak("fp32")
    assert winograd_filter_time(card, conv(batch=64.0), model)[0] > 1.5 * time_s
    for other in (conv(stride=2.0), conv(area=25.0), conv(groups=2.0)):
        assert np.isinf(winograd_filter_time(card, other, model)[0])
