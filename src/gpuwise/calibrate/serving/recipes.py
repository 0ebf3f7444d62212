"""How servers of published tests were started: options that are not the engine's defaults.

InferenceX: the launch scripts of SemiAnalysisAI/InferenceX (Apache-2.0), ``benchmarks/70b_*``, ``dsr1_fp8_h200*``, ``gptoss_*``
at 29 October 2025 (parent of 2582bce), ``benchmarks/single_node/*`` at 15 March and 25 April 2026. Rows measured by
aiconfigurator's authors are of other scripts, which are not public.

TensorRT-LLM's throughput tables: ``trtllm-bench throughput`` on a data set of one shape (its perf-overview of 0.14, 0.17, 1.0 and
1.2, "reproducing benchmarked results").
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.serve.engines.engine import EngineConfig, version_number
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.formats import weight_bytes

_LONG_STEPS = "2026-04"
"""Since then MiniMax and Kimi in 4 bits take steps of two prompts (25 April 2026; on 15 March the default)."""

_LARGE_GRAPHS = 2048
"""Tokens of the largest graph (``--max-cudagraph-capture-size``) of gpt-oss's scripts, and of MiniMax's and Kimi's in 4 bits
since then."""


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
    return Settings(memory_share=0.9, max_num_batched_tokens=8192, max_num_seqs=users, graph_most=_LARGE_GRAPHS)


def _minimax_vllm(gpu: str, config: EngineConfig, users: int, prompt: int, output: int, measured: str) -> Settings:
    block = 32 if config.weights == "fp8_block" else None
    if measured < _LONG_STEPS:
        return Settings(memory_share=0.95, block_size=block)
    return Settings(memory_share=0.9, block_size=block, max_num_batched_tokens=2 * prompt, graph_most=_LARGE_GRAPHS)


def _kimi_vllm(gpu: str, config: EngineConfig, users: int, prompt: int, output: int, measured: str) -> Settings:
    if config.expert_weights == "int4_wo":
        return Settings(memory_share=0.95, max_num_seqs=users)
    if measured < _LONG_STEPS:
        return Settings(memory_share=0.9, max_num_seqs=users)
    return Settings(memory_share=0.9, max_num_seqs=users, max_num_batched_tokens=2 * prompt, graph_most=_LARGE_GRAPHS)


def _llama_trtllm(gpu: str, config: EngineConfig, users: int, prompt: int, output: int, measured: str) -> Settings:
    settings = Settings(max_num_batched_tokens=16384, chunked_prefill=False)
    if (prompt, output) == (1024, 1024) and config.tp < 8:
        return replace(settings, batch_wait_timeout_iters=20, batch_wait_max_tokens_ratio=0.9)
    return settings


def _gpt_oss_trtllm(gpu: str, config: EngineConfig, users: int, prompt: int, output: int, measured: str) -> Settings:
    return Settings(max_num_batched_tokens=20000, max_num_seqs=users, memory_share=0.85, chunked_prefill=False)


def _deepseek_trtllm(gpu: str, config: EngineConfig, users: int, prompt: int, output: int, measured: str) -> Settings:
    balance = 60 if config.attention_dp > 1 else 0  # attention_dp_config: enable_balance, timeout_iters 60
    tokens = (users + prompt + 127) // 64 * 64
    return Settings(max_num_batched_tokens=tokens, memory_share=0.75, chunked_prefill=False, balance_timeout_iters=balance)


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


# --- trtllm-bench
# ----------------------------------------------------------------------------------------------

REQUESTS = {
    (128, 128): 30000,
    (128, 4096): 1500,
    (1000, 2000): 1500,
    (2048, 2048): 1500,
    (5000, 500): 1500,
    (8192, 1024): 1500,
    (1024, 8192): 1500,
    (20000, 2000): 1000,
    (32768, 1024): 1000,
    (1024, 32768): 1000,
}
"""Number of requests of a throughput test by prompt and answer."""
USUAL_REQUESTS = 3000
PYTORCH = "0.19"
"""Since then the tables are of the PyTorch backend."""
_CACHE_SHARE = 0.95
"""Share of free memory: "in many cases", 0.9 where that ran out of memory."""
_UNTUNED = ("mxfp4",)
"""Formats of weights whose options are not worked out but the defaults (bench/build/build.py, ``TUNED_QUANTS``)."""
_GRAPHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048, 4096, 8192)
"""``cuda_graph_config.batch_sizes`` of the tables since 1.0; the engine adds the most sequences it runs (model_engine.py,
``_filter_cuda_graph_batch_sizes``)."""
ENGINES_BUILT = {
    ("Llama 3.1 8B", 1): (2048, 8192),
    ("Llama 3.1 70B", 1): (2048, 2048),
    ("Llama 3.1 70B", 2): (256, 1024),
    ("Llama 3.1 70B", 4): (2048, 1024),
    ("Llama 3.1 70B", 8): (8192, 16384),
    ("Mistral 7B", 1): (4098, 8192),
    ("Mixtral 8x7B", 2): (2048, 3072),
    ("Mixtral 8x7B", 4): (8192, 8192),
}
"""Sequences and tokens of a step that ``trtllm-bench build`` of 0.14 takes by model and tensor parallelism
(bench/build/benchmark_config.yml at 8fcf9fc); two ranks of 70B and requests of 4,096 tokens, 2,048 sequences."""
_BUILT_UNTIL = "0.15"
_BUILT_CACHE_SHARE = 0.9
"""The default of its ``throughput``, which that page's command leaves alone (bench/benchmark/dataclasses.py)."""


