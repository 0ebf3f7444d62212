"""A captured network cut into pipeline stages: balanced by time under a memory limit, exactly.

The forward is a sequence of units (blocks, and what lies before, between and after them). A stage is a run of units. Per
micro-batch it takes the units' forward and backward seconds and the sends of its boundaries; it holds its states, and the
saved activations of as many micro-batches as are in flight on it (``predict.pipeline.in_flight``): the stages do not need
the same memory, the first most. The cut wanted has the fastest slowest stage among those that fit, and among equals the
least memory on the fullest stage:

    T(k, j) = min over i of max(T(k - 1, i), time(i, j))     stages 0 .. k end before unit j; (i, j) has to fit as stage k
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError, LayoutError, UnpredictableError
from gpuwise.facts.hardware.systems import System
from gpuwise.predict.comm.collectives import curve
from gpuwise.predict.parallel.pipeline import in_flight, pipeline_time
from gpuwise.predict.parallel.sharding_parts import ELEMENT_BYTES
from gpuwise.workload.capture.record.blocks import Lives, ModuleTree, passes, runs, units
from gpuwise.workload.capture.record.capture import Capture, Category
from gpuwise.workload.step import Phase
from gpuwise.workload.strategy import SCHEDULES

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CutUnit:
    """One piece of the network that stays together, for one micro-batch."""

    path: str
    time_s: float
    """Forward and backward."""
    state_bytes: int
    """Parameters, gradients and optimizer states."""
    saved_bytes: int
    """What its forward keeps for its backward."""
    output_bytes: int
    """What the next unit gets, and the gradient that comes back."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Units ``first`` to ``end`` of a network, for one micro-batch."""

    first: int
    end: int
    paths: tuple[str, ...]
    time_s: float
    state_bytes: int
    saved_bytes: int
    """Of one micro-batch."""
    in_flight: float
    memory_bytes: int
    send_bytes: int
    """To the next stage; 0 for the last."""


@dataclass(frozen=True, slots=True)
class PipelineCut:
    """Stages with the step they make."""

    stages: tuple[Stage, ...]
    slowest_s: float
    peak_bytes: int
    step_s: float
    bubble_s: float
    schedule: str
    virtual_stages: int


@dataclass(frozen=True, slots=True)
class _Sums:
    """Prefix sums over the units, and what a boundary costs."""

    units: tuple[CutUnit, ...]
    time_s: F64
    state: F64
    saved: F64
    hop_s: F64
    """[units + 1] seconds a micro-batch of activations and of gradients take across each boundary."""


def cut_units(capture: Capture, op_s: F64) -> tuple[CutUnit, ...]:
    """The units of a capture, from its last pass: ``op_s`` [ops] is each operation's time.

    What runs between units belongs to the unit before it, what runs before the first one to the first. Parameters shared
    by two units count in the first. Raises UnpredictableError if the step has no backward.
    """
    found = passes(capture)
    if not found:
        raise UnpredictableError("no backward", "the captured step has no backward pass", hint="capture a training step")
    if op_s.shape != capture.op_phase.shape:
        raise InputError(f"{op_s.size} times for {capture.op_phase.size} operations", hint="one time per captured operation")
    one, tree, lives = found[-1], ModuleTree.of(capture), Lives(capture)
    segments = runs(capture, tree, one.first_op, one.backward_op, units(capture, tree))
    starts = [s.first_op for i, s in enumerate(segments) if i == 0 or s.path]
    starts[0] = one.first_op
    paths = [s.path for i, s in enumerate(segments) if s.path or (i == 0 and len(segments) == 1)]
    if segments[0].path == "" and len(segments) > 1:
        starts.pop(1)
    ends = [*starts[1:], one.backward_op]
    back_s = _backward_seconds(capture, one.backward_op, one.end_op, starts, one.first_op, one.backward_op, op_s)
    states = _state_bytes(capture, paths)
    kept = (lives.death_op >= one.backward_op) & ~lives.is_state & (lives.birth >= 0)
    made = list[CutUnit]()
    for i, (a, b) in enumerate(zip(starts, ends, strict=True)):
        inside = kept & (lives.birth_op >= a) & (lives.birth_op < b)
        alive = (lives.birth_op >= a) & (lives.birth_op < b) & (lives.death_op >= b) & ~lives.is_state
        last = int(np.argmax(np.where(alive, lives.birth, -1))) if alive.any() else -1
        out = int(capture.storage_bytes[last]) if last >= 0 else 0
        forward_s = float(op_s[a:b].sum())
        saved = int(capture.storage_bytes[inside].sum())
        made.append(CutUnit(paths[i], forward_s + back_s[i], states[i], saved, out))
    return tuple(made)


