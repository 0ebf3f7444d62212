"""Products whose rows start off a boundary: measured ones, and laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.kernels.conditions import STEP, Conditions
from gpuwise.predict.kernels.gemm.alignment import row_alignment
from gpuwise.predict.kernels.products import product_time


def seconds(card: str, dtype: str, m: float, n: float, k: float, layout: str = "tn", conditions: Conditions = STEP) -> float:
    shape = np.array([[1.0, m, n, k]])
    return float(product_time(find_accelerator(card), dtype, shape, conditions, np.array([layout])).time_s[0])


# benchmarks/records/gpu/steps_and_sweep_2026-11-26.jsonl: one H100 SXM, torch 2.11, operands from memory, in microseconds.
@pytest.mark.parametrize(
    ("dtype", "m", "n", "k", "layout", "microseconds"),
    [
        ("bf16", 4096, 50257, 768, "tn", 3325),
        ("bf16", 4096, 50257, 768, "nn", 2486),
        ("bf16", 4096, 50257, 768, "nt", 2029),
        ("bf16", 4096, 50258, 768, "tn", 1302),
        ("bf16", 4096, 50256, 768, "tn", 438),
        ("bf16", 4096, 50304, 768, "tn", 454),
        ("bf16", 50257, 768, 4096, "nt", 2199),
        ("bf16", 50257, 768, 4096, "tn", 397),
        ("bf16", 4096, 4096, 4095, "tn", 1045),
        ("bf16", 4096, 4096, 4095, "nt", 177),
        ("bf16", 4096, 4104, 4096, "tn", 180),
        ("bf16", 512, 30522, 768, "tn", 113),
        ("tf32", 4096, 4095, 4096, "tn", 1138),
        ("tf32", 4096, 4098, 4096, "tn", 1046),
        ("tf32", 4096, 4100, 4096, "tn", 369),
    ],
)
def test_measured(dtype: str, m: int, n: int, k: int, layout: str, microseconds: float) -> None:
    assert seconds("h100-sxm-80gb", dtype, m, n, k, layout) * 1e6 == pytest.approx(microseconds, rel=0.32)


def test_what_counts_is_the_leading_dimension() -> None:
    one = np.ones(1)
    odd, even = 4095 * one, 4096 * one
    for m, n, k, layout, boundary in (
        (even, even, odd, "tn", 2.0),
        (even, even, odd, "nn", 2.0),
        (even, even, odd, "nt", 16.0),
        (odd, even, even, "tn", 16.0),
        (odd, even, even, "nt", 2.0),
        (even, odd, even, "tn", 2.0),
        (even, 4098 * one, even, "tn", 4.0),
        (even, one, even, "tn", 16.0),
    ):
        assert row_alignment("bf16", m, n, k, layout)[0] == boundary
    assert row_alignment("tf32", even, 4098 * one, even, "tn")[0] == 8.0


@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(
    st.sampled_from(["h100-sxm-80gb", "a100-sxm-80gb", "v100-sxm-16gb", "rtx-4090", "b200-sxm"]),
    st.integers(64, 8192),
    st.integers(8, 512),
    st.integers(8, 512),
    st.sampled_from(["tn", "nn", "nt"]),
)
def test_padding_to_a_boundary_is_never_slower(card: str, m: int, n: int, k: int, layout: str) -> None:
    """More columns of 16 bytes, against the odd ones below them; what padding adds in work is less than 8 in 64."""
    n, k = 16 * n, 16 * k
    dtype = "fp16"
    assert seconds(card, dtype, m, n, k, layout) <= 1.13 * seconds(card, dtype, m, n - 1, k, layout)


def test_padding_the_vocabulary_is_worth_a_quarter_of_a_small_model() -> None:
    """GPT-2's vocabulary padded from 50257 to 50304 made nanoGPT's step (A100, compiled, 12 x 1024) about 25 % faster (A.
    Karpathy, 3 February 2023): 34 ms of 135 (nanoGPT README, bench.py), of which the three products of the head are most."""
    tokens, width = 12288, 768
    odd, even = (
        sum(
            seconds("a100-sxm-40gb", "bf16", *shape)
            for shape in ((tokens, v, width, "tn"), (tokens, width, v, "nn"), (v, width, tokens, "nt"))
        )
        for v in (50257, 50304)
    )
    assert 0.02 < odd - even < 0.05


def test_a_compiler_pads_a_linear_layer() -> None:
    """GPT-2 compiled (kernels_2026-11-26.csv.gz): the head's forward and the gradient of its input run on 50264 columns."""
    compiled = Conditions(compiled=True)
    for layout, shape in (("tn", (8192, 50257, 768)), ("nn", (8192, 768, 50257))):
        plain = seconds("h100-sxm-80gb", "bf16", *shape, layout)
        assert seconds("h100-sxm-80gb", "bf16", *shape, layout, compiled) < plain / 2
    shape = (50257, 768, 8192)
    assert seconds("h100-sxm-80gb", "bf16", *shape, "nt", compiled) == seconds("h100-sxm-80gb", "bf16", *shape, "nt")
