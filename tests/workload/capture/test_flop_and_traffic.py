"""FLOP, bytes and kernels of single calls against counts made by hand, and against torch's own counter."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import gpuwise  # noqa: E402
from gpuwise.workload.attention_flop import attention_pairs  # noqa: E402
from gpuwise.workload.capture.captured import Signature, TensorSpec  # noqa: E402
from gpuwise.workload.capture.ops.flop import pairs_seen  # noqa: E402
from gpuwise.workload.capture.ops.traffic import BLOCKS, CHUNK, TENSORS_BY_DEPTH, extent_bytes, launches  # noqa: E402
from gpuwise.workload.capture.record.signatures import Signatures, dtype_name, spec_of  # noqa: E402
from gpuwise.workload.row_codes import Kind  # noqa: E402

aten = torch.ops.aten


def meta(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.empty(shape, device="meta", dtype=dtype)


def signature(func: Any, *args: Any, **kwargs: Any) -> Signature:
    made = Signatures()
    return made.all[made.index(func, args, kwargs, func(*args, **kwargs))]


PRODUCTS = [
    (aten.mm.default, (meta(3, 5), meta(5, 7))),
    (aten.addmm.default, (meta(7), meta(3, 5), meta(5, 7))),
    (aten.bmm.default, (meta(2, 3, 5), meta(2, 5, 7))),
    (aten.baddbmm.default, (meta(2, 3, 7), meta(2, 3, 5), meta(2, 5, 7))),
    (aten.convolution.default, (meta(2, 6, 9, 8), meta(4, 3, 3, 2), None, [2, 1], [1, 1], [1, 1], False, [0, 0], 2)),
    (aten.convolution.default, (meta(2, 6, 9, 8), meta(6, 4, 3, 3), None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1)),
    (aten.convolution.default, (meta(2, 6, 9), meta(4, 6, 3), None, [1], [0], [2], False, [0], 1)),
    (
        aten.convolution_backward.default,
        (
            meta(2, 4, 7, 6),
            meta(2, 6, 9, 8),
            meta(4, 6, 3, 3),
            None,
            [1, 1],
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            1,
            [True, True, False],
        ),
    ),
    (
        aten.convolution_backward.default,
        (
            meta(2, 4, 7, 6),
            meta(2, 6, 9, 8),
            meta(4, 6, 3, 3),
            None,
            [1, 1],
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            1,
            [False, True, False],
        ),
    ),
    (aten._scaled_dot_product_flash_attention.default, (meta(2, 4, 64, 32, dtype=torch.float16),) * 3),
    (aten._scaled_dot_product_efficient_attention.default, (*(meta(2, 4, 64, 32),) * 3, None, True)),
]


@pytest.mark.parametrize(("func", "args"), PRODUCTS)
def test_products_are_counted_as_torch_counts_them(func: Any, args: Any) -> None:
    from torch.utils.flop_counter import flop_registry

    expected = flop_registry[func.overloadpacket](*args, out_val=func(*args))
    made = signature(func, *args)
    assert made.flop == expected > 0
    assert made.kind in (Kind.MATMUL, Kind.CONVOLUTION, Kind.ATTENTION)


def test_a_causal_attention_counts_what_it_sees_and_its_backward_twice_that() -> None:
    q, k = meta(2, 4, 64, 32, dtype=torch.bfloat16), meta(2, 4, 64, 32, dtype=torch.bfloat16)
    seen = signature(aten._scaled_dot_product_flash_attention.default, q, k, k, 0.0, True)
    assert seen.flop == 2 * 2 * 4 * (64 * 65 / 2) * (32 + 32)
    assert seen.attribute("is_causal") is True
    out = aten._scaled_dot_product_flash_attention.default(q, k, k, 0.0, True)
    back = signature(
        aten._scaled_dot_product_flash_attention_backward.default,
        q,
        q,
        k,
        k,
        out[0],
        out[1],
        None,
        None,
        64,
        64,
        0.0,
        True,
        out[6],
        out[7],
    )
    assert back.flop == 2 * seen.flop


@given(q=st.integers(1, 40), kv=st.integers(1, 40))
def test_pairs_seen_are_those_of_the_mask_torch_makes(q: int, kv: int) -> None:
    assert pairs_seen(q, kv, True) == torch.ones(q, kv).tril().sum().item()
    assert pairs_seen(q, kv, False) == q * kv
    assert pairs_seen(q, q, True) == float(attention_pairs(q, q, causal=True))


def test_recurrent_layers_count_their_weights_for_each_token() -> None:
    sizes = [(32, 8), (32, 8), (32,), (32,)]
    specs = {
        "input": TensorSpec((5, 3, 8), (24, 8, 1), "fp32"),
        "weight": tuple(TensorSpec(s, (1,) * len(s), "fp32") for s in sizes),
    }
    from gpuwise.workload.capture.ops.flop import flop_of

    assert flop_of("_cudnn_rnn", specs, []) == 2 * 15 * 2 * 32 * 8
    assert flop_of("relu", specs, []) == 0


# --- bytes ---


def test_bytes_are_those_of_real_elements() -> None:
    x = meta(4, 6)
    expanded = meta(4, 1).expand(4, 6)
    assert signature(aten.add.Tensor, x, expanded).bytes_read == 4 * (24 + 4)
    assert signature(aten.mul.Tensor, x, x).bytes_read == 4 * 24
    assert signature(aten.mul.Tensor, x, meta(4, 6)).bytes_read == 2 * 4 * 24
    in_place = signature(aten.add_.Tensor, x, meta(4, 6))
    assert (in_place.bytes_read, in_place.bytes_written) == (2 * 96, 96)
    filled = signature(aten.zero_.default, x)
    assert (filled.bytes_read, filled.bytes_written) == (0, 96)
    table, rows = meta(1000, 16), meta(3, 5, dtype=torch.int64)
    looked_up = signature(aten.embedding.default, table, rows)
    assert (looked_up.bytes_read, looked_up.bytes_written) == (15 * 8 + 15 * 64, 15 * 64)
    assert looked_up.kind is Kind.EMBEDDING
    picked = signature(aten.index.Tensor, table, [rows])
    assert picked.bytes_read == looked_up.bytes_read


def test_views_and_allocations_cost_nothing() -> None:
    x = meta(4, 6)
    for func, args in (
        (aten.t.default, (x,)),
        (aten.view.default, (x, [24])),
        (aten.expand.default, (meta(1, 6), [4, 6])),
        (aten.slice.Tensor, (x, 0, 1, 3)),
        (aten.detach.default, (x,)),
        (aten.empty_like.default, (x,)),
        (aten.split.Tensor, (x, 2)),
        (aten._unsafe_view.default, (x, [6, 4])),
    ):
        made = signature(func, *args)
        assert (made.bytes_read, made.bytes_written, made.n_kernels, made.kind) == (0, 0, 0, Kind.HOST), func


@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    expanded=st.lists(st.booleans(), min_size=4, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
)
def test_extent_never_exceeds_the_storage_nor_the_elements(shape: list[int], expanded: list[bool], dtype: Any) -> None:
    held = [1 if e else n for n, e in zip(shape, expanded, strict=False)]
    base = torch.empty(held, dtype=dtype, device="meta")
    view = base.expand(shape)
    size = extent_bytes(spec_of(view))
    assert size == (base.untyped_storage().nbytes() if view.numel() else 0)
    assert size <= view.numel() * dtype.itemsize


def test_overlapping_windows_are_read_once() -> None:
    windows = meta(100).unfold(0, 10, 1)
    assert extent_bytes(spec_of(windows)) == 400


# --- kernels ---


@given(sizes=st.lists(st.integers(0, 5 * CHUNK), max_size=250), depth=st.integers(1, 5))
@settings(max_examples=2 * settings().max_examples, deadline=None)
def test_multi_tensor_launches_are_those_of_the_loop_in_torch(sizes: list[int], depth: int) -> None:
    """multi_tensor_apply as written in MultiTensorApply.cuh, chunk by chunk."""
    count = tensors = blocks = 0
    for size in sizes:
        if not size:
            continue
        tensors += 1
        chunks = math.ceil(size / CHUNK)
        for chunk in range(chunks):
            blocks += 1
            last = chunk == chunks - 1
            if (tensors == TENSORS_BY_DEPTH[depth - 1] and last) or blocks == BLOCKS:
                count, blocks, tensors = count + 1, 0, 0 if last else 1
    assert launches(sizes, depth) == count + (1 if blocks else 0)


def test_equal_calls_have_one_signature() -> None:
    made = Signatures()
    for _ in range(3):
        made.index(aten.mm.default, (meta(3, 5), meta(5, 7)), {}, meta(3, 7))
    made.index(aten.mm.default, (meta(3, 5), meta(7, 5).t()), {}, meta(3, 7))
    assert len(made.all) == 2
    assert dtype_name(torch.bfloat16) == "bf16" and dtype_name(torch.float8_e4m3fn) == "fp8"


@pytest.mark.parametrize("window", [128, 256, 1024])
def test_flex_attention_counts_the_blocks_its_mask_leaves(window: int) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n, heads, size = 2048, 4, 64

    def near(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (q - k < window)

    def make() -> Any:
        q, k, v = (torch.randn(1, heads, n, size, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        mask = create_block_mask(near, None, None, n, n, device="cuda")
        return lambda: flex_attention(q, k, v, block_mask=mask).sum().backward()

    visible = 1 - float(create_block_mask(near, None, None, n, n, device="cpu").sparsity()) / 100
    whole = 3 * 4 * heads * n * n * size
    captured = gpuwise.capture(make)
    assert captured.flop() == pytest.approx(visible * whole)
    rows = [s for s in captured.signatures if "attention" in s.op]
    assert [s.attribute("visible") for s in rows] == pytest.approx([visible] * 2)
