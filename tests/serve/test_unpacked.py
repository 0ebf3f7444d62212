"""Weights that no matrix unit takes, as vLLM multiplies by them: measured on machines that the constants were not fitted on.

GGUF: Qwen3 14B in Q4_K_M and AWQ on an RTX 4060 Ti (vllm-project/vllm issue 35987). bitsandbytes: Mistral 7B on a Radeon 8060S
under load (bitsandbytes pull request 1920), Qwen3 4B on a B200 in 4 and 16 bits (unslothai/unsloth pull request 5108).
"""

from dataclasses import replace

import numpy as np
import pytest

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.iteration import iteration_time
from gpuwise.serve.replica import EngineReplica
from gpuwise.serve.splits import check_device
from gpuwise.serve.unpacked import unpacked_time


def replica(model: str, on: str, weights: str, version: str) -> EngineReplica:
    return EngineReplica(find_model(model), find_cluster(on).system, EngineConfig("vllm", weights, version=version))


def test_a_prompt_of_a_gguf_file_is_nine_times_awqs() -> None:
    """Left out: measured 8.7 and 9.1 times, whose prompts a prefix cache had in part."""
    gguf, awq = (replica("qwen3-14b", "rtx-4060-ti-16gb", form, "0.20.0").prompt(925).expected for form in ("Q4_K_M", "int4_wo"))
    assert gguf / awq == pytest.approx(8.9, rel=0.15)


def test_the_machine_of_the_tiles_constant() -> None:
    assert replica("llama-3.1-8b", "rtx-3090", "Q4_K_M", "0.9.0").prompt(1927).expected == pytest.approx(4.03, rel=0.05)


@pytest.mark.parametrize(("sequences", "tokens_per_s"), [(1, 22.5), (2, 10.4), (8, 40.4), (16, 80.1)])
def test_two_sequences_in_nf4_are_slower_than_one(sequences: int, tokens_per_s: float) -> None:
    """Left out: the constants are of an RTX 6000 Ada."""
    step = replica("mistral-7b", "ryzen-ai-max-395", "nf4", "0.19.0").step(sequences, 200).expected
    assert sequences / step == pytest.approx(tokens_per_s, rel=0.2)


def test_nf4_costs_a_batch_what_was_measured() -> None:
    """Left out: 4,515 against 7,775 tokens/s with an adapter that costs both the same."""
    four, sixteen = (replica("qwen3-4b", "b200", form, "0.19.0").step(64, 400).expected for form in ("nf4", "bf16"))
    assert sixteen / four == pytest.approx(4515 / 7775, rel=0.1)


def test_fused_kernels_of_newer_releases_read_a_batch_once() -> None:
    old, new = (replica("llama-3.1-8b", "rtx-4090", "nf4", version).step(8, 200).expected for version in ("0.27", "0.28"))
    assert 2.0 < old / new < 4.5  # "up to 4x" (bitsandbytes pull request 1949)


def test_rows_of_a_tile_take_as_long_as_four() -> None:
    device = find_cluster("rtx-4090").system.accelerator
    m = np.array([1, 2, 3, 4, 253, 256, 512])
    for form in ("Q4_K_M", "Q8_0"):
        time = unpacked_time(device, form, "bf16", m, np.full(7, 14336), np.full(7, 4096), fused=False).time_s
        assert time[2] == time[3] < time[4] == time[5] and (np.diff(time) >= 0).all()
        assert time[6] / time[5] == pytest.approx(2.0, rel=0.01)


def test_what_was_not_measured_is_refused() -> None:
    mixtral, llama = find_model("mixtral-8x7b"), find_model("llama-3.1-8b")
    with pytest.raises(InputError, match="experts in nf4"):
        check_device(mixtral, find_cluster("h100-sxm").system.accelerator, EngineConfig("vllm", "nf4"))
    with pytest.raises(InputError, match="GGUF files are predicted on NVIDIA"):
        check_device(llama, find_cluster("mi300x").system.accelerator, EngineConfig("vllm", "Q4_K_M"))
    assert iteration_time(llama, find_cluster("mi300x").system, EngineConfig("vllm", "nf4"), 1, 1, 100).expected > 0


@pytest.mark.parametrize(
    ("on", "weights", "tokens_per_s"), [("mi300x", "fp8", 3475), ("mi325x", "fp8", 4315), ("mi355x", "mxfp4", 11631)]
)
def test_amd_serves_in_the_formats_of_mlperf(on: str, weights: str, tokens_per_s: float) -> None:
    """Left out: Llama 2 70B offline, MLPerf inference 5.0 and 5.1, vLLM 0.9 on eight accelerators, OpenOrca of 294 tokens in and
    out; CDNA 4 multiplies MXFP4 by itself."""
    found = replica("llama-2-70b", on, weights, "0.9.0").largest(294, 294).requests_per_s * 294
    assert found == pytest.approx(tokens_per_s, rel=0.2)


def test_experts_asked_for_in_flashinfer_are_not_padded() -> None:
    """DeepSeek V3.1 on eight B200 with VLLM_USE_FLASHINFER_MOE_FP8 (ml-energy/benchmark): 16.8 ms with 8 users, 48.6 with 256."""
    arch, system = find_model("deepseek-v3"), find_cluster("8xb200").system
    asked = EngineConfig("vllm", "fp8_block", tp=8, moe_ep=8, version="0.11.1", experts="flashinfer")
    few, many = (iteration_time(arch, system, asked, n, 1, 700).expected for n in (8, 256))
    padded = iteration_time(arch, system, replace(asked, experts=None), 8, 1, 700).expected
    assert many / few == pytest.approx(48.6 / 16.8, rel=0.2) and padded > 2.0 * few
