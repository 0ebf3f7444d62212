"""llama.cpp decode: published speeds and laws."""

import pytest

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.streams import arithmetic_rate, prompt_time, row_flop, seconds, token_time, vendors


def rate(model: str, gpu: str, weights: str, **options: float) -> float:
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
    assert rate("llama-2-7b", gpu, weights, context=64) == pytest.approx(tokens_per_s, rel=0.06)


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
        for name in ("rtx-4090", "rtx-3090", "snapdragon-8-elite-hexagon")
    )
    assert [t.basis for t in (seen, sibling, stranger)] == ["fitted", "derived", "extrapolated"]
    assert seen.log_sigma < sibling.log_sigma < stranger.log_sigma
    widths = load_json("single_stream")["log_sigma"]
    wider = load_json("memory_bound")["log_sigma"]["new_family_factor"]
    assert stranger.log_sigma == pytest.approx(widths["other_device"] * wider)
    assert find_accelerator("snapdragon-8-elite-hexagon").vendor not in vendors()


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
    rows = 511 * row_flop(arch, head=True) / arithmetic_rate(form, device, "F16")
    assert steps["F16"][3] > rows


def test_attention_of_a_long_prompt_is_four_operations_a_pair_and_element() -> None:
    """Two products of h x d per query and key, an addition and a multiplication each: 4 heads head_dim FLOP a pair and layer."""
    form, arch, device = load_json("single_stream")["form"], find_model("llama-3.1-8b"), find_accelerator("rtx-4090")
    prompt = prompt_time(form, arch, device, "Q4_K_M")
    more = prompt(512, 100_000) - prompt(512, 50_000)
    flop = 512 * 50_000 * 4 * arch.heads * arch.head_dim * arch.n_layers
    assert more == pytest.approx(flop / arithmetic_rate(form, device, "Q4_K_M"), rel=0.01)
