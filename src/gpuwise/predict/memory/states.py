"""Bytes of weights, gradients and optimizer states on one rank of each pipeline stage, for columns of strategies.

With P parameters on the rank before state sharding, over D data and context ranks (ZeRO: arXiv 1910.02054):

========  ============  =============  =====================
sharding  weights       gradients      master and optimizer
========  ============  =============  =====================
none      P w           P g            P (m + s)
zero1     P w           P g            P (m + s) / D
zero2     P w           P g / D        P (m + s) / D
zero3     P w / D       P g / D        P (m + s) / D
hybrid    as zero3, over the ranks of one shard group (D is a chosen group's with the others as well)
========  ============  =============  =====================

Weights stored in 8 bits with their transpose (Megatron's fp8-param-gather) take as many bytes as in bf16.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.columns import Columns
from gpuwise.predict.parallel.pipeline import copies
from gpuwise.predict.parallel.shards import Stages
from gpuwise.workload.optimizer import PAGED, autocasts, frozen_bytes, parameter_bytes
from gpuwise.workload.stacks.memory import MemoryRules
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import RECOMPUTES, SHARDINGS
from gpuwise.workload.transformer.parameters import ParameterCount, adapter_parameters, count_parameters

F64 = NDArray[np.float64]
NONE, ZERO2, ZERO3, HYBRID = (SHARDINGS.index(s) for s in ("none", "zero2", "zero3", "hybrid"))


@dataclass(frozen=True, slots=True)
class StageStates:
    """One stage's bytes, arrays that broadcast to the columns' shape.

    ``gradients``: all gradients. ``half_gradients``: those in the compute format beside wider accumulated ones. ``gathered``:
    the two unsharded layers of fully sharded weights that are present at once, ``gathered_head`` the output projection,
    ``kept`` weights that stay gathered from the forward to the backward, ``scattered`` one layer's unsharded gradients.
    ``buckets``: gradient communication buffers, and the shards that were copied from the host to be gathered. ``updated``:
    temporaries of the update; ``contiguous`` those of them in one piece, which do not fit into fragments left by activations and
    are reserved in addition.
    """

    weights: F64
    gradients: F64
    half_gradients: F64
    optimizer: F64
    gathered: F64
    gathered_head: F64
    kept: F64
    scattered: F64
    buckets: F64
    updated: F64
    contiguous: F64
    paged: F64
    """Optimizer states that the driver moves to the host where the device has no room for them."""


@dataclass(frozen=True, slots=True)
class _Shards:
    """Divisors of dense and expert parameters: (weights, gradients, optimizer)."""

    dense: tuple[F64, F64, F64]
    expert: tuple[F64, F64, F64]


def _shards(system_count: int, c: Columns) -> _Shards:
    twice = copies(c.schedule, c.pp)
    dense_ranks = (c.dp * c.cp * twice).astype(np.float64)
    expert_ranks = np.maximum(c.dp * c.cp * c.tp * twice // np.maximum(c.expert_ranks, 1), 1).astype(np.float64)
    span = np.where(c.shard_group > 0, c.shard_group, np.maximum(system_count // c.tp, 1)).astype(np.float64)
    grouped = (c.sharding == HYBRID) | (c.shard_group > 0)

    # of a group's ranks every ep-th holds the same experts
    expert_span = np.maximum(span * c.tp // np.maximum(c.expert_ranks, 1), 1.0)

    def divisors(ranks: F64, span: F64) -> tuple[F64, F64, F64]:
        group = np.where(grouped, np.minimum(span, ranks), ranks)
        full = (c.sharding == ZERO3) | (c.sharding == HYBRID)
        return (
            np.where(full, group, 1.0),
            np.where(full | (c.sharding == ZERO2), group, 1.0),
            np.where(c.sharding == NONE, 1.0, group),
        )

    return _Shards(divisors(dense_ranks, span), divisors(expert_ranks, expert_span))


def stage_states(arch: Architecture, system_count: int, c: Columns, shape: Stages, rules: MemoryRules) -> list[StageStates]:
    """States of the first, a middle and the last stage's fullest rank, in systems of ``system_count`` accelerators; of the first
    alone where none has a pipeline."""
    count = count_parameters(arch)
    shards = _shards(system_count, c)
    head = (count.head or count.tied_head) / c.tp
    n_stages = 3 if (c.pp > 1).any() else 1
    return [_stage(arch, count, c, shape, i, shards, rules, head) for i in range(n_stages)]


def _stage(
    arch: Architecture,
    count: ParameterCount,
    c: Columns,
    shape: Stages,
    i: int,
    shards: _Shards,
    rules: MemoryRules,
    head: F64,
) -> StageStates:
    dense, expert, layers = shape.dense[i], shape.expert[i], np.maximum(shape.layers[i], 1.0)
    base = c.base
    b = parameter_bytes(base)
    (dw, dg, do), (ew, eg, eo) = shards.dense, shards.expert
    sharded = fully_sharded(c)
    if base.lora_rank:
        return _adapted(arch, count, c, shape, i, shards, rules, head)
    weight, master = b.weight, b.master
    if rules.master_is_weight and master:
        # a sharded parameter is its fp32 master; a replicated one has the cast copies besides (autocast)
        weights = dense * np.where(sharded, master / dw, weight)
        weights = weights + expert * np.where(sharded, master / ew, weight)
        master_bytes = np.where(sharded, 0.0, master)
    elif autocasts(base):
        # unsharded weights are the fp32 ones; what is cast of them is among the activations
        plain = c.sharding == NONE
        weights = np.where(plain, master, weight) * (dense / dw + expert / ew)
        master_bytes = np.where(plain, 0.0, master)
    else:
        weights = weight * (dense / dw + expert / ew)
        master_bytes = np.asarray(master)
    on_host = c.offloads_parameters
    weights = np.where(on_host & sharded, 0.0, weights)
    # a sharded update finds its flat fp32 gradients a place every step, beside the activations' fragments
    state = master_bytes + b.state + np.where(c.sharding == NONE, 0.0, rules.update_fp32)
    optimizer = np.where(c.offload_optimizer > 0, 0.0, (dense / do + expert / eo) * state)
    gradients = b.gradient * (dense / dg + expert / eg)
    has_half = rules.half_gradients != "no" and b.gradient > b.weight
    half = b.weight * (dense + expert) * has_half
    replicated = (c.sharding == NONE) & (c.dp * c.cp > 1)
    buckets = np.where(replicated & rules.bucket_copy, b.weight * (dense + expert), 0.0)
    if rules.sharded_bucket_elements:
        bucket = np.minimum(dense + expert, rules.sharded_bucket_elements) * b.gradient
        buckets = buckets + np.where((c.sharding != NONE) & (c.dp * c.cp > 1), bucket, 0.0)
    per_layer = np.maximum(dense - _ends(count, c, i), 0.0) / layers + expert / layers
    scattered = per_layer * (b.weight + (b.gradient if b.gradient > b.weight else 0.0))
    # a pipeline gathers and reduces once a step (torchtitan d4c86e3 parallelize_llama.py: no resharding after
    # the forward; FSDP2 accumulates unsharded gradients)
    once = sharded & (c.pp > 1)
    whole = (dense + expert) * b.weight
    weights = np.where(once, whole + (weights if rules.master_is_weight else 0.0), weights)
    gradients = gradients + np.where(once, (dense + expert) * b.gradient, 0.0)
    on_device = np.where(c.offload_optimizer > 0, 0.0, dense / do + expert / eo)
    if base.step_in_backward:
        # a layer's gradients, and its update's temporaries, at a time
        share = np.minimum(per_layer / np.maximum(dense + expert, 1.0), 1.0)
        gradients, half, on_device = gradients * share, half * share, on_device * share
    foreach = 0.0 if find_stack(base.stack).fused_optimizer else b.master or b.weight
    copied = 4.0 if rules.copies_half_gradients and b.gradient < b.master else 0.0
    with_states = (c.offload_optimizer > 0) if rules.offloads_gradients else on_host
    gradients = np.where(with_states & ((c.sharding != NONE) | (c.dp * c.cp == 1)), 0.0, gradients)
    ahead = np.maximum(2.0 * per_layer, np.minimum(rules.live_elements, dense + expert))
    buckets = buckets + np.where(once, 0.0, _reduce_buffers(count, c, rules))
    buckets = buckets + np.where(on_host & sharded, (_ends(count, c, i) + 2.0 * per_layer) * b.weight / dw, 0.0)
    return StageStates(
        weights,
        gradients,
        half,
        optimizer,
        gathered=np.where(sharded & ~once, ahead * b.weight, 0.0),
        gathered_head=np.where(sharded & ~once & (not rules.root_ends), head * b.weight, 0.0),
        kept=_kept(whole, _ends(count, c, i) * b.weight, sharded & ~once, c, rules),
        scattered=np.where(sharded | (c.sharding == ZERO2), scattered, 0.0),
        buckets=buckets,
        updated=on_device * (foreach + np.where(c.sharding == NONE, rules.update_fp32, 0.0) + np.where(sharded, copied, 0.0)),
        contiguous=_contiguous(on_device, c, rules),
        paged=optimizer * (base.optimizer in PAGED),
    )


def _contiguous(updated: F64, c: Columns, rules: MemoryRules) -> F64:
    """Bytes in one piece of the ``updated`` parameters, reserved but not needed at once with anything else: without shards of two
    pieces, cast, then flattened."""
    group = np.where(fully_sharded(c), rules.flat_elements, np.inf)
    shard = 4.0 * np.minimum(updated, group) if rules.flat_elements else 0.0
    return np.where(c.sharding == NONE, 2.0 * rules.update_fp32 * updated, shard)


def fully_sharded(c: Columns) -> NDArray[np.bool_]:
    """Whether a layer's weights are unsharded only during its own passes; those of one rank come from the host."""
    return (c.sharding == ZERO3) | (c.sharding == HYBRID) | (c.base.offload_parameters & c.offloads_parameters)


