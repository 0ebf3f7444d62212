"""One multiprocessor, event by event: which warp issues when, and what the others wait for.

Each of four schedulers issues one instruction of one of its warps a cycle. An instruction waits for the results it uses, for its
unit (lanes / 32 of an instruction a cycle), and at a barrier for its block. Loads take the load unit for max(data, tag) cycles,
then find their sectors in the L1 (least recently used go), in the L2, or in the memory. Memory is a queue that serves this
multiprocessor's share of the bandwidth, with the measured latency behind it: where bandwidth x latency is more than the bytes
that resident warps have under way, time goes to latency (Little's law), else to bandwidth.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuwise.facts.hardware.sm_timing import SmTiming
from gpuwise.lab.access import SECTOR
from gpuwise.lab.kernel import Event

MOST_SPANS = 4000
"""Issues that a timeline holds."""
BRANCH_CYCLES = 9.0
"""From a branch to the next instruction of its warp, fitted to one cell of V100's table (benchmarks/records/lab)."""
L2_BYTES_PER_CYCLE = 64.0
"""Of one multiprocessor (NVIDIA A100 whitepaper: 5,120 bytes a clock over 80 of two partitions' slices; 64 each)."""
REASONS = {
    "load": "memory latency",
    "shared_load": "shared memory",
    "shuffle": "shared memory",
    "atomic": "memory latency",
    "branch": "branch",
}


@dataclass(slots=True)
class Timing:
    """What one multiprocessor did."""

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
    """What the rest of the GPU leaves to this multiprocessor."""

    timing: SmTiming
    fp32_lanes: float
    fp64_lanes: float
    schedulers: int
    resident_blocks: int
    l1_bytes: float
    dram_bytes_per_cycle: float
    shared_by: Mapping[str, float]
    """Array to how many multiprocessors ask for the same sector: the first finds it in memory, the others in the L2."""


def run_multiprocessor(events: Sequence[Event], blocks: int, warps_per_block: int, c: Conditions) -> Timing:
    """Time ``blocks`` blocks (the first of the run), ``resident_blocks`` at once, the next when one ends."""
    return _Multiprocessor(events, blocks, warps_per_block, c).run()


