"""Event simulation of one multiprocessor: issue times of warps, and stall reasons.

Each of four schedulers issues one instruction of one of its warps a cycle. An instruction waits for the results it uses, for
its unit (lanes / 32 of an instruction a cycle), and at a barrier for its block. Loads occupy the load unit for max(data, tag)
cycles, then hit in the L1 (LRU), in the L2, or go to memory. Memory is a queue that serves this multiprocessor's share of the
bandwidth, with the measured latency behind it: if bandwidth x latency exceeds the bytes that resident warps have in flight,
latency is the limit (Little's law), else bandwidth.
"""

from __future__ import annotations

import gc
import heapq
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.sm_timing import SmTiming
from gpuwise.lab.access import SECTOR, Ints, WarpAccess
from gpuwise.lab.stream import Event

MOST_SPANS = 4000
"""Issues that a timeline holds."""
BARRIER_CYCLES, BARRIER_INTERVAL = 13.0, 2.0
"""From the last warp at a barrier to the next instruction, and from one warp that comes to the next one: 13 + 2 for each warp of
a block on an H100 (benchmarks/records/lab/card_2026-11-27f.md)."""
PARTIAL = 2.0
"""How many times as long a sector takes of the L2 of which a store has only a part: a matrix turned by stores of 4 bytes, each 8
KB from the next, takes 70 us for 4.2 million of them on an H100."""
FILL_BYTES = 16.0
"""Bytes per cycle that a scheduler's registers receive of a load from the L2 (a quarter of the port of 64), while its FP32
lanes are idle: rooflines of A100 and A40 take 8 cycles more for each load of 128 bytes than their multiply-adds, for any
number of those, and so do GH200's, which were not fitted (benchmarks/records/lab, 27 November 2026). The wait of the lanes is
measured, its cause is not."""
Result = tuple[int, float, int, Any]
Rest = tuple[int, float, int, tuple[int, ...], float, Result]
Step = tuple[int, Sequence[int], Any, Rest, Any]
"""An instruction of a warp: kind, index of its unit in the list of free times (by scheduler), its cycles (by warp for memory),
data used at issue, and the warp's next step. Data used at issue: whether another instruction waits for it (:data:`WAITED`) and
whether it may be the last (:data:`LAST`), cycles to the next instruction, their stall reason, further events that that one
waits for, cycles that its scheduler is busy, and its result: event, cycles to it, its stall reason, the set of sectors by
warp."""
WAITED, LAST = 1, 2
ARITHMETIC, BARRIER, SHARED, LOAD, STORE, ATOMIC = range(6)
"""Kinds of step; those of memory from SHARED on, those of sectors from LOAD on."""
MEMORY_KINDS = {
    "shared_load": SHARED,
    "shared_store": SHARED,
    "shared_atomic": SHARED,
    "load": LOAD,
    "store": STORE,
    "atomic": ATOMIC,
}
REASONS = (
    "",
    "arithmetic latency",
    "memory latency",
    "memory bandwidth",
    "L2 bandwidth",
    "shared memory",
    "branch",
    "barrier",
    "not selected",
    "unit busy",
    "load unit",
)
"""Stall reasons of a warp. The last two apply to a warp with a unit of its own from then on."""
NONE, ARITHMETIC_LATENCY, MEMORY_LATENCY, BANDWIDTH, L2_BANDWIDTH, SHARED_MEMORY = range(6)
BRANCH, AT_BARRIER, NOT_SELECTED, UNIT_BUSY, LOAD_UNIT = range(6, 11)
CAUSES = {
    "load": MEMORY_LATENCY,
    "atomic": MEMORY_LATENCY,
    "shared_load": SHARED_MEMORY,
    "shuffle": SHARED_MEMORY,
    "branch": BRANCH,
    "shared_store": SHARED_MEMORY,
    "shared_atomic": SHARED_MEMORY,
}
"""Stall reason for the result of an operation, if it is not its arithmetic."""
SECTOR_OPS = frozenset({"load", "store", "atomic"})
MOST_AT_ONCE = 2**20
"""Lanes whose sectors are looked at at once."""


