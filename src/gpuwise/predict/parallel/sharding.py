"""Data parallelism of a captured step: allocations, transfers and waits of one rank.

A :class:`Sharding` turns the capture of one device into the capture of one rank: storages of states shrink to their shards,
gathered parameters and reduction buffers are allocated and freed where the software does, and every collective is an operation of
its own with a :class:`Transfer` with its earliest start and the operation that waits for it.

=======  ==============================================================================================================
none     ``DistributedDataParallel``: gradients summed in buckets of 25 MB in the order in which they become ready, the
         first of 1 MB (torch defaults ``bucket_cap_mb``, ``_DEFAULT_FIRST_BUCKET_BYTES``), a flat copy of each kept
zero1    optimizer states sharded: buckets reduced, updated parameters gathered after the step (arXiv 1910.02054)
zero2    as zero1, a bucket's gradients freed once it is reduced, only this rank's shard kept
zero3    FSDP2 (``fully_shard``) on each wrapped module and on the rest: parameters gathered before its forward and again
         before its backward (the next one prefetched meanwhile), gradients reduce-scattered after it
hybrid   zero3 inside a shard group, the shards' gradients summed across the groups
=======  ==============================================================================================================

Shards are rows: rank 0 has ``ceil(rows / ranks)`` of the first dimension, and gathered tensors are padded to that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.predict.parallel.buckets import add_buckets
from gpuwise.predict.parallel.fsdp import add_fsdp
from gpuwise.predict.parallel.sharding_parts import (
    HOST_STREAM,
    Direction,
    PlannedTransfer,
    Sharding,
    Transfer,
    copy_signature,
    shard_numel,
    transfer_of,
    units_of,
)
from gpuwise.workload.capture.captured import I64, Capture, Category
from gpuwise.workload.capture.record.blocks import passes
from gpuwise.workload.capture.record.edit import Editor
from gpuwise.workload.row_codes import Phase

__all__ = ["ShardedCapture", "Sharding", "Transfer", "sharded"]


@dataclass(frozen=True, slots=True)
class ShardedCapture:
    """One rank's step. ``source`` [ops] is the operation of the given capture that each one is, -1 for new ones."""

    capture: Capture
    sharding: Sharding
    transfers: tuple[Transfer, ...]
    source: I64
    host_bytes: int
    """Pinned host bytes of this rank: offloaded states."""
    optimizer_share: float
    """Share of the update that this rank computes."""
    host_update_bytes: float
    """State bytes that the host reads and writes a step; 0 if the device updates."""


def sharded(capture: Capture, sharding: Sharding) -> ShardedCapture:
    """The step of one rank (rank 0) of ``sharding``. Raises InputError on a layout that cannot be."""
    sharding.check()
    units = units_of(capture, sharding.wrap)
    edit = Editor(capture)
    full = sharding.kind in ("zero3", "hybrid")
    planned = list[PlannedTransfer]()
    if sharding.group > 1 or full:
        (add_fsdp if full else add_buckets)(edit, sharding, units, planned)
    host, update, share = _resize(edit, sharding, full)
    if sharding.offload_optimizer and not sharding.offload_parameters:
        _offload_optimizer(edit, sharding, planned, share)
    new = edit.build()
    transfers = tuple(transfer_of(edit, sharding, p) for p in planned)
    settings = replace(new.settings, world_size=sharding.ranks)
    return ShardedCapture(
        replace(new, settings=settings, host_bytes=new.host_bytes + host), sharding, transfers, edit.source, host, share, update
    )


def _resize(edit: Editor, sharding: Sharding, full: bool) -> tuple[int, float, float]:
    """Shrink the states; bytes on the host, bytes its update moves, and this rank's share of the update."""
    c, ranks = edit.capture, sharding.group
    ratios: dict[int, list[float]] = {}
    shards, whole = 0, 0
    for p in c.parameters:
        n, s = math.prod(p.shape), shard_numel(p.shape, ranks)
        ratios.setdefault(n, []).append(s / n if n else 1.0)
        shards, whole = shards + s, whole + n
    share = shards / whole if whole and sharding.kind != "none" else 1.0
    by_numel = {n: float(np.mean(r)) for n, r in ratios.items()}
    category, new = c.storage_category, c.storage_bytes.copy()
    element = np.array([TENSOR_BYTES.get(d, 1) for d in c.storage_dtype], np.int64)
    numel = c.storage_bytes // np.maximum(element, 1)
    factor = np.array([by_numel.get(int(n), 1.0) for n in numel.tolist()]) if sharding.kind != "none" else np.ones(len(numel))
    born_in = np.where(c.storage_op >= 0, c.op_phase[np.clip(c.storage_op, 0, len(c.op_phase) - 1)], Phase.FORWARD)
    temporary = (born_in == Phase.OPTIMIZER) & (category == Category.TEMPORARY)
    for mask in (category == Category.OPTIMIZER, temporary):
        new[mask] = np.ceil(new[mask] * factor[mask]).astype(np.int64)
    host, update = 0, 0.0
    if full:
        shard_of_storage = np.zeros(len(new), np.int64)
        for p in c.parameters:
            if p.storage >= 0:
                shard_of_storage[p.storage] += shard_numel(p.shape, ranks) * TENSOR_BYTES[p.dtype]
        at = np.flatnonzero((shard_of_storage > 0) & (category == Category.PARAMETER))
        new[at] = shard_of_storage[at]
    states = category == Category.OPTIMIZER
    if sharding.offload_optimizer or sharding.offload_parameters:
        alive = c.bytes_by_category(len(c.event_op) - 1).get(Category.OPTIMIZER, 0)
        state_bytes = int(alive * share)
        trained_bytes = sum(
            shard_numel(p.shape, ranks if sharding.kind != "none" else 1) * TENSOR_BYTES[p.dtype]
            for p in c.parameters
            if p.trainable
        )
        # states read and written, parameters too, gradients read
        host, update = state_bytes + trained_bytes, float(2 * state_bytes + 3 * trained_bytes)
        new[states | temporary] = 0
        if sharding.offload_parameters:
            host += trained_bytes
            new[category == Category.PARAMETER] = 0
    edit.resize(np.arange(len(new)), new)
    return host, update, share


def _offload_optimizer(edit: Editor, sharding: Sharding, planned: list[PlannedTransfer], share: float) -> None:
    """ZeRO-Offload: gradients go down behind the backward, updated parameters come back before the next forward."""
    c = edit.capture
    for span in c.steps[-1:]:
        for one in passes(c, span)[-1:]:
            gradients = int(share * sum(math.prod(p.shape) * TENSOR_BYTES[p.dtype] for p in c.parameters if p.trainable))
            ends: tuple[tuple[Direction, int], ...] = (("d2h", one.end_op), ("h2d", span.end_op))
            for op, at in ends:
                handle = edit.op(at, copy_signature(op, gradients), Phase.OPTIMIZER, stream=HOST_STREAM)
                planned.append(PlannedTransfer(op, gradients, False, handle, -1, -1, span.end_op))
