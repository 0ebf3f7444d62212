"""A tape with repeated layers: a period is written once, and its operations are numbered for each repetition.

Equal layers write equal operations, in the forward and in the backward; only the numbers of operations and storages differ, by
offsets that follow from one period. So three layers represent eighty, operation by operation: the one before the period (whose
output it reads), the period, and the one behind it (whose backward passes it its gradient).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.workload.eager.tape import Mark, Tape

I64 = NDArray[np.int64]
LONGEST_PERIOD = 12
"""Layers of a pattern that are looked for (Gemma 3 has 6)."""


class Period(NamedTuple):
    """Layers ``first`` to ``first + length`` of a model, which come ``times`` more behind themselves."""

    first: int
    length: int
    times: int


def period_of(kinds: Sequence[str]) -> Period | None:
    """The period that leaves the fewest layers to write, with a layer of its own kind on either side; None without repetition."""
    best = None
    for length in range(1, min(LONGEST_PERIOD, len(kinds) // 2) + 1):
        first = 0
        while first < len(kinds) - length:
            end = first
            while end + length < len(kinds) and kinds[end] == kinds[end + length]:
                end += 1
            times = (end - first + length - 2) // length - 1
            if times > 0 and (best is None or times * length > best.times * best.length):
                best = Period(first + 1, length, times)
            first = end + 1
    return best


class Borders(NamedTuple):
    """Position of a period on a tape: ``before`` is the start of the layer before it; in the backward, ``behind`` is the start
    of the layer behind it, and the period's own part ends with ``back_end``."""

    before: Mark
    first: Mark
    end: Mark
    behind: Mark
    back_first: Mark
    back_end: Mark


@dataclass(frozen=True, slots=True)
class Columns:
    """A tape as flat arrays: per operation [N] its signature, phase, flag and layer; per read and write its operation and
    storage; and the storages that variables reference."""

    signature: I64
    phase: I64
    flag: I64
    layer: I64
    """-1 outside of the layers."""
    reads: I64
    read_op: I64
    writes: I64
    write_op: I64
    held: I64
    """[H, 3] storage, operation, operation if the forward is recomputed: :attr:`Tape.held`."""
    unpacking: I64
    """[U, 2] :attr:`Tape.unpacking`."""
    trained: I64
    """[T, 3] block, rank and storage of each trained parameter."""
    frozen: I64
    gradients: I64
    """[G, 2] storage of each parameter and of its gradient."""
    n_storages: int


def columns_of(tape: Tape, layers: Sequence[int], trained: Sequence[tuple[int, int, int]], frozen: Sequence[int]) -> Columns:
    """The columns of ``tape``; ``layers`` is the layer of each of its modules."""
    numbers = np.array(tape.operations, np.int64).reshape(-1, 4)
    (reads, read_op), (writes, write_op) = (_flat([f[side] for f in tape.flow]) for side in (0, 1))
    return Columns(
        numbers[:, 0],
        numbers[:, 1],
        numbers[:, 3],
        np.array(layers, np.int64)[numbers[:, 2]],
        reads,
        read_op,
        writes,
        write_op,
        np.array(tape.held, np.int64).reshape(-1, 3),
        np.array(tape.unpacking, np.int64).reshape(-1, 2),
        np.array(trained, np.int64).reshape(-1, 3),
        np.array(frozen, np.int64),
        np.array(list(tape.gradients.items()), np.int64).reshape(-1, 2),
        tape.mark().storages,
    )


def _flat(storages: Sequence[tuple[int, ...]]) -> tuple[I64, I64]:
    """Storages of every operation in a row, and the operation of each."""
    counts = np.array([len(each) for each in storages], np.int64)
    return np.array([s for each in storages for s in each], np.int64), np.repeat(np.arange(len(storages)), counts)