@dataclass(slots=True)
class Timing:
    """Results of one multiprocessor."""

    cycles: float
    issued: int
    stalls: dict[str, float]
    """Warp cycles by reason."""
    dram_bytes: float
    l2_bytes: float
    l1_hits: int
    l1_sectors: int
    block_ends: list[float]
    spans: list[tuple[int, int, float, int, str]] = field(default_factory=list[tuple[int, int, float, int, str]])
    """(warp, scheduler, cycle, event, what it waited for before), the first :data:`MOST_SPANS`."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Resources that the rest of the GPU leaves to this multiprocessor."""

    timing: SmTiming
    fp32_lanes: float
    fp64_lanes: float
    schedulers: int
    resident_blocks: int
    l1_bytes: float
    dram_bytes_per_cycle: float
    l2_bytes_per_cycle: float
    l2_request_bytes: float
    """L2 bandwidth that a piece of 64 bytes uses, regardless of the requested part."""
    branch_cycles: float
    """From a branch to the next instruction of its warp."""
    block_cycles: float
    """From one block that this multiprocessor is given to the next one, at least: blocks are handed out one after the other."""
    sparse: Mapping[str, float]
    """Array to the factor on its memory time, for scattered requests."""
    shallow_cycles: float
    """How long a queue must be in front of the memory for two thirds of its rate: a deep one is served in a better order."""
    written: Mapping[str, float]
    """Array to the part of what is stored there that the memory sees before the launch ends: the rest stays in the L2."""
    shared_by: Mapping[str, float]
    """Array to the number of multiprocessors that request the same sector: the first reads it from memory, the others from the
    L2. Below 1: more sectors come from memory than are requested."""


