"""PyTorch's own batch norm: measured kernels, and laws of how blocks share the images."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.kernels.norms.images import BLOCK, ELEMENTS_OF_A_THREAD, FEW_BLOCKS
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.workload.capture.captured import Settings, Signature, TensorSpec
from gpuwise.workload.capture.record.rows import rows_of
from gpuwise.workload.row_codes import Kind
from gpuwise.workload.step import KERNEL_CODE

H100 = find_accelerator("h100-sxm-80gb")
SETTINGS = Settings("2.11.0", (9, 0), matmul_tf32=False, cudnn_tf32=False)


def image(n: int, c: int, side: int, last: bool, dtype: str = "bf16") -> TensorSpec:
    stride = (c * side * side, 1, c * side, c) if last else (c * side * side, side * side, side, 1)
    return TensorSpec((n, c, side, side), stride, dtype)


def batch_norm(n: int, c: int, side: int, *, last: bool, backward: bool = False, op: str = "native_batch_norm") -> Signature:
    x, w = image(n, c, side, last), TensorSpec((c,), (1,), "fp32")
    moved = 2.0 * math.prod(x.shape)
    name = f"aten.{op}_backward.default" if backward else f"aten.{op}.default"
    inputs = (x, x, w) if backward else (x, w)
    attributes = (("training" if not backward else "train", True),)
    return Signature(
        name, Kind.MEMORY, inputs, (x, w), attributes, 0.0, moved * (2 if backward else 1), moved, 2 if backward else 3
    )


def seconds(s: Signature, card: Accelerator = H100) -> float:
    return float(kernel_times(rows_of([s], SETTINGS), card).time_s[0])


# Kernels of one step of ResNet-50 in bf16 (benchmarks/records/gpu/kernels_2026-11-26.csv.gz), which nothing is fitted on.
@pytest.mark.parametrize(
    ("sizes", "last", "backward", "measured_s"),
    [
        ((128, 64, 112), False, False, 1567e-6),
        ((128, 64, 112), False, True, 2906e-6),
        ((128, 64, 112), True, False, 620e-6),
        ((128, 64, 112), True, True, 502e-6),
        ((128, 256, 56), False, False, 655e-6),
        ((128, 256, 56), False, True, 920e-6),
        ((128, 256, 56), True, False, 475e-6),
        ((128, 256, 56), True, True, 419e-6),
        ((128, 512, 28), False, False, 271e-6),
        ((128, 512, 28), True, True, 231e-6),
        ((128, 1024, 14), True, False, 137e-6),
        ((128, 1024, 14), True, True, 129e-6),
    ],
)
def test_steps_that_nothing_was_fitted_on(sizes: tuple[int, int, int], last: bool, backward: bool, measured_s: float) -> None:
    assert seconds(batch_norm(*sizes, last=last, backward=backward)) == pytest.approx(measured_s, rel=0.25)


def test_few_channels_leave_units_without_a_block() -> None:
    """The images of 16 channels take as long as those of 64 where channels come first: a block each, of 132 units."""
    few, more = (seconds(batch_norm(128, c, 112, last=False, backward=True)) for c in (16, 64))
    assert few == pytest.approx(more, rel=0.05)
    assert few > 5 * seconds(batch_norm(128, 16, 112, last=True, backward=True))


def test_cudnn_has_kernels_of_its_own() -> None:
    rows = rows_of([batch_norm(64, 64, 56, last=False), batch_norm(64, 64, 56, last=False, op="cudnn_batch_norm")], SETTINGS)
    assert rows.kernel.tolist() == [KERNEL_CODE["own_batch_norm"], KERNEL_CODE["batch_norm"]]


@given(n=st.integers(1, 128), c=st.integers(1, 2048), side=st.integers(1, 64), last=st.booleans(), backward=st.booleans())
def test_more_images_take_no_less_and_more_units_no_longer(n: int, c: int, side: int, last: bool, backward: bool) -> None:
    one = seconds(batch_norm(n, c, side, last=last, backward=backward))
    # one block takes all places of its channels until eight would share them (flexible_launch_configs): then more take less
    if not last or n * side * side >= FEW_BLOCKS * ELEMENTS_OF_A_THREAD * BLOCK:
        assert seconds(batch_norm(2 * n, c, side, last=last, backward=backward)) >= 0.999 * one
    larger = replace(H100, compute_units=2 * (H100.compute_units or 1))
    faster = replace(
        H100, boost_hz=2 * (H100.boost_hz or 1.0), memory_bandwidth_bytes_per_s=2 * H100.memory_bandwidth_bytes_per_s
    )
    s = batch_norm(n, c, side, last=last, backward=backward)
    assert seconds(s, larger) <= 1.001 * one
    assert seconds(s, faster) <= 1.001 * one
