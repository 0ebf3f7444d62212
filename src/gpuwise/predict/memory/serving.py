"""Device memory of a model that serves: weights, key-value cache, workspace, on the fullest rank.

    device = W/t + U k(C) + A + context

``W`` weights in their format with the embeddings and head in 16 bits, ``U`` sequences of ``C`` tokens, ``k`` the cache
of one of them on a rank (:mod:`gpuwise.predict.memory.kv_cache`), ``t`` tensor ranks, ``A`` the activations of the
largest batch of prompt tokens with the logits of every sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.inference import WEIGHT_BYTES
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.predict.memory.kv_cache import LLAMA_CPP, VLLM, kv_cache_bytes
from gpuwise.predict.single_stream import FORMAT_BITS
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


def weight_bytes(arch: Architecture, bytes_each: float) -> float:
    """All weights: the matrices of the layers at ``bytes_each``, tables, head and norms in 16 bits."""
    count = count_parameters(arch)
    wide = count.total - count.layers
    return count.layers * bytes_each + wide * max(2.0, bytes_each)


def engine_memory(
    arch: Architecture, accelerator: Accelerator, weights: str, *, tp: int, sequences: int, context: int
) -> ServingMemory:
    """Bytes on one of ``tp`` ranks of a serving engine (vLLM, SGLang, TensorRT-LLM) with weights of ``WEIGHTS``."""
    cache = sequences * float(kv_cache_bytes(arch, context, replace(VLLM, tp=tp)))
    ffn = arch.ffn if arch.moe is None else arch.moe.expert_ffn * arch.moe.n_active + arch.moe.shared_ffn
    activations = PROMPT_BATCH_TOKENS * 2.0 * (2 * arch.hidden + 2 * ffn / tp)
    logits = sequences * arch.vocab * 4.0
    context_bytes = float(load_json("memory")["context_bytes"]["lazy"])
    share = UNIFIED_SHARE if accelerator.unified_memory else ENGINE_SHARE
    return ServingMemory(
        weight_bytes(arch, WEIGHT_BYTES[weights]) / tp,
        cache,
        activations + logits + context_bytes,
        accelerator.memory_bytes * UNIFIED_SHARE if accelerator.unified_memory else usable_bytes(accelerator) * share,
    )


def local_memory(arch: Architecture, accelerator: Accelerator, weights: str, *, n_devices: int, context: int) -> ServingMemory:
    """Bytes on one of ``n_devices`` that hold layers in turn (llama.cpp) with weights of ``FORMAT_BITS``."""
    whole = count_parameters(arch).total * FORMAT_BITS[weights] / 8.0
    cache = float(kv_cache_bytes(arch, context, replace(LLAMA_CPP, stages=n_devices)))
    workspace = LOCAL_BATCH_TOKENS * 4.0 * (arch.vocab + 4 * arch.hidden)
    if accelerator.unified_memory:
        most = accelerator.memory_bytes * UNIFIED_SHARE
    else:
        most = usable_bytes(accelerator) - float(load_json("memory")["context_bytes"]["lazy"])
    return ServingMemory(whole / n_devices, cache, workspace, most)
