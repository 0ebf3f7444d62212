"""Device time of captured operations: families, laws of the form, calibration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.measured_networks import Conditions, family_of, features, network_log_sigma, seconds, step_seconds
from gpuwise.workload.capture.record.capture import Capture, Settings, Signature, StepSpan, TensorSpec
from gpuwise.workload.step import Kind

CARD = find_accelerator("RTX 4090")


def dense(*shape: int, dtype: str = "fp16", last: bool = False) -> TensorSpec:
    stride, step = [0] * len(shape), 1
    order = [1, *range(len(shape) - 1, 1, -1), 0] if last else list(range(len(shape) - 1, -1, -1))
    for d in order:
        stride[d], step = step, step * shape[d]
    return TensorSpec(shape, tuple(stride), dtype)


def convolution(batch: int = 64, channels: int = 64, groups: int = 1, last: bool = False) -> Signature:
    image, weight = dense(batch, channels, 32, 32, last=last), dense(channels, channels // groups, 3, 3)
    flop = 2.0 * batch * 1024 * channels * channels // groups * 9
    moved = 2.0 * batch * channels * 1024
    return Signature(
        "aten.convolution.default", Kind.CONVOLUTION, (image, weight), (image,), (("groups", groups),), flop, moved, moved, 1
    )


def product(m: int, n: int, k: int) -> Signature:
    a, b, out = dense(m, k), dense(k, n), dense(m, n)
    return Signature("aten.mm.default", Kind.MATMUL, (a, b), (out,), (), 2.0 * m * n * k, 2.0 * (m * k + k * n), 2.0 * m * n, 1)


def pointwise(elements: int) -> Signature:
    t = dense(elements)
    return Signature("aten.gelu.default", Kind.MEMORY, (t,), (t,), (), 0.0, 2.0 * elements, 2.0 * elements, 1)


def time_of(s: Signature, *, compiled: bool = False) -> float:
    return float(seconds(features([s]), CARD, load_json("captured_kernels"), Conditions(compiled))[0])


def step_of(*signatures: Signature) -> Capture:
    n = len(signatures)
    zeros = np.zeros(n, dtype=np.int64)
    none = np.zeros(0, dtype=np.int64)
    return Capture(
        signatures,
        ("",),
        ("",),
        ("",),
        np.arange(n),
        zeros,
        zeros,
        zeros,
        zeros,
        zeros,
        none,
        none,
        none,
        none,
        (),
        none,
        none,
        np.zeros(0, dtype=np.int8),
        none,
        (StepSpan(0, n, 0, 0),),
        Settings("2.13.0", (8, 9)),
    )


def test_families_by_groups_and_name() -> None:
    assert family_of(convolution()) == "convolution"
    assert family_of(convolution(groups=4)) == "grouped"
    assert family_of(convolution(groups=64)) == "depthwise"
    assert family_of(product(8, 8, 8)) == "product"
    assert family_of(pointwise(8)) == "pointwise"


@given(st.integers(64, 4096), st.integers(2, 8))
def test_more_work_takes_longer(m: int, factor: int) -> None:
    assert time_of(product(m * factor, 512, 512)) > time_of(product(m, 512, 512))
    assert time_of(pointwise(1 << 20)) < time_of(pointwise(factor << 20))


@given(st.integers(1, 7))
def test_channels_that_are_no_multiple_of_a_vector_are_padded(extra: int) -> None:
    assert time_of(product(8192, 4096 + extra, 4096)) > time_of(product(8192, 4104, 4096)) * 0.999


def test_channels_last_saves_the_change_of_layout() -> None:
    assert time_of(convolution(last=True)) < time_of(convolution())
    assert time_of(convolution(), compiled=True) < time_of(convolution())


def test_no_card_is_faster_than_its_rates() -> None:
    big = product(8192, 8192, 8192)
    assert time_of(big) > big.flop / (CARD.peak("fp16") * 1.65)
    stream = pointwise(1 << 30)
    assert time_of(stream) > 0.9 * (stream.bytes_read + stream.bytes_written) / CARD.memory_bandwidth_bytes_per_s


def test_step_is_the_larger_of_device_and_host() -> None:
    view = Signature("aten.view.default", Kind.HOST, (dense(16),), (dense(16),), (), 0.0, 0.0, 0.0, 0)
    step = step_seconds(step_of(*[view, pointwise(16)] * 10), CARD)
    assert step.time_s == step.host_s > step.device_s
    large = step_seconds(step_of(product(8192, 8192, 8192)), CARD)
    assert large.time_s == large.device_s > large.host_s


def test_convolutions_of_torch_1_and_their_bytes_take_another_time() -> None:
    f, model = features([convolution(), pointwise(1 << 26)]), load_json("captured_kernels")
    new, old = seconds(f, CARD, model), seconds(f, CARD, model, Conditions(before_torch_2=True))
    assert (old != new).all()
    assert old[1] / new[1] == pytest.approx(model["before_torch_2"]["memory"], rel=0.01)


def test_cards_nobody_stands_for_are_not_taken_for_overclocked_ones() -> None:
    workstation = find_accelerator("RTX A6000")
    assert network_log_sigma(CARD) is not None
    assert network_log_sigma(workstation) is None
    work = convolution(1024, 512)
    gforce, other = (float(seconds(features([work]), card, load_json("captured_kernels"))[0]) for card in (CARD, workstation))
    share = [work.flop / t / card.peak("fp16") for t, card in ((gforce, CARD), (other, workstation))]
    assert share[1] < 0.8 * share[0]


def test_compiled_steps_fuse_what_waits_for_memory() -> None:
    capture = step_of(*[pointwise(1 << 24)] * 20)
    assert step_seconds(capture, CARD, compiled=True).time_s < step_seconds(capture, CARD).time_s


def test_a_card_without_rates_is_refused() -> None:
    from gpuwise.errors import UnpredictableError

    with pytest.raises(UnpredictableError):
        step_seconds(step_of(pointwise(16)), replace(CARD, peak_flop_per_s={}))