def _kept(whole: F64, ends: F64, sharded: NDArray[np.bool_], c: Columns, rules: MemoryRules) -> F64:
    """Bytes of the ``whole`` weights, or of the ``ends`` alone, that stay gathered until the backward."""
    every = rules.keeps_gathered & (c.recompute != RECOMPUTES.index("full"))
    return np.where(sharded, np.where(every, whole, ends * rules.root_ends), 0.0)


def _reduce_buffers(count: ParameterCount, c: Columns, rules: MemoryRules) -> F64:
    """Buffers of gradients before reduction; with the optimizer on the host also the buffer for the largest parameter's
    gradient (DeepSpeed's temp_grad_buffer_for_gpu_offload)."""
    weight = parameter_bytes(c.base).weight
    bucket = rules.bucket_elements * weight
    sharded = fully_sharded(c)
    buffers = np.where(sharded, bucket, 0.0)
    if not rules.buckets_replicas:
        return buffers
    on_host = c.offload_optimizer > 0
    one_rank = (c.dp * c.cp == 1) & (on_host | (c.base.widens_gradients and not c.base.lora_rank))
    staged = ~sharded & ((c.sharding != NONE) | one_rank)
    largest = 0.0 if c.base.lora_rank else max(count.embedding, count.head) * weight
    return buffers + np.where(staged, bucket * (2.0 if c.base.overlap_dp else 1.0) + largest * on_host, 0.0)


