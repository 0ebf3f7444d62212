"""Memory over one step: bytes by category after every event, what is reserved, where the phases begin, what makes the peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.predict.memory.allocator.simulation import AllocatorRun, simulate_capture
from gpuwise.predict.memory.snapshot.replay import Replay
from gpuwise.workload.capture.captured import Capture, Category
from gpuwise.workload.row_codes import Phase

I64 = NDArray[np.int64]
CATEGORY_WORDS = {
    Category.PARAMETER: "parameters",
    Category.GRADIENT: "gradients",
    Category.OPTIMIZER: "optimizer states",
    Category.BUFFER: "buffers",
    Category.INPUT: "inputs",
    Category.ACTIVATION: "activations",
    Category.TEMPORARY: "temporaries",
    Category.COMMUNICATION: "communication",
    Category.WORKSPACE: "workspaces",
}
ORDER = (
    Category.PARAMETER,
    Category.OPTIMIZER,
    Category.BUFFER,
    Category.GRADIENT,
    Category.INPUT,
    Category.ACTIVATION,
    Category.TEMPORARY,
    Category.COMMUNICATION,
    Category.WORKSPACE,
)
"""From what stays to what comes and goes: the order of the stack, from below."""
MAX_POINTS = 400
"""More rows are drawn as the highest of each stretch: as fine as a screen shows."""
PHASE_WORDS = {
    Phase.FORWARD: "forward",
    Phase.RECOMPUTE: "recompute",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
}


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """Consecutive events of one phase: half-open range of rows of the timeline."""

    name: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment with most bytes in use."""

    row: int
    requested_bytes: int
    operation: str
    """``aten.mm.default``; empty if unknown."""
    module: str
    line: str
    largest: tuple[tuple[str, int], ...]
    """Live storages, largest first: place of allocation, bytes."""

    @property
    def words(self) -> str:
        """``aten.mm in layers.3.mlp (train.py:31 in step)``, as far as known."""
        operation = self.operation.removesuffix(".default")
        parts = [
            operation,
            f"in {self.module}" if self.module else "",
            f"({self.line})" if self.line and operation else self.line,
        ]
        return " ".join(p for p in parts if p)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTimeline:
    """``R`` rows: row 0 is the state before the step, row i the state after its i-th memory event."""

    title: str
    categories: tuple[str, ...]
    """From below."""
    bytes_by_category: I64 = field(repr=False)
    """[C, R] requested bytes."""
    reserved_bytes: I64 | None = field(repr=False)
    """[R] taken from the device by the allocator, ``None`` if it was not simulated."""
    time_s: NDArray[np.float64] | None = field(repr=False)
    """[R] seconds since the step began; ``None``: rows are events in order."""
    phases: tuple[PhaseSpan, ...]
    peak: Peak
    capacity_bytes: int | None = None
    """Device memory the process can reserve."""
    oom_row: int | None = None
    """Row at which the device ran out of memory; the rows after it are what would have been needed."""
    notes: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> I64:
        """Bytes in all [R]."""
        return self.bytes_by_category.sum(axis=0)

    @property
    def n_rows(self) -> int:
        """Memory events of the step, and the state before them."""
        return int(self.bytes_by_category.shape[1])


