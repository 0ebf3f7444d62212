"""Bytes hidden inside kernels: each rule against its source's formula, and what inserting them may and may not change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import DataError, InputError
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.memory import workspaces
from gpuwise.predict.memory.library_workspaces import version_of
from gpuwise.predict.memory.workspaces import cublas_bytes, cublaslt_bytes, environment_of, hidden_bytes, with_workspaces
from gpuwise.predict.memory.workspaces_attention import split_count
from gpuwise.predict.memory.workspaces_convolution import search_bytes, shares
from gpuwise.predict.memory.workspaces_kernels import KernelEnvironment, is_channels_last, is_contiguous
from gpuwise.workload.capture.captured import Capture, Category, Settings, Signature, StepSpan, TensorSpec
from gpuwise.workload.row_codes import Kind

A100 = KernelEnvironment((8, 0), 108, (2, 6))
V100 = KernelEnvironment((7, 0), 80, (2, 6))


def dense(shape: tuple[int, ...], dtype: str = "fp32") -> TensorSpec:
    stride, total = [], 1
    for size in reversed(shape):
        stride.append(total)
        total *= size
    return TensorSpec(shape, tuple(reversed(stride)), dtype)


def channels_last(shape: tuple[int, int, int, int], dtype: str = "fp16") -> TensorSpec:
    _, c, h, w = shape
    return TensorSpec(shape, (c * h * w, 1, w * c, c), dtype)


def call(op: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...] = (), **attributes: object) -> Signature:
    return Signature(op, Kind.MEMORY, inputs, outputs, tuple(attributes.items()), 0.0, 0.0, 0.0, 1)


def bshd(b: int, h: int, s: int, d: int, dtype: str = "bf16") -> TensorSpec:
    """[B, H, S, D] as a transposed [B, S, H, D]."""
    return TensorSpec((b, h, s, d), (s * h * d, d, h * d, 1), dtype)


@pytest.mark.parametrize(
    ("capability", "torch", "expected"),
    [
        ((8, 0), "2.6", 4096 * 1024 * 2 + 16 * 1024 * 8),
        ((9, 0), "2.6", 32 << 20),
        ((10, 0), "2.6", 4096 * 1024 * 2 + 16 * 1024 * 8),
        ((10, 0), "2.9", 32 << 20),
        ((12, 0), "2.9", 32 << 20),
        ((8, 9), "2.9", 8519680),
        ((9, 0), "1.12", 0),
    ],
)
def test_cublas_workspace_by_device_and_version(capability: tuple[int, int], torch: str, expected: int) -> None:
    assert cublas_bytes(KernelEnvironment(capability, 100, version_of(torch))) == expected


def test_cublaslt_has_its_own_until_they_are_one() -> None:
    assert cublaslt_bytes(KernelEnvironment((8, 0), 108, (2, 4))) == 1 << 20
    assert cublaslt_bytes(KernelEnvironment((8, 0), 108, (2, 9))) == 0
    assert cublaslt_bytes(KernelEnvironment((8, 0), 108, (1, 10))) == 0


def test_flash_backward_is_the_sources_formula() -> None:
    b, h, s, d = 2, 32, 1000, 80
    q = bshd(b, h, s, d)
    sizes = hidden_bytes(
        call("aten._scaled_dot_product_flash_attention_backward.default", (q, q, q, q, q, dense((b, h, s)))), A100
    )
    assert sizes == (4 * b * h * 1024, 4 * b * 1024 * h * 96)


def test_flash_backward_expands_shared_keys_and_copies_another_order() -> None:
    b, h, hk, s, d = 1, 32, 8, 2048, 128
    q, k = bshd(b, h, s, d), bshd(b, hk, s, d)
    rows = (bshd(b, h, s, d), q, k, k, q)
    sizes = hidden_bytes(call("aten._scaled_dot_product_flash_attention_backward.default", rows), A100)
    assert sizes[-2:] == (b * s * h * d * 2,) * 2
    other = (dense((b, h, s, d), "bf16"), q, k, k, q)
    copied = hidden_bytes(call("aten._scaled_dot_product_flash_attention_backward.default", other), A100)
    assert copied == (b * h * s * d * 2, *sizes)


def test_deterministic_flash_keeps_a_sum_for_every_split() -> None:
    q = bshd(1, 8, 512, 64)
    op = call("aten._scaled_dot_product_flash_attention_backward.default", (q, q, q, q, q))
    plain = hidden_bytes(op, A100)[1]
    split = hidden_bytes(op, KernelEnvironment((8, 0), 108, (2, 6), deterministic=True))[1]
    assert split == plain * 14  # ceil(108 / 8)


def test_flash_forward_splits_only_when_the_device_is_not_full() -> None:
    few, many = bshd(1, 8, 1, 128), bshd(64, 32, 2048, 128)
    keys = bshd(1, 8, 8192, 128)
    small = hidden_bytes(call("aten._scaled_dot_product_flash_attention.default", (few, keys, keys)), A100)
    assert small and small[1] == small[0] * 128
    assert hidden_bytes(call("aten._scaled_dot_product_flash_attention.default", (many, many, many)), A100) == ()


@given(st.integers(1, 4000), st.integers(1, 300), st.integers(1, 500))
def test_splits_never_exceed_blocks_or_units(blocks: int, units: int, key_blocks: int) -> None:
    n = split_count(blocks, units, key_blocks)
    assert 1 <= n <= max(1, min(128, units, key_blocks))
    assert blocks < 0.8 * units or n == 1


def test_memory_efficient_backward_by_precision() -> None:
    b, h, s, d = 2, 4, 256, 64
    half, single = bshd(b, h, s, d, "fp16"), bshd(b, h, s, d, "fp32")
    op = "aten._scaled_dot_product_efficient_attention_backward.default"
    delta, tile = 4 * b * h * s, 4 * b * h * s * d
    assert hidden_bytes(call(op, (half, half, half, half)), A100) == (delta, tile)
    assert hidden_bytes(call(op, (single, single, single, single)), A100) == (delta, tile)  # the product for delta
    wide = bshd(b, h, s, 128, "fp16")
    volta = hidden_bytes(call(op, (wide, wide, wide, wide)), V100)
    assert len(volta) == 5 and sum(volta) > sum(hidden_bytes(call(op, (wide, wide, wide, wide)), A100))


def test_products_copy_operands_that_cublas_cannot_read() -> None:
    strided = TensorSpec((64, 32), (128, 2), "fp32")
    assert hidden_bytes(call("aten.mm.default", (strided, dense((32, 16)))), A100) == (64 * 32 * 4,)
    transposed = TensorSpec((64, 32), (1, 64), "fp32")
    assert hidden_bytes(call("aten.mm.default", (transposed, dense((32, 16)))), A100) == ()


def test_embedding_backward_sorts_beyond_3072_indices() -> None:
    def sizes(n: int, rows: int) -> tuple[int, ...]:
        return hidden_bytes(
            call("aten.embedding_dense_backward.default", (dense((n, 64)), dense((n,), "i64")), num_weights=rows), A100
        )

    assert sizes(3072, 50000) == ()
    n, rows = 8192, 1000
    assert sizes(n, rows)[-1] == 4 * 64 * (n // 10 + rows)
    assert sizes(n, 10**6)[-1] == 4 * 64 * (n // 10 + n)


def test_group_norm_keeps_two_numbers_a_channel() -> None:
    x = dense((8, 320, 32, 32))
    assert hidden_bytes(call("aten.native_group_norm.default", (x,), group=32), A100) == (4 * 8 * 320,) * 2
    back = hidden_bytes(call("aten.native_group_norm_backward.default", (x, x), group=32), A100)
    assert back == (4 * 8 * 320,) * 3 + (4 * 8 * 32,) * 2


def test_norms_copy_what_is_not_dense() -> None:
    odd = TensorSpec((4, 16, 8), (512, 1, 16), "bf16")
    assert hidden_bytes(call("aten.native_layer_norm.default", (odd,)), A100) == (4 * 16 * 8 * 2,)
    assert hidden_bytes(call("aten.native_layer_norm.default", (dense((4, 16, 8)),)), A100) == ()


def test_index_put_sorts_only_when_it_accumulates() -> None:
    inputs = (dense((100, 8)), dense((50,), "i64"), dense((50, 8)))
    assert hidden_bytes(call("aten.index_put_.default", inputs), A100) == ()
    assert hidden_bytes(call("aten.index_put_.default", inputs, accumulate=True), A100) == (400, 400, 400, 800)


def test_convolution_transforms_channels_first_on_tensor_cores_only() -> None:
    x, w, y = dense((8, 64, 28, 28)), dense((128, 64, 3, 3)), dense((8, 128, 28, 28))
    op = call("aten.convolution.default", (x, w), (y,), groups=1)
    fitted = shares()
    read, written, weights = 4 * 8 * 64 * 784, 4 * 8 * 128 * 784, 4 * 128 * 64 * 9
    expected = int(fitted["read"] * read + fitted["written"] * written + fitted["filter"] * weights)
    assert sum(hidden_bytes(op, A100)) == expected
    assert hidden_bytes(op, V100) == ()  # fp32 without TF32
    assert hidden_bytes(op, KernelEnvironment((8, 0), 108, (2, 6), cudnn_tf32=False)) == ()
    last = call("aten.convolution.default", (channels_last((8, 64, 28, 28)), w), (channels_last((8, 128, 28, 28)),), groups=1)
    assert hidden_bytes(last, A100) == ()


def test_depthwise_convolution_needs_nothing() -> None:
    x, w = dense((8, 64, 28, 28)), dense((64, 1, 3, 3))
    op = call("aten.convolution.default", (x, w), (x,), groups=64)
    assert hidden_bytes(op, A100) == ()
    assert search_bytes(op, A100) is None


def test_layouts() -> None:
    assert is_contiguous(dense((2, 3, 4))) and is_contiguous(TensorSpec((2, 1, 4), (4, 99, 1), "fp32"))
    assert is_channels_last(channels_last((2, 3, 4, 5))) and not is_channels_last(dense((2, 3, 4, 5)))


@pytest.mark.parametrize("text", ["", "abc", "2", "-1.0"])
def test_a_version_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        version_of(text)


def test_a_rule_that_gives_a_negative_size_is_our_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(workspaces.RULES, "mm", lambda *_: (-1,))
    with pytest.raises(DataError):
        hidden_bytes(call("aten.mm.default", (dense((2, 2)), dense((2, 2)))), A100)


# --- inserting them


def capture_of(ops: list[Signature], lives: list[tuple[int, int, int]], *, benchmark: bool = False) -> Capture:
    """``lives``: (bytes, born at op, dies at op; beyond the last: never). Births of an op come before deaths."""
    n = len(ops)
    timeline = sorted(
        [(born, 0, s, 1) for s, (_, born, _) in enumerate(lives)]
        + [(dies, 1, s, -1) for s, (_, _, dies) in enumerate(lives) if dies < n]
    )
    ints = lambda values: np.array(values, dtype=np.int64)  # noqa: E731
    unique = list(dict.fromkeys(ops))
    return Capture(
        signatures=tuple(unique),
        modules=("",),
        module_types=("",),
        lines=("",),
        op_signature=ints([unique.index(o) for o in ops]),
        op_phase=ints([0] * n),
        op_module=ints([0] * n),
        op_line=ints([0] * n),
        op_stream=ints([0] * n),
        op_flags=ints([0] * n),
        storage_bytes=ints([b for b, _, _ in lives]),
        storage_category=ints([int(Category.TEMPORARY)] * len(lives)),
        storage_op=ints([born for _, born, _ in lives]),
        storage_module=ints([0] * len(lives)),
        storage_dtype=("fp32",) * len(lives),
        storage_stream=ints([0] * len(lives)),
        event_storage=ints([s for _, _, s, _ in timeline]),
        event_sign=np.array([g for *_, g in timeline], dtype=np.int8),
        event_op=ints([at for at, *_ in timeline]),
        steps=(StepSpan(0, n, 0, len(timeline)),),
        settings=Settings("2.6.0", (8, 0), cudnn_benchmark=benchmark),
    )


MM = call("aten.mm.default", (TensorSpec((64, 32), (128, 2), "fp32"), dense((32, 16))), (dense((64, 16)),))
CONV = call("aten.convolution.default", (dense((8, 64, 28, 28)), dense((128, 64, 3, 3))), (dense((8, 128, 28, 28)),), groups=1)
RELU = call("aten.relu.default", (dense((4, 4)),), (dense((4, 4)),))


@given(
    st.lists(st.sampled_from([MM, CONV, RELU]), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(1, 1 << 24), st.integers(0, 11), st.integers(0, 14)), max_size=20),
    st.booleans(),
)
def test_inserting_conserves(ops: list[Signature], raw: list[tuple[int, int, int]], benchmark: bool) -> None:
    lives = [(size, min(born, len(ops) - 1), max(dies, min(born, len(ops) - 1))) for size, born, dies in raw]
    capture = capture_of(ops, lives, benchmark=benchmark)
    events = with_workspaces(capture, find_accelerator("A100 40GB SXM"))
    own = events.source_event >= 0
    assert events.event_storage[own].tolist() == capture.event_storage.tolist()
    assert events.event_sign[own].tolist() == capture.event_sign.tolist()
    assert (np.diff(events.event_op) >= 0).all()
    # what is added is freed, but for the handle's
    added = events.event_sign[~own].astype(np.int64) * events.storage_bytes[events.event_storage[~own]]
    assert added.sum() == (8519680 if MM in ops else 0)
    live = events.live_bytes()
    assert (live >= 0).all() if live.size else True
    assert (live[own] >= capture.live_bytes()).all()
    assert set(events.storage_category[events.captured_storages :].tolist()) <= {int(Category.WORKSPACE)}
    assert len(events.empty_cache) == (1 if benchmark and CONV in ops else 0)


def test_workspaces_live_beside_the_outputs_of_their_operation() -> None:
    capture = capture_of([RELU, CONV], [(1000, 0, 1), (5000, 1, 9)])
    events = with_workspaces(capture, find_accelerator("A100 40GB SXM"))
    held = sum(hidden_bytes(CONV, environment_of(capture, find_accelerator("A100 40GB SXM"))))
    assert events.live_bytes().tolist() == [1000, 6000, 6000 + held, 6000, 5000]


def test_events_out_of_order_are_refused() -> None:
    capture = capture_of([RELU, MM], [(10, 0, 9), (10, 1, 9)])
    capture.event_op[:] = capture.event_op[::-1].copy()
    with pytest.raises(InputError):
        with_workspaces(capture, find_accelerator("A100 40GB SXM"))
