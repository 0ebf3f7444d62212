"""Bounds: what rounding can do is right, what it cannot do is wrong. With PyTorch on the processor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.machine.bench.bounds import ROUNDINGS, attention_bound, product_bound, random_growth
from gpuwise.machine.bench.subjects import this_processor

SIDES = st.integers(1, 40)


@settings(max_examples=settings().max_examples)
@given(m=SIDES, n=SIDES, k=st.integers(1, 300), seed=st.integers(0, 10**6), scale=st.sampled_from([1e-10, 1.0, 1e10]))
def test_fp32_products_are_within_their_bound(m: int, n: int, k: int, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    a = (scale * rng.standard_normal((m, k))).astype(np.float32)
    b = rng.standard_normal((k, n)).astype(np.float32)
    c, true = a @ b, a.astype(np.float64) @ b.astype(np.float64)
    size = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    bound = [product_bound("fp32", k, float(s), float(t)) for s, t in zip(size.ravel(), true.ravel(), strict=True)]
    assert np.all(np.abs(c.ravel() - true.ravel()) <= bound)


@given(st.sampled_from(sorted(ROUNDINGS)), st.integers(1, 10**5), st.floats(0, 1e6), st.floats(-1e6, 1e6))
def test_bounds_grow_with_length_and_size(dtype: str, k: int, magnitude: float, value: float) -> None:
    bound = product_bound(dtype, k, magnitude, value)
    assert 0 <= bound <= product_bound(dtype, k + 1, magnitude, value)
    assert bound <= product_bound(dtype, k, 2 * magnitude, value)


def test_wider_formats_have_tighter_bounds() -> None:
    order = ("fp64", "fp32", "fp16", "bf16", "fp8")
    bounds = [product_bound(d, 1024, 1.0, 1.0) for d in order]
    assert bounds == sorted(bounds)
    assert product_bound("tf32", 1024, 1.0, 1.0) > product_bound("fp32", 1024, 1.0, 1.0)
    assert product_bound("int8", 1024, 1.0, 1.0) == 0.0


def test_attention_adds_the_error_of_its_scores() -> None:
    assert attention_bound("bf16", 128, 512, 30.0, 1.0, 1.0) > attention_bound("bf16", 128, 512, 3.0, 1.0, 1.0)
    assert math.isfinite(attention_bound("bf16", 128, 32768, 60.0, 1.0, 1.0))


@settings(max_examples=settings().max_examples)
@given(k=st.integers(1, 20_000), dtype=st.sampled_from(sorted(ROUNDINGS)))
def test_random_signs_make_it_tighter_from_some_length_on(k: int, dtype: str) -> None:
    assert 0.0 <= random_growth(dtype, k) <= random_growth(dtype, 2 * k)
    if k >= 1024:
        # terms of one size: the sum of magnitudes is root(k) times the root of the squares
        assert random_growth(dtype, k) <= product_bound(dtype, k, 1.0, 0.0) * math.sqrt(k)


# --- on PyTorch ---

torch = pytest.importorskip("torch")


def product(dtype: str, m: int = 48, n: int = 40, k: int = 64) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(1)
    if dtype == "int8":
        a, b = (torch.randint(-64, 64, s, dtype=torch.int8, generator=generator) for s in ((m, k), (k, n)))
        return a, b, torch._int_mm(a, b)
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}.get(dtype, torch.float32)
    a, b = (torch.randn(s, dtype=kind, generator=generator) for s in ((m, k), (k, n)))
    return a, b, a @ b


@pytest.mark.parametrize("dtype", ["fp32", "fp64", "bf16", "fp16", "int8"])
def test_real_products_pass_and_one_corrupt_element_does_not(dtype: str) -> None:
    from gpuwise.machine.bench.families.products import check_product

    a, b, c = product(dtype)
    assert check_product(torch, dtype, a, b, c).correct
    broken = c.clone()
    broken[17, 23] += 16 if dtype == "int8" else 8
    assert not check_product(torch, dtype, a, b, broken).correct


def truncated_fp8(a: Any, b: Any) -> Any:
    """As Hopper adds fp8 products: 32 at a time with the sum so far, each cut to 14 bits of the largest of them."""
    left, right = a.to(torch.float64), b.to(torch.float64)
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    for start in range(0, a.shape[1], 32):
        terms = left[:, None, start : start + 32] * right.t()[None, :, start : start + 32]
        terms = torch.cat([terms, total[..., None]], -1)
        largest = terms.abs().amax(-1, keepdim=True).clamp(min=1e-30)
        grid = torch.exp2(torch.floor(torch.log2(largest)) - 13)
        total = (torch.trunc(terms / grid) * grid).sum(-1)
    return total.to(torch.bfloat16)


@pytest.mark.parametrize("k", [64, 1024, 8192])
def test_fp8_as_the_unit_adds_it_passes_and_an_answer_of_another_kind_does_not(k: int) -> None:
    from gpuwise.machine.bench.families.products import check_product

    generator = torch.Generator().manual_seed(5)
    a = torch.randn((48, k), generator=generator).to(torch.float8_e4m3fn)
    b = torch.randn((40, k), generator=generator).to(torch.float8_e4m3fn).t()
    c = truncated_fp8(a, b)
    right = check_product(torch, "fp8", a, b, c)
    assert right.correct
    assert right.error > 1e-3, "a bound a thousand times the error says nothing"
    for wrong in (torch.zeros_like(c), -c, c.roll(1, 0), c * 2):
        assert not check_product(torch, "fp8", a, b, wrong).correct


@pytest.mark.skipif(not hasattr(torch, "_scaled_mm"), reason="this PyTorch has no fp8 product")
def test_the_fp8_path_itself_runs_on_the_processor() -> None:
    from gpuwise.machine.bench.families.products import _multiply, _operands, check_product

    generator = torch.Generator().manual_seed(6)
    a, b = _operands(torch, "fp8", 64, 48, 256, this_processor(), generator)
    try:
        c = _multiply(torch, "fp8")(a, b, None)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"no fp8 product on this processor: {error}")
    assert check_product(torch, "fp8", a, b, c).correct


def test_an_element_between_the_sampled_ones_is_caught_by_its_column() -> None:
    from gpuwise.machine.bench.families.products import SAMPLED, check_product

    m, n = 3 * SAMPLED, 3 * SAMPLED
    a, b, c = product("fp32", m, n, 32)
    sampled = set(torch.linspace(0, m - 1, SAMPLED).long().tolist())
    row = next(i for i in range(m) if i not in sampled)
    c[row, row] += 1.0
    assert not check_product(torch, "fp32", a, b, c).correct


def test_not_a_number_is_wrong() -> None:
    from gpuwise.machine.bench.families.attention import check_attention
    from gpuwise.machine.bench.families.products import check_product

    a, b, c = product("fp32")
    c[3, 3] = float("nan")
    assert not check_product(torch, "fp32", a, b, c).correct
    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    assert not check_attention(torch, "fp32", q, k, v, torch.full_like(q, float("nan")), causal=True).correct


@pytest.mark.parametrize(("dtype", "queries"), [("fp32", 24), ("bf16", 24), ("bf16", 1)])
def test_real_attention_passes_and_the_wrong_mask_does_not(dtype: str, queries: int) -> None:
    from gpuwise.machine.bench.families.attention import check_attention

    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    generator = torch.Generator().manual_seed(2)
    q = torch.randn((2, 4, queries, 16), dtype=kind, generator=generator)
    k, v = (torch.randn((2, 2, 24, 16), dtype=kind, generator=generator) for _ in range(2))
    attend = torch.nn.functional.scaled_dot_product_attention
    causal = queries > 1
    right = attend(q, k, v, is_causal=causal, enable_gqa=True)
    assert check_attention(torch, dtype, q, k, v, right, causal=causal).correct
    wrong = attend(q, k, v, is_causal=False, enable_gqa=True) if causal else right * 1.1
    assert not check_attention(torch, dtype, q, k, v, wrong, causal=causal).correct
