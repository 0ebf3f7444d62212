"""Expert layers and grouped products: laws, loads, refusals."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError, UnknownNameError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.predict.kernels.experts.coefficients import coefficients_of
from gpuwise.predict.kernels.experts.grouped import grouped_time, moe_layer_time
from gpuwise.predict.kernels.experts.loads import balanced, even, power_law
from gpuwise.predict.kernels.gemm.product import gemm_time

NAMES = ("a100-sxm-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "l40s", "b200-sxm", "rtx-5090")
DEEPSEEK = (7168, 2048, 8, 256)


def known(name: str) -> Accelerator:
    return accelerators()[name]


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


@settings(deadline=None, max_examples=3 * settings().max_examples)
@given(
    st.sampled_from(NAMES),
    st.integers(1, 20_000),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from(["balanced", "power_law"]),
)
def test_never_faster_than_arithmetic_or_weights_allow(name: str, tokens: int, log_tp: int, log_ep: int, way: str) -> None:
    accelerator = known(name)
    hidden, ffn, top_k, experts = DEEPSEEK
    tp, ep = 2**log_tp, 2**log_ep
    time = moe_layer_time(accelerator, "bf16", tokens, hidden, ffn, top_k, experts, tp, ep, distribution=way).time_s[0]
    weights = 3 * hidden * ffn / tp
    active = min(experts / ep, max(1.0, tokens * top_k / ep)) if way == "balanced" else 1.0
    assert accelerator.l2_bytes
    moved = max(active * weights * 2 - accelerator.l2_bytes, 0)
    assert time >= moved / accelerator.memory_bandwidth_bytes_per_s * (1 - 1e-9)
    assert time >= 2 * tokens * top_k / ep * weights / (1.2 * accelerator.peak("bf16")) * (1 - 1e-9)


@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(st.sampled_from(NAMES), st.integers(1, 20_000), st.floats(1, 3), st.floats(1, 3))
def test_more_of_everything_is_never_slower(name: str, tokens: int, units: float, bandwidth: float) -> None:
    small = replace(known(name), id="small")
    assert small.compute_units and small.tdp_w
    more = int(small.compute_units * units)
    big = replace(
        small,
        id="big",
        compute_units=more,
        peak_flop_per_s={d: r * more / small.compute_units for d, r in small.peak_flop_per_s.items()},
        memory_bandwidth_bytes_per_s=small.memory_bandwidth_bytes_per_s * bandwidth,
        tdp_w=small.tdp_w * units,
    )
    slow, fast = (moe_layer_time(a, "bf16", tokens, 4096, 1536, 8, 128).time_s[0] for a in (small, big))
    assert fast <= slow * (1 + 1e-9)


def test_few_tokens_read_few_experts() -> None:
    """Memory-bound decode: weights of the chosen experts at most of the bandwidth (DeepSeek-V3, fp8, H100)."""
    h100 = known("h100-sxm-80gb")
    expert_bytes = 3 * DEEPSEEK[0] * DEEPSEEK[1]
    times = moe_layer_time(h100, "fp8_block", [1, 4, 16, 64], *DEEPSEEK).time_s
    for time, active in zip(times, (8, 32, 128, 256), strict=True):
        share = active * expert_bytes / time / h100.memory_bandwidth_bytes_per_s
        assert 0.5 < share < 1.0
    limited = moe_layer_time(h100, "fp8_block", 64, *DEEPSEEK, reachable=0.5).time_s[0]
    assert limited == pytest.approx(times[-1] / 2, rel=0.25)


@pytest.mark.parametrize(("on", "least"), [("gb10", 1.5), ("h100-sxm-80gb", 1.0)])
def test_weights_that_fit_into_the_cache_are_read_again_between_other_layers(on: str, least: float) -> None:
    """Eight experts of 1.8 MB (Qwen3.6 35B in NVFP4) lie in a cache of 24 MB, of which the benchmark's loop had all."""
    device = known(on)
    hot, cold = (moe_layer_time(device, "int4_wo", 1, 2048, 512, 8, 256, cold=c).time_s[0] for c in (False, True))
    assert cold >= least * hot
    assert cold >= 8 * 3 * 2048 * 512 * 0.515625 / device.memory_bandwidth_bytes_per_s


def test_plain_experts_cost_less_than_gated_ones() -> None:
    h100 = known("h100-sxm-80gb")
    gated, plain = (moe_layer_time(h100, "bf16", 64, 4096, 2688, 8, 128, gated=g).time_s[0] for g in (True, False))
    assert plain == pytest.approx(gated * 2 / 3, rel=0.2)


def test_imbalance_costs_large_batches() -> None:
    h200 = known("h200-sxm-141gb")
    fair, skewed = (
        moe_layer_time(h200, "fp8_block", 8192, *DEEPSEEK, 1, 32, distribution=d).time_s[0] for d in ("balanced", "power_law")
    )
    assert skewed > 1.3 * fair