def _ends(count: ParameterCount, c: Columns, i: int) -> F64:
    """Parameters of the ends that stage ``i`` holds, to leave them out of the mean layer."""
    embedding = (count.embedding + count.stem) / c.tp
    both = embedding + count.head / c.tp
    if i == 1:
        return np.where(c.pp == 1, both, 0.0)
    return np.where(c.pp == 1, both, embedding if i == 0 else (count.head or count.tied_head) / c.tp)


def _adapted(
    arch: Architecture, count: ParameterCount, c: Columns, shape: Stages, i: int, shards: _Shards, rules: MemoryRules, head: F64
) -> StageStates:
    """Frozen weights (4-bit under QLoRA, the ends in the compute format) with trained adapters."""
    base = c.base
    b = parameter_bytes(base)
    (dw, dg, do), (ew, _, _) = shards.dense, shards.expert
    ends, layers = _ends(count, c, i), np.maximum(shape.layers[i], 1.0)
    matrices, expert = np.maximum(shape.dense[i] - ends, 0.0), shape.expert[i]
    share = adapter_parameters(arch, base.lora_targets, base.lora_rank) / count.layers
    trained = share * (matrices + expert)
    frozen, on_host = frozen_bytes(base), c.offloads_parameters
    sharded = fully_sharded(c)
    end = 4.0 if autocasts(base) else b.weight
    weights = (matrices * frozen + ends * end + trained * b.weight) / dw + expert * frozen / ew
    weights = np.where(on_host & sharded, 0.0, weights)
    zero = np.zeros_like(weights)
    buckets = np.where(sharded & (c.pp > 1), 0.0, _reduce_buffers(count, c, rules))
    buckets = buckets + np.where(on_host & sharded, (ends * end + 2.0 / layers * (matrices + expert) * frozen) / dw, 0.0)
    optimizer = np.where(c.offload_optimizer > 0, 0.0, trained * (b.master + b.state) / do)
    return StageStates(
        weights,
        np.where(on_host & (c.offload_optimizer > 0), 0.0, trained * b.gradient / dg),
        zero,
        optimizer,
        gathered=np.where(sharded, np.where(c.pp > 1, 1.0, 2.0 / layers) * (matrices + expert) * frozen, 0.0),
        gathered_head=np.where(sharded & (not rules.root_ends), head * b.weight, 0.0),
        kept=_kept((matrices + expert) * frozen, ends * b.weight, sharded, c, rules),
        scattered=zero,
        buckets=buckets,
        updated=zero,
        contiguous=zero,
        paged=optimizer * (base.optimizer in PAGED),
    )
