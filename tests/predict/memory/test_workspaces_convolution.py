"""Workspaces of an explicit product's columns: which convolutions hold them, and how much a search may take."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.memory import workspaces_convolution
from gpuwise.predict.memory.workspaces import hidden_bytes, with_workspaces
from gpuwise.predict.memory.workspaces_convolution import columns_bytes, search_bytes
from gpuwise.predict.memory.workspaces_kernels import KernelEnvironment
from gpuwise.workload.capture.captured import Capture, Category, Settings, Signature, StepSpan, TensorSpec
from gpuwise.workload.row_codes import Kind

A100 = KernelEnvironment((8, 0), 108, (2, 4), cudnn_benchmark=True)
MIB = 2**20
SHARES = {"read": 0.0, "written": 0.0, "filter": 0.0, "search": 1.0, "grouped": 0.5}


@pytest.fixture(autouse=True)
def known_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces_convolution, "shares", lambda: SHARES)


def dense(*shape: int, dtype: str = "fp32") -> TensorSpec:
    stride = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return TensorSpec(shape, tuple(stride), dtype)


def convolution(x: TensorSpec, w: TensorSpec, y: TensorSpec, groups: int = 1, *, backward: bool = False) -> Signature:
    if backward:
        return Signature("aten.convolution_backward.default", Kind.MEMORY, (y, x, w), (x, w), (("groups", groups),), 0, 0, 0, 1)
    return Signature("aten.convolution.default", Kind.MEMORY, (x, w), (y,), (("groups", groups),), 0.0, 0.0, 0.0, 1)


def test_columns_are_nine_inputs_of_a_3_by_3_of_stride_1() -> None:
    x, w = dense(32, 64, 224, 224), dense(64, 64, 3, 3)
    assert columns_bytes(x, w, dense(32, 64, 224, 224)) == 9 * 4 * 32 * 64 * 224 * 224
    assert columns_bytes(x, w, dense(32, 64, 112, 112)) * 4 == columns_bytes(x, w, dense(32, 64, 224, 224))


@pytest.mark.parametrize("backward", [False, True])
def test_only_dense_convolutions_larger_than_a_pixel_search_with_columns(backward: bool) -> None:
    x = dense(2, 64, 28, 28)
    wide = convolution(x, dense(64, 64, 3, 3), x, backward=backward)
    assert search_bytes(wide, A100) == 4 * 2 * 64 * 9 * 28 * 28
    assert search_bytes(convolution(x, dense(64, 64, 1, 1), x, backward=backward), A100) == 0
    assert search_bytes(convolution(x, dense(64, 8, 3, 3), x, 8, backward=backward), A100) == 0
    assert search_bytes(convolution(x, dense(64, 1, 3, 3), x, 64, backward=backward), A100) is None


def test_gradients_of_grouped_convolutions_hold_a_share_of_their_columns() -> None:
    x, w = dense(4, 64, 28, 28), dense(64, 8, 3, 3)
    assert sum(hidden_bytes(convolution(x, w, x, 8, backward=True), A100)) == columns_bytes(x, w, x) // 2
    assert hidden_bytes(convolution(x, w, x, 8), A100) == ()
    one = dense(64, 64, 3, 3)
    assert hidden_bytes(convolution(x, one, x, 1, backward=True), A100) == ()


@given(n=st.integers(1, 8), c=st.sampled_from([8, 16, 64]), side=st.integers(3, 64))
def test_columns_grow_with_the_batch(n: int, c: int, side: int) -> None:
    w = dense(c, c, 3, 3)
    one, many = (dense(k, c, side, side) for k in (1, n))
    assert columns_bytes(many, w, many) == n * columns_bytes(one, w, one)


def searched(room_bytes: float) -> int:
    """Most bytes at once of a network of one convolution whose input takes 64 MiB, in a room."""
    x = dense(1, 64, 512, 512)
    zero, pair = np.zeros(1, np.int64), np.zeros(2, np.int64)
    capture = Capture(
        signatures=(convolution(x, dense(64, 64, 3, 3), x),),
        modules=("",),
        module_types=("",),
        lines=("",),
        op_signature=zero,
        op_phase=zero,
        op_module=zero,
        op_line=zero,
        op_stream=zero,
        op_flags=zero,
        storage_bytes=np.array([64 * MIB, 64 * MIB]),
        storage_category=pair + int(Category.ACTIVATION),
        storage_op=pair,
        storage_module=pair,
        storage_dtype=("fp32", "fp32"),
        storage_stream=pair,
        event_storage=np.array([0, 1]),
        event_sign=np.array([1, 1], np.int8),
        event_op=pair,
        steps=(StepSpan(0, 1, 0, 2),),
        settings=Settings("2.4.0", (8, 0), cudnn_benchmark=True),
    )
    events = with_workspaces(capture, find_accelerator("A100-SXM4-40GB"), room_bytes=room_bytes)
    return int(events.live_bytes().max())


def test_a_search_takes_no_more_than_there_is() -> None:
    columns = 9 * 64 * MIB
    assert searched(math.inf) == 128 * MIB + columns
    assert searched(500 * MIB) == 500 * MIB
    assert searched(128 * MIB) == searched(0) == 128 * MIB
