"""Activation checkpointing chosen per module: the cheapest selection under a memory target, for any captured network.

Every block, and inside it every module, is a candidate: checkpointed as a whole, or not and its parts decided one by one.
What a candidate saves and costs is read from the capture; :mod:`gpuwise.plan.checkpointing.solve` finds the optimum, and the
answer is worked out once more by putting the recomputation into the captured step
(:func:`gpuwise.workload.capture.record.recompute.recomputed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.plan.checkpointing.solve import Choice, Position, Solution, smallest_target, solve
from gpuwise.workload.capture.captured import Capture, OpFlag
from gpuwise.workload.capture.record.blocks import Lives, ModuleTree, Pass, Segment, backward_of, module_mask, passes, runs, units
from gpuwise.workload.capture.record.recompute import recomputed

F64 = NDArray[np.float64]
DEPTH = 3
"""Levels of modules below a block that are candidates (a layer, its attention, the attention's projections)."""


@dataclass(frozen=True, slots=True)
class CheckpointSelection:
    """Modules to checkpoint, and what that does to the step."""

    paths: tuple[str, ...]
    peak_bytes: int
    """Peak bytes requested and alive in the steady step."""
    recompute_s: float
    slowdown: float
    """Step time over the plain step's."""
    exact: bool
    """No cheaper selection of these candidates exists, by the model of :mod:`gpuwise.plan.checkpointing.solve`."""


class _Book:
    """Lookup tables for choosing modules from one pass.

    The forward is cut into elementary pieces, wherever a candidate begins or ends; an operation of the backward belongs
    to the latest piece of its module that the backward has not passed yet, or to where the backward is.
    """

    def __init__(self, capture: Capture, one: Pass, op_s: F64, depth: int) -> None:
        self.capture, self.one, self.op_s = capture, one, op_s
        self.tree, self.lives = ModuleTree.of(capture), Lives(capture)
        self.live = capture.live_bytes()
        self.top = runs(capture, self.tree, one.first_op, one.backward_op, units(capture, self.tree))
        self.inner: dict[tuple[str, int], tuple[Segment, ...]] = {}
        for segment in self.top:
            self._expand(segment, depth)
        cuts = {s.first_op for part in (self.top, *self.inner.values()) for s in part}
        self.starts = np.array(sorted(cuts), np.int64)
        self.back_most = self._backward_needs()

    def _expand(self, segment: Segment, depth: int) -> None:
        children = self.tree.children[segment.path] if segment.path and depth else ()
        if children:
            parts = runs(self.capture, self.tree, segment.first_op, segment.end_op, children)
            self.inner[segment.path, segment.first_op] = parts
            for part in parts:
                self._expand(part, depth - 1)

    def _backward_needs(self) -> NDArray[np.int64]:
        """[pieces] most bytes alive during each piece's backward operations."""
        c, one = self.capture, self.one
        piece_of = np.searchsorted(self.starts, np.arange(one.first_op, one.backward_op), side="right") - 1
        pieces: dict[int, NDArray[np.int64]] = {}
        for module in np.unique(c.op_module[one.first_op : one.backward_op]).tolist():
            pieces[module] = np.unique(piece_of[c.op_module[one.first_op : one.backward_op] == module])
        most = np.zeros(len(self.starts), np.int64)
        now = len(self.starts) - 1
        first = np.searchsorted(c.event_op, np.arange(one.backward_op, one.end_op + 1), side="left")
        for i, module in enumerate(c.op_module[one.backward_op : one.end_op].tolist()):
            module_pieces = pieces.get(module)
            if module_pieces is not None:
                at = int(np.searchsorted(module_pieces, now, side="right")) - 1
                now = int(module_pieces[at]) if at >= 0 else now
            a, b = int(first[i]), int(first[i + 1])
            most[now] = max(most[now], int(self.live[max(a - 1, 0) : max(b, a)].max(initial=0)))
        return most

    def backward_need(self, segment: Segment) -> int:
        """Most bytes alive during the backward of the pieces of ``segment``."""
        a, b = np.searchsorted(self.starts, [segment.first_op, segment.end_op])
        return int(self.back_most[a:b].max(initial=0))

    def most(self, first_op: int, end_op: int) -> int:
        """Most bytes alive from the start of ``first_op`` to the last event before ``end_op``."""
        a, b = self.lives.event_at(first_op), self.lives.event_at(end_op)
        return int(self.live[max(a - 1, 0) : max(b, a)].max(initial=0))

    def at(self, op: int) -> int:
        """Bytes alive when ``op`` starts."""
        event = self.lives.event_at(op)
        return int(self.live[event - 1]) if event else 0


def checkpoint_choices(capture: Capture, op_s: F64, depth: int = DEPTH) -> tuple[Position | Choice, ...]:
    """The candidates of the steady step's last pass, where gradients of earlier micro-batches are alive as well.

    ``op_s`` [ops] is the time of every operation of the capture; a choice costs its forward in every pass.
    Raises InputError if the lengths differ, UnpredictableError if the step has no backward.
    """
    if op_s.shape != capture.op_phase.shape:
        raise InputError(
            f"{op_s.size} times for {capture.op_phase.size} operations", hint="one time in seconds per captured operation"
        )
    if not np.all(np.isfinite(op_s)) or np.any(op_s < 0):
        raise InputError("a time is negative or not a number", hint="seconds per operation, zero or more")
    segments = passes(capture)
    if not segments:
        raise UnpredictableError("no backward", "the captured step has no backward pass", hint="capture a training step")
    book = _Book(capture, segments[-1], op_s, depth)
    items = _items(book, book.top, len(segments))
    # the update and everything else outside the pass
    span = capture.steady
    outside = max(book.most(span.first_op, book.one.first_op), book.most(book.one.end_op, span.end_op))
    return (Position(outside), *items)


def _items(book: _Book, segments: Sequence[Segment], n_passes: int) -> tuple[Position | Choice, ...]:
    items = list[Position | Choice]()
    paths = [s.path for s in segments if s.path]
    for segment in segments:
        once = segment.path and paths.count(segment.path) == 1
        choice = _choice(book, segment, n_passes) if once else None
        plain = max(book.most(segment.first_op, segment.end_op), book.backward_need(segment))
        items.append(choice or Position(plain))
    return tuple(items)


def _choice(book: _Book, segment: Segment, n_passes: int) -> Choice | None:
    c = book.capture
    if np.any(c.op_flags[segment.first_op : segment.end_op] & OpFlag.CHECKPOINTED):
        return None
    back = backward_of(c, book.one, module_mask(c, book.tree, segment.path))
    if back is None:
        return None
    storages = book.lives.storages_of(book.one, segment)
    saved = int(c.storage_bytes[list(storages.saved)].sum())
    saved_bytes = sum(int(c.storage_bytes[s]) for s in storages.inputs if book.lives.death_op[s] < back.first_op)
    forward = book.most(segment.first_op, segment.end_op)
    recompute = book.at(back.first_op) - saved + forward - book.at(segment.first_op)
    need = max(max(recompute, book.backward_need(segment)) + saved_bytes, forward)
    inside = book.inner.get((segment.path, segment.first_op), ())
    items = _items(book, inside, n_passes)
    time_s = float(book.op_s[segment.first_op : segment.end_op].sum()) * n_passes
    return Choice(
        segment.path, items or (Position(max(forward, book.backward_need(segment))),), need, saved - saved_bytes, time_s
    )


def select_checkpoints(capture: Capture, target_bytes: int, op_s: F64, depth: int = DEPTH) -> CheckpointSelection:
    """The cheapest modules to checkpoint so that the step needs at most ``target_bytes`` (requested bytes: leave room for
    rounding, workspaces and the context).

    Raises UnpredictableError if no selection suffices, with the minimum that can be reached.
    """
    if target_bytes <= 0:
        raise InputError(f"a target of {target_bytes} bytes", hint="give the bytes that tensors may take")
    items = checkpoint_choices(capture, op_s, depth)
    solution = solve(items, target_bytes)
    if solution is None:
        least = smallest_target(items)
        raise UnpredictableError(
            "checkpointing is not enough",
            f"checkpointing alone needs at least {least / 2**30:.2f} GiB of tensors, more than {target_bytes / 2**30:.2f} GiB",
            hint="a smaller micro-batch, sharded states or offload",
        )
    return selection_of(capture, solution, op_s)


def selection_of(capture: Capture, solution: Solution, op_s: F64) -> CheckpointSelection:
    """The captured step with a selection applied."""
    span = capture.steady
    step_s = float(op_s[span.first_op : span.end_op].sum())
    plain = capture.peak_bytes()
    peak = recomputed(capture, solution.paths).peak_bytes() if solution.paths else plain
    slowdown = 1.0 + solution.time_s / step_s if step_s > 0 else 1.0
    return CheckpointSelection(solution.paths, peak, solution.time_s, slowdown, solution.exact)
