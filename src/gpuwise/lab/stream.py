"""Record of a kernel run: the instruction stream, element accesses, and errors."""

# pyright: basic
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import FieldError, InputError
from gpuwise.lab import arrays
from gpuwise.lab.access import WARP, WarpAccess, warp_access
from gpuwise.lab.arrays import Accesses, Array, Conflict, Order
from gpuwise.lab.numbers import NARROW, Inside, Lanes, data_of, source_of

Mask = NDArray[np.bool_]
MOST_EVENTS = 120_000
"""Maximum instructions of one warp: a longer kernel is stopped."""
MOST_LANE_EVENTS = 2_000_000_000
"""Lanes times instructions, some ten seconds of numpy."""
MOST_ACCESSES = 1 << 27
"""Maximum stored lane accesses, up to half a GB: a longer kernel is stopped."""
MAY_WRITE = frozenset({"store", "atomic", "shared_store", "shared_atomic", "barrier"})
MOST_COUNTED = 64
"""Masks whose lanes are counted once, and indices that are compared with a size once."""
ACCESS_LANES = 1 << 18
"""Lanes whose accesses are looked at together, some tens of MB of numpy."""


@dataclass(slots=True)
class Event:
    """One instruction of the stream shared by all warps; ``warps`` are those that run it."""

    op: str
    """``int``, ``fp32``, ``fp64``, ``sfu``, ``load``, ``store``, ``atomic``, ``shared_load``, ``shared_store``,
    ``shared_atomic``, ``barrier``, ``shuffle`` or ``branch``."""
    line: int
    waits_for: tuple[int, ...]
    warps: Mask
    access: WarpAccess | None = None
    lanes: int = 0
    """Lanes that take part, over all warps."""
    array: str = ""
    """Memory access: the name of its array, ``local memory`` for arrays of a thread."""
    size: int = 0
    """Memory access: bytes per lane."""
    times: int = 1
    """Number of dependent instructions of one kind that it represents."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong that the run met."""

    kind: str
    """``out of bounds``, ``race``, ``unwritten``, ``divergent barrier`` or ``shuffle``."""
    line: int
    text: str