def run_multiprocessor(events: Sequence[Event], blocks: int, warps_per_block: int, c: Conditions) -> Timing:
    """Time ``blocks`` blocks (the first of the run), ``resident_blocks`` at once, the next when one ends.

    The garbage collector is off: there is no garbage, and scanning the steps takes a fifth of the time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _Multiprocessor(events, blocks, warps_per_block, c).run()
    finally:
        if collecting:
            gc.enable()


class _Multiprocessor:
    """Warps that run the same instructions share one list of them (:class:`_Program`), without waits that are already over;
    the event loop goes from step to step without look-ups."""

    def __init__(self, events: Sequence[Event], blocks: int, warps_per_block: int, c: Conditions) -> None:
        self.events, self.c, self.blocks, self.width = events, c, blocks, warps_per_block
        warps = blocks * warps_per_block
        table = _table(events)
        running = _running(table.warps, warps)
        costs = _unit_costs(table, warps, c)
        units = {unit: at for at, unit in enumerate(dict.fromkeys(costs.units), start=1)}
        self.free = [0.0] * ((len(units) + 1) * c.schedulers)
        """Free times of the schedulers, then of their units."""
        self.memory_key = units.get("memory", 0) * c.schedulers
        self.fp32_key = units.get("fp32", 0) * c.schedulers
        """Zero where no instruction is FP32."""
        spread = {unit: range(c.schedulers) if unit in PER_SCHEDULER else [0] * c.schedulers for unit in units}
        keys = {unit: [at * c.schedulers + s for s in spread[unit]] for unit, at in units.items()}
        self.expected: dict[int, list[int]] = {}
        """Barrier to how many warps of each block come to it."""
        for number in np.flatnonzero(table.places == table.names.index("barrier")).tolist() if "barrier" in table.names else ():
            self.expected[number] = running[number].reshape(blocks, warps_per_block).sum(1).tolist()
        self.sectors = _sector_sets(table, warps, c.l2_request_bytes)
        self.first: list[Step | None] = [None] * warps
        alike: dict[bytes, list[int]] = {}
        self.issued = 0
        for w, key in enumerate(np.ascontiguousarray(np.packbits(running, axis=0).T)):
            alike.setdefault(key.tobytes(), []).append(w)
        program, times = _Program(table, costs, self.sectors.of, keys, c.branch_cycles), table.times
        for same in alike.values():
            numbers = np.flatnonzero(running[:, same[0]])
            self.issued += int(times[numbers].sum()) * len(same)
            linked = program.linked(numbers)
            for w in same:
                self.first[w] = linked
        self.out = Timing(0.0, 0, {}, 0.0, 0.0, 0, 0, [0.0] * blocks)
        self.l1: OrderedDict[int, int] = OrderedDict()
        """Set to how many of its sectors are there, the one not used for longest first; a sector of several sets is one."""
        self.l1_used = 0
        self.seen: set[int] = set()
        self.partial = {n for n, e in enumerate(events) if is_partial(e)} if c.l2_request_bytes > SECTOR else set[int]()
        self.early = c.resident_blocks * warps_per_block
        """Warps of the blocks that begin with the launch."""
        self.dirty: set[int] = set()
        """Sectors and sets of them that were written."""
        self.share = {name: 1.0 / of for name, of in c.shared_by.items()}
        self.credit: dict[str, float] = {}
        self.l1_capacity = int(c.l1_bytes // SECTOR)
        self.dram_free = self.l2_free = 0.0

    def run(self) -> Timing:
        c, width, first, free, events, out = self.c, self.width, self.first, self.free, self.events, self.out
        warps = len(first)
        scheduler = [w % c.schedulers for w in range(warps)]
        done: list[dict[int, tuple[float, int]]] = [{} for _ in first]
        last, ends = [0.0] * warps, [0.0] * warps
        counts = [sum(1 for w in range(b * width, (b + 1) * width) if first[w]) for b in range(self.blocks)]
        heap: list[tuple[float, int, int, Step]] = []
        arrived: dict[tuple[int, int], list[tuple[int, Step]]] = {}
        stalls, spans, push, pop, swap = [0.0] * len(REASONS), out.spans, heapq.heappush, heapq.heappop, heapq.heappushpop
        l1, touch, sizes = self.l1, self.l1.move_to_end, self.sectors.sizes
        fp32 = self.fp32_key
        hits, recorded, not_selected, finish, number, cause = 0, True, 0.0, 0.0, 0, NONE
        mine = ([w for w in range(b * width, (b + 1) * width) if first[w]] for b in range(self.blocks))
        waiting = (block for block in mine if block)
        """For each block with work left, its number of warps with work left."""
        given = -c.block_cycles
        for warps_of_one in islice(waiting, c.resident_blocks):
            given += c.block_cycles
            for w in warps_of_one:
                last[w] = given
                push(heap, (given, w, NONE, first[w]))  # type: ignore[arg-type]
        item = pop(heap) if heap else None
        while item is not None:
            now, w, why, step = item
            kind, keys, interval, rest, following = step
            s = scheduler[w]
            if kind >= SHARED:
                interval = interval[w]
            if why < UNIT_BUSY:  # units serve in the order in which operands are there
                key = keys[s]
                begin = free[key]
                if begin > now:
                    free[key] = begin + interval
                    if why and now > last[w]:
                        stalls[why] += now - last[w]
                        last[w] = now
                    item = swap(heap, (begin, w, LOAD_UNIT if kind >= SHARED else UNIT_BUSY, step))
                    continue
                free[key] = now + interval
            flags, gap, gap_reason, waits, slots, result = rest
            before, begin = last[w], free[s]
            if begin > now:
                not_selected += begin - now
            else:
                begin = now
            last[w] = free[s] = begin + slots
            if why and now > before:
                stalls[why] += now - before
            if recorded:
                spans.append((w, s, begin, result[0], REASONS[why] if begin > before else ""))
                recorded = len(spans) < MOST_SPANS
            if kind >= SHARED:
                number, latency, cause, rows = result
                finish = begin + interval - 1
                if kind == SHARED:
                    finish += latency
                elif kind == LOAD and l1.get(row := rows[w]) == sizes[row]:  # every sector is in the L1
                    touch(row)
                    hits += l1[row]
                    finish += latency
                else:
                    of_l2 = out.l2_bytes
                    finish, cause = self._memory(events[number].array, kind, rows[w], finish, w < self.early, number)
                    if kind == LOAD and fp32:
                        filled = min(out.l2_bytes - of_l2, 32 * events[number].size) / FILL_BYTES
                        free[fp32 + s] = max(free[fp32 + s], begin) + filled
                    if kind == STORE:
                        behind = finish - begin - 4 * c.timing.dram_cycles
                        finish = 0.0
                        if behind > 0:  # stores pile up in front of the memory
                            free[self.memory_key] = max(free[self.memory_key], begin + behind)
            elif flags:
                number, latency, cause, _ = result
                finish = begin + latency
            if flags:
                if flags != LAST:
                    done[w][number] = finish, cause
                if flags != WAITED and finish > ends[w]:
                    ends[w] = finish
            if kind != BARRIER:
                if following is not None:  # the warp's next instruction, for when its operands are there
                    when = begin + gap
                    if waits:
                        take = done[w].pop  # each result is waited for once
                        for source in waits:
                            then, of = take(source)
                            if then > when:
                                when, gap_reason = then, of
                    item = swap(heap, (when, w, gap_reason, following))
                    continue
                ready = [(w, step)]
            else:
                block, number = w // width, result[0]
                ready = arrived.setdefault((block, number), [])
                ready.append((w, step))
                if len(ready) < self.expected[number][block]:
                    ready = []
            for other, (*_, (*_, waits, _, _), following) in ready:
                if following is not None:
                    when, why = begin + BARRIER_CYCLES, AT_BARRIER
                    for source in waits:
                        then, of = done[other].pop(source)
                        if then > when:
                            when, why = then, of
                    push(heap, (when, other, why, following))
                    continue
                block = other // width
                end = ends[other] or begin + 1
                done[other] = {}
                counts[block] -= 1
                out.block_ends[block] = max(out.block_ends[block], end)
                if counts[block] == 0:
                    given = max(begin + 1, given + c.block_cycles)
                    for w in next(waiting, ()):
                        last[w] = given
                        push(heap, (given, w, NONE, first[w]))  # type: ignore[arg-type]
            item = pop(heap) if heap else None
        stalls[NOT_SELECTED] = not_selected
        out.issued, out.l1_hits, out.l1_sectors = self.issued, out.l1_hits + hits, out.l1_sectors + hits
        out.stalls = {reason: cycles for reason, cycles in zip(REASONS, stalls, strict=True) if cycles}
        out.cycles = max([*out.block_ends, self.dram_free])
        return out

    def _memory(self, array: str, kind: int, row: int, begin: float, early: bool, number: int) -> tuple[float, int]:
        """When the data of a set of sectors is there, and what most of the wait was; no two arrays share a sector."""
        out, c, seen = self.out, self.c, self.seen
        size, parts = self.sectors.sizes[row], self.sectors.parts[row]
        if kind == LOAD:
            out.l1_sectors += size
            if parts is None:
                missed = size if self._fetch(row, size) else 0
            else:
                parts = self._fetch_apart(parts)
                missed = len(parts)
            out.l1_hits += size - missed
            size = missed
        if not size:
            return begin + c.timing.l1_cycles, MEMORY_LATENCY
        out.l2_bytes += size * SECTOR
        taken = size * self.sectors.l2_bytes[row] / c.l2_bytes_per_cycle
        if kind == STORE and number in self.partial:
            taken *= PARTIAL
        self.l2_free = (self.l2_free if self.l2_free > begin else begin) + taken
        new = (row,) if parts is None else parts
        if kind != LOAD:
            known, share, key = self.dirty, c.written.get(array, 1.0), array + " written"
        else:
            known, share, key = seen, self.share.get(array, 1.0), array
        before = len(known)
        known.update(new)
        if kind != LOAD:
            seen.update(new)
        size = (size if len(known) > before else 0) if parts is None else len(known) - before
        fresh, size = size, self._first(key, share, size) * SECTOR
        if not size:  # the first blocks of all multiprocessors ask at the same time, before anything is there
            waited = c.timing.dram_cycles if fresh and early else c.timing.l2_cycles
            return self.l2_free + waited, L2_BANDWIDTH if self.l2_free - begin > waited else MEMORY_LATENCY
        out.dram_bytes += size
        queued = self.dram_free - begin
        sparse = c.sparse.get(array, 1.0)
        taken = size * sparse / c.dram_bytes_per_cycle
        if shallow := c.shallow_cycles:
            taken *= 1 + shallow / ((queued if queued > 0 else 0.0) + shallow)
        self.dram_free = (self.dram_free if queued > 0 else begin) + taken
        there, through = self.dram_free + c.timing.dram_cycles, self.l2_free + c.timing.l2_cycles
        if through > there:
            return through, L2_BANDWIDTH
        return there, BANDWIDTH if queued > c.timing.dram_cycles else MEMORY_LATENCY

    def _fetch(self, part: int, size: int) -> bool:
        """Access sectors of the L1 that are always used together; returns whether they were missing.

        For a partially present set the rest is the oldest, so each returning sector evicts one of the rest: all miss.
        """
        l1 = self.l1
        there = l1.get(part, 0)
        if there == size:
            l1.move_to_end(part)
            return False
        if there:
            del l1[part]
        l1[part] = size
        self.l1_used += size - there
        while self.l1_used > self.l1_capacity:
            self._drop()
        return True

    def _fetch_apart(self, parts: Sequence[int]) -> list[int]:
        """Use sectors of the L1 one by one; those that were not there."""
        l1, touch, missing = self.l1, self.l1.move_to_end, list[int]()
        for part in parts:
            if part in l1:
                touch(part)
                continue
            l1[part] = 1
            missing.append(part)
            self.l1_used += 1
            if self.l1_used > self.l1_capacity:
                self._drop()
        return missing

    def _drop(self) -> None:
        """Put out of the L1 what is too much of it, of the set that is not used for longest at most."""
        l1 = self.l1
        oldest, line = l1.popitem(last=False)
        if line > (over := self.l1_used - self.l1_capacity):
            l1[oldest] = line - over
            l1.move_to_end(oldest, last=False)
            line = over
        self.l1_used -= line

    def _first(self, array: str, share: float, sectors: int) -> int:
        """Number of the ``sectors`` not requested before that come from memory: that share of those of their array."""
        if not share:
            return 0
        if share == 1.0:
            return sectors
        credit = self.credit.get(array, max(1.0 - share, 0.0)) + share * sectors
        hits = int(credit + 1e-9)
        self.credit[array] = credit - hits
        return hits


PER_SCHEDULER = frozenset({"int", "fp32", "fp64", "sfu", "branch"})


class _Table(NamedTuple):
    """Events, field by field."""

    names: list[str]
    """Distinct names of operations."""
    places: Ints
    """Index of each event's operation among the names."""
    times: Ints
    waits_for: Sequence[tuple[int, ...]]
    warps: Sequence[NDArray[np.bool_]]
    accesses: Sequence[WarpAccess | None]