def _backward_seconds(
    capture: Capture, first: int, end: int, starts: list[int], forward: int, forward_end: int, op_s: F64
) -> list[float]:
    """Backward seconds by unit: an operation belongs to the latest unit of its module not yet passed, as it runs back."""
    unit_of = np.searchsorted(np.array(starts), np.arange(forward, forward_end), side="right") - 1
    places: dict[int, NDArray[np.int64]] = {}
    modules: list[int] = np.unique(capture.op_module[forward:forward_end]).tolist()
    for module in modules:
        places[module] = np.unique(unit_of[capture.op_module[forward:forward_end] == module])
    seconds, now = [0.0] * len(starts), len(starts) - 1
    for i, module in enumerate(capture.op_module[first:end].tolist(), first):
        mine = places.get(module)
        if mine is not None and module:
            at = int(np.searchsorted(mine, now, side="right")) - 1
            now = int(mine[at]) if at >= 0 else now
        if capture.op_phase[i] != Phase.OPTIMIZER:
            seconds[now] += float(op_s[i])
    return seconds


def _state_bytes(capture: Capture, paths: list[str]) -> list[int]:
    """Parameters, their gradients and their share of the optimizer states, by unit; a parameter no unit holds is the first's."""
    trained = sum(math.prod(p.shape) for p in capture.parameters if p.trainable)
    alive = capture.bytes_by_category(capture.steady.end_event - 1).get(Category.OPTIMIZER, 0)
    each = alive / trained if trained else 0.0
    held = [0.0] * len(paths)
    for p in capture.parameters:
        inside = [i for i, path in enumerate(paths) if path and p.name.startswith(path + ".")]
        n = math.prod(p.shape)
        own = n * ELEMENT_BYTES[p.dtype] * (2 if p.trainable else 1) + (n * each if p.trainable else 0.0)
        held[inside[0] if inside else 0] += own
    return [int(h) for h in held]


def cut_pipeline(
    network: tuple[CutUnit, ...],
    n_stages: int,
    *,
    micro_batches: int,
    memory_bytes: float,
    system: System | None = None,
    schedule: str = "1f1b",
    virtual_stages: int = 1,
    ranks_apart: int = 1,
) -> PipelineCut:
    """The best cut into ``n_stages`` (times ``virtual_stages`` chunks under the interleaved schedule).

    ``memory_bytes`` is what tensors of one rank may take. Neighbours are ``ranks_apart`` ranks apart on ``system`` (None:
    sends cost nothing). Raises LayoutError if there are fewer units than stages, UnpredictableError if no cut fits.
    """
    _check(network, n_stages, micro_batches, memory_bytes, schedule, virtual_stages)
    sums = _sums(network, system, ranks_apart)
    n_chunks = n_stages * (virtual_stages if schedule == "interleaved" else 1)
    v = n_chunks // n_stages
    flight = [_in_flight(k % n_stages, micro_batches, n_stages, v, schedule) for k in range(n_chunks)]
    edges = _best(sums, n_chunks, flight, memory_bytes / v)
    if edges is None:
        raise UnpredictableError(
            "no cut fits",
            f"no cut into {n_stages} stages fits {memory_bytes / 2**30:.2f} GiB a rank",
            hint="more stages, checkpointing, or fewer micro-batches in flight",
        )
    chunks = [_stage(sums, a, b, k, n_chunks, flight[k]) for k, (a, b) in enumerate(pairwise(edges))]
    return _result(chunks, n_stages, v, micro_batches, schedule)


def _check(
    network: tuple[CutUnit, ...], n_stages: int, micro_batches: int, memory_bytes: float, schedule: str, virtual: int
) -> None:
    if n_stages < 1 or micro_batches < 1 or virtual < 1 or not memory_bytes > 0 or not math.isfinite(memory_bytes):
        raise InputError(
            f"{n_stages} stages, {micro_batches} micro-batches, {virtual} virtual stages in {memory_bytes} bytes",
            hint="all are at least 1",
        )
    if schedule not in SCHEDULES:
        raise InputError(f"unknown schedule {schedule!r}", hint="one of " + ", ".join(SCHEDULES))
    chunks = n_stages * (virtual if schedule == "interleaved" else 1)
    if len(network) < chunks:
        raise LayoutError("a stage has a unit", f"{len(network)} units cannot make {chunks} stages", hint="fewer stages")