@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(st.integers(1, 100_000), st.integers(1, 22), st.sampled_from([8, 64, 256, 512]), st.integers(0, 3))
def test_loads_add_up(tokens: int, top_k: int, experts: int, log_ep: int) -> None:
    ep = 2**log_ep
    top_k = min(top_k, experts)
    given_columns = (column(tokens), column(top_k), column(experts), column(ep))
    fair = balanced(*given_columns, column(1.0))
    assert fair.active[0] <= experts / ep + 1e-9
    assert tokens * top_k / ep <= fair.routed[0] + 1e-6 < tokens * top_k / ep + 1 + 1e-3
    skewed = power_law(*given_columns)
    assert 1 - 1e-6 <= skewed.active[0] <= experts / ep + 1e-6
    assert skewed.tokens.max() >= fair.tokens[fair.experts > 0].max() - 1


def test_even_loads_are_whole_rows() -> None:
    loads = even(column(4.0), column(10.0))
    assert loads.tokens[:, 0].tolist() == [2.0, 3.0]
    assert loads.experts[:, 0].tolist() == [2.0, 2.0]


def test_a_grouped_product_is_a_batch_of_products() -> None:
    h100 = known("h100-sxm-80gb")
    grouped = grouped_time(h100, "bf16", 8, 8 * 4096, 14336, 4096)
    batch = gemm_time(h100, "bf16", 4096, 14336, 4096, 8)
    assert grouped.time_s[0] == pytest.approx(batch.time_s[0])
    few = grouped_time(h100, "bf16", 64, 4, 14336, 4096).time_s[0]
    assert few < grouped_time(h100, "bf16", 64, 64, 14336, 4096).time_s[0] / 4
    skewed = grouped_time(h100, "bf16", 64, 6400, 2048, 4096, distribution="power_law").time_s[0]
    assert skewed >= grouped_time(h100, "bf16", 64, 6400, 2048, 4096).time_s[0] * 0.95


def test_kernels_by_name_and_by_likeness() -> None:
    h100 = known("h100-sxm-80gb")
    assert coefficients_of(h100, "bf16", "sglang_fused_moe_triton").kernel == "sglang_fused_moe_triton"
    renamed = coefficients_of(h100, "bf16", "vllm_unquantizedfusedmoe_triton_newexperts").kernel
    assert renamed == "vllm_unquantizedfusedmoe_triton_tritonexperts"
    assert coefficients_of(h100, "bf16", "quite_something_else").basis == "fitted"
    assert coefficients_of(known("rtx-5090"), "bf16").basis == "specified"
    assert coefficients_of(known("h200-sxm-141gb"), "bf16").basis == "derived"
    assert coefficients_of(h100, "fp16").basis == "derived"


def test_bad_input_is_refused() -> None:
    l40s = known("l40s")
    with pytest.raises(InputError, match="at least 1"):
        moe_layer_time(l40s, "bf16", 0, 4096, 1536, 8, 128)
    with pytest.raises(InputError, match="reachable"):
        moe_layer_time(l40s, "bf16", 1, 4096, 1536, 8, 128, reachable=0.0)
    with pytest.raises(InputError, match="distribution"):
        moe_layer_time(l40s, "bf16", 1, 4096, 1536, 8, 128, distribution="zipf")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least 1"):
        grouped_time(l40s, "bf16", 8, 0, 1, 1)
    with pytest.raises(UnknownNameError, match="expert layer dtype"):
        moe_layer_time(l40s, "bf61", 1, 4096, 1536, 8, 128)
    with pytest.raises(UnpredictableError, match="no published dense fp8"):
        moe_layer_time(known("a100-sxm-80gb"), "fp8_block", 1, 4096, 1536, 8, 128)


def test_another_familys_power_limit_is_not_inherited() -> None:
    """L40S holds three quarters of its boost clock at 350 W; a card of 600 W that takes its coefficients nearly all."""
    l40s, workstation = known("l40s"), known("rtx-pro-6000-blackwell-server")
    shape = (4096, 14336, 2, 8)
    seconds = [
        float(moe_layer_time(a, "bf16", 32768, *shape, implementation="moe_torch_flow_cutlass").time_s[0])
        for a in (l40s, workstation)
    ]
    share = [6 * 32768 * 2 * 4096 * 14336 / t / a.peak("bf16") for t, a in zip(seconds, (l40s, workstation), strict=True)]
    assert share[1] > 1.08 * share[0]
    assert share[1] < 0.8


@given(st.integers(1, 4096), st.integers(1, 8), st.sampled_from((8, 32, 128, 512)))
def test_a_token_chooses_an_expert_once(tokens: int, top_k: int, experts: int) -> None:
    """However skewed: no expert gets more rows than there are tokens, and every choice is some expert's."""
    columns = (np.array([float(x)]) for x in (tokens, min(top_k, experts), experts, 1))
    loads = power_law(*columns)
    assert loads.tokens.max() <= max(tokens, 1)
    if tokens * top_k >= 8 * experts:  # rounding is then small
        assert loads.routed.item() == pytest.approx(tokens * top_k, rel=0.05)
