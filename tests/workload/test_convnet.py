"""Networks of convolutions: parameters and FLOP are the published ones, rows are whole."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.models.convnets import convnets, known_convnet
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.workload.convnet import convolutions, forward_table, parameter_count, trained_bytes, training_table
from gpuwise.workload.row_codes import Kind


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
    assert known_convnet("ResNet-50") == known_convnet("microsoft/resnet-50") == convnets()["resnet-50"]
    assert known_convnet("vit-b-16") is None and known_convnet("resnet51") is None


def test_a_trained_step_is_three_forward_passes_but_for_the_gradient_of_the_images() -> None:
    net = convnets()["resnet-50"]
    step, forward = training_table(net, 4, "fp16"), forward_table(net, 4, "fp16")
    convolved = step.kind == Kind.CONVOLUTION
    once = forward.flop[forward.kind == Kind.CONVOLUTION].sum()
    stem = forward.flop[0]
    assert step.flop[convolved].sum() == pytest.approx(3 * once - stem)
    assert convolved.sum() == 2 * len(convolutions(net, 224)) and trained_bytes(net, 8, "fp16") < 2 * trained_bytes(
        net, 4, "fp16"
    )


PUBLISHED_IMAGES_PER_S = {("h100-sxm-80gb", "bf16", 128): 3743, ("v100-sxm-16gb", "fp16", 256): 1180, ("t4", "fp16", 128): 400}
"""Measured here on one H100 (benchmarks/records/gpu/training_2026-11-26.jsonl); NVIDIA DeepLearningExamples, PyTorch
ConvNets in mixed precision (V100, T4), from memory."""


@pytest.mark.parametrize(("where", "published"), PUBLISHED_IMAGES_PER_S.items())
def test_training_takes_what_was_measured(where: tuple[str, str, int], published: float) -> None:
    name, dtype, batch = where
    rows = training_table(convnets()["resnet-50"], batch, dtype)
    seconds = float((kernel_times(rows, accelerators()[name]).time_s * rows.count).sum())
    assert batch / seconds == pytest.approx(published, rel=0.15)
    assert trained_bytes(convnets()["resnet-50"], 128, "bf16") == pytest.approx(6.09e9, rel=0.15)  # allocated on that H100
