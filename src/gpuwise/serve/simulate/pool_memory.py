"""Blocks of key-value cache an engine finds room for when it starts.

    pool = share total - weights - activations - outside torch - graphs (where its version counts them)

``activations`` is the peak of the engine's own profiling run: the sampler's logits of as many sequences as may run, in fp32 with
their copies, or the layers' buffers for a whole batch of prompt tokens, whichever is more; vLLM 0.19 logged both parts of 59
starts on an H100 (``coefficients/serving/pool.json``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.predict.memory.kv_cache import VLLM, kv_page_bytes, kv_pool_tokens
from gpuwise.serve.engine import EngineConfig
from gpuwise.serve.memory import rank_weights
from gpuwise.serve.simulate.settings import Settings
from gpuwise.units import GIB


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """Bytes on the fullest rank, and what its cache holds."""

    requested: float
    weights: float
    activations: float
    outside_torch: float
    graphs: float
    graphs_counted: bool
    pool: float
    tokens: int
    """As the engine logs them: every layer counted as if it kept all."""
    blocks: int

    @property
    def other(self) -> float:
        """All but weights and cache."""
        return self.activations + self.outside_torch + (self.graphs if self.graphs_counted else 0.0)


def pool_memory(
    arch: Architecture, accelerator: Accelerator, config: EngineConfig, options: Settings, graphs_in_budget: bool
) -> PoolMemory:
    """What the engine has for its cache. Raises InputError where nothing is left."""
    c = load_json("pool")
    assert options.max_num_seqs is not None and options.block_size is not None and options.memory_share is not None
    assert options.max_num_batched_tokens is not None
    requested = usable_bytes(accelerator) * options.memory_share
    weights = rank_weights(arch, config)
    ffn = arch.ffn if arch.moe is None else arch.moe.expert_ffn * arch.moe.n_active + arch.moe.shared_ffn
    layer = options.max_num_batched_tokens * 2.0 * (c["hidden_copies"] * arch.hidden + c["ffn_copies"] * ffn / config.tp)
    sampler = c["logit_bytes"] * options.max_num_seqs * arch.vocab
    activations = max(sampler, layer) + c["activation_base_bytes"] + (c["expert_bytes"] if arch.moe is not None else 0.0)
    outside = c["outside_bytes"] + (c["outside_group_bytes"] if config.tp * config.attention_dp > 1 else 0.0)
    graphs = c["graph_base_bytes"] + c["graph_layer_bytes"] * arch.n_layers
    pool = requested - weights - activations - outside - (graphs if graphs_in_budget else 0.0)
    layout = replace(VLLM, tp=config.tp, dtype=config.kv_dtype, page_tokens=options.block_size)
    if pool < kv_page_bytes(arch, layout):
        raise InputError(
            f"{arch.id} does not fit: {-pool / GIB + 0.01:.1f} GiB short on {accelerator.name} before any cache",
            hint="split it over more GPUs or narrow its weights",
        )
    tokens = int(kv_pool_tokens(arch, pool, layout))
    return PoolMemory(
        requested, weights, activations, outside, graphs, graphs_in_budget, pool, tokens, max(tokens // options.block_size - 1, 1)
    )
