"""Traffic of data parallelism: gradients summed once a step, parameters gathered, fully sharded layers prefetched.

Per step and rank, with P parameters of G-byte gradients and W-byte weights (ZeRO: arXiv 1910.02054; FSDP: 2304.11277):

========  =====================================================================================
none      all-reduce of P G, behind the last micro-batch's backward
zero1/2   reduce-scatter of P G and all-gather of P W; with zero2 every micro-batch reduces
zero3     every micro-batch: all-gather in forward and again in backward, reduce-scatter of gradients
          (with pipeline stages: once a step, behind the first forward and the last backward of a micro-batch)
hybrid    zero3 inside a shard group, all-reduce of the shard across groups once a step
========  =====================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.facts.hardware.systems import System
from gpuwise.predict.columns import I64, Columns
from gpuwise.predict.comm.collectives import curve
from gpuwise.predict.comm.groups import RankGroup, data_group, expert_data_group
from gpuwise.predict.parallel.overlap import exposed_once
from gpuwise.predict.parallel.shards import Stages
from gpuwise.predict.stack_costs import StackCosts
from gpuwise.workload.optimizer import frozen_bytes, parameter_bytes
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.strategy import SHARDINGS

F64 = NDArray[np.float64]
NONE, ZERO1, ZERO2, ZERO3, HYBRID = (SHARDINGS.index(s) for s in ("none", "zero1", "zero2", "zero3", "hybrid"))


@dataclass(frozen=True, slots=True)
class LayerTraffic:
    """Seconds a micro-batch of fully sharded traffic: zero where parameters are not sharded.

    ``gather_s`` and ``scatter_s`` of each layer. ``ends_s``: nothing is there to hide the first gathers (embedding and first
    layer) and the last reductions behind; ``head_s``: the rest of the ends' traffic, hidden behind layers.
    """

    gather_s: F64
    scatter_s: F64
    ends_s: F64
    head_s: F64


def collective_over(system: System, op: str, payload: F64, group: RankGroup, mask: NDArray[np.bool_]) -> F64:
    """Seconds of ``op`` over each row's own group where ``mask``; 0 elsewhere and for groups of one.

    Evaluated in the shape payload and group broadcast to, then masked: an axis only ``mask`` has is not walked.
    """
    if not _moves(payload, mask):
        return np.zeros(np.broadcast(payload, *group).shape)
    payload, size, local, concurrent = np.broadcast_arrays(payload, *group)
    out = np.zeros(payload.shape)
    active = _any_over(mask, payload.shape) & (size > 1) & (payload > 0)
    if not active.any():
        return out
    key = (size[active] * 65536 + local[active]) * 65536 + concurrent[active]
    distinct, inverse = np.unique(key, return_inverse=True)
    bytes_, seconds = payload[active], np.empty(len(key))
    for i, k in enumerate(distinct):
        rows = inverse == i
        n, near, beside = int(k >> 32), int(k >> 16 & 65535), int(k & 65535)
        seconds[rows] = curve(system, op, n, near, concurrent=beside).time_s(bytes_[rows])
    out[active] = seconds
    return np.where(mask, out, 0.0)


def _moves(payload: F64, mask: NDArray[np.bool_]) -> bool:
    """Whether anybody sends anything."""
    return bool(mask.any() and payload.any())


def _any_over(mask: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """``mask`` with the axes that ``shape`` does not have folded into one place each."""
    folded = tuple(i for i, n in enumerate(mask.shape) if n > 1 and (len(shape) != mask.ndim or shape[i] == 1))
    return np.asarray(np.any(mask, axis=folded, keepdims=True)) if folded else mask


def shard_group(system: System, c: Columns) -> tuple[RankGroup, RankGroup]:
    """The ranks that share states, and the replicas of a shard (hybrid and chosen groups; groups of one otherwise)."""
    whole = data_group(system, c.tp, c.cp, c.dp)
    return _parted(whole, np.where(_copied(c), np.minimum(_span(system, c), whole.size), whole.size))


def expert_shard_group(system: System, c: Columns) -> tuple[RankGroup, RankGroup]:
    """The same of the experts: of a group's ranks (times the tensor ranks, which hold whole experts) every ``ep``-th has the same
    ones (Megatron-Core ``intra_partial_expert_data_parallel_size``, torchtitan's ``efsdp`` mesh)."""
    whole = expert_data_group(system, c.tp, c.cp, c.dp, c.expert_ranks)
    mine = np.maximum(_span(system, c) * c.tp // np.maximum(c.expert_ranks, 1), 1)
    return _parted(whole, np.where(_copied(c), np.minimum(mine, whole.size), whole.size))


def _span(system: System, c: Columns) -> I64:
    """Data-parallel ranks of a shard group: the given number, or those of one system."""
    return np.where(c.shard_group > 0, c.shard_group, np.maximum(system.count // c.tp, 1))


def _parted(whole: RankGroup, size: I64) -> tuple[RankGroup, RankGroup]:
    inner_local = np.minimum(whole.local, size)
    inner = RankGroup(size, np.where(size % inner_local == 0, inner_local, np.gcd(size, inner_local)), whole.concurrent)
    replicas = np.maximum(whole.size // size, 1)
    return inner, RankGroup(replicas, np.ones_like(replicas), np.minimum(whole.local * whole.concurrent, 65535))


def _copied(c: Columns) -> NDArray[np.bool_]:
    """True where a shard has replicas."""
    return (c.sharding == HYBRID) | _chosen_group(c)


def _chosen_group(c: Columns) -> NDArray[np.bool_]:
    """True where states are sharded over a group of a given size."""
    return (c.shard_group > 0) & (c.sharding != NONE)


def layer_traffic(system: System, c: Columns, shape: Stages) -> LayerTraffic:
    """Fully sharded parameters and gradients of one middle layer."""
    # a pipeline keeps its parameters gathered and reduces once a step (torchtitan: no reshard after forward with PP)
    sharded = ((c.sharding == ZERO3) | (c.sharding == HYBRID)) & (c.pp == 1)
    if not sharded.any():
        nothing = np.zeros(c.sharding.shape)
        return LayerTraffic(nothing, nothing, nothing, nothing)
    b = parameter_bytes(c.base)
    quantized = find_stack(c.base.stack).fsdp_gathers_fp8 and c.base.precision == "fp8" and not c.base.row_scales
    gathered = min(b.weight, frozen_bytes(c.base)) if c.base.lora_rank else b.weight
    weight = FORMAT_BYTES["fp8"] if quantized else gathered
    inner, _ = shard_group(system, c)
    per_layer = shape.dense[1] / np.maximum(shape.layers[1], 1)
    expert = shape.expert[1] / np.maximum(shape.layers[1], 1)
    trained = 1.0 if c.base.lora_rank == 0 else 0.0
    experts, _ = expert_shard_group(system, c)
    gather = collective_over(system, "all_gather", per_layer * weight, inner, sharded)
    gather = gather + collective_over(system, "all_gather", expert * weight, experts, sharded)
    reduce_bytes = per_layer * b.gradient * trained
    scatter = collective_over(system, "reduce_scatter", reduce_bytes, inner, sharded)
    scatter = scatter + collective_over(system, "reduce_scatter", expert * b.gradient * trained, experts, sharded)
    head = np.maximum(shape.dense[0] - shape.dense[1] - shape.embedding, 0.0)
    front = collective_over(system, "all_gather", shape.embedding * b.weight, inner, sharded)
    behind = collective_over(system, "reduce_scatter", shape.embedding * b.gradient * trained, inner, sharded)
    head_s = collective_over(system, "all_gather", head * b.weight, inner, sharded)
    head_s = head_s + collective_over(system, "reduce_scatter", head * b.gradient * trained, inner, sharded)
    return LayerTraffic(gather, scatter, front + behind + gather + scatter, front + head_s)


def _in_buckets(
    system: System, c: Columns, op: str, payload: F64, group: RankGroup, mask: NDArray[np.bool_], width: float
) -> F64:
    """Seconds of ``op`` over ``payload`` bytes of elements of ``width`` bytes in the stack's buckets, one after the other."""
    stack = find_stack(c.base.stack)
    if not stack.bucket_elements:
        return collective_over(system, op, payload, group, mask)
    bucket = np.maximum(stack.bucket_elements, stack.bucket_elements_per_rank * group.size) * width
    pieces = np.maximum(np.ceil(payload / bucket), 1.0)
    return pieces * collective_over(system, op, payload / pieces, group, mask)


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """Seconds of transfers that occur once per step, before overlap: replicated gradients (``reduce_s``), sharded ones
    (``scatter_s``, ``scatters`` times a step), gathered parameters. ``hides_*`` is 1 where the stack overlaps them with
    passes. ``by_layer``: the share of sharded traffic that can overlap if each layer is one message (all but the last one's),
    else NaN."""

    reduce_s: F64
    scatter_s: F64
    scatters: F64
    gather_s: F64
    hides_reduction: F64
    hides_sharded_states: F64
    by_layer: F64

    def exposed_s(self, forward_s: F64, backward_s: F64, sc: StackCosts) -> F64:
        """``forward_s`` and ``backward_s`` are the passes on the worst stage behind which gathers and reductions hide, one
        micro-batch's or those of :func:`~gpuwise.predict.parallel.pipeline.hiding_passes`; what is left over is exposed."""
        replicated = exposed_once(self.reduce_s, np.zeros(1), forward_s, backward_s * self.hides_reduction, sc)
        hides = self.hides_sharded_states
        share = np.where(np.isnan(self.by_layer), sc.dp_overlap, self.by_layer * (np.asarray(sc.dp_overlap) > 0))
        forward_s, backward_s = forward_s * hides, backward_s * hides
        return replicated + exposed_once(self.scatter_s, self.gather_s, forward_s, backward_s, sc, self.scatters, share)


def step_traffic(system: System, c: Columns, shape: Stages) -> StepTraffic:
    """The traffic that happens once a step."""
    stack = find_stack(c.base.stack)
    hides = np.full(1, float(stack.hides_reduction)), np.full(1, float(stack.hides_sharded_states))
    if c.base.lora_rank:
        nothing = np.zeros(c.sharding.shape)  # adapters are a thousandth of the gradients
        return StepTraffic(nothing, nothing, np.ones(1), nothing, *hides, np.full(1, np.nan))
    b = parameter_bytes(c.base)
    dense = np.maximum(np.maximum(shape.dense[0], shape.dense[1]), shape.dense[2])
    expert = np.maximum(np.maximum(shape.expert[0], shape.expert[1]), shape.expert[2])
    group, experts = data_group(system, c.tp, c.cp, c.dp), expert_data_group(system, c.tp, c.cp, c.dp, c.expert_ranks)
    plain, sharded_states = c.sharding == NONE, (c.sharding == ZERO1) | (c.sharding == ZERO2)
    inner, replicas = shard_group(system, c)
    expert_shards, copies = expert_shard_group(system, c)
    piped = ((c.sharding == ZERO3) | (c.sharding == HYBRID)) & (c.pp > 1)
    copied = _copied(c)
    states = inner if bool(_chosen_group(c).any()) else group

    layers = np.maximum(np.maximum(np.maximum(shape.layers[0], shape.layers[1]), shape.layers[2]), 1)

    def over(op: str, parameters: F64, width: float, ranks: RankGroup, mask: NDArray[np.bool_]) -> F64:
        if not _moves(parameters, mask):
            return np.zeros(np.broadcast(parameters, *ranks).shape)
        if stack.shards_by_layer and mask is not plain:
            return layers * collective_over(system, op, parameters * width / layers, ranks, mask)
        return _in_buckets(system, c, op, parameters * width, ranks, mask, width)

    g, w = b.gradient, b.weight
    reduce = over("all_reduce", dense, g, group, plain) + over("all_reduce", expert, g, experts, plain)
    scatter = over("reduce_scatter", dense, g, states, sharded_states) + over(
        "reduce_scatter", expert, g, expert_shards, sharded_states
    )
    scatter = scatter + over("all_reduce", dense / inner.size, g, replicas, copied)
    scatter = scatter + over("all_reduce", expert / expert_shards.size, g, copies, copied)
    scatter = scatter + over("reduce_scatter", dense, g, inner, piped) + over("reduce_scatter", expert, g, expert_shards, piped)
    gather = over("all_gather", dense, w, states, sharded_states) + over(
        "all_gather", expert, w, expert_shards, sharded_states | piped
    )
    gather = gather + over("all_gather", dense, w, inner, piped)
    scatters = np.where(c.sharding == ZERO2, c.accumulation, 1).astype(np.float64)
    by_layer = 1.0 - 1.0 / layers if stack.shards_by_layer else np.full(1, np.nan)
    return StepTraffic(reduce, scatter, scatters, gather, *hides, by_layer)
