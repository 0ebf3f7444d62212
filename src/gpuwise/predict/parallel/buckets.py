"""Gradients summed in buckets: DDP, and sharded optimizer states (zero1) and gradients (zero2) on a captured step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.predict.parallel.sharding_parts import (
    FIRST_BUCKET_BYTES,
    REDUCE_STREAM,
    PlannedTransfer,
    Sharding,
    Unit,
    collective_signature,
    shard_bytes,
)
from gpuwise.workload.capture.captured import Capture, Category, Parameter, StepSpan
from gpuwise.workload.capture.record.blocks import Lives, Pass, passes
from gpuwise.workload.capture.record.edit import Editor
from gpuwise.workload.row_codes import Phase


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters whose gradients are reduced together; ``ready_op`` is one past the backward operation of the last."""

    parameters: tuple[Parameter, ...]
    n_bytes: int
    ready_op: int


def buckets_of(capture: Capture, one: Pass, sharding: Sharding) -> tuple[Bucket, ...]:
    """Buckets in the order in which gradients become ready: the first closes at 1 MB, the others at ``bucket_bytes``
    (``compute_bucket_assignment_by_size`` closes a bucket once its limit is reached)."""
    last: dict[str, int] = {}
    for i, module in enumerate(capture.op_module[one.backward_op : one.end_op].tolist(), one.backward_op):
        last[capture.modules[module]] = i + 1
    trained = [p for p in capture.parameters if p.trainable]
    place = {p.name: n for n, p in enumerate(trained)}
    ready = {p.name: last.get(p.name.rpartition(".")[0], one.end_op) for p in trained}
    order = sorted(trained, key=lambda p: (ready[p.name], -place[p.name]))
    buckets, now, size = list[Bucket](), list[Parameter](), 0
    for p in order:
        now.append(p)
        size += math.prod(p.shape) * TENSOR_BYTES[p.dtype]
        if size >= (sharding.bucket_bytes if buckets else min(FIRST_BUCKET_BYTES, sharding.bucket_bytes)):
            buckets.append(Bucket(tuple(now), size, max(ready[q.name] for q in now)))
            now, size = [], 0
    if now:
        buckets.append(Bucket(tuple(now), size, max(ready[q.name] for q in now)))
    return tuple(buckets)


def add_buckets(edit: Editor, sharding: Sharding, units: tuple[Unit, ...], planned: list[PlannedTransfer]) -> None:
    """Put the reductions of every step's last pass into ``edit`` (earlier passes accumulate: ``no_sync``)."""
    c = edit.capture
    lives = Lives(c)
    flat = sum(math.prod(p.shape) * TENSOR_BYTES[p.dtype] for u in units for p in u.parameters if p.trainable)
    if sharding.kind == "none" and not sharding.gradient_as_bucket_view and flat:
        buffer = edit.storage(flat, Category.COMMUNICATION, "fp32")
        edit.born(buffer, c.steps[0].first_op)
    for span in c.steps:
        step_plan = planned if span is c.steps[-1] else []
        for one in passes(c, span)[-1:]:
            previous: int | None = None
            update = _update_of(c, span, one)
            for bucket in buckets_of(c, one, sharding):
                previous = _reduce(edit, lives, sharding, span, bucket, update, step_plan, previous)
            if previous is not None:
                edit.freed(previous, update)
        if sharding.kind != "none":
            whole = sum(shard_bytes(u.parameters, sharding.group) for u in units) * sharding.group
            handle = edit.op(span.end_op, collective_signature("all_gather", whole, sharding.group), Phase.OPTIMIZER)
            step_plan.append(PlannedTransfer("all_gather", whole, False, handle, -1, -1, span.end_op))


def _update_of(c: Capture, span: StepSpan, one: Pass) -> int:
    later = np.flatnonzero(c.op_phase[one.end_op : span.end_op] == Phase.OPTIMIZER)
    return one.end_op + int(later[0]) if len(later) else span.end_op


def _reduce(
    edit: Editor,
    lives: Lives,
    sharding: Sharding,
    span: StepSpan,
    bucket: Bucket,
    update: int,
    planned: list[PlannedTransfer],
    previous: int | None,
) -> int | None:
    """One bucket's collective; the buffer that lives until the next one (sharded states only)."""
    op = "all_reduce" if sharding.kind == "none" else "reduce_scatter"
    at = bucket.ready_op
    payload = bucket.n_bytes if op == "all_reduce" else shard_bytes(bucket.parameters, sharding.group) * sharding.group
    handle = edit.op(at, collective_signature(op, payload, sharding.group), Phase.BACKWARD, stream=REDUCE_STREAM)
    planned.append(PlannedTransfer(op, payload, False, handle, -1, -1, update))
    if op == "all_reduce":
        return None
    buffer = edit.storage(payload, Category.COMMUNICATION, "fp32", op=at)
    edit.born(buffer, at, handle)
    if previous is not None:
        edit.freed(previous, at, handle)
    if sharding.kind == "zero2":
        _keep_shard(edit, lives, sharding, span, bucket, handle)
    return buffer


def _keep_shard(edit: Editor, lives: Lives, sharding: Sharding, span: StepSpan, bucket: Bucket, handle: int) -> None:
    """Free a reduced bucket's gradients; keep this rank's shard until the bucket would have been freed."""
    c, at = edit.capture, bucket.ready_op
    modules = {p.name.rpartition(".")[0] for p in bucket.parameters}
    sizes = [math.prod(p.shape) * TENSOR_BYTES[p.dtype] for p in bucket.parameters]
    born = (lives.birth_op >= span.first_op) & (lives.birth_op < at) & (c.storage_category == Category.GRADIENT)
    deaths = list[int]()
    for s in np.flatnonzero(born).tolist():
        size = int(c.storage_bytes[s])
        if c.modules[int(c.storage_module[s])] in modules and size in sizes and lives.death_op[s] >= at:
            sizes.remove(size)
            deaths.append(int(lives.death[s]))
            if deaths[-1] < len(c.event_op):
                edit.drop_event(deaths[-1])
            edit.freed(s, at, handle)
    if deaths:
        shard = edit.storage(shard_bytes(bucket.parameters, sharding.group), Category.GRADIENT, "fp32", op=at)
        edit.born(shard, at, handle)
        if max(deaths) < len(c.event_op):
            edit.freed_instead(max(deaths), shard)
