"""Seconds of one rank's captured step: compute in program order, transfers beside it, the host ahead of both.

An operation starts when the host has issued it and the device is free; with host times ``h`` and device times ``d``, over
a run of operations without waits the device is done at ``max(T + sum d, max_j (H_j + sum_{k >= j} d_k))``. A transfer starts
when its queue is free, its issue has come and what it reads is there, and the operation that needs it waits. Collectives of
one rank share one queue, copies to and from the host have one each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.facts.hardware.systems import System
from gpuwise.predict.comm.collectives import curve, host_call_s
from gpuwise.predict.comm.groups import data_group
from gpuwise.predict.kernels.memory_bound import memory_time
from gpuwise.predict.kernels.transfer import transfer_time
from gpuwise.predict.parallel.sharding import ShardedCapture, Transfer
from gpuwise.predict.step.times import host_bytes_per_s
from gpuwise.workload.step import Kind, Phase

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ShardedTime:
    """Seconds of a step: ``step_s`` in all, ``compute_s`` the same step without any transfer, ``transfer_s`` the transfers
    themselves, ``exposed_s`` what of them the step waits for, ``host_update_s`` an update on the host."""

    step_s: float
    compute_s: float
    transfer_s: float
    exposed_s: float
    host_update_s: float


def sharded_step_time(rank: ShardedCapture, system: System, device_s: F64, host_s: F64) -> ShardedTime:
    """The step of ``rank`` on ``system``; ``device_s`` and ``host_s`` [ops] belong to the capture that was sharded.

    Raises InputError if the times are not one per operation, UnpredictableError without a network or host link where the
    ranks need one.
    """
    n = int(rank.source.max(initial=-1)) + 1
    if device_s.shape != host_s.shape or len(device_s) < n:
        raise InputError(f"{len(device_s)} and {len(host_s)} times for {n} operations", hint="one of each per operation")
    device, host = _op_times(rank, system, device_s, host_s)
    seconds = [_transfer_s(rank, t, system) for t in rank.transfers]
    plain = _run(rank, device, host, [])
    update = rank.host_update_bytes / (host_bytes_per_s(system) / system.count)
    step = _run(rank, device, host, list(zip(rank.transfers, seconds, strict=True))) + update
    return ShardedTime(step, plain, sum(seconds), max(step - plain - update, 0.0), update)


def _op_times(rank: ShardedCapture, system: System, device_s: F64, host_s: F64) -> tuple[F64, F64]:
    """[ops] of the rank's step: given times, the update's share of its own, copies and collectives put in."""
    c, source = rank.capture, rank.source
    old = source >= 0
    device = np.where(old, device_s[np.maximum(source, 0)], 0.0)
    host = np.where(old, host_s[np.maximum(source, 0)], 0.0)
    update = c.op_phase == Phase.OPTIMIZER
    away = rank.host_update_bytes > 0
    device[update] *= 0.0 if away else rank.optimizer_share
    host[update & old] *= 0.0 if away else 1.0
    new = np.flatnonzero(~old)
    signatures = [c.signatures[int(s)] for s in c.op_signature[new]]
    call = host_call_s(system.accelerator)
    usual = float(np.median(host_s[host_s > 0])) if np.any(host_s > 0) else 0.0
    read = np.array([s.bytes_read if s.kind == Kind.MEMORY else 0.0 for s in signatures])
    written = np.array([s.bytes_written if s.kind == Kind.MEMORY else 0.0 for s in signatures])
    if len(new):
        moved = memory_time(system.accelerator, read, written).time_s
        device[new] = np.where(read + written > 0, moved, 0.0)
        host[new] = [call if s.kind == Kind.COLLECTIVE else usual for s in signatures]
    return device, host


def _transfer_s(rank: ShardedCapture, t: Transfer, system: System) -> float:
    if t.op in ("h2d", "d2h"):
        rate = host_bytes_per_s(system)
        at_once = min(system.count, rank.sharding.ranks)
        copy = transfer_time(system.accelerator, t.payload_bytes, t.op, at_once=at_once, host_bytes_per_s=rate)
        return float(copy.time_s[0])
    if t.group_size == 1 or not t.payload_bytes:
        return 0.0
    one = np.ones(1, np.int64)
    stride = rank.sharding.group if t.replicas else 1
    group = data_group(system, one * stride, one, one * t.group_size)
    local, beside = int(group.local[0]), int(group.concurrent[0])
    return float(curve(system, t.op, t.group_size, local, concurrent=beside).time_s([t.payload_bytes])[0])


def _run(rank: ShardedCapture, device: F64, host: F64, transfers: list[tuple[Transfer, float]]) -> float:
    """Seconds from the step's first operation to its last and all it waits for."""
    span = rank.capture.steady
    first, end = span.first_op, span.end_op
    issued = np.concatenate([np.zeros(1), np.cumsum(host[first:end])])
    done = np.concatenate([np.zeros(1), np.cumsum(device[first:end])])
    slack = issued[1:] - done[:-1]
    clock, now = 0.0, 0
    queues: dict[str, float] = {}
    waits: dict[int, float] = {}
    finished: dict[int, float] = {}
    marks = sorted({x for t, _ in transfers for x in (t.at_op, t.needed_by, t.after_op + 1) if first <= x <= end} | {end})
    starting: dict[int, list[tuple[Transfer, float]]] = {}
    for t, seconds in transfers:
        starting.setdefault(t.at_op, []).append((t, seconds))
    for mark in marks:
        at = mark - first
        if at > now:
            late = float(slack[now:at].max()) + done[at]
            clock, now = max(clock + float(done[at] - done[now]), late), at
        clock = max(clock, waits.pop(mark, 0.0))
        finished[mark] = clock
        for t, seconds in starting.get(mark, ()):
            queue = t.op if t.op in ("h2d", "d2h") else "network"
            ready = finished.get(t.after_op + 1, 0.0) if t.after_op >= 0 else clock
            start = max(queues.get(queue, 0.0), float(issued[at]), ready)
            queues[queue] = start + seconds
            waits[t.needed_by] = max(waits.get(t.needed_by, 0.0), start + seconds)
    return max(clock, *waits.values(), 0.0) if waits else clock
