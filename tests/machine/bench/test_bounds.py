"""Bounds: what rounding can do is right, what it cannot do is wrong. With PyTorch on the processor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.machine.bench.bounds import ROUNDINGS, attention_bound, product_bound

SIDES = st.integers(1, 40)


@settings(max_examples=30)
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
    from gpuwise.machine.bench.products import check_product

    a, b, c = product(dtype)
    assert check_product(torch, dtype, a, b, c).correct
    broken = c.clone()
    broken[17, 23] += 16 if dtype == "int8" else 8
    assert not check_product(torch, dtype, a, b, broken).correct


def test_an_element_between_the_sampled_ones_is_caught_by_its_column() -> None:
    from gpuwise.machine.bench.products import SAMPLED, check_product

    m, n = 3 * SAMPLED, 3 * SAMPLED
    a, b, c = product("fp32", m, n, 32)
    sampled = set(torch.linspace(0, m - 1, SAMPLED).long().tolist())
    row = next(i for i in range(m) if i not in sampled)
    c[row, row] += 1.0
    assert not check_product(torch, "fp32", a, b, c).correct


def test_not_a_number_is_wrong() -> None:
    from gpuwise.machine.bench.attention import check_attention
    from gpuwise.machine.bench.products import check_product

    a, b, c = product("fp32")
    c[3, 3] = float("nan")
    assert not check_product(torch, "fp32", a, b, c).correct
    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    assert not check_attention(torch, "fp32", q, k, v, torch.full_like(q, float("nan")), causal=True).correct


@pytest.mark.parametrize(("dtype", "queries"), [("fp32", 24), ("bf16", 24), ("bf16", 1)])
def test_real_attention_passes_and_the_wrong_mask_does_not(dtype: str, queries: int) -> None:
    from gpuwise.machine.bench.attention import check_attention

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
