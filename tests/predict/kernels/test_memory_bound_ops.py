"""Captured operations that wait for memory: how their kernels go through it, against single operations on an H100."""

from __future__ import annotations

import math
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
from gpuwise.workload.step import KERNELS

H100 = find_accelerator("h100-sxm-80gb")
SETTINGS = Settings("2.11.0", (9, 0), matmul_tf32=False, cudnn_tf32=False)
WIDTH = {"fp32": 4, "bf16": 2, "i64": 8}
Attributes = tuple[tuple[str, object], ...]


def dense(*shape: int, dtype: str = "bf16") -> TensorSpec:
    return TensorSpec(shape, tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))), dtype)


def turned(rows: int, columns: int, dtype: str = "bf16") -> TensorSpec:
    return TensorSpec((rows, columns), (1, rows), dtype)


def operation(name: str, inputs: tuple[TensorSpec, ...], output: TensorSpec, attributes: Attributes = ()) -> Signature:
    read, written = (float(sum(math.prod(t.shape) * WIDTH[t.dtype] for t in group)) for group in (inputs, (output,)))
    return Signature(f"aten.{name}.default", Kind.MEMORY, inputs, (output,), attributes, 0.0, read, written, 1)


def sum_rows(rows: int, columns: int, dtype: str = "bf16") -> Signature:
    return operation("sum", (dense(rows, columns, dtype=dtype),), dense(1, columns, dtype=dtype), (("dim", (0,)),))


def seconds(s: Signature, card: Accelerator = H100) -> float:
    return float(kernel_times(rows_of([s], SETTINGS), card).time_s[0])


def kernel(s: Signature) -> str:
    return KERNELS[int(rows_of([s], SETTINGS).kernel[0])]


WIDE, NARROW = dense(16384, 4096), dense(16384, 4096, dtype="fp32")
# Medians with a cold cache, without the 2.4 us of the events (benchmarks/records/gpu/steps_and_sweep_2026-11-26.jsonl).
MEASURED = [
    ("transpose", operation("clone", (turned(16384, 4096),), WIDE), 504.9e-6),
    ("transpose", operation("clone", (turned(16384, 4096, "fp32"),), NARROW), 555.0e-6),
    ("cast", operation("_to_copy", (WIDE,), NARROW), 205.9e-6),
    ("", operation("_to_copy", (NARROW,), WIDE), 134.6e-6),
    ("broadcast", operation("add", (WIDE, dense(4096)), WIDE), 172.5e-6),
    ("broadcast", operation("mul", (NARROW, dense(16384, 1, dtype="fp32")), NARROW), 227.1e-6),
    ("", operation("add", (WIDE, WIDE), WIDE), 136.0e-6),
    ("columns", sum_rows(100352, 192), 136.0e-6),
    ("columns", sum_rows(12544, 384), 22.0e-6),
    ("columns", sum_rows(8192, 4096), 43.9e-6),
    ("columns", sum_rows(4096, 12288, "fp32"), 82.8e-6),
    ("", operation("_softmax_backward_data", (NARROW, NARROW), NARROW, (("dim", -1),)), 531.2e-6),
    (
        "",
        operation("_log_softmax", (dense(4096, 32000, dtype="fp32"),), dense(4096, 32000, dtype="fp32"), (("dim", -1),)),
        645.6e-6,
    ),
]


@pytest.mark.parametrize(("way", "s", "measured_s"), MEASURED)
def test_single_operations(way: str, s: Signature, measured_s: float) -> None:
    assert kernel(s) == way
    assert seconds(s) == pytest.approx(measured_s, rel=0.3)


def test_inputs_of_two_formats_are_converted_one_by_one() -> None:
    """bf16 [16, 256, 1024] + fp32: 18.9 us in a step, of two fp32 tensors two thirds."""
    both = operation("add", (dense(4096, 1024), dense(4096, 1024, dtype="fp32")), dense(4096, 1024, dtype="fp32"))
    assert kernel(both) == "mixed"
    assert seconds(both) == pytest.approx(18.9e-6, rel=0.2)


def test_pieces_that_do_not_lie_together_are_joined_by_their_strides() -> None:
    """Rotated heads of three tensors, bf16 [4, 16, 1024, 64] each: 52 us in a step."""
    piece = TensorSpec((4, 16, 1024, 64), (1048576, 64, 1024, 1), "bf16")
    whole = dense(12, 16, 1024, 64)
    joined = operation("cat", (piece, piece, piece), whole)
    assert kernel(joined) == "join"
    assert seconds(joined) == pytest.approx(52e-6, rel=0.2)
    aligned = operation("cat", (dense(4096, 64), dense(4096, 64)), dense(4096, 128), (("dim", 1),))
    odd = operation("cat", (dense(4096, 65), dense(4096, 65)), dense(4096, 130), (("dim", 1),))
    assert (kernel(aligned), kernel(odd)) == ("", "broadcast")