def memory_timeline(
    capture: Capture,
    run: AllocatorRun | None = None,
    step: int = -1,
    *,
    capacity_bytes: int | None = None,
    op_time_s: Sequence[float] | NDArray[np.float64] | None = None,
) -> MemoryTimeline:
    """Timeline of one captured step.

    Args: capture: the capture. run: its storages through the allocator (same events as the capture); simulated with its own
    settings if left out. step: which step; the last is steady. capacity_bytes: line to draw; default: the run's. op_time_s: [N]
    time of every operation: the rows then carry seconds.

    Raises InputError when run and capture do not belong together, or the step does not exist.
    """
    if not -len(capture.steps) <= step < len(capture.steps):
        raise InputError(f"step {step} of {len(capture.steps)} captured", hint="the last one is -1")
    if run is None:
        run = simulate_capture(capture, capacity_bytes=capacity_bytes)
    if run.storage.size != capture.event_storage.size:
        raise InputError(
            f"a run of {run.storage.size} events for a capture of {capture.event_storage.size}",
            hint="simulate this capture: simulate_capture(capture)",
        )
    span = capture.steps[step]
    part = slice(span.first_event, span.end_event)
    values = _stacked(capture, span.first_event, span.end_event)
    reserved = _rows(run.reserved(), span.first_event, span.end_event)
    total = values.sum(axis=0)
    row = int(total.argmax()) if total.size else 0
    ops = capture.event_op[part]
    time_s = None
    if op_time_s is not None:
        ends = np.cumsum(np.asarray(op_time_s, dtype=np.float64)[span.first_op : span.end_op])
        index = np.clip(ops - span.first_op, 0, max(ends.size - 1, 0))
        time_s = np.concatenate(([0.0], ends[index])) if ends.size else np.zeros(values.shape[1])
    present = [i for i in range(len(ORDER)) if values[i].any()]
    oom = run.oom.event - span.first_event + 1 if run.oom is not None else None
    return MemoryTimeline(
        title=capture.name or "captured step",
        categories=tuple(CATEGORY_WORDS[ORDER[i]] for i in present),
        bytes_by_category=values[present],
        reserved_bytes=reserved,
        time_s=time_s,
        phases=_phases(capture, ops, span.end_op),
        peak=_peak(capture, span.first_event, row, int(total[row])),
        capacity_bytes=capacity_bytes if capacity_bytes is not None else run.capacity_bytes,
        oom_row=max(oom, 0) if oom is not None and oom < values.shape[1] else None,
    )


def thin(timeline: MemoryTimeline, points: int = MAX_POINTS) -> tuple[Any, Any, Any]:
    """(rows, [C, P] bytes, [P] reserved): of each stretch of rows, the one with most in use; the first, last and peak stay."""
    count = timeline.n_rows
    if count <= points:
        return np.arange(count), timeline.bytes_by_category, timeline.reserved_bytes
    edges = np.linspace(0, count, points + 1).astype(np.int64)
    total = timeline.total_bytes
    best = [int(a + total[a:b].argmax()) for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True) if b > a]
    rows = np.unique(np.array([0, *best, timeline.peak.row, count - 1]))
    reserved = timeline.reserved_bytes
    return rows, timeline.bytes_by_category[:, rows], None if reserved is None else reserved[rows]


def snapshot_timeline(replay: Replay, *, title: str = "recorded memory", capacity_bytes: int | None = None) -> MemoryTimeline:
    """Timeline of a replayed snapshot: one band per line of code that holds most at the peak, the rest in another."""
    history, run = replay.history, replay.run
    begun = min(history.begun, run.n_events)
    sizes = run.size_bytes
    signed = run.sign * sizes[run.storage]
    total = np.concatenate(([0], np.cumsum(signed)))[begun : run.n_events + 1]
    row = int(total.argmax()) if total.size else 0
    at = begun + row - 1
    live = run.live(at) if at >= 0 else np.zeros(0, dtype=np.int64)
    bytes_by_place: dict[str, int] = {}
    for s in live.tolist():
        bytes_by_place[history.where[s] or "unknown place"] = bytes_by_place.get(history.where[s] or "unknown place", 0) + int(
            sizes[s]
        )
    largest = tuple(sorted(bytes_by_place.items(), key=lambda item: (-item[1], item[0])))
    names = [name for name, _ in largest[:6]]
    code = {name: i for i, name in enumerate(names)}
    band = np.array([code.get(w or "unknown place", len(names)) for w in history.where], dtype=np.int64)
    values = np.zeros((len(names) + 1, run.n_events + 1), dtype=np.int64)
    np.add.at(values, (band[run.storage[: run.n_events]], np.arange(1, run.n_events + 1)), signed[: run.n_events])
    values = np.cumsum(values, axis=1)[:, begun:]
    keep = [i for i in range(len(names) + 1) if values[i].any()]
    where = history.where[int(run.storage[at])] if at >= 0 else ""
    clock = np.array(history.time_us[: run.n_events], dtype=np.float64)[begun:]
    rising = clock.size > 1 and clock[0] > 0 and bool((np.diff(clock) >= 0).all()) and clock[-1] > clock[0]
    return MemoryTimeline(
        title=title,
        categories=tuple([*names, "elsewhere"][i] for i in keep),
        bytes_by_category=values[keep],
        reserved_bytes=_rows(run.reserved(), begun, run.n_events),
        time_s=np.concatenate(([0.0], (clock - clock[0]) * 1e-6)) if rising else None,
        phases=(),
        peak=Peak(row, int(total[row]) if total.size else 0, "", "", where, largest[:8]),
        capacity_bytes=capacity_bytes if capacity_bytes is not None else run.capacity_bytes,
        oom_row=run.n_events - begun if run.oom is not None else None,
    )


