"""Changes to a captured step: operations and memory events inserted, moved or removed, and storages resized.

Strategies are transformations of a capture (``recompute`` beside this file, :mod:`gpuwise.predict.parallel.sharding`): they
collect their changes in an :class:`Editor` and build a new, complete :class:`~gpuwise.workload.capture.captured.Capture`,
which the allocator simulator and the time model read like any other. Positions are those of the original capture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.workload.capture.captured import I64, Capture, Category, Signature, StepSpan

_FREE, _BORN = -1, 1
EARLY = -2
"""In place of a handle: before everything that is put in at that place."""


@dataclass(slots=True)
class Editor:
    """Collects changes to ``capture``; :meth:`build` makes the new one. Nothing is changed in place."""

    capture: Capture
    _bytes: I64 = field(init=False)
    _signatures: list[Signature] = field(init=False)
    _index_by_signature: dict[Signature, int] = field(init=False)
    _ops: list[tuple[int, int, int, int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int, int, int, int]])
    source: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    """After :meth:`build`: [new operations] which old operation each is (a copy of), -1 for what was put in."""
    handle_ops: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    """After :meth:`build`: [handles] new position of each inserted operation."""
    old_ops: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    """After :meth:`build`: [old operations + 1] new position of each old operation."""
    _storages: list[tuple[int, int, int, int, str, int]] = field(default_factory=list[tuple[int, int, int, int, str, int]])
    _events: list[tuple[int, int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int, int]])
    _dropped: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        self._bytes = self.capture.storage_bytes.copy()
        self._signatures = list(self.capture.signatures)
        self._index_by_signature = {s: i for i, s in enumerate(self._signatures)}

    def resize(self, storages: I64, new_bytes: I64) -> None:
        """Storages that hold fewer or more bytes from their birth on."""
        if np.any(new_bytes < 0):
            raise InputError("a storage cannot hold less than nothing", hint="sizes are zero or more bytes")
        self._bytes[storages] = new_bytes

    def op(self, before: int, signature: Signature, phase: int, *, module: int = 0, stream: int = 0, flags: int = 0) -> int:
        """An operation that runs right before operation ``before``, after those already put there; its handle."""
        at = self._index_by_signature.setdefault(signature, len(self._signatures))
        if at == len(self._signatures):
            self._signatures.append(signature)
        self._ops.append((before, at, phase, module, stream, flags, -1))
        return len(self._ops) - 1

    def copy_ops(self, first: int, end: int, before: int, phase: int, flags: int = 0) -> int:
        """Operations ``first`` to ``end`` once more, right before operation ``before``, as ``phase``; handle of the first."""
        c, handle = self.capture, len(self._ops)
        for i in range(first, end):
            at, module, stream = int(c.op_signature[i]), int(c.op_module[i]), int(c.op_stream[i])
            self._ops.append((before, at, phase, module, stream, int(c.op_flags[i]) | flags, i))
        return handle

    def storage(self, n_bytes: int, category: Category, dtype: str, *, module: int = 0, stream: int = 0, op: int = -1) -> int:
        """A new storage; its birth and death are given with :meth:`born` and :meth:`freed`."""
        self._storages.append((n_bytes, int(category), module, stream, dtype, op))
        return len(self._bytes) + len(self._storages) - 1

    def born(self, storage: int, before: int, handle: int = -1) -> None:
        """``storage`` is allocated right before operation ``before``, by the operation ``handle`` that was put in there."""
        self._events.append((self._event_at(before), before, storage, _BORN, handle))

    def freed(self, storage: int, before: int, handle: int = -1) -> None:
        """Free ``storage`` right before operation ``before``: after the operation ``handle`` inserted there, after all of
        them, or (``EARLY``) before the first."""
        self._events.append((self._event_at(before), before, storage, _FREE, handle))

    def freed_instead(self, event: int, storage: int) -> None:
        """Free ``storage`` at the position of the free ``event`` (as well, unless the event is dropped)."""
        self._events.append((event, int(self.capture.event_op[event]) + 1, storage, _FREE, -1))

    def drop_event(self, event: int) -> None:
        """An event that no longer happens (its storage lives on, or dies elsewhere)."""
        self._dropped.add(event)

    def _event_at(self, before: int) -> int:
        return int(np.searchsorted(self.capture.event_op, before, side="left"))

    def build(self, name: str | None = None) -> Capture:
        """The new capture. Categories, lines and findings of what stays are those of the old one."""
        c, n = self.capture, len(self.capture.op_phase)
        at = np.array([o[0] for o in self._ops], np.int64)
        order = np.argsort(at, kind="stable")
        where = at[order]
        new_ops = np.array([o[1:] for o in self._ops], np.int64).reshape(-1, 6)[order]

        def ops(old: I64, new: I64) -> I64:
            return np.insert(old, where, new)

        new_position = np.searchsorted(where, np.arange(n + 1), side="right")
        edge = np.searchsorted(where, np.arange(n + 1), side="left")
        edge[n] = len(where)
        index_of = np.empty(len(order), np.int64)
        index_of[order] = where + np.arange(len(order))
        self.handle_ops, self.old_ops = index_of, np.arange(n + 1) + new_position
        self.source = np.insert(np.arange(n), where, new_ops[:, 5])
        event_storage, event_sign, event_op, cuts = self._build_events(self.old_ops, index_of)
        new_storages = np.array([s[:4] for s in self._storages], np.int64).reshape(-1, 4)
        made_op = np.array([s[5] for s in self._storages], np.int64)
        old_op = np.where(c.storage_op >= 0, c.storage_op + new_position[np.maximum(c.storage_op, 0)], -1)
        new_op = np.where(made_op >= 0, np.maximum(made_op, 0) + new_position[np.clip(made_op, 0, n)] - 1, -1)
        steps = tuple(
            StepSpan(s.first_op + int(edge[s.first_op]), s.end_op + int(edge[s.end_op]), cuts(s.first_event), cuts(s.end_event))
            for s in c.steps
        )
        return replace(
            c,
            signatures=tuple(self._signatures),
            op_signature=ops(c.op_signature, new_ops[:, 0]),
            op_phase=ops(c.op_phase, new_ops[:, 1]),
            op_module=ops(c.op_module, new_ops[:, 2]),
            op_stream=ops(c.op_stream, new_ops[:, 3]),
            op_flags=ops(c.op_flags, new_ops[:, 4]),
            op_line=ops(c.op_line, np.zeros(len(where), np.int64)),
            storage_bytes=np.concatenate([self._bytes, new_storages[:, 0]]),
            storage_category=np.concatenate([c.storage_category, new_storages[:, 1]]),
            storage_module=np.concatenate([c.storage_module, new_storages[:, 2]]),
            storage_stream=np.concatenate([c.storage_stream, new_storages[:, 3]]),
            storage_op=np.concatenate([old_op, new_op]),
            storage_dtype=(*c.storage_dtype, *(s[4] for s in self._storages)),
            event_storage=event_storage,
            event_sign=event_sign,
            event_op=event_op,
            steps=steps,
            calls=(),
            name=c.name if name is None else name,
        )

    def _build_events(self, new_of_op: I64, new_of_handle: I64) -> tuple[I64, NDArray[np.int8], I64, Callable[[int], int]]:
        """Columns of the events, and the position of each old event boundary among them."""
        c = self.capture
        keep = np.ones(len(c.event_op), bool)
        keep[list(self._dropped)] = False
        old = np.flatnonzero(keep)
        old_op = np.where(c.event_op >= 0, new_of_op[np.maximum(c.event_op, 0)], -1)
        new_events = np.array(self._events, np.int64).reshape(-1, 5)
        has_handle = new_events[:, 4] >= 0
        added_op = new_of_op[new_events[:, 1]] - 1
        added_op[has_handle] = new_of_handle[new_events[has_handle, 4]]
        early = (new_events[:, 4] == EARLY) & (new_events[:, 1] > 0)
        added_op[early] = new_of_op[new_events[early, 1] - 1]
        # an added event comes before the old event of its position, and with the operation it belongs to
        keys = np.concatenate([2 * old + 1, 2 * new_events[:, 0]])
        op = np.concatenate([old_op[old], added_op])
        order = np.lexsort((op, keys))
        storage = np.concatenate([c.event_storage[old], new_events[:, 2]])[order]
        sign = np.concatenate([c.event_sign[old], new_events[:, 3].astype(np.int8)])[order]
        op = op[order]
        ordered = keys[order]
        last = len(c.event_op)

        def cut(boundary: int) -> int:
            side = "right" if boundary == last else "left"
            return int(np.searchsorted(ordered, 2 * boundary, side=side))

        return storage, sign, np.maximum.accumulate(op), cut


def lifetimes(capture: Capture) -> tuple[I64, I64]:
    """[S] event of each storage's birth, and of its death (the number of events if it never dies)."""
    n, events = len(capture.storage_bytes), len(capture.event_op)
    birth, death = np.full(n, -1, np.int64), np.full(n, events, np.int64)
    index = np.arange(events)
    born = capture.event_sign > 0
    birth[capture.event_storage[born]] = index[born]
    death[capture.event_storage[~born]] = index[~born]
    return birth, death


def op_of_event(capture: Capture, events: I64) -> I64:
    """The operation of each event, one past the last operation for "never"."""
    padded: NDArray[np.int64] = np.append(capture.event_op, len(capture.op_phase))
    return padded[events]
