"""How InferenceX starts its servers: the options of its launch scripts, where they are not the engine's defaults.

Read in SemiAnalysisAI/InferenceX (Apache-2.0): ``benchmarks/70b_*``, ``dsr1_fp8_h200*``, ``gptoss_*`` at 29 October 2025
(parent of 2582bce), ``benchmarks/single_node/*`` at 15 March and 25 April 2026. Rows measured by aiconfigurator's authors are of
other scripts, which are not public.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from gpuwise.serve.engine import EngineConfig
from gpuwise.serve.simulate import Settings

_LONG_STEPS = "2026-04"
"""Since then MiniMax and Kimi in 4 bits take steps of two prompts (25 April 2026; on 15 March the default)."""


def recipe(model: str, gpu: str, config: EngineConfig, users: int, prompt: int, output: int, measured: str) -> Settings:
    """Options of the server that ``users`` asked at once with prompts and answers of nominal lengths, at the date ``measured``;
    an empty one for scripts that were not read."""
    for engine, pattern, options in _RECIPES:
        if engine == config.engine and re.search(pattern, model, re.IGNORECASE):
            return options(gpu, config, users, prompt, output, measured)
    return Settings()


def _llama_vllm(gpu: str, config: EngineConfig, users: int, prompt: int, output: int, measured: str) -> Settings:
    return Settings(memory_share=0.9, max_num_batched_tokens=8192, max_num_seqs=512 if gpu.startswith("b200") else users)


def _gpt_oss_vllm(gpu: str, config: EngineConfig, users: int, prompt: int, output: int, measured: str) -> Settings:
    return Settings(memory_share=0.9, max_num_batched_tokens=8192, max_num_seqs=users)


def _minimax_vllm(gpu: str, config: EngineConfig, users: int, prompt: int, output: int, measured: str) -> Settings:
    block = 32 if config.weights == "fp8_block" else None
    if measured < _LONG_STEPS:
        return Settings(memory_share=0.95, block_size=block)
    return Settings(memory_share=0.9, block_size=block, max_num_batched_tokens=2 * prompt)


def _kimi_vllm(gpu: str, config: EngineConfig, users: int, prompt: int, output: int, measured: str) -> Settings:
    if config.expert_weights == "int4_wo":
        return Settings(memory_share=0.95, max_num_seqs=users)
    steps = 2 * prompt if measured >= _LONG_STEPS else None
    return Settings(memory_share=0.9, max_num_seqs=users, max_num_batched_tokens=steps)


def _llama_trtllm(gpu: str, config: EngineConfig, users: int, prompt: int, output: int, measured: str) -> Settings:
    settings = Settings(max_num_batched_tokens=16384, chunked_prefill=False)
    if (prompt, output) == (1024, 1024) and config.tp < 8:
        return replace(settings, batch_wait_timeout_iters=20, batch_wait_max_tokens_ratio=0.9)
    return settings


def _gpt_oss_trtllm(gpu: str, config: EngineConfig, users: int, prompt: int, output: int, measured: str) -> Settings:
    return Settings(max_num_batched_tokens=20000, max_num_seqs=users, memory_share=0.85, chunked_prefill=False)


def _deepseek_trtllm(gpu: str, config: EngineConfig, users: int, prompt: int, output: int, measured: str) -> Settings:
    return Settings(max_num_batched_tokens=(users + prompt + 127) // 64 * 64, memory_share=0.75, chunked_prefill=False)


def _deepseek_sglang(gpu: str, config: EngineConfig, users: int, prompt: int, output: int, measured: str) -> Settings:
    return Settings(max_num_batched_tokens=32768, memory_share=0.82, max_num_seqs=512)


_RECIPES: tuple[tuple[str, str, Callable[[str, EngineConfig, int, int, int, str], Settings]], ...] = (
    ("vllm", "llama-3.1-70b", _llama_vllm),
    ("vllm", "gpt-oss", _gpt_oss_vllm),
    ("vllm", "minimax", _minimax_vllm),
    ("vllm", "kimi", _kimi_vllm),
    ("trtllm", "llama-3.1-70b", _llama_trtllm),
    ("trtllm", "gpt-oss", _gpt_oss_trtllm),
    ("trtllm", "deepseek", _deepseek_trtllm),
    ("sglang", "deepseek", _deepseek_sglang),
)
