"""llama.cpp decode: published speeds and laws."""

import pytest

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.llama_cpp import token_time, vendors


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
