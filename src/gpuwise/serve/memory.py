"""Device memory of a model that serves: weights, key-value cache, workspace, on the fullest rank.

    device = W/t + U KV(C) + other

``W`` weights in their format, ``t`` tensor ranks, ``U`` sequences of ``C`` tokens whose cache takes ``KV(C)`` on a rank
(:mod:`gpuwise.predict.memory.kv_cache`). What an engine takes besides is what it logs when it starts
(:mod:`gpuwise.serve.simulate.pool_memory`), of llama.cpp the buffers of a batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.memory.context import context_bytes
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.predict.memory.kv_cache import PAGED, CacheLayout, kv_cache_bytes
from gpuwise.serve.engines.engine import Engine, EngineConfig, engine_of
from gpuwise.serve.formats import FORMATS, WIDE_BYTES, find_format, weight_bytes
from gpuwise.serve.iteration_kernels import mxfp4_kernel
from gpuwise.workload.transformer.parameters import count_parameters

MXFP4_TILES = {"marlin": (256, 128), "triton": (256, 1), "cutlass": (256, 256)}
"""Widths of which hidden and expert dimensions of a rank are padded to multiples, by kernel: vllm
model_executor/layers/quantization/mxfp4.py, create_weights; Triton's layout on Hopper by what it loads (64.38 GiB of
gpt-oss-120b, vllm issue 33155; Marlin 65.97, issue 23278; the checkpoint 60.8)."""
UNIFIED_SHARE, CUDA_UNIFIED_SHARE = 0.75, 0.8
"""Share of unified memory that a GPU may have. Three quarters: Metal's recommendedMaxWorkingSetSize on machines above 36 GB
(llama.cpp discussion 2182), and the 96 of 128 GB of a Ryzen AI Max+ 395 (AMD product page). CUDA has no limit of its own, only
what the system leaves: 102 of 128 GB free at start on a DGX Spark (MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks issue 47; vLLM's
recipe takes 103: vllm-project/recipes 632), 51.6 of 64 on a Jetson Orin (ollama issue 3406)."""


@dataclass(frozen=True, slots=True)
class ServingMemory:
    """Bytes on the fullest rank. ``most`` is what it may be."""

    weights: float
    cache: float
    workspace: float
    most: float

    @property
    def total(self) -> float:
        """Bytes of the fullest rank."""
        return self.weights + self.cache + self.workspace

    @property
    def fits(self) -> bool:
        """Whether the total is within what the device lends."""
        return self.total <= self.most


def cache_layout(weights: str) -> CacheLayout:
    """How the program that runs weights of this format lays the cache out. Raises UnknownNameError."""
    return engine_of(find_format(weights).name).cache


@lru_cache(maxsize=1024)
def sequence_bytes(arch: Architecture, context: int, tp: int, kv_dtype: str) -> float:
    """Cache of one sequence on a rank."""
    return float(kv_cache_bytes(arch, context, replace(PAGED, tp=tp, dtype=kv_dtype)))


@lru_cache(maxsize=1024)
def rank_weights(arch: Architecture, config: EngineConfig, accelerator: Accelerator | None = None) -> float:
    """Dense weights over the tensor group, experts over all ranks of a stage, as wide as the kernels of ``accelerator`` have
    them (None: as the checkpoint); of several pipeline stages the fullest's."""
    count = count_parameters(arch)
    experts = count.experts * FORMATS[config.expert_weights or config.weights].bytes_per_weight
    dense = weight_bytes(arch, config.weights, config.expert_weights) - experts
    if accelerator is not None:
        experts *= expert_padding(arch, config, accelerator)
    if config.pp == 1 or config.program.in_turn:
        return dense / config.tp + experts / (config.moe_tp * config.moe_ep)
    outside = (count.total - count.layers) * WIDE_BYTES
    layers = (dense - outside) / config.tp + experts / (config.moe_tp * config.moe_ep)
    ends = stage_ends(arch)
    parts = layers_of_stages(arch.n_layers, config.pp)
    held = [n / arch.n_layers * layers for n in parts]
    held[0] += ends[0] * WIDE_BYTES / config.tp
    held[-1] += ends[1] * WIDE_BYTES / config.tp
    return max(held)


def expert_padding(arch: Architecture, config: EngineConfig, accelerator: Accelerator) -> float:
    """Padding of MXFP4 experts beyond their checkpoint: their kernels use whole tiles (gpt-oss: 2,880 wide)."""
    if arch.moe is None or (config.expert_weights or config.weights) != "mxfp4":
        return 1.0
    hidden, ffn = arch.moe.latent or arch.hidden, arch.moe.expert_ffn / config.moe_tp
    wide, inner = MXFP4_TILES[mxfp4_kernel(accelerator, config.program)]
    return math.ceil(hidden / wide) * wide * math.ceil(ffn / inner) * inner / (hidden * ffn)


def stage_ends(arch: Architecture) -> tuple[int, int]:
    """Weights of the embedding tables in the first stage and the head in the last, a copy if the model ties them."""
    count = count_parameters(arch)
    return count.embedding + count.stem, count.head + count.tied_head + count.final_norm


def layers_of_stages(n_layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage: equal numbers, the remainder one each from the last but one backwards (vllm distributed/utils.py,
    get_pp_indices)."""
    each, rest = divmod(n_layers, stages)
    return tuple(each + (stages - 1 - rest <= i < stages - 1) for i in range(stages))


def local_memory(
    engine: Engine, arch: Architecture, device: Accelerator | float, weights: str, *, n_devices: int, context: int
) -> ServingMemory:
    """Bytes on one of ``n_devices`` that hold layers in turn under a local ``engine``, one sequence of ``context`` tokens.
    ``device`` is an accelerator, or the bytes that the program can have of one."""
    cache = float(kv_cache_bytes(arch, context, replace(engine.cache, stages=n_devices)))
    workspace = engine.prompt_batch * engine.buffer_bytes * (arch.vocab + 4 * arch.hidden)
    most = most_bytes(device) if isinstance(device, Accelerator) else device
    return ServingMemory(weight_bytes(arch, weights) / n_devices, cache, workspace, most)


def unified_bytes(accelerator: Accelerator) -> float:
    """What the GPU can have of the memory that it shares with its host."""
    return accelerator.memory_bytes * (CUDA_UNIFIED_SHARE if accelerator.vendor == "NVIDIA" else UNIFIED_SHARE)


def most_bytes(accelerator: Accelerator, free_bytes: float = math.inf) -> float:
    """What a local program can have of an accelerator with ``free_bytes`` free, without what its own context takes."""
    if accelerator.unified_memory:
        return min(unified_bytes(accelerator), free_bytes)
    return min(usable_bytes(accelerator), free_bytes) - context_bytes(accelerator)
