"""Number of key-value cache blocks that an engine allocates at start.

    pool = share total - weights - activations - non-PyTorch - graphs (where its version counts them)      vLLM
    pool = share total - weights - non-PyTorch                                                              SGLang
    pool = share (total - weights - activations - non-PyTorch - graphs)                                     TensorRT-LLM

``activations`` is the peak of the engine's own profiling run: the sampler's logits of the maximum number of sequences, in fp32
with their copies, or a layer's buffers for a whole step of ``T`` prompt tokens, whichever is more, beside the experts' buffers,
which stay allocated; vLLM 0.19 logged 59 starts on an H100 (``coefficients/serving/pool.json``).

    layer   = 2 T (3 H + 3 F/t)                 input, residual and output; gate, up and their product (models/llama.py)
    experts = 2 T k (max(f, H) + max(2 f, H))   both buffers of k routed experts a token (layers/fused_moe/fused_moe.py)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from gpuwise.errors import NoRoomError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.predict.memory.kv_cache import PAGED, CacheLayout, kv_page_bytes, kv_pages, kv_pool_tokens, state_bytes
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import EngineRules, Settings
from gpuwise.serve.formats import WIDE_BYTES
from gpuwise.serve.memory import rank_weights, unified_bytes
from gpuwise.serve.simulate.adapters import adapter_bytes
from gpuwise.serve.simulate.drafts import drafter_bytes
from gpuwise.serve.simulate.kernel_steps import graph_sizes
from gpuwise.serve.simulate.slot_steps import slot_memory
from gpuwise.units import GIB

_USUAL_GRAPHS = 512
"""Largest batch with a graph in the logged starts; with fewer sequences an engine captures no batch above twice that number
(vllm config/vllm.py, _set_cudagraph_sizes)."""

HIDDEN_COPIES, FFN_COPIES = 3.0, 3.0
"""Rows as wide as the model and as its MLP that are alive at once in a layer of prompt tokens."""


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Bytes on the fullest rank; ``pool`` is what is left for the cache, below zero where the rest does not fit."""

    requested: float
    weights: float
    activations: float
    outside_torch: float
    graphs: float
    graphs_counted: bool

    @property
    def other(self) -> float:
        """All but weights and cache."""
        return self.activations + self.outside_torch + (self.graphs if self.graphs_counted else 0.0)

    @property
    def pool(self) -> float:
        """Bytes left for the cache of what the engine may take: its share less weights and what else is allocated."""
        return self.requested - self.weights - self.other