@dataclass(slots=True)
class Local:
    """An array of each thread: in registers where it is indexed by numbers that all lanes share, else in memory."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    base: int
    elements: dict[Any, Any] = field(default_factory=dict[Any, Any])
    in_memory: bool = False
    """Whether an index that differs between lanes was used: the array is no longer in registers then."""


@dataclass(slots=True)
class Part:
    """``a[i]`` of an array of more dimensions, or a record of one: the array and the indices so far."""

    array: Array
    index: tuple[Any, ...]


@dataclass(slots=True)
class Slice:
    """``a[i:j]`` of an array of one dimension, whose ends may differ from lane to lane."""

    array: Array
    start: Any
    size: Any


@dataclass(slots=True)
class Run:
    """Result of a run: the stream, errors, and the shared memory of a block."""

    events: list[Event]
    findings: list[Finding]
    blocks: NDArray[np.int64]
    warps_per_block: int
    shared_bytes: int
    notes: list[Finding] = field(default_factory=list[Finding])
    """Correct but slow code: unintended arithmetic in float64."""
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])

    @property
    def warp_instructions(self) -> int:
        return sum(int(event.warps.sum()) for event in self.events)


class Stream:
    """The instructions of a run in order, and the associated state."""

    name: str
    """Name of the kernel."""
    line: int
    whole: Mask
    """Lanes that are threads; the rest fills the last warp of a block."""
    lane: NDArray[np.int64]
    block_of: NDArray[np.int64]
    thread: NDArray[np.int64]
    every_lane: NDArray[np.int64]
    """The numbers of all lanes."""
    order: Order
    timed: int
    """Warps whose accesses are looked at."""
    out: Run

    def __init__(self) -> None:
        self.accesses: dict[tuple[int, bool], list[tuple[Event, NDArray[np.int64], Mask]]] = {}
        self.access_lanes = self.accesses_kept = 0
        self.written = [0, 0]
        """Writes that may have changed global and shared memory."""
        self.predicate: tuple[int, ...] = ()
        """Events whose results the instructions at hand are conditional on."""
        self.lock = False
        """Whether a loop continues until an atomic operation ends it."""
        self.counted: dict[int, tuple[Mask, Mask, int]] = {}
        """Mask, by its id, to itself, the warps that have a lane in it, and its lanes. No mask of instructions is changed."""
        self.bounds: dict[tuple[int, int], tuple[Lanes, Mask | None]] = {}
        """Index, by its id, and size to itself and the lanes in which it is within it, None for all of them."""

    @property
    def exited(self) -> Mask:
        """Lanes whose kernel has ended."""
        raise NotImplementedError

    def places(self, array: Array, index: Lanes) -> NDArray[np.int64]:
        """Into the stored elements: shared memory has its own for every block."""
        if not array.shared:
            return index.data
        return index.data + self.block_of * math.prod(array.shape)

    def touch(self, op: str, array: Array, index: Lanes, mask: Mask, source: tuple[int, ...]) -> tuple[Mask, tuple[int, ...]]:
        real = mask if isinstance(index, Inside) else mask & (index.data >= 0)
        size = array.data.dtype.itemsize
        return real, self.touch_memory(
            op, array.base + index.data * array.data.strides[0], size, real, (*index.source, *source), array.name
        )

    def lanes_of(self, mask: Mask) -> tuple[Mask, int]:
        """The warps that have a lane in ``mask``, and how many lanes it has."""
        lanes = self.counted.get(id(mask))
        if lanes is None:
            if len(self.counted) >= MOST_COUNTED:
                self.counted.clear()
            lanes = self.counted[id(mask)] = mask, np.asarray(mask.reshape(-1, WARP).any(1)), int(np.count_nonzero(mask))
        return lanes[1:]

    def within(self, part: Any, data: NDArray[Any], size: int, mask: Mask) -> Mask | None:
        """The lanes in which an index is one of ``size``, None for all."""
        if not isinstance(part, Lanes):
            return None if 0 <= data < size else np.zeros(mask.shape, bool)
        key = id(part), size
        if key not in self.bounds:
            if len(self.bounds) >= MOST_COUNTED:
                self.bounds.clear()
            within = (data >= 0) & (data < size)
            self.bounds[key] = part, None if within.all() else within
        return self.bounds[key][1]

    def touch_memory(
        self, op: str, addresses: NDArray[np.int64], size: int, real: Mask, waits: tuple[int, ...], array: str
    ) -> tuple[int, ...]:
        """An access of ``size`` bytes a lane, whose cost is looked at later."""
        made = self.emit(op, real, waits, array)
        self.out.events[-1].size = size
        lanes = self.timed * WARP
        where, active = addresses[:lanes].reshape(-1, WARP), real[:lanes].reshape(-1, WARP)
        self.accesses.setdefault((size, op == "shared_atomic"), []).append((self.out.events[-1], where, active))
        self.access_lanes += lanes
        self.accesses_kept += lanes
        if self.access_lanes > ACCESS_LANES:
            self.look_at_accesses()
        return made

    def touch_local(self, op: str, local: Local, flat: NDArray[np.int64], mask: Mask, waits: tuple[int, ...]) -> tuple[int, ...]:
        """Local memory: the same element of the lanes of a warp side by side."""
        size = local.dtype.itemsize
        lanes = len(mask)
        where = local.base + (flat * lanes + np.arange(lanes)) * size
        return self.touch_memory(op, where, size, mask, waits, "local memory")

    def look_at_accesses(self) -> None:
        """Cost of the accesses since the last call: all warps of all of them at once."""
        for (size, one_by_one), accesses in self.accesses.items():
            addresses, active = np.concatenate([a for _, a, _ in accesses]), np.concatenate([m for _, _, m in accesses])
            conflict = warp_access(addresses, active, size, one_by_one=one_by_one)
            first = 0
            for event, addresses, _ in accesses:
                event.access = conflict.part(first, first + len(addresses))
                first += len(addresses)
        self.accesses.clear()
        self.access_lanes = 0

    def load(self, array: Array, index: Lanes, mask: Mask) -> Lanes:
        real, source = self.touch("shared_load" if array.shared else "load", array, index, mask, ())
        every = self.lanes_of(real)[1] == len(real)
        places = self.places(array, index) if every else np.where(real, self.places(array, index), 0)
        if array.watched and (asked := self.asked_of(array, places, real)) is not None:
            self.report(asked, arrays.read(asked, self.order), "reads")
            first = arrays.unwritten(asked)
            if first is not None:
                what = f"{self.who(int(asked.lanes[first]))} reads {array.element(int(asked.at[first]))}"
                self.find("unwritten", f"{what}, which nothing was written to: shared memory begins with anything")
        values = array.data[places]
        return Lanes(values if every else np.where(real, values, array.data.dtype.type(0)), source)

    def store(self, array: Array, index: Lanes, value: Any, mask: Mask) -> None:
        if isinstance(value, Array | Local | Part | Slice | tuple | np.dtype) or value is None:
            self.refuse(f"{noun(value)} is not a number: an element of {array.name} takes one")
        if isinstance(value, Lanes) and value.data.dtype == np.float64 and array.data.dtype in NARROW:
            value = Lanes(value.data, self.emit("fp64", mask, value.source))
        real, _ = self.touch("shared_store" if array.shared else "store", array, index, mask, source_of(value))
        places = self.places(array, index)
        if array.watched and (asked := self.asked_of(array, places, real)) is not None:
            self.report(asked, arrays.write(asked, self.order), "writes")
        array.data[places[real]] = np.broadcast_to(data_of(value), real.shape)[real]

    def asked_of(self, array: Array, places: NDArray[np.int64], real: Mask) -> Accesses | None:
        if self.lanes_of(real)[1] == len(real):
            return Accesses(array, self.every_lane, places, self.thread, self.line)
        lanes = np.flatnonzero(real)
        return Accesses(array, lanes, places[lanes], self.thread[lanes], self.line) if len(lanes) else None

    def report(self, accesses: Accesses, conflict: Conflict | None, does: str) -> None:
        if conflict is None:
            return
        lane, element = int(accesses.lanes[conflict.lane]), accesses.array.element(int(accesses.at[conflict.lane]))
        thread, threads = int(self.thread[lane]), self.order.threads
        other = "another thread" if conflict.other == thread else f"thread {conflict.other % threads}"
        apart = conflict.other // threads != thread // threads
        if apart:
            other += f" of block {conflict.other // threads}"
        where = "in the same line" if conflict.line == self.line else f"in line {conflict.line}"
        between = "and no barrier orders blocks" if apart else "with no cuda.syncthreads() between"
        self.find("race", f"{self.who(lane)} {does} {element}, which {other} {conflict.did} {where}, {between}")

    def pass_barrier(self, mask: Mask) -> None:
        alive = self.whole & ~self.exited
        waiting = np.bincount(self.block_of[mask], minlength=len(self.out.blocks))
        there = np.bincount(self.block_of[alive], minlength=len(self.out.blocks))
        if ((waiting > 0) & (waiting < there)).any():
            self.find("divergent barrier", "some threads of a block wait at a barrier that others do not reach")
        self.emit("barrier", mask, ())
        self.order.pass_barrier()

    def emit(self, op: str, mask: Mask, waits: Sequence[int], array: str = "", times: int = 1) -> tuple[int, ...]:
        events = self.out.events
        if op in MAY_WRITE:
            self.written[0] += not op.startswith("shared")
            self.written[1] += op == "barrier" or op.startswith("shared")
        too_many = len(events) >= MOST_EVENTS or len(events) * len(mask) > MOST_LANE_EVENTS
        if too_many or self.accesses_kept > MOST_ACCESSES:
            raise InputError(
                f"{self.name} has not ended after {len(events):,} instructions of a warp (line {self.line})",
                hint="all lanes run in step here: a lock that one thread opens while others wait for it never opens"
                if self.lock
                else "check its loops, or give it a smaller problem",
            )
        warps, lanes = self.lanes_of(mask)
        events.append(Event(op, self.line, tuple(dict.fromkeys((*waits, *self.predicate))), warps, None, lanes, array, 0, times))
        return (len(events) - 1,)

    def find(self, kind: str, text: str) -> None:
        if not any(f.kind == kind and f.line == self.line for f in self.out.findings):
            self.out.findings.append(Finding(kind, self.line, text))

    def note(self, text: str) -> None:
        if not any(n.line == self.line for n in self.out.notes):
            self.out.notes.append(Finding("float64", self.line, text))

    def who(self, lane: int) -> str:
        return f"thread {int(self.lane[lane])} of block {int(self.out.blocks[self.block_of[lane]])}"

    def refuse(self, text: str) -> NoReturn:
        raise FieldError(text, file=self.name, line=self.line, hint="see docs/learn/simulation.md for what a kernel may contain")


def noun(value: Any) -> str:
    if isinstance(value, Array):
        return f"the array {value.name}"
    if isinstance(value, Part) and value.array.data.dtype.names:
        return f"a record of {value.array.name}"
    names = {
        Local: "a local array",
        Part: "a part of an array",
        Slice: "a part of an array",
        tuple: "a tuple",
        np.dtype: "a type",
    }
    return next((name for kind, name in names.items() if isinstance(value, kind)), "nothing" if value is None else "this")
