"""Networks of convolutions: parameters and FLOP are the published ones, rows are whole."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.facts.models.convnets import convnets, known_convnet
from gpuwise.workload.convnet import convolutions, forward_table, parameter_count
from gpuwise.workload.step import Kind


@pytest.mark.parametrize("name", convnets())
def test_parameters_are_the_published_count(name: str) -> None:
    net = convnets()[name]
    assert parameter_count(net) == net.published_parameters


GIGA_MULTIPLY_ADDS = {"resnet-18": 1.81, "resnet-50": 4.09, "resnext-50-32x4d": 4.23, "wide-resnet-50-2": 11.4}
"""torchvision's GFLOPS column, a multiply and an add as one (pytorch.org/vision/main/models.html)."""


@pytest.mark.parametrize(("name", "published"), GIGA_MULTIPLY_ADDS.items())
def test_flop_are_the_published_ones(name: str, published: float) -> None:
    assert forward_table(convnets()[name], 1, "fp16").total_flop() / 2e9 == pytest.approx(published, rel=0.005)


def test_rows_grow_with_the_batch_and_the_weights_do_not() -> None:
    net = convnets()["resnet-50"]
    one, eight = forward_table(net, 1, "fp16"), forward_table(net, 8, "fp16")
    assert np.allclose(eight.flop, 8 * one.flop) and np.allclose(eight.bytes_written, 8 * one.bytes_written)
    assert (eight.bytes_read < 8 * one.bytes_read)[one.kind == Kind.CONVOLUTION].all()
    assert (one.kind == Kind.CONVOLUTION).sum() == len(convolutions(net, 224)) == 53


def test_names() -> None:
    assert known_convnet("ResNet-50") is known_convnet("microsoft/resnet-50") is convnets()["resnet-50"]
    assert known_convnet("vit-b-16") is None and known_convnet("resnet51") is None
