"""llama.cpp decode: published speeds and laws."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.formats import weight_bytes, weight_bytes_read
from gpuwise.serve.streams import (
    arithmetic_rate,
    prompt_time,
    prompt_vendor,
    row_flop,
    seconds,
    seconds_by_part,
    token_time,
    token_work,
    vendors,
)
from gpuwise.workload.blocks.kinds import attention_sizes


def rate(model: str, gpu: str, weights: str, **options: Any) -> float:
    return 1 / token_time(find_model(model), find_accelerator(gpu), weights, **options).expected


@pytest.mark.parametrize(
    ("model", "gpu", "weights", "tokens_per_s"),
    [  # XiongjieDai/GPU-Benchmarks-on-LLM-Inference, 1024 tokens generated; kept out of the fit
        ("llama-3-8b", "RTX 6000 Ada", "Q4_K_M", 130.99),
        ("llama-3-8b", "RTX 6000 Ada", "F16", 51.97),
        ("llama-3-8b", "Apple M1 Max", "F16", 18.43),
    ],
)
def test_published_speeds(model: str, gpu: str, weights: str, tokens_per_s: float) -> None:
    assert rate(model, gpu, weights, context=1536) == pytest.approx(tokens_per_s, rel=0.2)


@pytest.mark.parametrize(
    ("gpu", "weights", "tokens_per_s"),
    [  # ggml-org/llama.cpp discussion 4167, chips kept out of the fit
        ("apple-m2-pro", "Q4_0", 37.87),
        ("apple-m2-max", "F16", 24.65),
        ("apple-m4-pro", "Q4_0", 50.74),
        ("apple-m4-max-40c", "Q8_0", 54.05),
        ("apple-m4-max-40c", "Q4_0", 83.06),
    ],
)
def test_apple_chips_of_other_clocks_and_units(gpu: str, weights: str, tokens_per_s: float) -> None:
    assert rate("llama-2-7b", gpu, weights, context=64) == pytest.approx(tokens_per_s, rel=0.07)


def test_prompts_through_experts_are_slower_than_their_arithmetic() -> None:
    form, device = load_json("single_stream")["form"], find_accelerator("ryzen-ai-max-395")

    def per_s(model: str, weights: str, tokens: int, **options: int) -> float:
        return tokens / prompt_time(form, find_model(model), device, weights, **options)(tokens, 0)

    # kyuz0/amd-strix-halo-toolboxes, Vulkan and ROCm: 1,692 and 1,786; 720 and 626
    assert per_s("gpt-oss-20b", "MXFP4", 512) == pytest.approx(1739, rel=0.15)
    assert per_s("gpt-oss-120b", "MXFP4", 512) == pytest.approx(671, rel=0.15)
    # a batch of more tokens gives each expert more rows
    assert per_s("gpt-oss-120b", "MXFP4", 2048, batch=2048) > 1.3 * per_s("gpt-oss-120b", "MXFP4", 2048, batch=512)
    assert per_s("llama-2-7b", "Q4_0", 2048, batch=2048) == pytest.approx(per_s("llama-2-7b", "Q4_0", 2048), rel=0.05)


def test_laws() -> None:
    assert (
        rate("llama-3-8b", "rtx-4090", "Q4_K_M") > rate("llama-3-8b", "rtx-4090", "Q8_0") > rate("llama-3-8b", "rtx-4090", "F16")
    )
    assert rate("llama-3-8b", "rtx-4090", "F16", n_devices=4) < rate("llama-3-8b", "rtx-4090", "F16")
    assert rate("llama-3-8b", "rtx-4090", "F16", context=8192) < rate("llama-3-8b", "rtx-4090", "F16", context=128)


def test_the_interval_says_what_the_fit_saw() -> None:
    """A device of the fit, another of its vendors, a vendor it never saw."""
    seen, sibling, stranger = (
        token_time(find_model("llama-3-8b"), find_accelerator(name), "Q4_K_M")
        for name in ("rtx-4090", "v100-sxm2-32gb", "snapdragon-8-elite-hexagon")
    )
    assert [t.basis for t in (seen, sibling, stranger)] == ["fitted", "derived", "extrapolated"]
    assert seen.log_sigma < sibling.log_sigma < stranger.log_sigma
    wider = load_json("memory_bound")["log_sigma"]["new_family_factor"]
    assert stranger.log_sigma == pytest.approx(sibling.log_sigma * wider)
    assert find_accelerator("snapdragon-8-elite-hexagon").vendor not in vendors()


MODELS = ("llama-3.1-8b", "llama-3.2-1b", "qwen3-30b-a3b", "gpt-oss-20b", "qwen3.6-27b", "gemma-4-26b-a4b", "lfm2-8b-a1b")
DEVICES = ("rtx-4090", "rtx-3060-12gb", "gb10", "h100-sxm-80gb", "rx-7900-xtx", "ryzen-ai-max-395", "apple-m4-pro", "arc-pro-b70")
NARROWER = ("BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "Q2_K")


@settings(deadline=None, max_examples=60)
@given(model=st.sampled_from(MODELS), gpu=st.sampled_from(DEVICES), context=st.integers(1, 30_000))
def test_fewer_bits_and_a_shorter_context_are_never_slower(model: str, gpu: str, context: int) -> None:
    arch, device = find_model(model), find_accelerator(gpu)
    times = [token_time(arch, device, w, context=context).expected for w in NARROWER]
    assert times == sorted(times, reverse=True)
    assert token_time(arch, device, "Q4_K_M", context=2 * context).expected >= times[NARROWER.index("Q4_K_M")]


@settings(deadline=None, max_examples=60)
@given(
    model=st.sampled_from(MODELS),
    gpu=st.sampled_from(DEVICES),
    weights=st.sampled_from(NARROWER),
    users=st.integers(1, 16),
    n=st.integers(1, 4),
)
def test_parts_sum_to_a_time_that_the_bytes_read_allow(model: str, gpu: str, weights: str, users: int, n: int) -> None:
    """Experts too: a token reads those that are active."""
    form, arch, device = load_json("single_stream")["form"], find_model(model), find_accelerator(gpu)
    work = token_work(arch, weights, 1024.0, users)
    time = seconds_by_part(form, work, arch, device, n, users)
    assert time.stream_s + time.launches_s + time.hand_over_s + time.rows_s == pytest.approx(time.total_s)
    assert time.total_s == seconds(form, arch, device, weights, 1024.0, n, users)
    assert min(time.stream_s, time.launches_s) > 0 and min(time.hand_over_s, time.rows_s) >= 0
    assert time.stream_s > (work.weight_bytes + work.cache_bytes) / device.memory_bandwidth_bytes_per_s


@pytest.mark.parametrize(
    ("model", "weights", "gib"), [("gpt-oss-20b", "MXFP4", 11.27), ("gpt-oss-20b", "F16", 12.83), ("gpt-oss-120b", "F16", 60.87)]
)
def test_published_experts_stay_as_they_are_in_every_file(model: str, weights: str, gib: float) -> None:
    """Sizes that llama-bench prints (kyuz0/amd-strix-halo-toolboxes, lhl/strix-halo-testing)."""
    assert weight_bytes(find_model(model), weights) / 2**30 == pytest.approx(gib, rel=0.01)


def test_only_a_window_of_the_cache_is_read() -> None:
    gemma = find_model("gemma-3-27b")
    one, long = (token_time(gemma, find_accelerator("rtx-4090"), "Q4_K_M", context=c).expected for c in (1024, 32768))
    whole = 4.0 * gemma.n_layers * gemma.kv_heads * gemma.head_dim * (32768 - 1024)
    bandwidth = find_accelerator("rtx-4090").memory_bandwidth_bytes_per_s
    assert long - one < 0.3 * whole / bandwidth  # ten of 62 layers see everything


def test_rows_of_16_bit_weights_run_beside_their_stream() -> None:
    """Those of quantised weights after it; a batch never costs less than one of fewer sequences."""
    form = load_json("single_stream")["form"]
    arch, device = find_model("llama-3-8b"), find_accelerator("a100-sxm-40gb")
    steps = {w: [seconds(form, arch, device, w, 256, 1, n) for n in (1, 16, 64, 512)] for w in ("F16", "Q8_0")}
    for times in steps.values():
        assert times == sorted(times)
    assert steps["F16"][1] < 1.1 * steps["F16"][0]
    assert steps["F16"][2] < 1.5 * steps["F16"][0]
    assert steps["Q8_0"][1] > 1.3 * steps["Q8_0"][0]
    rows = 511 * row_flop(arch, head=True) / arithmetic_rate(form, device, wide=True)
    assert steps["F16"][3] > rows


def test_attention_of_a_long_prompt_is_four_operations_a_pair_and_element() -> None:
    """Two products of h x d per query and key, an addition and a multiplication each: 4 heads head_dim FLOP a pair and layer."""
    form, arch, device = load_json("single_stream")["form"], find_model("llama-3.1-8b"), find_accelerator("rtx-4090")
    prompt = prompt_time(form, arch, device, "Q4_K_M")
    more = prompt(512, 100_000) - prompt(512, 50_000)
    flop = 512 * 50_000 * 4 * arch.heads * arch.head_dim * arch.n_layers
    assert device.compute_units and device.boost_hz
    rate = prompt_vendor(form, device)["attention_flop_per_clock"] * device.compute_units * device.boost_hz
    assert more == pytest.approx(flop / rate, rel=0.01)


@pytest.mark.parametrize(
    ("model", "gpu", "weights", "tokens", "before", "tokens_per_s"),
    [  # rows that people published, of builds of 2026: small models, experts, long contexts, recurrent layers
        ("phi-4-mini", "rtx-3090", "Q4_K_M", 2048, 0, 8094),
        ("gpt-oss-20b", "rtx-3090", "MXFP4", 1024, 0, 4941),
        ("nemotron-3-nano-30b-a3b", "rtx-3090", "IQ4_XS", 65536, 0, 2684),
        ("qwen3.6-27b", "rtx-4070", "IQ2_M", 512, 16384, 870),
        ("llama-3.1-8b", "rtx-5080", "Q4_0", 512, 0, 8430),
        ("lfm2-350m", "rtx-3060-12gb", "Q8_0", 4096, 0, 29705),
    ],
)
def test_prompts_of_todays_builds(model: str, gpu: str, weights: str, tokens: int, before: int, tokens_per_s: float) -> None:
    form = load_json("single_stream")["form"]
    time = prompt_time(form, find_model(model), find_accelerator(gpu), weights)(tokens, before)
    assert tokens / time == pytest.approx(tokens_per_s, rel=0.25)


def test_a_layer_that_borrows_keys_and_values_reads_them_again() -> None:
    """Of 42 layers of gemma-4-e4b 7 see the whole context, 3 of these in the cache of another."""
    arch = find_model("gemma-4-e4b")
    short, long = (token_work(arch, "Q8_0", context).cache_bytes for context in (8192.0, 16384.0))
    wide, *_ = attention_sizes(arch)
    assert long - short == pytest.approx(8192 * arch.n_global_layers * 2 * wide.kv_heads * wide.head_dim * 2)


def test_a_batch_of_few_is_sent_to_almost_as_many_experts_as_tokens_apart() -> None:
    """More tokens never go to fewer, and never to more than there are."""
    arch, device = find_model("qwen3-30b-a3b"), find_accelerator("gb10")
    read = [token_work(arch, "Q8_0", 512.0, n).weight_bytes for n in (1, 2, 4, 8, 16, 64, 512)]
    assert read == sorted(read)
    one = weight_bytes_read(arch, "Q8_0") * 8 / 128  # less than the experts of a token
    assert read[1] - read[0] > one and read[-1] < weight_bytes(arch, "Q8_0")
    steps = [seconds(load_json("single_stream")["form"], arch, device, "Q8_0", 528, 1, n) for n in (1, 8)]
    assert steps[1] / steps[0] == pytest.approx(51.6 / 17.4, rel=0.15)  # ggml-org/llama.cpp benches/dgx-spark.md
