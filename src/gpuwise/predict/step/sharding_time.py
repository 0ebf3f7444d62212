"""Seconds of one rank's captured step: its passes with the transfers that data parallelism adds beside them.

Host and device run the rank's operations first: an operation starts when the host has issued it and the device is free, so
with host times ``h`` and device times ``d`` the device is done at ``max(sum d, max_j (H_j + sum_{k >= j} d_k))``. The
transfers are then composed with the passes as for a strategy of the catalogue (:mod:`gpuwise.predict.parallel.overlap`): each
wrapped module's gathers and reductions beside its own forward and backward, what happens once a step behind the whole pass,
copies to and from the host after it. A late host lengthens the passes, and more hides behind them.
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
from gpuwise.predict.parallel.overlap import exposed_once, gathered_passes
from gpuwise.predict.parallel.sharding import ShardedCapture, Transfer
from gpuwise.predict.stack_costs import find_stack_costs
from gpuwise.predict.step.times import host_bytes_per_s, host_update_bytes_per_s
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.row_codes import Kind, Phase

F64 = NDArray[np.float64]
STACK = "eager-fsdp"
"""Stack whose overlap, contention and network slowdown apply to a captured step: it runs in PyTorch."""


@dataclass(frozen=True, slots=True)
class ShardedTime:
    """Seconds of a step: ``step_s`` in total, ``compute_s`` the same step without transfers, ``transfer_s`` the transfers,
    ``exposed_s`` the part of them that is not overlapped, ``host_update_s`` an update on the host."""

    step_s: float
    compute_s: float
    transfer_s: float
    exposed_s: float
    host_update_s: float


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Seconds of a step's transfers. ``forward_s`` and ``backward_s`` [units + 1] move beside the passes of fully sharded
    modules (none beside what no unit holds, the last); ``reduce_s`` and ``collect_s`` once a step; ``copy_s`` to and from
    the host."""

    units: tuple[str, ...]
    forward_s: F64
    backward_s: F64
    reduce_s: float
    collect_s: float
    copy_s: float

    @property
    def network_s(self) -> float:
        return float(self.forward_s.sum() + self.backward_s.sum()) + self.reduce_s + self.collect_s


def sharded_step_time(rank: ShardedCapture, system: System, device_s: F64, host_s: F64) -> ShardedTime:
    """The step of ``rank`` on ``system``; ``device_s`` and ``host_s`` [ops] belong to the capture that was sharded.

    Raises InputError if the times are not one per operation, UnpredictableError without a network or host link where the
    ranks need one.
    """
    n = int(rank.source.max(initial=-1)) + 1
    if device_s.shape != host_s.shape or len(device_s) < n:
        raise InputError(f"{len(device_s)} and {len(host_s)} times for {n} operations", hint="one of each per operation")
    device, host = _op_times(rank, system, device_s, host_s)
    seconds = _durations(rank, device, host)
    plain = float(seconds.sum())
    costs, traffic = find_stack_costs(STACK), _traffic(rank, system)
    forward, backward = _passes(rank, seconds, traffic.units)
    both = gathered_passes(forward, backward, traffic.forward_s, traffic.backward_s, costs)
    exposed = float((both[0] - forward + both[1] - backward).sum()) + traffic.copy_s
    reduce, collect = np.array([traffic.reduce_s]), np.array([traffic.collect_s])
    exposed += float(exposed_once(reduce, collect, forward.sum(keepdims=True), backward.sum(keepdims=True), costs)[0])
    update = rank.host_update_bytes / float(host_update_bytes_per_s(system, rank.sharding.ranks))
    moved = traffic.network_s * costs.network_slowdown + traffic.copy_s
    return ShardedTime(plain + exposed + update, plain, moved, exposed, update)


def replicas_exposed_s(system: System, n: int, payload_bytes: float, forward_s: float, backward_s: float) -> float:
    """Exposed seconds of summing ``payload_bytes`` of gradients over ``n`` replicas, once per step behind the backward pass
    (``DistributedDataParallel``). Raises UnpredictableError without a network between them."""
    if n == 1 or not payload_bytes:
        return 0.0
    near = max(d for d in range(1, min(n, system.count) + 1) if n % d == 0)
    reduce = curve(system, "all_reduce", n, near).time_s(np.array([payload_bytes]))
    passes = np.array([forward_s]), np.array([backward_s])
    return float(exposed_once(reduce, np.zeros(1), *passes, find_stack_costs(STACK))[0])


def gradient_bytes(capture: Capture) -> int:
    """Bytes of all gradients of the trained parameters, in the parameters' own format."""
    storages = {p.storage for p in capture.parameters if p.trainable and p.storage >= 0}
    if storages:
        return int(sum(int(capture.storage_bytes[s]) for s in storages))
    share = capture.trainable_count / max(capture.parameter_count, 1)
    return int(sum(capture.parameter_bytes_by_module.values()) * share)


