"""Attention of captured steps against single operations on an H100 (benchmarks/records/gpu/steps_and_sweep_2026-11-26.jsonl)."""

from __future__ import annotations

import math

import pytest

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.kernels.attention.fused import attention_decode_time
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.workload.capture.captured import Settings, Signature, TensorSpec
from gpuwise.workload.capture.record.rows import rows_of
from gpuwise.workload.row_codes import Kind

H100 = find_accelerator("h100-sxm-80gb")


def tensor(*shape: int, dtype: str = "bf16") -> TensorSpec:
    return TensorSpec(shape, tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))), dtype)


def attention(batch: int, heads: int, kv_heads: int, queries: int, keys: int, width: int, *, masked: bool = False) -> float:
    q, k = tensor(batch, heads, queries, width), tensor(batch, kv_heads, keys, width)
    mask = (tensor(batch, 1, queries, keys),) if masked else ()
    return _seconds("_scaled_dot_product_cudnn_attention", (q, k, k, *mask), q)


def _seconds(name: str, inputs: tuple[TensorSpec, ...], output: TensorSpec) -> float:
    s = Signature(f"aten.{name}.default", Kind.ATTENTION, inputs, (output,), (("is_causal", False),), 1.0, 0.0, 0.0, 1)
    rows = rows_of([s], Settings("2.11.0", (9, 0), matmul_tf32=False, cudnn_tf32=False))
    return float(kernel_times(rows, H100).time_s[0])


@pytest.mark.parametrize(
    ("shape", "measured_s"),
    [
        ((1, 32, 8, 1, 8192, 128), 24.7e-6),
        ((1, 32, 32, 1, 8192, 128), 62.5e-6),
        ((32, 32, 8, 1, 1024, 128), 57.6e-6),
        ((64, 32, 8, 1, 4096, 128), 361.4e-6),
    ],
)
def test_one_query_splits_its_keys_and_reads_shared_heads_once(shape: tuple[int, ...], measured_s: float) -> None:
    batch, heads, kv_heads, _, keys, width = shape
    assert attention(*shape) == pytest.approx(measured_s, rel=0.2)
    assert attention(*shape) == attention_decode_time(H100, "bf16", batch, keys, heads, kv_heads, width).time_s[0]


@pytest.mark.parametrize(
    ("shape", "measured_s"),
    [((16, 12, 12, 512, 512, 64), 80e-6), ((4, 32, 32, 4096, 4096, 128), 3300e-6), ((64, 12, 12, 197, 197, 64), 147e-6)],
)
def test_a_mask_is_added_to_each_score_of_each_head(shape: tuple[int, ...], measured_s: float) -> None:
    """The last: rows of 197 keys are no whole vectors. Copying the mask is a kernel of its own."""
    assert attention(*shape, masked=True) == pytest.approx(measured_s, rel=0.12)


def test_the_result_beside_a_gradient_is_no_mask() -> None:
    q, k = tensor(2, 8, 512, 64), tensor(2, 8, 512, 64)
    sums, mask = tensor(2, 8, 512, 1, dtype="fp32"), tensor(2, 1, 512, 512)
    name = "_scaled_dot_product_cudnn_attention_backward"
    assert _seconds(name, (q, q, k, k, q, sums, mask), q) > 1.1 * _seconds(name, (q, q, k, k, q, sums), q)
    assert _seconds(name, (q, q, k, k, q, sums), q) == _seconds(name, (q, q, k, k, q), q)
