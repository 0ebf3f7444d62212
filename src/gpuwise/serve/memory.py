"""Device memory of a model that serves: weights, key-value cache, workspace, on the fullest rank.

    device = W/t + U KV(C) + A + context

``W`` weights in their format, ``t`` tensor ranks, ``U`` sequences of ``C`` tokens whose cache takes ``KV(C)`` on a rank
(:mod:`gpuwise.predict.memory.kv_cache`), ``A`` the activations of the largest batch of prompt tokens with the logits of every
sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.memory.context import context_bytes
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.predict.memory.kv_cache import LLAMA_CPP, VLLM, CacheLayout, kv_cache_bytes
from gpuwise.serve.engine import EngineConfig
from gpuwise.serve.formats import FORMATS, find_format, weight_bytes
from gpuwise.workload.transformer.parameters import count_parameters

ENGINE_SHARE = 0.9
"""Share of the device an engine takes (vLLM's default gpu_memory_utilization, docs.vllm.ai engine arguments)."""
PROMPT_BATCH_TOKENS = 8192
"""Prompt tokens an engine works on at once (vLLM's max_num_batched_tokens for a server on large devices)."""
LOCAL_BATCH_TOKENS = 512
"""The same for llama.cpp (n_ubatch, llama.cpp tools/server/README.md)."""
UNIFIED_SHARE = 0.75
"""Of memory shared with the host a GPU may pin three quarters: Metal's recommendedMaxWorkingSetSize on machines above
36 GB (llama.cpp discussion 2182), and the 96 of 128 GB of a Ryzen AI Max+ 395 (AMD product page)."""


@dataclass(frozen=True, slots=True)
class ServingMemory:
    """Bytes on the fullest rank. ``most`` is what it may be."""

    weights: float
    cache: float
    workspace: float
    most: float

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.workspace

    @property
    def fits(self) -> bool:
        return self.total <= self.most


def cache_layout(weights: str) -> CacheLayout:
    """How the program that runs weights of this format lays the cache out. Raises UnknownNameError."""
    return LLAMA_CPP if find_format(weights).of_llama_cpp else VLLM


def engine_memory(
    arch: Architecture, accelerator: Accelerator, config: EngineConfig, *, sequences: int, context: int
) -> ServingMemory:
    """Bytes on a rank of a serving engine (vLLM, SGLang, TensorRT-LLM) that holds ``sequences`` of ``context`` tokens."""
    each = _sequence_bytes(arch, context, config.tp, config.kv_dtype)
    mine = -(-sequences // config.attention_dp)
    ffn = arch.ffn if arch.moe is None else arch.moe.expert_ffn * arch.moe.n_active + arch.moe.shared_ffn
    activations = PROMPT_BATCH_TOKENS * 2.0 * (2 * arch.hidden + 2 * ffn / config.tp)
    logits = mine * arch.vocab * 4.0
    unified = accelerator.unified_memory
    most = accelerator.memory_bytes * UNIFIED_SHARE if unified else usable_bytes(accelerator) * ENGINE_SHARE
    return ServingMemory(rank_weights(arch, config), mine * each, activations + logits + context_bytes(accelerator), most)


@lru_cache(maxsize=1024)
def _sequence_bytes(arch: Architecture, context: int, tp: int, kv_dtype: str) -> float:
    """Cache of one sequence on a rank."""
    return float(kv_cache_bytes(arch, context, replace(VLLM, tp=tp, dtype=kv_dtype)))


@lru_cache(maxsize=1024)
def rank_weights(arch: Architecture, config: EngineConfig) -> float:
    """Dense weights over the tensor group, experts over all ranks."""
    narrow = FORMATS[config.expert_weights or config.weights]
    experts = count_parameters(arch).experts * narrow.bytes_per_weight
    dense = weight_bytes(arch, config.weights, config.expert_weights) - experts
    return dense / config.tp + experts / (config.moe_tp * config.moe_ep)


def llama_cpp_memory(
    arch: Architecture, accelerator: Accelerator, weights: str, *, n_devices: int, context: int
) -> ServingMemory:
    """Bytes on one of ``n_devices`` that hold layers in turn (llama.cpp), one sequence of ``context`` tokens."""
    cache = float(kv_cache_bytes(arch, context, replace(LLAMA_CPP, stages=n_devices)))
    workspace = LOCAL_BATCH_TOKENS * 4.0 * (arch.vocab + 4 * arch.hidden)
    if accelerator.unified_memory:
        most = accelerator.memory_bytes * UNIFIED_SHARE
    else:
        most = usable_bytes(accelerator) - context_bytes(accelerator)
    return ServingMemory(weight_bytes(arch, weights) / n_devices, cache, workspace, most)
