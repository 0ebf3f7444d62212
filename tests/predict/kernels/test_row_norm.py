"""PyTorch's own norms of rows: measured kernels, and laws of how blocks take rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.workload.capture.captured import Settings, Signature, TensorSpec
from gpuwise.workload.capture.record.rows import rows_of
from gpuwise.workload.row_codes import Kind
from gpuwise.workload.step import KERNEL_CODE

H100 = find_accelerator("h100-sxm-80gb")
SETTINGS = Settings("2.11.0", (9, 0), matmul_tf32=False, cudnn_tf32=False)
BYTES = {"fp32": 4.0, "bf16": 2.0}


def norm(rows: int, width: int, dtype: str = "fp32", *, op: str = "native_layer_norm") -> Signature:
    x, w = TensorSpec((rows, width), (width, 1), dtype), TensorSpec((width,), (1,), dtype)
    moved = rows * width * BYTES[dtype]
    attributes = (("normalized_shape", (width,)),)
    return Signature(f"aten.{op}.default", Kind.MEMORY, (x, w), (x,), attributes, 0.0, moved, moved, 1)


def gradient(rows: int, width: int, dtype: str = "fp32", *, weights: bool = True, op: str = "native_layer_norm") -> Signature:
    x, w = TensorSpec((rows, width), (width, 1), dtype), TensorSpec((width,), (1,), dtype)
    moved = rows * width * BYTES[dtype]
    attributes = (("normalized_shape", (width,)), ("output_mask", (True, weights, weights)))
    name = f"aten.{op}_backward.default"
    return Signature(name, Kind.MEMORY, (x, x, w), (x, w), attributes, 0.0, 2.0 * moved, moved, 2 if weights else 1)


def seconds(s: Signature, card: Accelerator = H100) -> float:
    return float(kernel_times(rows_of([s], SETTINGS), card).time_s[0])


# Kernels of one step of bert-base, gpt2 and vit-b16 on an H100 (benchmarks/records/gpu/kernels_2026-11-26.csv.gz), which nothing
# is fitted on: the gradient of the input and those of weight and bias.
@pytest.mark.parametrize(("rows", "width", "measured_s"), [(8192, 768, 74.3e-6), (8192, 768, 75.2e-6), (12608, 768, 98.2e-6)])
def test_steps_that_nothing_was_fitted_on(rows: int, width: int, measured_s: float) -> None:
    assert seconds(gradient(rows, width)) == pytest.approx(measured_s, rel=0.15)


@pytest.mark.parametrize(
    ("rows", "width", "measured_s"),
    [(200704, 96, 227e-6), (50176, 192, 263e-6), (12544, 384, 81.7e-6), (50176, 384, 295e-6), (3136, 768, 23.6e-6)],
)
def test_narrow_rows_keep_few_units_at_the_weights(rows: int, width: int, measured_s: float) -> None:
    """Swin's and ConvNeXt's norms: 32 columns to a block that goes down all rows, until many rows are shared."""
    assert seconds(gradient(rows, width)) == pytest.approx(measured_s, rel=0.25)


@pytest.mark.parametrize(
    ("rows", "width", "dtype", "measured_s"),
    [
        (262144, 256, "bf16", 186.6e-6),
        (65536, 128, "bf16", 45.2e-6),
        (100352, 192, "fp32", 98.4e-6),
        (8192, 4096, "bf16", 59.6e-6),
    ],
)
def test_one_moment_takes_a_block_half_the_time_of_two(rows: int, width: int, dtype: str, measured_s: float) -> None:
    one = seconds(norm(rows, width, dtype, op="_fused_rms_norm"))
    assert one == pytest.approx(measured_s, rel=0.15)
    assert one <= seconds(norm(rows, width, dtype))


def test_a_norm_of_groups_is_no_norm_of_rows() -> None:
    rows = rows_of([norm(64, 768), norm(64, 768, op="_fused_rms_norm"), norm(64, 768, op="native_group_norm")], SETTINGS)
    assert rows.kernel.tolist() == [KERNEL_CODE["layer_norm"], KERNEL_CODE["rms_norm"], 0]


@given(rows=st.integers(1, 30_000), width=st.integers(8, 16384), weights=st.booleans())
def test_more_rows_take_no_less_and_more_units_no_longer(rows: int, width: int, weights: bool) -> None:
    s = gradient(rows, width, weights=weights)
    one = seconds(s)
    assert seconds(gradient(2 * rows, width, weights=weights)) >= 0.999 * one
    assert seconds(gradient(rows, width)) >= 0.999 * one
    assert seconds(s, replace(H100, compute_units=2 * (H100.compute_units or 1))) <= 1.001 * one
    faster = replace(
        H100, boost_hz=2 * (H100.boost_hz or 1.0), memory_bandwidth_bytes_per_s=2 * H100.memory_bandwidth_bytes_per_s
    )
    assert seconds(s, faster) <= 1.001 * one