def _table(events: Sequence[Event]) -> _Table:
    ops, waits_for, warps = [e.op for e in events], [e.waits_for for e in events], [e.warps for e in events]
    places = {op: at for at, op in enumerate(dict.fromkeys(ops))}
    which, times = _ints(map(places.__getitem__, ops)), np.array([e.times for e in events], np.int64)
    return _Table(list(places), which, times, waits_for, warps, [e.access for e in events])


def _ints(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, np.int64)


class _Costs(NamedTuple):
    """For each operation its unit; for each event its cycles on it (by warp for memory), cycles to the result, kind of step,
    and cycles to the result of the slowest warp."""

    units: list[str]
    intervals: list[float | list[float]]
    latencies: NDArray[np.float64]
    kinds: Ints
    longest: NDArray[np.float64]


def _unit_costs(table: _Table, warps: int, c: Conditions) -> _Costs:
    t, lanes = c.timing, 32.0 * c.schedulers
    names, ops = table.names, table.places
    of = {
        "fp32": (lanes / c.fp32_lanes / t.fma_share, t.fp32_cycles),
        "fp64": (lanes / c.fp64_lanes / t.fma_share, t.fp64_cycles),
        "sfu": (8.0, t.sfu_cycles),
        "shuffle": (1.0, t.shared_cycles),
        "int": (lanes / min(c.fp32_lanes, 64.0), t.fp32_cycles),
        "barrier": (BARRIER_INTERVAL, 1.0),
    }
    of |= {op: (1.0, t.shared_cycles if op.startswith("shared") else t.l1_cycles) for op in MEMORY_KINDS}
    interval, latency = np.array([of.get(op, (1.0, 1.0)) for op in names], np.float64).reshape(-1, 2).T
    kind = np.array([MEMORY_KINDS.get(op, BARRIER if op == "barrier" else ARITHMETIC) for op in names], np.int64)
    units = ["memory" if op in MEMORY_KINDS else op for op in names]
    intervals: list[Any] = (interval[ops] * table.times).tolist()
    latencies = latency[ops] * table.times
    longest = latencies.copy()
    accesses = [(n, a.wavefronts, a.tags, a.sectors) for n, a in enumerate(table.accesses) if a is not None]
    if accesses:
        numbers, *columns = zip(*accesses, strict=True)
        wavefronts, tags, sectors = (_first_warps(column, warps) for column in columns)
        shared = kind[ops[list(numbers)]] == SHARED
        wide = (wavefronts.max(1, initial=0) > 1) & (sectors.max(1, initial=0) > 4)
        floor = np.where(wide, min(t.load_floor_64, 2.0), t.load_floor)
        cycles = np.where(shared[:, None], np.maximum(wavefronts, 1.0), np.maximum(np.maximum(wavefronts, tags), floor[:, None]))
        for number, by_warp in zip(numbers, cycles.tolist(), strict=True):
            intervals[number] = by_warp
        longest[list(numbers)] += np.maximum(cycles.max(1, initial=0.0) - 1.0, 0.0)
    return _Costs(units, intervals, latencies, kind[ops], longest)