def _sums(network: tuple[CutUnit, ...], system: System | None, ranks_apart: int) -> _Sums:
    hop = np.zeros(len(network) + 1)
    if system is not None:
        near = ranks_apart < system.domain_size
        sends = curve(system, "send_recv", 2, 2 if near else 1)
        hop[1:-1] = 2 * sends.time_s(np.array([u.output_bytes for u in network[:-1]], np.float64))

    def prefix(values: list[float]) -> F64:
        return np.concatenate([np.zeros(1), np.cumsum(np.array(values, np.float64))])

    return _Sums(
        network,
        prefix([u.time_s for u in network]),
        prefix([float(u.state_bytes) for u in network]),
        prefix([float(u.saved_bytes) for u in network]),
        hop,
    )


def _in_flight(stage: int, micro_batches: int, n_stages: int, virtual: int, schedule: str) -> float:
    one = (np.array([x]) for x in (stage, micro_batches, n_stages, virtual, SCHEDULES.index(schedule)))
    return float(in_flight(*one)[0])


def _memory(sums: _Sums, first: NDArray[np.int64] | int, end: int, flight: float) -> F64:
    a = np.asarray(first)
    return sums.state[end] - sums.state[a] + flight * (sums.saved[end] - sums.saved[a])


def _best(sums: _Sums, n_chunks: int, flight: list[float], memory_bytes: float) -> list[int] | None:
    """Boundaries of the best cut: dynamic programming over (chunks, end), lexicographic in (slowest, fullest)."""
    n = len(sums.units)
    slow = np.full((n_chunks + 1, n + 1), np.inf)
    full = np.full((n_chunks + 1, n + 1), np.inf)
    back = np.zeros((n_chunks + 1, n + 1), np.int64)
    slow[0, 0] = full[0, 0] = 0.0
    for k in range(1, n_chunks + 1):
        for j in range(k, n - (n_chunks - k) + 1):
            start = np.arange(k - 1, j)
            seconds = sums.time_s[j] - sums.time_s[start] + sums.hop_s[j] + sums.hop_s[start]
            memory = _memory(sums, start, j, flight[k - 1])
            slowest = np.where(memory <= memory_bytes, np.maximum(slow[k - 1, start], seconds), np.inf)
            fullest = np.maximum(full[k - 1, start], memory)
            at = int(np.lexsort((fullest, slowest))[0])
            slow[k, j], full[k, j], back[k, j] = slowest[at], fullest[at], start[at]
    if not np.isfinite(slow[n_chunks, n]):
        return None
    edges = [n]
    for k in range(n_chunks, 0, -1):
        edges.append(int(back[k, edges[-1]]))
    return edges[::-1]


def _stage(sums: _Sums, first: int, end: int, k: int, n_chunks: int, flight: float) -> Stage:
    inside = sums.units[first:end]
    seconds = float(sums.time_s[end] - sums.time_s[first] + sums.hop_s[end] + sums.hop_s[first])
    return Stage(
        first,
        end,
        tuple(u.path for u in inside),
        seconds,
        sum(u.state_bytes for u in inside),
        sum(u.saved_bytes for u in inside),
        flight,
        int(_memory(sums, first, end, flight)),
        inside[-1].output_bytes if k + 1 < n_chunks else 0,
    )


def _result(chunks: list[Stage], n_stages: int, virtual: int, micro_batches: int, schedule: str) -> PipelineCut:
    """Times of ranks (chunk ``k`` runs on rank ``k mod stages``) and the step they make."""
    rank_s = [sum(c.time_s for c in chunks[r::n_stages]) for r in range(n_stages)]
    peak = max(sum(c.memory_bytes for c in chunks[r::n_stages]) for r in range(n_stages))
    slowest = max(rank_s)
    ramp = sum(rank_s) - slowest
    columns = (micro_batches, n_stages, virtual, SCHEDULES.index(schedule))
    step, bubble = pipeline_time(np.array([slowest]), np.array([ramp]), np.zeros(1), *(np.array([x]) for x in columns))
    return PipelineCut(tuple(chunks), slowest, peak, float(step[0]), float(bubble[0]), schedule, virtual)
