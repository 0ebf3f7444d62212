"""FSDP2 on a captured step, as ``torch.distributed.fsdp.fully_shard`` runs it (torch 2.7 to 2.13, ``_fsdp_param_group.py``).

Forward of a unit: a buffer for the gathered shards, the collective, a copy out into whole parameters; the buffer lives until
the next unit's copy out. The whole parameters go when the unit returns (the root's stay). Backward: the next unit is
gathered while this one computes; behind it the whole parameters go, then the previous reduction's input, and the unit's
gradients are copied into a new one, reduced into this rank's shard and freed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.predict.parallel.sharding_parts import (
    GATHER_STREAM,
    HOST_STREAM,
    REDUCE_STREAM,
    PlannedTransfer,
    Sharding,
    Unit,
    collective_signature,
    copy_signature,
    move_signature,
    shard_bytes,
)
from gpuwise.workload.capture.captured import Category
from gpuwise.workload.capture.record.blocks import Lives, ModuleTree, Pass, backward_of, module_mask, passes, segments
from gpuwise.workload.capture.record.edit import EARLY, Editor
from gpuwise.workload.row_codes import Phase


@dataclass(slots=True)
class _Gather:
    """One gather under way: its buffer, and the handle of its collective."""

    unit: Unit
    buffer: int
    planned: PlannedTransfer


@dataclass(slots=True)
class _Fsdp:
    edit: Editor
    sharding: Sharding
    planned: list[PlannedTransfer]
    lives: Lives
    last_copy: int = -1
    """Handle of the last copy out: gathers start after it."""

    # -- pieces ------------------------------------------------------------------------------------------------------

    def gather(self, unit: Unit, at: int, phase: Phase) -> _Gather:
        """Start gathering ``unit`` right before operation ``at``."""
        e, s = self.edit, self.sharding
        mine = shard_bytes(unit.parameters, s.group, s.gather_dtype)
        whole = mine * s.group
        copy_in = e.op(at, move_signature("fsdp.all_gather_copy_in.default", mine), phase, stream=GATHER_STREAM - 1)
        if s.offload_parameters:
            copy_in = self.host_copy("h2d", shard_bytes(unit.parameters, s.group), at, phase, self.last_copy)
        buffer = self.new(whole, at, copy_in, Category.COMMUNICATION, s.gather_dtype or "fp32", GATHER_STREAM - 1)
        handle = e.op(at, collective_signature("all_gather", whole, s.group), phase, stream=GATHER_STREAM)
        planned = PlannedTransfer("all_gather", whole, False, handle, self.last_copy, -1, at, unit.path)
        self.planned.append(planned)
        return _Gather(unit, buffer, planned)

    def unshard(self, g: _Gather, at: int, phase: Phase, *, free: int | None) -> int:
        """Wait for a gather and copy it out; returns the storage of the full parameters. ``free`` is a buffer freed before."""
        e, s = self.edit, self.sharding
        n = shard_bytes(g.unit.parameters, s.group, s.gather_dtype) * s.group
        copy_out = e.op(at, move_signature("fsdp.split_with_sizes_copy.default", n), phase)
        g.planned.needed_handle = copy_out
        if free is not None:
            e.freed(free, at, copy_out)
        whole = self.new(n, at, copy_out, Category.COMMUNICATION, s.gather_dtype or "fp32", 0)
        self.last_copy = copy_out
        return whole

    def new(self, n: int, at: int, handle: int, category: Category, dtype: str, stream: int) -> int:
        s = self.edit.storage(n, category, dtype, stream=stream, op=at)
        self.edit.born(s, at, handle)
        return s

    def host_copy(self, copy_direction: str, n: int, at: int, phase: Phase, after: int) -> int:
        direction = "h2d" if copy_direction == "h2d" else "d2h"
        handle = self.edit.op(at, copy_signature(direction, n), phase, stream=HOST_STREAM)
        buffer = self.new(n, at, handle, Category.COMMUNICATION, "fp32", HOST_STREAM)
        self.edit.freed(buffer, at)
        self.planned.append(PlannedTransfer(copy_direction, n, False, handle, after, -1, at))
        return handle


def add_fsdp(edit: Editor, sharding: Sharding, units: tuple[Unit, ...], planned: list[PlannedTransfer]) -> None:
    """Put the gathers and reductions of every pass of every step into ``edit``."""
    run = _Fsdp(edit, sharding, planned, Lives(edit.capture))
    tree = ModuleTree.of(edit.capture)
    for number, span in enumerate(edit.capture.steps):
        run.planned = planned if number == len(edit.capture.steps) - 1 else []
        gradients = _gradients(run, span.first_op, span.end_op, units)
        shards: dict[str, int] = {}
        for i, one in enumerate(passes(edit.capture, span)):
            run.last_copy = -1
            _add_pass(run, tree, one, units, gradients if i == 0 else {}, shards)
        _free_shards(run, gradients, shards)


def _gradients(run: _Fsdp, first: int, end: int, units: tuple[Unit, ...]) -> dict[str, list[int]]:
    """Gradients born in a step, by unit."""
    c, lives = run.edit.capture, run.lives
    gradients: dict[str, list[int]] = {u.path: [] for u in units}
    paths = sorted((u.path for u in units if u.path), key=len, reverse=True)
    born = (lives.birth_op >= first) & (lives.birth_op < end) & (c.storage_category == Category.GRADIENT) & (lives.birth >= 0)
    for s in np.flatnonzero(born).tolist():
        module = c.modules[int(c.storage_module[s])]
        path = next((p for p in paths if module == p or module.startswith(p + ".")), "")
        gradients.setdefault(path, []).append(s)
    return gradients


def _add_pass(
    run: _Fsdp, tree: ModuleTree, one: Pass, units: tuple[Unit, ...], gradients: dict[str, list[int]], shards: dict[str, int]
) -> None:
    edit, c = run.edit, run.edit.capture
    by_path = {u.path: u for u in units}
    root = by_path.get("")
    root_whole, previous = -1, None
    if root is not None:
        g = run.gather(root, one.first_op, Phase.FORWARD)
        root_whole = run.unshard(g, one.first_op, Phase.FORWARD, free=None)
        previous = g.buffer
    unsharded: dict[str, int] = {}
    for seg in segments(c, tree, one, [p for p in by_path if p]):
        if not seg.path or seg.path in unsharded:
            continue
        g = run.gather(by_path[seg.path], seg.first_op, Phase.FORWARD)
        whole = run.unshard(g, seg.first_op, Phase.FORWARD, free=previous)
        previous = g.buffer
        if run.sharding.reshard_after_forward:
            edit.freed(whole, seg.end_op, EARLY)
        else:
            unsharded[seg.path] = whole
    if previous is not None:
        edit.freed(previous, _forward_end(run, one), EARLY)
    _add_backward(run, tree, one, by_path, gradients, shards, unsharded)
    if root_whole >= 0:
        edit.freed(root_whole, one.end_op, EARLY)


def _forward_end(run: _Fsdp, one: Pass) -> int:
    """One past the last forward operation of any module: the root returns there."""
    c = run.edit.capture
    inside = np.flatnonzero(c.op_module[one.first_op : one.backward_op] > 0)
    return one.first_op + int(inside[-1]) + 1 if len(inside) else one.backward_op


def _add_backward(
    run: _Fsdp,
    tree: ModuleTree,
    one: Pass,
    by_path: dict[str, Unit],
    gradients: dict[str, list[int]],
    shards: dict[str, int],
    unsharded: dict[str, int],
) -> None:
    edit, c = run.edit, run.edit.capture
    spans = {p: b for p in by_path if p and (b := backward_of(c, one, module_mask(c, tree, p)))}
    order = sorted(spans, key=lambda p: spans[p].first_op)
    gathers = not unsharded
    coming: _Gather | None = None
    if order and gathers:
        start = np.flatnonzero(c.op_module[one.backward_op : one.end_op] > 0)
        first = one.backward_op + int(start[0]) if "" in by_path and len(start) else spans[order[0]].first_op
        coming = run.gather(by_path[order[0]], min(first, spans[order[0]].first_op), Phase.BACKWARD)
    reducing, late = None, list[str]()
    for k, path in enumerate(order):
        at, end = spans[path].first_op, spans[path].end_op
        if coming is not None:
            whole = run.unshard(coming, at, Phase.BACKWARD, free=None)
            edit.freed(coming.buffer, at, run.last_copy)
            coming = run.gather(by_path[order[k + 1]], at, Phase.BACKWARD) if k + 1 < len(order) else None
        else:
            whole = unsharded.get(path, -1)
        done = one.end_op if _input_only(run, one, tree, path) else end
        if whole >= 0:
            edit.freed(whole, done, EARLY)
        if done == one.end_op:
            late.append(path)
            continue
        reducing = _reduce(run, by_path[path], done, gradients.get(path), shards, reducing)
    for path in (*late, ""):
        if path in by_path:
            reducing = _reduce(run, by_path[path], one.end_op, gradients.get(path), shards, reducing)
    if reducing is not None:
        edit.freed(reducing, one.end_op)


def _input_only(run: _Fsdp, one: Pass, tree: ModuleTree, path: str) -> bool:
    """Whether a unit reads only inputs of the step: its backward then has no separate end."""
    seg = next((s for s in segments(run.edit.capture, tree, one, [path]) if s.path), None)
    call = None if seg is None else run.lives.call(path, seg.first_op)
    if call is None:
        return False
    return all(run.edit.capture.storage_category[s] == Category.INPUT for s in call.inputs)


def _reduce(
    run: _Fsdp, unit: Unit, at: int, gradients: list[int] | None, shards: dict[str, int], previous: int | None
) -> int | None:
    """Reduce-scatter a unit's gradients; the reduction's input, which lives until the next one."""
    edit, s = run.edit, run.sharding
    trained = tuple(p for p in unit.parameters if p.trainable)
    if not trained:
        return previous
    reduced_bytes = shard_bytes(trained, s.group, s.reduce_dtype or s.gather_dtype)
    n = reduced_bytes * s.group
    cat = edit.op(at, move_signature("fsdp.chunk_cat.default", n), Phase.BACKWARD)
    if previous is not None:
        edit.freed(previous, at, cat)
    buffer = run.new(n, at, cat, Category.COMMUNICATION, s.reduce_dtype or "fp32", 0)
    if gradients is None or not gradients:
        elements = {p.dtype for p in trained}
        whole = sum(math.prod(p.shape) * TENSOR_BYTES[s.gather_dtype or p.dtype] for p in trained)
        edit.freed(run.new(whole, at, cat, Category.GRADIENT, s.gather_dtype or min(elements), 0), at, cat)
    else:
        for g in gradients:
            death = int(run.lives.death[g])
            if death < len(edit.capture.event_op):
                edit.drop_event(death)
            edit.freed(g, at, cat)
    handle = edit.op(at, collective_signature("reduce_scatter", n, s.group), Phase.BACKWARD, stream=REDUCE_STREAM)
    first = unit.path not in shards
    shard_size = shard_bytes(trained, s.group)
    shard = run.new(shard_size, at, handle, Category.GRADIENT, trained[0].dtype, REDUCE_STREAM)
    last = PlannedTransfer("reduce_scatter", n, False, handle, cat, -1, _step_end(run, at), unit.path)
    run.planned.append(last)
    if s.kind == "hybrid":
        handle = edit.op(
            at, collective_signature("all_reduce", reduced_bytes, s.ranks // s.group), Phase.BACKWARD, stream=REDUCE_STREAM
        )
        run.planned.append(PlannedTransfer("all_reduce", reduced_bytes, True, handle, last.handle, -1, last.needed_op))
    if s.offload_parameters:
        run.host_copy("d2h", shard_size, at, Phase.BACKWARD, handle)
        run.planned[-1].needed_op = last.needed_op
    if first and not s.offload_parameters:
        shards[unit.path] = shard
    else:
        edit.freed(shard, at)
    return buffer


def _step_end(run: _Fsdp, at: int) -> int:
    """Make the update wait for the reductions."""
    c = run.edit.capture
    span = next(s for s in c.steps if s.first_op <= at <= s.end_op)
    later = np.flatnonzero(c.op_phase[at : span.end_op] == Phase.OPTIMIZER)
    return at + int(later[0]) if len(later) else span.end_op


def _free_shards(run: _Fsdp, gradients: dict[str, list[int]], shards: dict[str, int]) -> None:
    """A unit's gradient shard goes where the last of its gradients went."""
    never = len(run.edit.capture.event_op)
    for path, shard in shards.items():
        deaths = [int(run.lives.death[g]) for g in gradients.get(path, [])]
        if deaths and max(deaths) < never:
            run.edit.freed_instead(max(deaths), shard)