def is_partial(e: Event) -> bool:
    """Whether a store leaves most of its sectors as they were."""
    if e.op != "store" or e.access is None or not len(e.warps):
        return False
    sectors = float(e.access.sectors.sum()) * len(e.warps) / max(len(e.access.sectors), 1)
    return e.lanes * e.size < 0.5 * sectors * SECTOR


def _first_warps(rows: Sequence[NDArray[Any]], warps: int) -> NDArray[Any]:
    """[R, ``warps``] of rows of at least that many."""
    if len(rows[0]) != warps:
        rows = [row[:warps] for row in rows]
    return np.concatenate(rows).reshape(-1, warps)


def _running(masks: Sequence[NDArray[np.bool_]], warps: int) -> NDArray[np.bool_]:
    """[E, ``warps``] of masks, of which many events share one."""
    if not masks:
        return np.zeros((0, warps), bool)
    ids = list(map(id, masks))
    once = dict(zip(ids, masks, strict=True))
    places = {key: at for at, key in enumerate(once)}
    return _first_warps(list(once.values()), warps)[list(map(places.__getitem__, ids))]


class SectorSets(NamedTuple):
    """The sets of sectors that warps ask for."""

    of: dict[int, list[int]]
    """Access to the number of the set of each warp."""
    sizes: list[int]
    parts: list[list[int] | None]
    """For a set that shares sectors with another one: those sectors, by numbers that no set has; None without shared ones."""
    l2_bytes: list[float]
    """L2 bytes used by a sector of a set."""


