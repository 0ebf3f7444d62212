"""Device memory of a model that serves: weights, key-value cache, workspace, on the fullest rank.

    device = W/t + U KV(C) + other

``W`` weights in their format, ``t`` tensor ranks, ``U`` sequences of ``C`` tokens whose cache takes ``KV(C)`` on a rank
(:mod:`gpuwise.predict.memory.kv_cache`). What an engine takes besides is what it logs when it starts
(:mod:`gpuwise.serve.simulate.pool_memory`), of llama.cpp the buffers of a batch.
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


@lru_cache(maxsize=1024)
def sequence_bytes(arch: Architecture, context: int, tp: int, kv_dtype: str) -> float:
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