def throughput_test(arch: Architecture, system: System, config: EngineConfig, prompt: int, output: int) -> Settings:
    """Options with which ``trtllm-bench throughput`` starts the engine for prompts and answers of one length.

    The number of sequences that fit in its own estimate of the cache, and steps of their tokens (bench/build/tuning.py,
    ``calc_engine_setting``, ``finetune_setting``: a latent cache counts as one of all heads), without a server; the PyTorch
    backend does not cut prompts, and has room for one beside all sequences (bench/benchmark/utils/general.py,
    ``get_settings``).
    """
    ranks = config.ranks
    chunked = version_number(config.version or PYTORCH) < version_number(PYTORCH)
    old = version_number(config.version or PYTORCH) < version_number(_BUILT_UNTIL)
    built = ENGINES_BUILT.get((arch.name, ranks)) if old else None
    if built is not None:
        sequences, tokens = built if (*built, prompt + output) != (256, 1024, 4096) else (2048, 1024)
    elif (config.expert_weights or config.weights) in _UNTUNED:
        sequences, tokens = 2048, 8192
    else:
        element = 1.0 if config.kv_dtype == "fp8" else 2.0
        heads, width = (arch.kv_heads, arch.head_dim) if arch.mla is None else (arch.heads, arch.hidden // arch.heads)
        token = 2.0 * arch.n_layers * max(ranks, heads) * width * element
        room = ranks * usable_bytes(system.accelerator) - weight_bytes(arch, config.weights, config.expert_weights)
        most = min(max(room, 0.0) * _CACHE_SHARE / (token * (prompt + output)), 4096.0)
        sequences = max(_up(most, 32 if most < 256 else 128 if most < 1024 else 256), 64)
        wanted = min(most * (1.0 + prompt / output), 32768.0)
        tokens = max(_up(wanted, 256 if wanted < 4096 else 512 if wanted < 8192 else 1024), 2048)
    return Settings(
        max_num_seqs=sequences,
        max_num_batched_tokens=tokens if chunked else max(tokens, prompt + sequences),
        memory_share=_BUILT_CACHE_SHARE if old else _CACHE_SHARE,
        chunked_prefill=chunked,
        prefix_caching=False,
        max_model_len=prompt + output,
        graph_sizes=None if chunked else (*(size for size in _GRAPHS if size < sequences), sequences),
        in_process=True,
    )


def _up(value: float, multiple: int) -> int:
    return multiple * math.ceil(value / multiple)