def _sector_sets(table: _Table, warps: int, request_bytes: float) -> SectorSets:
    """Sets are identified by their size, first sector and a 64-bit hash of their sectors."""
    numbers = np.flatnonzero(np.array([op in SECTOR_OPS for op in table.names], bool)[table.places]).tolist()
    sets = [(n, access.sector_ids[:warps]) for n in numbers if (access := table.accesses[n]) is not None]
    if not sets:
        return SectorSets({}, [], [], [])
    sets.sort(key=lambda one: one[1].shape[1])
    flat, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for width, alike in groupby(sets, key=lambda one: one[1].shape[1]):
        together = [ids for _, ids in alike]
        each = max(MOST_AT_ONCE // max(warps * width, 1), 1)
        for begin in range(0, len(together), each):
            ids = np.concatenate(together[begin : begin + each])
            there = ids >= 0
            flat.append(ids[there])
            counts.append(there.sum(1))
    sectors, sizes = np.concatenate(flat), np.concatenate(counts)
    starts = np.cumsum(sizes) - sizes
    key = np.zeros((len(sizes), 2), np.uint64)
    some = sizes > 0
    if some.any():
        mixed = sectors.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        key[some, 0] = np.add.reduceat(mixed ^ (mixed >> np.uint64(32)), starts[some])
        key[some, 1] = sectors[starts[some]].astype(np.uint64) * np.uint64(128) + sizes[some].astype(np.uint64)
    order = np.lexsort((key[:, 0], key[:, 1]))
    new = np.ones(len(order), bool)
    new[1:] = (key[order[1:]] != key[order[:-1]]).any(1)
    of = np.empty(len(order), np.int64)
    of[order] = np.cumsum(new) - 1
    first = order[new]
    lengths = sizes[first]
    stops = np.cumsum(lengths)
    members: Ints = np.arange(int(stops[-1])) + np.repeat(starts[first] - stops + lengths, lengths)
    piece = sectors[members] // 2
    new_piece = np.ones(len(members), np.int64)
    new_piece[1:] = piece[1:] != piece[:-1]
    new_piece[(stops - lengths)[lengths > 0]] = 1
    pieces = np.zeros(len(first), np.int64)
    pieces[lengths > 0] = np.add.reduceat(new_piece, (stops - lengths)[lengths > 0]) if len(members) else 0
    l2_bytes = np.maximum(pieces * request_bytes / np.maximum(lengths, 1), SECTOR).tolist()
    _, which, times = np.unique(sectors[members], return_inverse=True, return_counts=True)
    shared = lengths == 0
    shared[lengths > 0] = np.maximum.reduceat(times[which], (stops - lengths)[lengths > 0]) > 1 if len(members) else False
    which, stops = which + len(first), stops.tolist()
    parts: list[list[int] | None] = [None] * len(first)
    for at in np.flatnonzero(shared).tolist():
        parts[at] = which[stops[at] - lengths[at] : stops[at]].tolist()
    rows = of.reshape(len(sets), warps).tolist()
    return SectorSets({number: row for (number, _), row in zip(sets, rows, strict=True)}, lengths.tolist(), parts, l2_bytes)


HALF = 0.5
"""Cycles by which a result must be early to be omitted: more than the rounding of sums of cycles."""


class _Program:
    """The instructions of all warps, field by field, from which the steps of warps with the same ones are built."""

    def __init__(
        self,
        table: _Table,
        costs: _Costs,
        sectors: Mapping[int, list[int]],
        keys: Mapping[str, Sequence[int]],
        branch_cycles: float,
    ) -> None:
        sources, places = table.waits_for, table.places
        self.degree = _ints(map(len, sources))
        self.stops = np.cumsum(self.degree)
        self.sources = _ints(chain.from_iterable(sources))
        branches = np.array([op == "branch" for op in table.names], bool)[places]
        self.gaps = np.where(branches, branch_cycles, table.times)
        """Cycles from an instruction to the next one of its warp."""
        self.reasons = np.where(branches, BRANCH, NONE)
        units, intervals, self.latencies, self.kinds, self.longest = costs
        self.causes = np.array([CAUSES.get(op, ARITHMETIC_LATENCY) for op in table.names])[places]
        of_op = [keys[unit] for unit in units]
        self.heads: tuple[list[Any], ...] = self.kinds.tolist(), [of_op[at] for at in places.tolist()], intervals
        """First fields of each event's step."""
        self.slots = table.times.astype(float).tolist()
        every = range(len(sources))
        of_set = map(sectors.get, every)
        self.results = list(zip(every, self.latencies.tolist(), self.causes.tolist(), of_set, strict=True))

    def needs(self, numbers: Ints) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        """Dependencies of a warp that runs the events ``numbers``, by position among them: which wait for which, in order, and
        which may finish last.

        Irrelevant ones are omitted: a result that an earlier instruction waited for, or one with a latency below the minimum
        cycles of the instructions in between; stores have no result.
        """
        kinds, longest, gaps, size = self.kinds[numbers], self.longest[numbers], self.gaps[numbers], len(numbers)
        clock = np.cumsum(gaps) - gaps
        place = np.full(len(self.degree), -1)
        place[numbers] = np.arange(size)
        degree = self.degree[numbers]
        waiting = np.repeat(np.arange(size), degree)
        within = np.arange(len(waiting)) - np.repeat(np.cumsum(degree) - degree, degree)
        source = place[self.sources[np.repeat(self.stops[numbers] - degree, degree) + within]]
        counts = (source >= 0) & (kinds[source] != STORE)
        waiting, source = waiting[counts], source[counts]
        _, first = np.unique(source, return_index=True)
        first.sort()
        waiting, source = waiting[first], source[first]
        late = (kinds[source] > SHARED) | (clock[waiting] - clock[source] < longest[source] + HALF)
        waiting, source = waiting[late], source[late]
        dynamic = np.zeros(size, bool)
        dynamic[source[kinds[waiting] != STORE]] = True
        plain = kinds <= SHARED
        latest = np.full(size + 1, -1.0)
        latest[:-1] = np.where(plain, clock + self.latencies[numbers], -1.0)
        latest = np.maximum.accumulate(latest[::-1])[::-1][1:]
        last = np.where(plain, clock + longest > latest - HALF, ~dynamic & (kinds != STORE))
        return waiting, source, last

    def linked(self, numbers: Ints) -> Step | None:
        """The first step of warps that run the events ``numbers``."""
        waiting, source, last = self.needs(numbers)
        gaps, reasons = self.gaps[numbers], self.reasons[numbers]
        needed = np.zeros(len(numbers), bool)
        needed[source] = True
        foremost = np.ones(len(waiting), bool)
        foremost[1:] = waiting[1:] != waiting[:-1]
        latency = self.latencies[numbers][source]
        own = foremost & (source == waiting - 1) & (self.kinds[numbers][source] == ARITHMETIC) & (latency > gaps[source])
        of, every = source[own], numbers.tolist()
        gaps[of], reasons[of], needed[of] = latency[own], self.causes[numbers[of]], False
        waits: list[tuple[int, ...]] = [()] * len(every)
        for after, of in zip(waiting[~own].tolist(), numbers[source[~own]].tolist(), strict=True):
            waits[after - 1] += (of,)
        flags = (WAITED * needed + LAST * last).tolist()
        columns: list[list[Any]] = [*self.heads, self.slots, self.results]
        if len(every) < len(self.kinds):
            columns = [list(map(column.__getitem__, every)) for column in columns]
        kinds, keys, intervals, *rest_of = columns
        rests = list(zip(flags, gaps.tolist(), reasons.tolist(), waits, *rest_of, strict=True))
        step: Step | None = None
        for kind, key, interval, rest in zip(reversed(kinds), reversed(keys), reversed(intervals), reversed(rests), strict=True):
            step = kind, key, interval, rest, step
        return step