def repeated(c: Columns, period: Period, at: Borders) -> Columns:
    """``c`` with its period ``period.times`` more often, as if every layer had been written."""
    run = _Repetition(period, at)
    cuts = (at.first.ops, at.end.ops, at.back_first.ops, at.back_end.ops)
    ops = run.rows(len(c.signature), *cuts)

    def flow(storage: I64, op: I64) -> tuple[I64, I64]:
        first, end, back_first, back_end = np.searchsorted(op, cuts).tolist()
        rows = run.rows(len(op), first, end, back_first, back_end)
        return run.storages(storage[rows.source], rows), run.operations(op[rows.source], rows)

    (reads, read_op), (writes, write_op) = flow(c.reads, c.read_op), flow(c.writes, c.write_op)
    held = run.rows(len(c.held), at.first.held, at.end.held, at.back_first.held, at.back_end.held)
    names = run.storages(c.held[held.source, 0], held)
    ends = [run.operations(c.held[held.source, k], held) for k in (1, 2)]
    unpacking = run.rows(len(c.unpacking), 0, 0, at.back_first.unpacking, at.back_end.unpacking)
    later = np.where(ops.forward >= 0, ops.forward, np.where(ops.backward >= 0, period.times - ops.backward, 0))
    return Columns(
        c.signature[ops.source],
        c.phase[ops.source],
        c.flag[ops.source],
        c.layer[ops.source] + later * period.length,
        reads,
        read_op,
        writes,
        write_op,
        np.stack([names, *ends], axis=1),
        np.stack([run.operations(c.unpacking[unpacking.source, k], unpacking) for k in (0, 1)], axis=1),
        run.leaves(c.trained),
        run.leaves(np.stack([np.zeros_like(c.frozen)] * 2 + [c.frozen], axis=1))[:, 2],
        run.gradients(c.gradients),
        c.n_storages + period.times * (run.n_forward + run.n_backward),
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a list in order of time, with the period's as often as it runs: where each comes from, and of which copy of the
    period it is (-1: of none)."""

    source: I64
    forward: I64
    backward: I64


class _Repetition:
    """Numbers of the storages and operations of every copy of a period. Copies of the backward come the last one first."""

    def __init__(self, period: Period, at: Borders) -> None:
        self.period, self.at, self.times = period, at, period.times
        self.n_forward = at.end.storages - at.first.storages
        self.n_backward = at.back_end.storages - at.back_first.storages
        self.ops_forward = at.end.ops - at.first.ops
        self.ops_backward = at.back_end.ops - at.back_first.ops

    def rows(self, n: int, first: int, end: int, back_first: int, back_end: int) -> _Rows:
        """Rows 0 to ``n`` where the period's are ``first`` to ``end`` and, in the backward, ``back_first`` to ``back_end``."""
        copies = self.times + 1
        forward, backward = np.arange(first, end), np.arange(back_first, back_end)
        parts = [np.arange(first), np.tile(forward, copies), np.arange(end, back_first), np.tile(backward, copies)]
        parts.append(np.arange(back_end, n))
        copy = [np.full(len(p), -1) for p in parts]
        ahead, back = copy.copy(), copy.copy()
        ahead[1] = np.repeat(np.arange(copies), len(forward))
        back[3] = np.repeat(np.arange(copies), len(backward))
        return _Rows(np.concatenate(parts), np.concatenate(ahead), np.concatenate(back))

    def storages(self, s: I64, rows: _Rows) -> I64:
        """Numbers of the storages ``s`` that ``rows`` name: a copy's own, those of the layer it follows, or one of all."""
        at, times = self.at, self.times
        whole = times * self.n_forward
        outside = np.where(s >= at.first.storages, whole, 0) + np.where(s >= at.back_first.storages, times * self.n_backward, 0)
        is_inside = s >= at.before.storages
        forward = np.where(is_inside, rows.forward * self.n_forward, 0)
        saved = np.where(is_inside, (times - rows.backward) * self.n_forward, 0)
        names = whole + np.where(s >= at.behind.storages, rows.backward * self.n_backward, 0)
        backward = np.where(s >= at.end.storages, names, saved)
        return s + np.where(rows.forward >= 0, forward, np.where(rows.backward >= 0, backward, outside))

    def operations(self, op: I64, rows: _Rows) -> I64:
        """Numbers of the operations ``op`` that ``rows`` name."""
        at, times = self.at, self.times
        whole = times * self.ops_forward
        outside = np.where(op >= at.first.ops, whole, 0) + np.where(op >= at.back_first.ops, times * self.ops_backward, 0)
        backward = whole + rows.backward * self.ops_backward
        return op + np.where(rows.forward >= 0, rows.forward * self.ops_forward, np.where(rows.backward >= 0, backward, outside))

    def leaves(self, leaves: I64) -> I64:
        """[L, 3] block, rank and storage of leaves."""
        first, end = np.searchsorted(leaves[:, 2], (self.at.first.storages, self.at.end.storages)).tolist()
        rows = self.rows(len(leaves), first, end, len(leaves), len(leaves))
        out = leaves[rows.source]
        out[:, 0] += np.maximum(rows.forward, 0) * self.period.length
        out[:, 2] = self.storages(out[:, 2], rows)
        return out

    def gradients(self, pairs: I64) -> I64:
        """[G, 2] storages of parameters and of their gradients, which come in the order of the backward."""
        at = self.at
        inside = np.flatnonzero((pairs[:, 0] >= at.first.storages) & (pairs[:, 0] < at.end.storages))
        first, end = (int(inside[0]), int(inside[-1]) + 1) if inside.size else (len(pairs), len(pairs))
        rows = self.rows(len(pairs), 0, 0, first, end)
        return np.stack([self.storages(pairs[rows.source, k], rows) for k in (0, 1)], axis=1)


def repeated_spans(spans: Mapping[int, tuple[int, int]], period: Period, at: Borders) -> dict[int, tuple[int, int]]:
    """Operations of every layer, from those of the layers that are written: ``spans`` by the layers' numbers."""
    ops, end = at.end.ops - at.first.ops, period.first + period.length
    out: dict[int, tuple[int, int]] = {}
    for i, (first, until) in spans.items():
        inside = period.first <= i < end
        for copy in range(period.times + 1) if inside else (period.times if i >= end else 0,):
            out[i + (copy * period.length if inside else 0)] = first + copy * ops, until + copy * ops
    return out
