"""Options of published launch scripts, by engine, model, layout and date."""

from __future__ import annotations

import pytest

from gpuwise.calibrate.serving.recipes import recipe
from gpuwise.serve.engine import EngineConfig
from gpuwise.serve.simulate import Settings


def test_trtllm_waits_for_prompts_in_one_shape_of_small_groups() -> None:
    small, large = (EngineConfig("trtllm", "fp8", tp=tp) for tp in (4, 8))
    assert recipe("meta-llama/Llama-3.1-70B", "h200_sxm", small, 4, 1024, 1024, "2025-10-29").batch_wait_timeout_iters == 20
    assert recipe("meta-llama/Llama-3.1-70B", "h200_sxm", large, 4, 1024, 1024, "2025-10-29").batch_wait_timeout_iters == 0
    assert recipe("meta-llama/Llama-3.1-70B", "h200_sxm", small, 4, 8192, 1024, "2025-10-29").batch_wait_timeout_iters == 0


def test_steps_of_two_prompts_since_april() -> None:
    config = EngineConfig("vllm", "fp8_block", tp=4)
    before, after = (recipe("MiniMaxAI/MiniMax-M2.5", "b200_sxm", config, 8, 1024, 1024, d) for d in ("2026-03-20", "2026-04-20"))
    assert (before.max_num_batched_tokens, after.max_num_batched_tokens) == (None, 2048)
    assert (before.memory_share, after.memory_share) == (0.95, 0.9)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_scripts_that_were_not_read_are_the_engines_defaults(engine: str) -> None:
    assert recipe("Qwen/Qwen3-8B", "h200_sxm", EngineConfig(engine), 8, 1024, 1024, "") == Settings()