def _traffic(rank: ShardedCapture, system: System) -> _Traffic:
    units = tuple(dict.fromkeys(t.unit for t in rank.transfers if t.unit is not None))
    place = {unit: i for i, unit in enumerate(units)}
    forward, backward = np.zeros(len(units) + 1), np.zeros(len(units) + 1)
    once: dict[tuple[str, int, bool], int] = {}
    copies = 0.0
    for t in rank.transfers:
        if t.op in ("h2d", "d2h"):
            copies += _copy_s(rank, t, system)
        elif t.unit is None:
            # how they are cut into buckets is a matter of memory: their time is that of all of them
            key = (t.op, t.group_size, t.replicas)
            once[key] = once.get(key, 0) + t.payload_bytes
        else:
            seconds = _collective_s(rank, t.op, t.group_size, t.replicas, t.payload_bytes, system)
            behind = forward if rank.capture.op_phase[t.at_op] == Phase.FORWARD else backward
            behind[place[t.unit]] += seconds
    seconds_of = {op: _collective_s(rank, op, size, across, n, system) for (op, size, across), n in once.items()}
    collect = seconds_of.pop("all_gather", 0.0)
    return _Traffic(units, forward, backward, sum(seconds_of.values()), collect, copies)


def _passes(rank: ShardedCapture, seconds: F64, units: tuple[str, ...]) -> tuple[F64, F64]:
    """[units + 1] of the ``seconds`` [ops of the step], the forward and the backward pass of each unit (the last: of none)."""
    c = rank.capture
    longest = sorted(range(len(units)), key=lambda i: -len(units[i]))
    owner = np.full(len(c.modules), len(units))
    for k, path in enumerate(c.modules):
        inside = (i for i in longest if units[i] == "" or path == units[i] or path.startswith(units[i] + "."))
        owner[k] = next(inside, len(units))
    span = slice(c.steady.first_op, c.steady.end_op)
    phase, unit = c.op_phase[span], owner[c.op_module[span]]
    forward, backward = np.zeros(len(units) + 1), np.zeros(len(units) + 1)
    again = (phase == Phase.BACKWARD) | (phase == Phase.RECOMPUTE)
    np.add.at(forward, unit[phase == Phase.FORWARD], seconds[phase == Phase.FORWARD])
    np.add.at(backward, unit[again], seconds[again])
    return forward, backward


def _op_times(rank: ShardedCapture, system: System, device_s: F64, host_s: F64) -> tuple[F64, F64]:
    """[ops] device seconds of the rank's step: the given times, this rank's share of the update, copies and collectives."""
    c, source = rank.capture, rank.source
    old = source >= 0
    device = np.where(old, device_s[np.maximum(source, 0)], 0.0)
    host = np.where(old, host_s[np.maximum(source, 0)], 0.0)
    update = c.op_phase == Phase.OPTIMIZER
    away = rank.host_update_bytes > 0
    device[update] *= 0.0 if away else rank.optimizer_share
    new = np.flatnonzero(~old)
    signatures = [c.signatures[int(s)] for s in c.op_signature[new]]
    call = host_call_s(system.accelerator)
    usual = float(np.median(host_s[host_s > 0])) if np.any(host_s > 0) else 0.0
    read_bytes = np.array([s.bytes_read if s.kind == Kind.MEMORY else 0.0 for s in signatures])
    written_bytes = np.array([s.bytes_written if s.kind == Kind.MEMORY else 0.0 for s in signatures])
    if len(new):
        moved = memory_time(system.accelerator, read_bytes, written_bytes).time_s
        device[new] = np.where(read_bytes + written_bytes > 0, moved, 0.0)
        host[new] = [call if s.kind == Kind.COLLECTIVE else usual for s in signatures]
    return device, host


def _copy_s(rank: ShardedCapture, t: Transfer, system: System) -> float:
    at_once = min(system.count, rank.sharding.ranks)
    rate = host_bytes_per_s(system)
    return float(transfer_time(system.accelerator, t.payload_bytes, t.op, at_once=at_once, host_bytes_per_s=rate).time_s[0])


def _collective_s(rank: ShardedCapture, op: str, size: int, across: bool, payload_bytes: int, system: System) -> float:
    if size == 1 or not payload_bytes:
        return 0.0
    one = np.ones(1, np.int64)
    stride = rank.sharding.group if across else 1
    group = data_group(system, one * stride, one, one * size)
    local, concurrent = int(group.local[0]), int(group.concurrent[0])
    return float(curve(system, op, size, local, concurrent=concurrent).time_s([payload_bytes])[0])


def _durations(rank: ShardedCapture, device: F64, host: F64) -> F64:
    """[ops of the step] seconds from the end of the previous operation to the end of each, waiting for the host included,
    without transfers."""
    span = slice(rank.capture.steady.first_op, rank.capture.steady.end_op)
    issued, done = np.cumsum(host[span]), np.cumsum(device[span])
    ends = done + np.maximum.accumulate(np.maximum(issued - (done - device[span]), 0.0))
    return np.diff(ends, prepend=0.0)