def test_a_permutation_that_keeps_the_fastest_dimension_reads_whole_sectors() -> None:
    heads = TensorSpec((4, 16, 1024, 64), (1048576, 64, 1024, 1), "bf16")
    assert kernel(operation("clone", (heads,), dense(4, 16, 1024, 64))) == "broadcast"
    images = TensorSpec((8, 320, 64, 64), (1310720, 1, 20480, 320), "bf16")
    assert kernel(operation("clone", (images,), dense(8, 320, 64, 64))) == "transpose"
    few_channels = TensorSpec((8, 3, 64, 64), (12288, 4096, 64, 1), "bf16")
    last = TensorSpec((8, 3, 64, 64), (12288, 1, 192, 3), "bf16")
    assert kernel(operation("clone", (few_channels,), last)) == "broadcast"


def test_a_norm_over_rows_that_lie_apart_copies_them_first() -> None:
    """The norm over channels of images whose channels come first, fp32 [64, 196, 768]: the copy takes 77 us."""
    apart = TensorSpec((64, 196, 768), (150528, 1, 196), "fp32")
    shape: Attributes = (("normalized_shape", (768,)),)
    together = dense(64, 196, 768, dtype="fp32")
    more = seconds(operation("native_layer_norm", (apart,), together, shape))
    assert more - seconds(operation("native_layer_norm", (together,), together, shape)) == pytest.approx(77e-6, rel=0.2)


def test_joins_of_images_give_every_piece_its_blocks() -> None:
    """DenseNet's last block: 17 pieces of few channels, 35.5 us; a stack of pieces that lie in other orders, 249 us."""
    images = (last_channels(512), *(last_channels(32) for _ in range(16)))
    joined = operation("cat", images, last_channels(1024), (("dim", 1),))
    assert kernel(joined) == "pieces"
    assert seconds(joined) == pytest.approx(35.5e-6, rel=0.1)
    keys = TensorSpec((4096, 3, 49, 32), (4704, 1568, 1, 49), "bf16")
    queries = TensorSpec((4096, 3, 49, 32), (4704, 1568, 32, 1), "bf16")
    stacked = operation("stack", (queries, keys, queries), dense(3, 4096, 3, 49, 32), (("dim", 0),))
    assert kernel(stacked) == "join"
    assert seconds(stacked) == pytest.approx(249e-6, rel=0.1)


def last_channels(channels: int) -> TensorSpec:
    return TensorSpec((64, channels, 7, 7), (49 * channels, 1, 7 * channels, channels), "bf16")


@pytest.mark.parametrize(
    ("rows", "columns", "measured_s"),
    [(65536, 128, 36.2e-6), (32768, 768, 41.6e-6), (2048, 128256, 273.8e-6), (65536, 64, 31.4e-6)],
)
def test_the_place_of_a_largest_value_is_looked_for_row_by_row(rows: int, columns: int, measured_s: float) -> None:
    s = operation("argmax", (dense(rows, columns),), dense(rows, dtype="i64"), (("dim", -1),))
    assert kernel(s) == "pairs"
    assert seconds(s) == pytest.approx(measured_s, rel=0.1)


@pytest.mark.parametrize(
    ("rows", "measured_s"), [(16, 6.7e-6), (256, 17.3e-6), (1024, 29.5e-6), (4096, 30.0e-6), (65536, 262.2e-6)]
)
def test_running_sums_wait_for_themselves_lot_by_lot(rows: int, measured_s: float) -> None:
    s = operation("cumsum", (dense(rows, 1024),), dense(rows, 1024), (("dim", 1),))
    assert seconds(s) == pytest.approx(measured_s, rel=0.12)


def test_a_running_sum_across_rows_goes_through_them_one_by_one() -> None:
    across = operation("cumsum", (dense(8192, 8),), dense(8192, 8), (("dim", 0),))
    along = operation("cumsum", (dense(8, 8192),), dense(8, 8192), (("dim", 1),))
    assert seconds(across) > 20.0 * seconds(along)


@given(rows=st.integers(2, 200_000), columns=st.integers(2, 20_000), dtype=st.sampled_from(["bf16", "fp32"]))
def test_a_larger_gpu_is_no_slower(rows: int, columns: int, dtype: str) -> None:
    tensor = dense(rows, columns, dtype=dtype)
    other = turned(rows, columns, dtype)
    faster = replace(
        H100, boost_hz=2 * (H100.boost_hz or 1.0), memory_bandwidth_bytes_per_s=2 * H100.memory_bandwidth_bytes_per_s
    )
    for s in (sum_rows(rows, columns, dtype), operation("clone", (other,), tensor), operation("add", (tensor, tensor), tensor)):
        assert seconds(s, faster) <= 1.001 * seconds(s)


@given(rows=st.integers(2, 100_000), columns=st.integers(2, 8192))
def test_more_rows_take_no_less(rows: int, columns: int) -> None:
    for make in (sum_rows, lambda r, c: operation("clone", (turned(r, c),), dense(r, c))):
        assert seconds(make(4 * rows, columns)) >= 0.999 * seconds(make(rows, columns))