class _Multiprocessor:
    def __init__(self, events: Sequence[Event], blocks: int, warps_per_block: int, c: Conditions) -> None:
        self.events, self.c, self.blocks, self.width = events, c, blocks, warps_per_block
        warps = blocks * warps_per_block
        running = np.stack([e.warps[:warps] for e in events]) if events else np.zeros((0, warps), bool)
        self.program = [np.flatnonzero(running[:, w]).tolist() for w in range(warps)]
        self.costs = [_unit_costs(e, warps, c) for e in events]
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
        self.l1: dict[tuple[str, int], None] = {}
        self.seen: set[tuple[str, int]] = set()
        self.credit: dict[str, float] = {}
        self.l1_capacity = int(c.l1_bytes // SECTOR)
        self.dram_free = self.l2_free = 0.0

    def run(self) -> Timing:
        c, events, costs, width = self.c, self.events, self.costs, self.width
        n = c.schedulers
        scheduler_free = [0.0] * n
        unit_free: dict[tuple[str, int], float] = {}
        done: list[dict[int, tuple[float, str]]] = [{} for _ in self.program]
        at = [0] * len(self.program)
        last = [0.0] * len(self.program)
        left = [sum(1 for w in range(b * width, (b + 1) * width) if self.program[w]) for b in range(self.blocks)]
        heap: list[tuple[float, int, str, bool]] = []
        started = 0

        def start(when: float) -> None:
            """The next block that has anything to do."""
            nonlocal started
            while started < self.blocks:
                block, started = started, started + 1
                mine = [w for w in range(block * width, (block + 1) * width) if self.program[w]]
                for w in mine:
                    last[w] = when
                    heapq.heappush(heap, (when, w, "", False))
                if mine:
                    return

        def go_on(w: int, when: float, why: str) -> None:
            """Queue the warp's next instruction for when its operands are there."""
            got = done[w]
            for source in events[self.program[w][at[w]]].waits_for:
                result = got.get(source)
                if result is not None and result[0] > when:
                    when, why = result
            heapq.heappush(heap, (when, w, why, False))

        for _ in range(min(c.resident_blocks, self.blocks)):
            start(0.0)
        stalls, spans, push, pop = self.out.stalls, self.out.spans, heapq.heappush, heapq.heappop
        while heap:
            now, w, why, has_unit = pop(heap)
            number = self.program[w][at[w]]
            e, s = events[number], w % n
            unit, interval, latency = costs[number]
            if not has_unit:  # units serve in the order in which operands are there
                key = (unit, s if unit in PER_SCHEDULER else 0)
                begin = max(now, unit_free.get(key, 0.0))
                unit_free[key] = begin + (interval[w] if isinstance(interval, list) else interval)
                if begin > now:
                    if now > last[w] and why:
                        stalls[why] += now - last[w]
                        last[w] = now
                    push(heap, (begin, w, "load unit" if unit == "memory" else "unit busy", True))
                    continue
            begin = max(now, scheduler_free[s])
            scheduler_free[s] = begin + 1
            if now > last[w] and why:
                stalls[why] += now - last[w]
            if begin > now:
                stalls["not selected"] += begin - now
            if len(spans) < MOST_SPANS:
                spans.append((w, s, begin, number, why if begin > last[w] else ""))
            self.out.issued += 1
            if isinstance(interval, list):
                finish, cause = self._memory(e, number, w, begin + interval[w] - 1, latency)
                behind = finish - begin - 4 * c.timing.dram_cycles
                if e.op != "store":
                    done[w][number] = (finish, cause)
                elif behind > 0:  # stores pile up in front of the memory
                    unit_free["memory", 0] = max(unit_free["memory", 0], begin + behind)
            else:
                done[w][number] = (begin + latency, REASONS.get(e.op, "arithmetic latency"))
            at[w] += 1
            last[w] = begin + 1
            block = w // width
            ready = [w]
            if e.op == "barrier":
                waiting = self.waiting_at.setdefault((block, number), [])
                waiting.append(w)
                ready = waiting if len(waiting) == self.expected[block, number] else []
            for other in ready:
                if at[other] < len(self.program[other]):
                    if e.op == "branch":
                        go_on(other, begin + BRANCH_CYCLES, "branch")
                    else:
                        go_on(other, begin + 1, "barrier" if e.op == "barrier" else "")
                    continue
                end = max((v[0] for v in done[other].values()), default=begin + 1)
                done[other] = {}
                left[block] -= 1
                self.out.block_ends[block] = max(self.out.block_ends[block], end)
                if left[block] == 0:
                    start(begin + 1)
        self.out.cycles = max([*self.out.block_ends, self.dram_free])
        return self.out

    def _memory(self, e: Event, number: int, w: int, begin: float, latency: float) -> tuple[float, str]:
        """When the data is there, and what most of the wait was."""
        if e.op.startswith("shared"):
            return begin + latency, "shared memory"
        rows, out, c = self.sectors[number], self.out, self.c
        assert rows is not None
        name, l1, missing, memory = e.array, self.l1, 0, 0
        if e.op == "load":
            out.l1_sectors += len(rows[w])
            for sector in rows[w]:
                key = (name, sector)
                if key in l1:
                    del l1[key]
                    l1[key] = None
                    out.l1_hits += 1
                    continue
                missing += 1
                memory += self._first(key)
                l1[key] = None
                if len(l1) > self.l1_capacity:
                    del l1[next(iter(l1))]
        else:
            missing = len(rows[w])
            memory = sum(self._first((name, sector)) for sector in rows[w])
        if not missing:
            return begin + c.timing.l1_cycles, "memory latency"
        out.l2_bytes += missing * SECTOR
        self.l2_free = max(self.l2_free, begin) + missing * SECTOR / L2_BYTES_PER_CYCLE
        finish, cause = self.l2_free + c.timing.l2_cycles, "memory latency"
        if memory:
            size = memory * SECTOR
            out.dram_bytes += size
            queued = max(self.dram_free - begin, 0.0)
            self.dram_free = max(self.dram_free, begin) + size / c.dram_bytes_per_cycle
            finish = self.dram_free + c.timing.dram_cycles
            cause = "memory bandwidth" if queued > c.timing.dram_cycles else "memory latency"
        return finish, cause

    def _first(self, key: tuple[str, int]) -> int:
        """1 where the sector comes from memory: one in so many of those that this multiprocessor asks for first."""
        if key in self.seen:
            return 0
        self.seen.add(key)
        share = 1.0 / max(self.c.shared_by.get(key[0], 1.0), 1.0)
        held = self.credit.get(key[0], 1.0 - share) + share
        hit = held >= 1.0 - 1e-9
        self.credit[key[0]] = held - 1.0 if hit else held
        return int(hit)


PER_SCHEDULER = frozenset({"int", "fp32", "fp64", "sfu", "branch", "barrier"})


def _unit_costs(e: Event, warps: int, c: Conditions) -> tuple[str, float | list[float], float]:
    """Unit, cycles it is taken (an array by warp for memory), cycles to the result."""
    t, lanes = c.timing, 32.0 * c.schedulers
    if e.access is not None:
        size = 8 if (e.access.wavefronts[:warps].max(initial=0) > 1 and e.access.sectors[:warps].max(initial=0) > 4) else 4
        if e.op.startswith("shared"):
            return "memory", np.maximum(e.access.wavefronts[:warps], 1).tolist(), t.shared_cycles
        floor = t.load_floor if size == 4 else min(t.load_floor_64, 2.0)
        return "memory", np.maximum(np.maximum(e.access.wavefronts, e.access.tags)[:warps], floor).tolist(), t.l1_cycles
    match e.op:
        case "fp32":
            return "fp32", lanes / c.fp32_lanes / t.fma_share, t.fp32_cycles
        case "fp64":
            return "fp64", lanes / c.fp64_lanes / t.fma_share, t.fp64_cycles
        case "sfu":
            return "sfu", 8.0, t.sfu_cycles
        case "shuffle":
            return "shuffle", 2.0, t.shared_cycles
        case "int":
            return "int", lanes / min(c.fp32_lanes, 64.0), t.fp32_cycles
        case _:
            return e.op, 1.0, 1.0
