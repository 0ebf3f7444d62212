"""llama.cpp decode: published speeds and laws."""

import pytest

from gpuwise.errors import UnknownNameError
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.models.architecture import find_model
from gpuwise.predict.single_stream import token_time, weight_bytes_read


def rate(model: str, gpu: str, weights: str, **options: float) -> float:
    return 1 / float(token_time(find_model(model), find_accelerator(gpu), weights, **options).time_s[0])


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


def test_weights_read() -> None:
    llama = find_model("llama-3-8b")
    assert weight_bytes_read(llama, "F16") == pytest.approx(2 * (8.03e9 - 128256 * 4096), rel=0.01)
    mixtral = find_model("mixtral-8x7b")
    assert weight_bytes_read(mixtral, "F16") == pytest.approx(2 * 12.8e9, rel=0.03)
    with pytest.raises(UnknownNameError):
        weight_bytes_read(llama, "Q7")