@dataclass(frozen=True, slots=True)
class WindowedPool:
    """A pool of ``pages`` pages for a model of which some layers have a window: what is behind it goes back to the pool, but
    for what a step of ``step_tokens`` computes at once (vllm v1/core/single_type_kv_cache_manager.py, remove_skipped_blocks)."""

    arch: Architecture
    layout: CacheLayout
    pages: float
    step_tokens: int

    def blocks_of(self, lengths: ArrayLike, weights: ArrayLike) -> int:
        """Same as :meth:`PoolMemory.blocks_of`."""
        size = self.layout.page_tokens
        tokens, weight = np.broadcast_arrays(np.maximum(np.asarray(lengths, np.float64), 1.0), np.asarray(weights, np.float64))
        pages = float((kv_pages(self.arch, tokens, self.layout) * weight).sum())
        blocks = float((np.ceil(tokens / size) * weight).sum())
        far = 1024.0 * size * -(-(self.arch.window or size) // size)
        of_one_block, *ends = (float(kv_pages(self.arch, t, self.layout)) for t in (size, far, 2.0 * far))
        windows = of_one_block - (ends[1] - ends[0]) / (far / size)
        return int(max(self.pages - windows * self.step_tokens / size, 0.0) * blocks / pages)


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """``parts`` of the fullest rank, and what its cache holds."""

    parts: EngineParts
    tokens: int
    """Number in the engine's log: every layer counted as if it cached all tokens."""
    blocks: int
    windowed: WindowedPool | None = None
    """None: no layer frees the blocks behind its window."""
    sequences: int | None = None
    """Sequences that fit at once, for a model with a state per sequence and no token cache."""

    def blocks_of(self, lengths: ArrayLike, weights: ArrayLike = 1.0) -> int:
        """Blocks for sequences of ``lengths`` tokens, in flight in proportion to ``weights``, each of which takes one for every
        ``block_size`` of its tokens."""
        return self.blocks if self.windowed is None else max(self.blocks, self.windowed.blocks_of(lengths, weights))

    @property
    def pool(self) -> float:
        """Bytes of the KV cache."""
        return self.parts.pool

    @property
    def other(self) -> float:
        """All but weights and cache."""
        return self.parts.other

    @property
    def weights(self) -> float:
        """Bytes of a rank's weights."""
        return self.parts.weights

    @property
    def requested(self) -> float:
        """The engine's share of the device."""
        return self.parts.requested


def engine_parts(
    arch: Architecture, accelerator: Accelerator, config: EngineConfig, options: Settings, rules: EngineRules
) -> EngineParts:
    """Memory an engine uses before its cache, by the rule of its pool. Memory shared with a host is not all available to the
    engine."""
    c = load_json("pool")
    assert options.max_num_seqs is not None and options.memory_share is not None and options.max_num_batched_tokens is not None
    requested = usable_bytes(accelerator) * options.memory_share
    if accelerator.unified_memory:
        requested = min(requested, unified_bytes(accelerator))
    weights = rank_weights(arch, config, accelerator)
    if options.adapters is not None:  # states for the maximum number of sequences are allocated when the engine starts
        weights += options.adapters.at_once * adapter_bytes(arch, options.adapters.rank, config.tp)
    activations = _activation_bytes(arch, config, options, rules)
    outside = c["outside_bytes"] + (c["outside_group_bytes"] if config.tp * config.attention_dp > 1 else 0.0)
    if options.drafts is not None:
        weights += drafter_bytes(arch, config, options.drafts)[0]
    captured = (
        0.0
        if options.eager
        else len(graph_sizes(min(2 * options.max_num_seqs, options.graph_most or _USUAL_GRAPHS)))
        / len(graph_sizes(_USUAL_GRAPHS))
    )
    graphs = (c["graph_base_bytes"] + c["graph_layer_bytes"] * arch.n_layers / config.pp) * captured
    if rules.pool == "static":  # what is beside weights and cache comes out of the rest of the device
        return EngineParts(requested, weights, 0.0, outside, graphs, False)
    parts = EngineParts(requested, weights, activations, outside, graphs, rules.graphs_in_budget)
    if rules.pool == "free":
        used = weights + parts.other
        whole = requested / options.memory_share
        return replace(parts, requested=used + max(whole - used, 0.0) * options.memory_share)
    return parts


def _activation_bytes(arch: Architecture, config: EngineConfig, options: Settings, rules: EngineRules) -> float:
    """Peak of the engine's profiling run: a whole step of prompt tokens, then the sampler on every sequence."""
    c, moe = load_json("pool"), arch.moe
    assert options.max_num_seqs is not None and options.max_num_batched_tokens is not None
    step = WIDE_BYTES * options.max_num_batched_tokens
    ffn = arch.ffn if moe is None else moe.shared_ffn
    layer = step * (HIDDEN_COPIES * arch.hidden + FFN_COPIES * ffn / config.tp)
    sampler = (rules.logit_bytes or c["logit_bytes"]) * options.max_num_seqs * arch.vocab
    experts = 0.0
    if moe is not None:
        hidden, inner = moe.latent or arch.hidden, moe.expert_ffn / config.moe_tp
        experts = step * moe.n_active * (max(inner, hidden) + max(2 * inner, hidden))
    return max(sampler, layer) + experts + float(c["activation_base_bytes"])


def pool_memory(
    arch: Architecture, accelerator: Accelerator, config: EngineConfig, options: Settings, rules: EngineRules
) -> PoolMemory:
    """Memory of the engine's cache. Raises NoRoomError if nothing is left."""
    assert options.block_size is not None
    if rules.pool == "slots":
        memory = slot_memory(arch, accelerator, config, options)
        tokens = (options.max_num_seqs or 1) * (options.max_model_len or arch.max_seq_len)
        return PoolMemory(EngineParts(memory.total, memory.weights, memory.workspace, 0.0, 0.0, False), tokens, tokens)
    parts = engine_parts(arch, accelerator, config, options, rules)
    pool = parts.pool
    shared = 1.0 if options.drafts is None else 1.0 + drafter_bytes(arch, config, options.drafts)[1]  # with the drafter's
    cached = pool / shared
    layout = replace(PAGED, tp=config.tp, stages=config.pp, dtype=config.kv_dtype, page_tokens=options.block_size)
    if pool < kv_page_bytes(arch, layout):
        raise NoRoomError(
            f"{arch.id} does not fit: {-pool / GIB + 0.01:.1f} GiB short on {accelerator.name} before any cache",
            hint="split it over more GPUs or narrow its weights",
            short_bytes=-pool,
        )
    if not arch.n_attention_layers:  # states alone
        sequences = int(cached // state_bytes(arch, layout))
        tokens = sequences * arch.max_seq_len
        return PoolMemory(parts, tokens, -(-tokens // options.block_size), sequences=sequences)
    tokens = int(kv_pool_tokens(arch, cached, layout))
    windowed = None
    if rules.windows and arch.window is not None:
        windowed = WindowedPool(arch, layout, cached // kv_page_bytes(arch, layout) - 1, options.max_num_batched_tokens or 0)
    return PoolMemory(parts, tokens, max(tokens // options.block_size - 1, 1), windowed)
