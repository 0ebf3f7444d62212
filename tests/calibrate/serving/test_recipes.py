"""Options of published launch scripts, by engine, model, layout and date."""

from __future__ import annotations

import pytest

from gpuwise.calibrate.serving.recipes import recipe, throughput_test
from gpuwise.calibrate.serving.rows import model_of, system_of
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.simulate.front import front_of


def test_trtllm_waits_for_prompts_in_one_shape_of_small_groups() -> None:
    small, large = (EngineConfig("trtllm", "fp8", tp=tp) for tp in (4, 8))
    assert recipe("meta-llama/Llama-3.1-70B", "h200_sxm", small, 4, 1024, 1024, "2025-10-29").batch_wait_timeout_iters == 20
    assert recipe("meta-llama/Llama-3.1-70B", "h200_sxm", large, 4, 1024, 1024, "2025-10-29").batch_wait_timeout_iters == 0
    assert recipe("meta-llama/Llama-3.1-70B", "h200_sxm", small, 4, 8192, 1024, "2025-10-29").batch_wait_timeout_iters == 0


def test_deepseeks_groups_wait_for_each_other_under_tensorrt_llm() -> None:
    apart, together = (EngineConfig("trtllm", "fp8_block", tp=8 // n, attention_dp=n, moe_ep=8) for n in (8, 1))
    assert recipe("deepseek-ai/DeepSeek-R1", "h200_sxm", apart, 64, 1024, 1024, "2025-10-29").balance_timeout_iters == 60
    assert recipe("deepseek-ai/DeepSeek-R1", "h200_sxm", together, 64, 1024, 1024, "2025-10-29").balance_timeout_iters == 0


def test_steps_of_two_prompts_since_april() -> None:
    config = EngineConfig("vllm", "fp8_block", tp=4)
    before, after = (recipe("MiniMaxAI/MiniMax-M2.5", "b200_sxm", config, 8, 1024, 1024, d) for d in ("2026-03-20", "2026-04-20"))
    assert (before.max_num_batched_tokens, after.max_num_batched_tokens) == (None, 2048)
    assert (before.memory_share, after.memory_share) == (0.95, 0.9)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_scripts_that_were_not_read_are_the_engines_defaults(engine: str) -> None:
    assert recipe("Qwen/Qwen3-8B", "h200_sxm", EngineConfig(engine), 8, 1024, 1024, "") == Settings()


@pytest.mark.parametrize(
    ("model", "weights", "version", "shape", "sequences", "tokens"),
    [
        # 1.07 M tokens of an 8-bit cache are 538 requests of 2,000 tokens
        ("Llama-3.1-8B", "fp8", "1.0", (1000, 1000), 640, 2048),
        ("Llama-3.1-8B", "fp8", "1.0", (20000, 2000), 64, 20064),
        ("Llama-3.1-8B", "fp8", "0.17", (20000, 2000), 64, 2048),
        ("openai/gpt-oss-20b", "mxfp4", "1.2", (1024, 1024), 2048, 8192),
    ],
)
def test_a_throughput_test_takes_what_its_cache_holds(
    model: str, weights: str, version: str, shape: tuple[int, int], sequences: int, tokens: int
) -> None:
    arch = model_of(model)
    assert arch is not None
    config = EngineConfig("trtllm", weights, kv_dtype="fp8", version=version)
    options = throughput_test(arch, system_of("H100 SXM5 80GB", 1), config, *shape)
    assert (options.max_num_seqs, options.max_num_batched_tokens) == (sequences, tokens)
    assert options.chunked_prefill is (version == "0.17")
    assert options.graph_sizes is None or options.graph_sizes[-1] == sequences


@pytest.mark.parametrize(
    ("ranks", "shape", "sequences", "tokens"),
    [(1, (128, 128), 2048, 2048), (2, (128, 128), 256, 1024), (2, (2048, 2048), 2048, 1024), (8, (128, 128), 8192, 16384)],
)
def test_engines_of_0_14_are_built_as_its_bench_lists_them(
    ranks: int, shape: tuple[int, int], sequences: int, tokens: int
) -> None:
    arch = model_of("llama-3.1-70b")
    assert arch is not None
    config = EngineConfig("trtllm", "fp8", kv_dtype="fp8", tp=ranks, version="0.14")
    options = throughput_test(arch, system_of("H200 SXM 141GB", ranks), config, *shape)
    assert (options.max_num_seqs, options.max_num_batched_tokens, options.memory_share) == (sequences, tokens, 0.9)


@pytest.mark.parametrize("version", ["0.14", "1.2"])
def test_a_throughput_test_has_no_server(version: str) -> None:
    """A sequence costs it less than one that a server streams."""
    config = EngineConfig("trtllm", "fp8", kv_dtype="fp8", version=version)
    arch = model_of("llama-3.1-8b")
    assert arch is not None
    settings = throughput_test(arch, system_of("H100 SXM5 80GB", 1), config, 128, 128)
    assert settings.in_process
    served, called = (front_of(config, in_process=asked).costs for asked in (False, True))
    assert called.sequence_s < served.sequence_s
