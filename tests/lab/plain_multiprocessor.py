"""The plain event loop of one multiprocessor: what :mod:`gpuwise.lab.multiprocessor` must give, looked up event by event.

Every warp has its own list of events, every wait is looked at, every sector is an entry of the L1 by itself.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gpuwise.facts.hardware.sm_timing import SmTiming
from gpuwise.lab.access import SECTOR
from gpuwise.lab.multiprocessor import (
    BARRIER_CYCLES,
    BARRIER_INTERVAL,
    FILL_BYTES,
    MOST_SPANS,
    PARTIAL,
    PER_SCHEDULER,
    Conditions,
    Timing,
    is_partial,
)
from gpuwise.lab.stream import Event

Step = tuple[int, int, bool, float | list[float], float, str, str, Sequence[int]]
"""An instruction: event, first slot of its unit, whether each scheduler has one, cycles the unit is taken (by warp for memory),
cycles to the result, operation, what waiting for the result is called, the events it waits for."""
REASONS = {
    "load": "memory latency",
    "shared_load": "shared memory",
    "shuffle": "shared memory",
    "atomic": "memory latency",
    "branch": "branch",
}


class PlainMultiprocessor:
    def __init__(self, events: Sequence[Event], blocks: int, warps_per_block: int, c: Conditions) -> None:
        self.events, self.c, self.blocks, self.width = events, c, blocks, warps_per_block
        warps = blocks * warps_per_block
        running = np.stack([e.warps[:warps] for e in events]) if events else np.zeros((0, warps), bool)
        costs = [_unit_costs(e, warps, c) for e in events]
        units = {unit: at for at, unit in enumerate(dict.fromkeys(unit for unit, _, _ in costs))}
        self.memory_slot = units.get("memory", 0) * c.schedulers
        self.fp32_slot = units["fp32"] * c.schedulers if "fp32" in units else None
        steps: list[Step] = []
        for number, (e, (unit, interval, latency)) in enumerate(zip(events, costs, strict=True)):
            slot, reason = units[unit] * c.schedulers, REASONS.get(e.op, "arithmetic latency")
            steps.append((number, slot, unit in PER_SCHEDULER, interval, latency, e.op, reason, e.waits_for))
        self.program = [[steps[n] for n in np.flatnonzero(running[:, w]).tolist()] for w in range(warps)]
        self.unit_free = [0.0] * (max(len(units), 1) * c.schedulers)
        self.sectors: list[list[list[int]] | None] = [None] * len(events)
        self.waiting_at: dict[tuple[int, int], list[int]] = {}
        self.expected: dict[tuple[int, int], int] = {}
        for number, e in enumerate(events):
            if e.op == "barrier":
                for b in range(blocks):
                    self.expected[b, number] = int(running[number, b * warps_per_block : (b + 1) * warps_per_block].sum())
            if e.op in ("load", "store", "atomic") and e.access is not None:
                self.sectors[number] = [[s for s in row if s >= 0] for row in e.access.sector_ids[:warps].tolist()]
        self.out = Timing(0.0, 0, defaultdict(float), 0.0, 0.0, 0, 0, [0.0] * blocks)
        self.l1: dict[int, None] = {}
        self.seen: set[int] = set()
        self.dirty: set[int] = set()
        self.share = {name: 1.0 / max(of, 1.0) for name, of in c.shared_by.items()}
        self.credit: dict[str, float] = {}
        self.l1_capacity = int(c.l1_bytes // SECTOR)
        self.dram_free = self.l2_free = 0.0

    def run(self) -> Timing:
        c, width, program = self.c, self.width, self.program
        n, unit_free, events = c.schedulers, self.unit_free, self.events
        scheduler_free = [0.0] * n
        done: list[dict[int, tuple[float, str]]] = [{} for _ in program]
        at, last, ends = [0] * len(program), [0.0] * len(program), [0.0] * len(program)
        lengths = [len(p) for p in program]
        left = [sum(1 for w in range(b * width, (b + 1) * width) if program[w]) for b in range(self.blocks)]
        heap: list[tuple[float, int, str, bool]] = []
        stalls, spans, push, pop, swap = self.out.stalls, self.out.spans, heapq.heappush, heapq.heappop, heapq.heappushpop
        started = issued = instructions = 0
        given = -c.block_cycles

        def start(when: float) -> None:
            """The next block that has anything to do."""
            nonlocal started, given
            when = given = max(when, given + c.block_cycles)
            while started < self.blocks:
                block, started = started, started + 1
                mine = [w for w in range(block * width, (block + 1) * width) if program[w]]
                for w in mine:
                    last[w] = when
                    push(heap, (when, w, "", False))
                if mine:
                    return

        for _ in range(min(c.resident_blocks, self.blocks)):
            start(0.0)
        item = pop(heap) if heap else None
        while item is not None:
            now, w, why, has_unit = item
            steps, i, s = program[w], at[w], w % n
            number, unit, per_scheduler, interval, latency, op, cause, _ = steps[i]
            by_warp = type(interval) is list
            if not has_unit:  # units serve in the order in which operands are there
                key = unit + s if per_scheduler else unit
                begin = unit_free[key]
                if begin > now:
                    unit_free[key] = begin + (interval[w] if by_warp else interval)  # type: ignore[index, operator]
                    if why and now > last[w]:
                        stalls[why] += now - last[w]
                        last[w] = now
                    item = swap(heap, (begin, w, "load unit" if by_warp else "unit busy", True))
                    continue
                unit_free[key] = now + (interval[w] if by_warp else interval)  # type: ignore[index, operator]
            begin = scheduler_free[s]
            if begin < now:
                begin = now
            scheduler_free[s] = begin + events[number].times
            if why and now > last[w]:
                stalls[why] += now - last[w]
            if begin > now:
                stalls["not selected"] += begin - now
            if issued < MOST_SPANS:
                spans.append((w, s, begin, number, why if begin > last[w] else ""))
            issued += 1
            instructions += events[number].times
            results = done[w]
            if by_warp:
                of_l2 = self.out.l2_bytes
                finish, cause = self._memory(events[number], number, w, begin + interval[w] - 1, latency)  # type: ignore[index]
                if op == "load" and self.fp32_slot is not None:  # its registers are filled, and multiply-adds wait
                    filled = min(self.out.l2_bytes - of_l2, 32 * events[number].size) / FILL_BYTES
                    slot = self.fp32_slot + s
                    unit_free[slot] = max(unit_free[slot], begin) + filled
                if op != "store":
                    results[number] = (finish, cause)
                else:
                    behind = finish - begin - 4 * c.timing.dram_cycles
                    finish = 0.0
                    if behind > 0:  # stores pile up in front of the memory
                        unit_free[self.memory_slot] = max(unit_free[self.memory_slot], begin + behind)
            else:
                finish = begin + latency
                results[number] = (finish, cause)
            if finish > ends[w]:
                ends[w] = finish
            i += 1
            at[w] = i
            last[w] = begin + events[number].times
            if op != "barrier":
                if i < lengths[w]:  # the warp's next instruction, for when its operands are there
                    when, why = (begin + c.branch_cycles, "branch") if op == "branch" else (begin + events[number].times, "")
                    for source in steps[i][7]:
                        if source in results and results[source][0] > when:
                            when, why = results[source]
                    item = swap(heap, (when, w, why, False))
                    continue
                ready = (w,)
            else:
                block = w // width
                waiting = self.waiting_at.setdefault((block, number), [])
                waiting.append(w)
                ready = waiting if len(waiting) == self.expected[block, number] else ()
            for other in ready:
                if at[other] < lengths[other]:
                    when, why = begin + BARRIER_CYCLES, "barrier"
                    for source in program[other][at[other]][7]:
                        if source in done[other] and done[other][source][0] > when:
                            when, why = done[other][source]
                    push(heap, (when, other, why, False))
                    continue
                block = other // width
                end = ends[other] or begin + 1
                done[other] = {}
                left[block] -= 1
                self.out.block_ends[block] = max(self.out.block_ends[block], end)
                if left[block] == 0:
                    start(begin + 1)
            item = pop(heap) if heap else None
        self.out.issued = instructions
        self.out.cycles = max([*self.out.block_ends, self.dram_free])
        return self.out

    def _memory(self, e: Event, number: int, w: int, begin: float, latency: float) -> tuple[float, str]:
        """When the data is there, and what most of the wait was. Sectors are of addresses that no two arrays share."""
        if e.op.startswith("shared"):
            return begin + latency, "shared memory"
        rows, out, c = self.sectors[number], self.out, self.c
        assert rows is not None
        row, l1, seen, missing, memory, fresh = rows[w], self.l1, self.seen, 0, 0, 0
        if e.op == "load":
            out.l1_sectors += len(row)
            for sector in row:
                if sector in l1:
                    del l1[sector]
                    l1[sector] = None
                    continue
                missing += 1
                if sector not in seen:
                    fresh += 1
                    seen.add(sector)
                    memory += self._first(e.array, self.share.get(e.array, 1.0))
                l1[sector] = None
                if len(l1) > self.l1_capacity:
                    del l1[next(iter(l1))]
            out.l1_hits += len(row) - missing
        else:
            missing = len(row)
            for sector in row:
                seen.add(sector)
                if sector not in self.dirty:
                    fresh += 1
                    self.dirty.add(sector)
                    memory += self._first(e.array + " written", c.written.get(e.array, 1.0))
        if not missing:
            return begin + c.timing.l1_cycles, "memory latency"
        out.l2_bytes += missing * SECTOR
        each = max(len({sector // 2 for sector in row}) * c.l2_request_bytes / len(row), SECTOR)
        taken = missing * each / c.l2_bytes_per_cycle
        taken *= PARTIAL if c.l2_request_bytes > SECTOR and is_partial(e) else 1.0
        self.l2_free = max(self.l2_free, begin) + taken
        early = w < c.resident_blocks * self.width
        waited = c.timing.dram_cycles if fresh and not memory and early else c.timing.l2_cycles
        finish, cause = self.l2_free + waited, "L2 bandwidth" if self.l2_free - begin > waited else "memory latency"
        if memory:
            size = memory * SECTOR
            out.dram_bytes += size
            queued = max(self.dram_free - begin, 0.0)
            taken = size * c.sparse.get(e.array, 1.0) / c.dram_bytes_per_cycle
            taken *= 1 + c.shallow_cycles / (queued + c.shallow_cycles) if c.shallow_cycles else 1
            self.dram_free = max(self.dram_free, begin) + taken
            finish = self.l2_free + c.timing.l2_cycles
            there = self.dram_free + c.timing.dram_cycles
            cause = "memory bandwidth" if queued > c.timing.dram_cycles else "memory latency"
            cause = "L2 bandwidth" if finish > there else cause
            finish = max(finish, there)
        return finish, cause

    def _first(self, array: str, share: float) -> int:
        """1 where a sector that was not asked for before comes from memory: that share of those of its array."""
        if not share:
            return 0
        held = self.credit.get(array, 1.0 - share) + share
        hit = held >= 1.0 - 1e-9
        self.credit[array] = held - 1.0 if hit else held
        return int(hit)


def _unit_costs(e: Event, warps: int, c: Conditions) -> tuple[str, float | list[float], float]:
    """Unit, cycles it is taken (an array by warp for memory), cycles to the result."""
    t, lanes = c.timing, 32.0 * c.schedulers
    if e.access is not None:
        size = 8 if (e.access.wavefronts[:warps].max(initial=0) > 1 and e.access.sectors[:warps].max(initial=0) > 4) else 4
        if e.op.startswith("shared"):
            return "memory", np.maximum(e.access.wavefronts[:warps], 1).tolist(), t.shared_cycles
        floor = t.load_floor if size == 4 else min(t.load_floor_64, 2.0)
        return "memory", np.maximum(np.maximum(e.access.wavefronts, e.access.tags)[:warps], floor).tolist(), t.l1_cycles
    unit, interval, latency = _one(e.op, t, lanes, c)
    return unit, interval * e.times, latency * e.times


def _one(op: str, t: SmTiming, lanes: float, c: Conditions) -> tuple[str, float, float]:
    match op:
        case "fp32":
            return "fp32", lanes / c.fp32_lanes / t.fma_share, t.fp32_cycles
        case "fp64":
            return "fp64", lanes / c.fp64_lanes / t.fma_share, t.fp64_cycles
        case "sfu":
            return "sfu", 8.0, t.sfu_cycles
        case "shuffle":
            return "shuffle", 1.0, t.shared_cycles
        case "int":
            return "int", lanes / min(c.fp32_lanes, 64.0), t.fp32_cycles
        case "barrier":
            return "barrier", BARRIER_INTERVAL, 1.0
        case _:
            return op, 1.0, 1.0
