"""Arrays of a run, and who touched which element since when: races, and shared memory that nothing was written to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_WATCHED = 1 << 21
"""Elements of an array up to which races on it are looked for."""
ALWAYS = np.int32(2**31 - 1)
"""A stamp that no barrier is after: no barrier orders two blocks."""
READ, WRITE, ATOMIC = "reads", "writes", "adds to"
MOST_PENDING = 1 << 20
"""Lanes of reads of shared memory that are noted together."""
Mask = NDArray[np.bool_]


@dataclass(slots=True)
class Touch:
    """Who touched each element last, when, and in which line."""

    who: NDArray[np.int64]
    stamp: NDArray[np.int32]
    line: NDArray[np.int32]
    latest: int = 0
    """The largest stamp, 0 where nothing was touched."""

    def mark(self, at: NDArray[np.int64], who: NDArray[np.int64], stamp: int, line: int) -> None:
        self.who[at], self.stamp[at], self.line[at], self.latest = who, stamp, line, stamp


def _touch(elements: int) -> Touch:
    return Touch(np.full(elements, -1, np.int64), np.zeros(elements, np.int32), np.zeros(elements, np.int32))


@dataclass(slots=True)
class Array:
    """An array in global or shared memory, flat."""

    name: str
    data: NDArray[Any]
    shape: tuple[int, ...]
    base: int
    shared: bool
    watched: bool
    writes: Touch
    reads: Touch
    atomics: Touch
    readers: NDArray[np.int32]
    """When two threads last read an element with no barrier between, 0 for never."""
    reader_warp: NDArray[np.int64]
    """The warp of those two, -1 if they are of two warps."""

    pending: list[Accesses] = field(default_factory=list["Accesses"])
    """Shared memory: reads since the last barrier that are not recorded yet."""

    def element(self, place: int) -> str:
        """``tile[3, 4]`` of a stored element."""
        index = np.unravel_index(place % math.prod(self.shape), self.shape)
        return f"{self.name}[{', '.join(str(int(i)) for i in index)}]"


def make_array(name: str, data: NDArray[Any], shape: tuple[int, ...], base: int, *, shared: bool, watched: bool) -> Array:
    watched = watched and data.size <= MOST_WATCHED
    size = data.size if watched else 0
    touches = (_touch(size), _touch(size), _touch(size))
    return Array(name, data, shape, base, shared, watched, *touches, np.zeros(size, np.int32), np.full(size, -1, np.int64))


@dataclass(slots=True)
class Order:
    """Order established by barriers: a clock that each of them advances, the time of the last one of a block, and of each
    warp."""

    threads: int
    """Threads of a block."""
    warps: NDArray[np.int32]
    """By warp of the run, the time of its last ``syncwarp``."""
    clock: int = 1
    barrier: int = 1
    """When the last barrier was."""
    by_warp: bool = False
    """Whether any warp has met ``syncwarp``."""
    read: list[Array] = field(default_factory=list[Array])
    """Arrays with pending reads."""
    pending_lanes: int = 0

    def pass_barrier(self) -> None:
        for array in self.read:
            array.pending.clear()  # nothing behind a barrier races with them
        self._none_pending()
        self.clock += 1
        self.barrier = self.clock

    def pass_warps(self, warps: Mask) -> None:
        self.note_reads()
        self.clock, self.by_warp = self.clock + 1, True
        self.warps[warps] = self.clock

    def later(self, a: Accesses) -> None:
        """Note a read when something may race with it: nothing does before a store."""
        if not a.array.pending:
            self.read.append(a.array)
        a.array.pending.append(a)
        self.pending_lanes += len(a.at)
        if self.pending_lanes > MOST_PENDING:
            self.note_reads()

    def note_reads(self) -> None:
        for array in self.read:
            for accesses in array.pending:
                _note_read(accesses, self)
            array.pending.clear()
        self._none_pending()

    def _none_pending(self) -> None:
        self.read.clear()
        self.pending_lanes = 0


@dataclass(slots=True)
class Conflict:
    """Two accesses that nothing orders: where among the lanes, what the first of them did, by whom and in which line."""

    lane: int
    did: str
    other: int
    """Thread of the launch, -1 for the same statement."""
    line: int


@dataclass(slots=True)
class Accesses:
    """One access of many lanes to an array."""

    array: Array
    lanes: NDArray[np.int64]
    """Which lanes of the run."""
    at: NDArray[np.int64]
    who: NDArray[np.int64]
    """Threads of the launch."""
    line: int

    def race(self, touch: Touch, did: str, order: Order) -> Conflict | None:
        """The first of these accesses that nothing orders behind those of ``touch``."""
        if not touch.latest or (self.array.shared and touch.latest < order.barrier):
            return None
        return self.met(touch, did, self.unordered(touch, order))

    def unordered(self, touch: Touch, order: Order) -> Mask:
        if not touch.latest:
            return np.zeros(len(self.at), bool)
        other = touch.who[self.at]
        there = (other >= 0) & (other != self.who)
        if not there.any():
            return there
        stamps = touch.stamp[self.at]
        warnings = stamps >= order.barrier
        if order.by_warp:
            mine, theirs = self.who % order.threads // 32, other % order.threads // 32
            warnings &= ~((mine == theirs) & (stamps < order.warps[self.lanes // 32]))
        if not self.array.shared:
            warnings |= other // order.threads != self.who // order.threads
        return there & warnings

    def met(self, touch: Touch, did: str, bad: Mask) -> Conflict | None:
        if not bad.any():
            return None
        first = int(np.flatnonzero(bad)[0])
        place = self.at[first]
        return Conflict(first, did, int(touch.who[place]), int(touch.line[place]))


def read(a: Accesses, order: Order) -> Conflict | None:
    """Note a load; the first access that it races with."""
    race = a.race(a.array.writes, WRITE, order) or a.race(a.array.atomics, ATOMIC, order)
    if a.array.shared:
        order.later(a)
    else:
        _note_read(a, order)
    return race


def _note_read(a: Accesses, order: Order) -> None:
    array = a.array
    several = a.unordered(array.reads, order)
    previous = array.reads.who[a.at]
    array.reads.mark(a.at, a.who, order.clock, a.line)
    last = array.reads.who[a.at]
    several_now = last != a.who
    for which, other in ((several, previous), (several_now, last)):
        if which.any():
            at, who, other = a.at[which], a.who[which], other[which]
            apart = other // order.threads != who // order.threads
            mine, theirs = who % order.threads // 32, other % order.threads // 32
            array.readers[at] = np.where(apart | (array.readers[at] == ALWAYS), ALWAYS, order.clock)
            array.reader_warp[at] = np.where(mine == theirs, mine, -1)


def write(a: Accesses, order: Order) -> Conflict | None:
    """Note a store; the first access that it races with."""
    array = a.array
    race = a.race(array.writes, WRITE, order) or a.race(array.atomics, ATOMIC, order) or _met_readers(a, order)
    array.writes.mark(a.at, a.who, order.clock, a.line)
    twice = array.writes.who[a.at] != a.who
    if race is None and twice.any():  # two lanes of this very store
        first = int(np.flatnonzero(twice)[0])
        race = Conflict(first, WRITE, int(array.writes.who[a.at[first]]), a.line)
    return race


def add(a: Accesses, order: Order) -> Conflict | None:
    """Note an atomic operation; the first plain access that it races with."""
    array = a.array
    race = a.race(array.writes, WRITE, order) or _met_readers(a, order)
    array.atomics.mark(a.at, a.who, order.clock, a.line)
    return race


def _met_readers(a: Accesses, order: Order) -> Conflict | None:
    array = a.array
    if array.pending:
        order.note_reads()
    if not array.reads.latest or (array.shared and array.reads.latest < order.barrier):
        return None
    bad = a.unordered(array.reads, order)
    stamps, warp = array.readers[a.at], array.reader_warp[a.at]
    fresh = (stamps >= order.barrier) & ~((warp == a.who % order.threads // 32) & (stamps < order.warps[a.lanes // 32]))
    bad |= (stamps > 0) & fresh
    return a.met(array.reads, READ, bad)


def unwritten(a: Accesses) -> int | None:
    """The first lane that reads shared memory which nothing wrote to."""
    array = a.array
    if not array.shared:
        return None
    bad = (array.writes.who[a.at] < 0) & (array.atomics.who[a.at] < 0)
    return int(np.flatnonzero(bad)[0]) if bad.any() else None