def _stacked(capture: Capture, first: int, end: int) -> I64:
    """[C, R] live bytes of each category of ``ORDER`` before event ``first`` and after each event up to ``end``."""
    storage = capture.event_storage[:end]
    signed = capture.event_sign[:end].astype(np.int64) * capture.storage_bytes[storage]
    rank = np.zeros(len(Category), dtype=np.int64)
    for i, category in enumerate(ORDER):
        rank[category] = i
    band = rank[capture.storage_category[storage]]
    values = np.zeros((len(ORDER), end - first + 1), dtype=np.int64)
    before = band[:first]
    values[:, 0] = np.bincount(before, weights=signed[:first], minlength=len(ORDER))
    values[band[first:], np.arange(1, end - first + 1)] = signed[first:]
    return np.cumsum(values, axis=1)


def _rows(series: I64, first: int, end: int) -> I64:
    """[R] a per-event series from before ``first`` to ``end``; a run that stopped early keeps its last value."""
    padded = np.concatenate(([0], series))
    index = np.minimum(np.arange(first, end + 1), padded.size - 1)
    return padded[index]


def _phases(capture: Capture, ops: I64, end_op: int) -> tuple[PhaseSpan, ...]:
    """Runs of events by the phase of their operation; the forward and recompute of micro-batches stay apart."""
    if not ops.size or not capture.op_phase.size:
        return ()
    phase = capture.op_phase[np.clip(ops, 0, min(end_op, capture.op_phase.size) - 1)]
    cuts = [0, *(np.flatnonzero(np.diff(phase)) + 1).tolist(), ops.size]
    spans = [PhaseSpan(PHASE_WORDS[Phase(int(phase[a]))], a + 1, b + 1) for a, b in pairwise(cuts)]
    merged: list[PhaseSpan] = []
    for span in spans:
        name = "backward" if span.name == "recompute" else span.name
        if merged and merged[-1].name == name:
            merged[-1] = PhaseSpan(name, merged[-1].first, span.end)
        else:
            merged.append(PhaseSpan(name, span.first, span.end))
    return tuple(merged)


def _peak(capture: Capture, first_event: int, row: int, size: int) -> Peak:
    event = first_event + row - 1
    if event < 0:
        return Peak(row, size, "", "", "", ())
    until_peak = slice(0, event + 1)
    alive = (
        np.bincount(
            capture.event_storage[until_peak], weights=capture.event_sign[until_peak], minlength=capture.storage_bytes.size
        )
        > 0
    )
    live = np.flatnonzero(alive)
    largest = live[np.argsort(-capture.storage_bytes[live], kind="stable")[:8]]
    op = int(capture.event_op[event])
    has_op = 0 <= op < capture.op_signature.size
    return Peak(
        row,
        size,
        capture.signatures[int(capture.op_signature[op])].op if has_op else "",
        capture.modules[int(capture.op_module[op])] if has_op else "",
        capture.lines[int(capture.op_line[op])] if has_op else "",
        tuple((_describe_storage(capture, int(s)), int(capture.storage_bytes[s])) for s in largest),
    )


def _describe_storage(capture: Capture, storage: int) -> str:
    """``activations of layers.3.mlp``: what a storage holds and where it was made."""
    what = CATEGORY_WORDS[Category(int(capture.storage_category[storage]))]
    module = capture.modules[int(capture.storage_module[storage])]
    op = int(capture.storage_op[storage])
    operation = capture.signatures[int(capture.op_signature[op])].op.removesuffix(".default") if op >= 0 else ""
    return what + (f" of {module}" if module else "") + (f", {operation}" if operation else "")
