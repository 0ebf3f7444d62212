"""Attention time: exact FLOP, laws, published figures, names, every accelerator."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError, UnknownNameError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.predict.kernels.attention.fused import (
    attention_backward_time,
    attention_decode_time,
    attention_flop,
    attention_forward_time,
)
from gpuwise.predict.kernels.attention.implementations import serving_kernel

GPUS = ("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm", "gb300", "l40s", "rtx-4090")
shapes = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 64),
        "length": st.integers(1, 20000),
        "kv_heads": st.sampled_from((1, 2, 4, 8, 16, 32)),
        "group": st.sampled_from((1, 2, 4, 7, 8, 16)),
        "head_dim": st.sampled_from((64, 80, 96, 128, 192, 256)),
    }
)
gpus = st.sampled_from(GPUS)
kinds = st.sampled_from(("forward", "backward", "decode"))


def gpu(name: str) -> Accelerator:
    return accelerators()[name]


def seconds(a: Accelerator, kind: str, s: dict[str, int], causal: bool = True, window: int = 0) -> float:
    heads = s["kv_heads"] * s["group"]
    if kind == "decode":
        t = attention_decode_time(a, "bf16", s["batch"], s["length"], heads, s["kv_heads"], s["head_dim"], window=window)
    else:
        call = attention_forward_time if kind == "forward" else attention_backward_time
        n = s["length"]
        t = call(a, "bf16", s["batch"], n, n, heads, s["kv_heads"], s["head_dim"], causal=causal, window=window)
    return float(t.time_s[0])


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 45), st.booleans())
def test_flop_counts_exactly_the_pairs_a_mask_leaves(q: int, kv: int, window: int, causal: bool) -> None:
    limit = window or kv
    pairs = sum(min(max(kv - q + i + 1, 0), limit) for i in range(q)) if causal else q * min(kv, limit)
    flop = attention_flop(3, q, kv, 5, 64, 32, causal, window)
    assert float(flop) == 2 * 3 * 5 * (64 + 32) * pairs


def test_flop_of_a_long_causal_call_is_half_the_square() -> None:
    half = float(attention_flop(1, 4096, 4096, 1, 128, None, True)) / float(attention_flop(1, 4096, 4096, 1, 128, None, False))
    assert half == pytest.approx(0.5, rel=3e-4)


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(gpus, kinds, shapes, st.sampled_from(("batch", "length", "kv_heads", "head_dim")))
def test_time_grows_with_each_dimension(name: str, kind: str, s: dict[str, int], grown: str) -> None:
    larger = s | {grown: s[grown] * 2}
    assert seconds(gpu(name), kind, larger) >= seconds(gpu(name), kind, s) * (1 - 1e-6)


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(gpus, st.sampled_from(("forward", "backward")), shapes)
def test_a_causal_mask_never_costs(name: str, kind: str, s: dict[str, int]) -> None:
    assert seconds(gpu(name), kind, s) <= seconds(gpu(name), kind, s, causal=False) * (1 + 1e-9)


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(gpus, kinds, shapes, st.integers(1, 30000))
def test_a_window_never_costs(name: str, kind: str, s: dict[str, int], window: int) -> None:
    assert seconds(gpu(name), kind, s, window=window) <= seconds(gpu(name), kind, s) * (1 + 1e-9)


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(gpus, kinds, shapes, st.floats(1.0, 3.0), st.floats(1.0, 3.0), st.floats(1.0, 3.0))
def test_a_bigger_device_of_the_family_is_never_slower(
    name: str, kind: str, s: dict[str, int], units: float, bandwidth: float, cache: float
) -> None:
    a = gpu(name)
    assert a.compute_units is not None and a.l2_bytes is not None and a.tdp_w is not None
    bigger = dataclasses.replace(
        a,
        compute_units=int(a.compute_units * units),
        l2_bytes=a.l2_bytes * cache,
        tdp_w=a.tdp_w * units,
        peak_flop_per_s={k: v * int(a.compute_units * units) / a.compute_units for k, v in a.peak_flop_per_s.items()},
        memory_bandwidth_bytes_per_s=a.memory_bandwidth_bytes_per_s * bandwidth,
    )
    assert seconds(bigger, kind, s) <= seconds(a, kind, s) * (1 + 1e-6)


FLASH3_H100 = (
    # head size, causal, length, TFLOP/s forward; arXiv 2407.08608 figure 5 (16k tokens, hidden 2048)
    (64, False, 2048, 460),
    (64, False, 16384, 497),
    (64, True, 4096, 420),
    (128, False, 1024, 565),
    (128, False, 8192, 646),
    (128, True, 2048, 521),
    (128, True, 16384, 616),
    (256, True, 8192, 628),
)


@pytest.mark.parametrize(("width", "causal", "length", "published"), FLASH3_H100)
def test_flash_attention_3_on_h100_as_published(width: int, causal: bool, length: int, published: float) -> None:
    heads, batch = 2048 // width, 16384 // length
    t = attention_forward_time(
        gpu("h100-sxm-80gb"), "bf16", batch, length, length, heads, heads, width, causal=causal, kernel="fa3"
    )
    flop = 4 * batch * heads * width * length**2 / (2 if causal else 1)
    assert flop / t.time_s[0] / 1e12 == pytest.approx(published, rel=0.1)


def test_flash_attention_2_backward_on_a100_reaches_the_published_share() -> None:
    """arXiv 2307.08691 section 4.1: the backward pass reaches up to 63 % of the A100's peak, the forward 73
    %."""
    a, n = gpu("a100-sxm-80gb"), 16384
    forward, backward = (
        call(a, "bf16", 1, n, n, 16, 16, 128, causal=False) for call in (attention_forward_time, attention_backward_time)
    )
    flop = 4 * 16 * 128 * n**2
    assert flop / forward.time_s[0] / 312e12 == pytest.approx(0.68, abs=0.07)
    assert 2.5 * flop / backward.time_s[0] / 312e12 == pytest.approx(0.58, abs=0.07)


def test_cudnn_on_gb300_which_took_no_part_in_the_fit() -> None:
    """NVIDIA/cudnn-frontend benchmark of 2026-04-24: 64 heads, 8 key-value heads, head size 128, batch 2,
    causal."""
    for length, forward_ms, backward_ms in (
        (4096, 0.323, 1.101),
        (8192, 1.185, 3.832),
        (16384, 4.593, 14.593),
    ):
        times = [
            float(call(gpu("gb300"), "bf16", 2, length, length, 64, 8, 128, kernel="cudnn").time_s[0]) * 1e3
            for call in (attention_forward_time, attention_backward_time)
        ]
        assert times == pytest.approx([forward_ms, backward_ms], rel=0.15)


def test_blackwell_ultra_gains_where_the_exponential_decides() -> None:
    """GB300 over GB200 by cuDNN, forward at head size 128: 1.41 in fp8, 1.19 in bf16 (same source)."""
    n = 16384
    gain = {
        dtype: float(
            attention_forward_time(gpu("gb200"), dtype, 2, n, n, 64, 8, 128, kernel="cudnn").time_s[0]
            / attention_forward_time(gpu("gb300"), dtype, 2, n, n, 64, 8, 128, kernel="cudnn").time_s[0]
        )
        for dtype in ("bf16", "fp8")
    }
    assert 1.1 < gain["bf16"] < 1.35 < gain["fp8"] < 1.6


def test_a_long_cache_is_read_at_the_bandwidth() -> None:
    """128 sequences of 8192 tokens, 8 key-value heads of 128 in bf16: 4.3 GB, far beyond any cache."""
    held = 128 * 8192 * 8 * 128 * 2 * 2
    for name in ("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm", "l40s"):
        a = gpu(name)
        t = attention_decode_time(a, "bf16", 128, 8192, 32, 8, 128).time_s[0]
        assert 0.65 < held / t / a.memory_bandwidth_bytes_per_s < 1.0


def test_every_accelerator_answers_or_says_why_not() -> None:
    answered = 0
    for a in accelerators().values():
        for dtype in ("bf16", "fp16"):
            try:
                times = [
                    attention_forward_time(a, dtype, [1, 8], 2048, 2048, 32, 8, 128),
                    attention_backward_time(a, dtype, [1, 8], 2048, 2048, 32, 8, 128),
                    attention_decode_time(a, dtype, [1, 8], 2048, 32, 8, 128),
                    attention_forward_time(a, dtype, [1, 8], 2048, 2048, 32, 8, 128, kernel="vllm:vllm_flash_attn_fa3"),
                ]
            except UnpredictableError:
                assert dtype not in a.peak_flop_per_s
                continue
            answered += 1
            for t in times:
                assert t.time_s.shape == t.log_sigma.shape == (2,)
                assert (t.time_s > 0).all() and np.isfinite(t.time_s).all() and (t.log_sigma > 0).all()
                assert t.time_s[1] > t.time_s[0]
    assert answered > 250


def test_the_basis_says_how_near_the_measurement_is() -> None:
    kernel = "vllm:vllm_flash_attn_fa3"
    on = {
        n: attention_decode_time(gpu(n), "bf16", 8, 4096, 32, 8, 128, kernel=kernel) for n in ("h100-sxm-80gb", "h200-sxm-141gb")
    }
    assert on["h100-sxm-80gb"].basis == "fitted" and on["h200-sxm-141gb"].basis == "derived"
    assert on["h100-sxm-80gb"].log_sigma[0] < on["h200-sxm-141gb"].log_sigma[0]
    amd = attention_forward_time(gpu("mi300x"), "bf16", 8, 4096, 4096, 32, 8, 128)
    assert amd.basis == "specified" and amd.log_sigma[0] > 0.3
    assert 0.1 < float(attention_flop(8, 4096, 4096, 32, 128)) / amd.time_s[0] / gpu("mi300x").peak("bf16") < 0.8


def test_rows_of_one_call_do_not_touch_each_other() -> None:
    lengths, a = np.array([1, 17, 512, 4096, 30000]), gpu("h100-sxm-80gb")
    for kernel in (None, "vllm:vllm_flash_attn_fa3"):
        together = attention_forward_time(a, "bf16", 2, lengths, lengths, 16, 4, 128, kernel=kernel).time_s
        alone = [attention_forward_time(a, "bf16", 2, n, n, 16, 4, 128, kernel=kernel).time_s[0] for n in lengths]
        assert together == pytest.approx(alone, rel=1e-5)


def test_an_unmasked_call_of_an_engines_kernel_costs_about_twice() -> None:
    times = [
        attention_forward_time(
            gpu("h100-sxm-80gb"),
            "bf16",
            1,
            8192,
            8192,
            32,
            8,
            128,
            causal=c,
            kernel="vllm:vllm_flash_attn_fa3",
        ).time_s[0]
        for c in (True, False)
    ]
    assert 1.7 < times[1] / times[0] < 2.1


def test_names() -> None:
    a = gpu("h100-sxm-80gb")
    assert serving_kernel(a, "vllm", "forward") == "vllm:vllm_flash_attn_fa3"
    assert serving_kernel(gpu("b300-sxm"), "sglang", "decode", "fp8") == "sglang:trtllm_mha"
    assert serving_kernel(gpu("mi300x"), "vllm", "decode") is None
    with pytest.raises(UnknownNameError, match="flash9"):
        attention_forward_time(a, "bf16", 1, 8, 8, 1, 1, 64, kernel="flash9")
    with pytest.raises(UnknownNameError, match="vllm:nothing"):
        attention_decode_time(a, "bf16", 1, 8, 1, 1, 64, kernel="vllm:nothing")
    with pytest.raises(UnknownNameError, match="mx9"):
        attention_decode_time(a, "mx9", 1, 8, 1, 1, 64)
    with pytest.raises(UnknownNameError, match="tgi"):
        serving_kernel(a, "tgi", "decode")
    with pytest.raises(UnpredictableError):
        attention_forward_time(gpu("a100-sxm-80gb"), "fp8", 1, 8, 8, 1, 1, 64)


@pytest.mark.parametrize("bad", [{"batch": 0}, {"length": -1}, {"head_dim": 0}, {"window": -2}])
def test_impossible_shapes_are_refused(bad: dict[str, int]) -> None:
    s = {"batch": 1, "length": 8, "head_dim": 64, "window": 0} | bad
    with pytest.raises(InputError):
        attention_decode_time(gpu("h100-sxm-80gb"), "bf16", s["batch"], s["length"], 4, 2, s["head_dim"], window=s["window"])


def test_heads_must_be_a_multiple_of_key_value_heads() -> None:
    with pytest.raises(InputError, match="multiple"):
        attention_forward_time(gpu("h100-sxm-80gb"), "bf16", 1, 8, 8, 6, 4, 64)


def test_a_window_costs_a_related_card_what_it_cost_the_measured_one() -> None:
    """gemma-4-12B AWQ on one RTX 3090 (vLLM 0.23, 64 users of 512 + 256 tokens, LottoLottoLotto/4x3090-llm-benchmarks@bd22281)
    writes a token in 56.7 ms at 220 W, of which 40 windowed layers cannot be more than the half."""
    shape = (64, 640, 16, 8, 256)
    related, measured = gpu("rtx-3090"), gpu("l40s")
    whole, windowed = (
        {
            a.id: float(attention_decode_time(a, "bf16", *shape, window=w, kernel="vllm:vllm_flash_attn_fa2").time_s[0])
            for a in (related, measured)
        }
        for w in (0, 1024)
    )
    assert windowed[related.id] / whole[related.id] == pytest.approx(windowed[measured.id] / whole[measured.id])
    assert 40 * windowed[related.id] < 0.5 * 56.7e-3
