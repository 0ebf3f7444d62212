"""One task on a GPU and on a CPU: run for its values, checked, then timed event by event.

The blocks that one multiprocessor is given are timed on it (:mod:`gpuwise.lab.multiprocessor`), up to a limit; the rest
follows from the pace of the last ones. The memory's sustained bandwidth, launches and copies are those of ``gpuwise op``; the
CPU is that of ``predict.cpu``. Data that the whole GPU reads repeatedly is in the L2: of a sector requested by several
multiprocessors, only the first read comes from memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.arguments import checked
from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator, architectures
from gpuwise.facts.hardware.sm_limits import find_sm_limits
from gpuwise.facts.hardware.sm_timing import SmTiming, find_sm_timing
from gpuwise.lab.access import SECTOR
from gpuwise.lab.compiler import NUMBA, NVCC, Compiler, scheduled
from gpuwise.lab.kernel import run_kernel
from gpuwise.lab.multiprocessor import Conditions, Timing, run_multiprocessor
from gpuwise.lab.residency import Occupancy, occupancy, refusal
from gpuwise.lab.source import kernel_text, read_kernel
from gpuwise.lab.stream import Event, Finding, Run
from gpuwise.lab.tasks import Launch, Task
from gpuwise.predict.kernels import single
from gpuwise.shown import Shown

TIMED_ISSUES = 60_000
"""Warp instructions that are timed one by one, unless one generation of blocks alone has more."""
MOST_ISSUES = 3_000_000
MOST_GENERATIONS = 4
"""Times that the multiprocessor's blocks are replaced: the pace is steady by then."""
UNEVEN = 0.02
"""Standard error of the mean instructions of the timed blocks, as a share of it, from which more blocks are run for that mean
alone: a GPU hands out its blocks as others end, so each multiprocessor has the mean of all."""
CHECKED_LANES = 200_000
"""Lanes of a launch up to which every block is run for its values; of larger ones, the blocks that are timed."""
LONG_STREAM_BYTES = 1e9
"""A copy so long that only the bandwidth counts."""
ONE_WAY_GAIN = {"GDDR6": 0.11}
"""By how much reading alone, or writing alone, is faster than a copy, whose bus turns around, by type of memory. gpu-benches: an
A40 without error correction reads and writes 680 of 696 GB/s, where copies reach 88 % (the kernel model). The rooflines of A100
and GH200, which only read, are as fast as their copies: HBM gains nothing."""


LIKE_H100 = frozenset({"9.0", "10.0", "10.3"})
"""Capabilities whose memory is taken to be that of the H100 that was measured: HBM3 behind an L2 in halves. What follows is of
them alone where it says so; GeForce and older cards were not measured so."""
FETCHED_TOGETHER = 2
"""Sectors that a read from memory brings into the L2 of one like an H100: loads of one sector in two or four take 1.9 and 2.2
times as long as of the same sectors side by side (benchmarks/records/gpu, strides of 64 and 128 bytes)."""
L2_PORT_BYTES = 64.0
"""L2 bytes per cycle of one multiprocessor (NVIDIA A100 whitepaper: 5,120 bytes per clock from 80 slices, 64 each)."""
L2_BYTES = {"7.0": 1794.0, "8.0": 3900.0, "9.0": 3900.0, "10.0": 7800.0, "10.3": 7800.0}
"""L2 bytes per cycle of all multiprocessors together, by capability: V100 by l2_bw_64f of Accel-Sim's GPU_Microbenchmark; H100
by 69 MB of 16 bytes a lane out of the L2 (benchmarks/records/lab/card_2026-11-27f.md). An A100, with slices of the same width,
and each die of a B200 are taken to reach what the H100 does. Others: the sum of their ports."""
L2_REQUEST_BYTES = 64.0
"""Width of a slice of the L2 from the A100 on, which one request occupies for a cycle: on an H100 2^21 sectors in as many pieces
of 64 bytes take twice as long as in half as many (the same record). Taken to be so where :data:`L2_BYTES` are an H100's."""
STAYS = 0.3
"""Share of the L2 with written data at the end of a launch: on an H100 of 50 MB a copy of 67 MB moves 121 MB."""
SHALLOW = 0.35
"""Queue of reads and writes, relative to the memory's latency, that is served at two thirds of its rate: copies of 67 MB by 4
and 16 bytes a thread, and in a grid's stride, reach 2.56, 3.38 and 3.19 TB/s on an H100. Of those like it alone; pure reads do
not show it (A100, benchmarks/records/lab)."""
GOLDEN = (5**0.5 - 1) / 2
LINE_SECTORS = 4
SPARSE_EVENTS = 64
"""Loads of an array that are looked at for how far apart they are."""
SPARSE, SPARSE_POWER, SPARSE_PIECES = 0.5, 2.4, 16
"""Factor on the memory time of a byte when each 1 KB has a single requested piece of 64 bytes, and the exponent of the share
of its other 15 that are not requested: 2^20 loads 64, 128, 256 and 512 bytes apart take 22.1, 24.6, 28.2 and 31.4 us on an
H100."""
L2_OF_ALL = 0.5
"""Share of the L2 available to an array that is read at random: 2^21 sectors of 25 MB take no longer than of 2 MB on an H100
of 50 MB, whose halves each cache their multiprocessors' reads, and of 34 MB 1.5 times as long."""
BRANCH_CYCLES, BRANCH_CYCLES_OF = 9.0, {"9.0": 21.0}
"""From a branch to the next instruction of its warp: fitted to one cell of V100's table; on an H100 a loop of one multiply-add
takes 29.4 cycles, of which the counter and the comparison are 8."""
BLOCK_CYCLES = 1.19
"""From one block of a launch to the next one, wherever it goes: 65,536 empty blocks take 39.3 us on an H100 at 1.98 GHz, whether
of 32 or 256 threads, and so do copies by blocks of 64. Not measured on others."""
ATOMIC_S, WHOLE_ATOMIC_S, LINE_ATOMIC_S = 1.77e-9, 0.69e-9, 8.5e-9
"""From one atomic addition to the next one to the same address, wherever it comes from: of each lane in floating point (24,576
more blocks of the lab's reduction, 262,144 lanes at one address), of a warp in whole numbers; and from one warp to the next one
at a line of which both ask for several words (2^20 lanes at random over 32 and 256 words: 7.0 and 9.9 ns). H100,
benchmarks/records/lab/card_2026-11-27f.md."""


@dataclass(frozen=True, slots=True)
class Simulation(Shown):
    """Result of a kernel on one GPU. Cycles are of the multiprocessor's clock."""

    task: str
    device: str
    occupancy: Occupancy
    blocks: int
    threads: int
    multiprocessors: int
    clock_hz: float
    time_s: float
    """Seconds of the kernel alone: no launch, no copies."""
    cycles: float
    blocks_timed: int
    blocks_of_one: int
    """Blocks that the busiest multiprocessor gets."""
    checked: bool | None
    """Whether the values equal numpy's; None without a reference."""
    worst_error: float
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    """Correct but slow code, by line: unintended arithmetic in float64."""
    timing: Timing
    counters: Mapping[str, float]
    lines: tuple[Mapping[str, Any], ...]
    """Per line of the source: instructions, sectors, conflicts."""
    source: str
    events: tuple[Event, ...]
    timing_constants: SmTiming

    @property
    def stalls(self) -> dict[str, float]:
        """Share of the resident warps' time by stall reason, the largest first; the rest is issuing."""
        resident = min(self.occupancy.active_blocks, self.blocks_timed) * self.occupancy.warps_per_block
        whole = max(self.timing.cycles * resident, 1.0)
        return {r: cycles / whole for r, cycles in sorted(self.timing.stalls.items(), key=lambda s: -s[1])}

    @property
    def bound(self) -> str:
        """The bottleneck: the largest stall, instruction issue if the schedulers are busy more than half of the time, or
        serialised additions to one address if they take most of it."""
        if self.counters["atomic_cycles"] > 0.5 * self.cycles:
            return "atomics to one address"
        if self.counters["issue_share"] > 0.5:
            return "issue"
        return next(iter(self.stalls), "issue")

    def to_document(self) -> dict[str, Any]:
        """Plain values in SI units, with a timeline of warps (``timeline``: warp, scheduler, cycle, line, what it waited for)
        and of the blocks timed (``block_ends``: cycles)."""
        events, text = self.events, self.source.splitlines()
        return {
            "task": self.task,
            "device": self.device,
            "time_s": self.time_s,
            "cycles": self.cycles,
            "clock_hz": self.clock_hz,
            "multiprocessors": self.multiprocessors,
            "blocks": self.blocks,
            "threads": self.threads,
            "blocks_timed": self.blocks_timed,
            "blocks_of_one": self.blocks_of_one,
            "block_ends": sorted(self.timing.block_ends),
            "bound": self.bound,
            "checked": self.checked,
            "worst_error": self.worst_error,
            "findings": [asdict(f) for f in self.findings],
            "notes": [asdict(n) for n in self.notes],
            "occupancy": {
                "active_blocks": self.occupancy.active_blocks,
                "active_warps": self.occupancy.active_warps,
                "share": self.occupancy.occupancy,
                "binding": list(self.occupancy.binding),
            },
            "stalls": [{"reason": reason, "share": share} for reason, share in self.stalls.items()],
            "counters": dict(self.counters),
            "lines": [{**line, "text": text[int(line["line"]) - 1].strip()} for line in self.lines],
            "timeline": [
                {"warp": w, "scheduler": s, "cycle": at, "op": events[n].op, "line": events[n].line, "after": why}
                for w, s, at, n, why in self.timing.spans
            ],
        }


@checked
def simulate_task(
    task: Task, launch: Launch, accelerator: Accelerator, *, timed_issues: int = TIMED_ISSUES, compiler: Compiler = NVCC
) -> Simulation:
    """A task of the lab on ``accelerator``, as CUDA C has it. Raises as :func:`simulate_kernel`."""
    return simulate_kernel(
        task.source,
        launch.arguments,
        grid=launch.grid,
        block=launch.block,
        accelerator=accelerator,
        name=task.name,
        regs_per_thread=task.regs,
        expected=launch.expected,
        tolerance=launch.tolerance,
        timed_issues=timed_issues,
        compiler=compiler,
    )


@checked
def simulate_kernel(
    source: str | Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    grid: Sequence[int],
    block: Sequence[int],
    accelerator: Accelerator,
    name: str = "kernel",
    regs_per_thread: int = 32,
    expected: Callable[[], Mapping[str, NDArray[Any]]] | None = None,
    tolerance: float = 1e-4,
    timed_issues: int = TIMED_ISSUES,
    dynamic_smem: int = 0,
    compiler: Compiler = NUMBA,
) -> Simulation:
    """Run and time one launch. ``expected`` are the reference results; small launches are run whole, large ones only for the
    timed blocks, and only the elements they wrote are compared.

    Raises InputError for a launch that the GPU rejects or a kernel that does not end, FieldError (with the line) for
    unsupported code, UnpredictableError for a GPU without measured cycles.
    """
    kernel = read_kernel(source)
    if accelerator.compute_capability is None or accelerator.compute_units is None or accelerator.boost_hz is None:
        raise UnpredictableError(
            "no multiprocessors",
            f"{accelerator.name} has no CUDA multiprocessors that are known",
            hint="the lab knows NVIDIA's: --on A100-80GB, --on 4090",
        )
    timing = find_sm_timing(accelerator.compute_capability)
    units, total, threads = accelerator.compute_units, math.prod(grid), math.prod(block)
    _occupancy(accelerator, threads, regs_per_thread, 0, dynamic_smem)
    blocks = _spread(np.arange(0, total, units))  # the blocks of the first multiprocessor, dealt out in turn
    whole = total * threads <= CHECKED_LANES
    before = _copied(arguments)
    if whole:
        rest = np.setdiff1d(np.arange(total), blocks)
        run = run_kernel(
            kernel,
            arguments,
            grid=grid,
            block=block,
            blocks=np.concatenate([blocks, rest]),
            timed_blocks=MOST_GENERATIONS * 32,
            dynamic_smem=dynamic_smem,
            compiler=compiler,
        )
    else:
        run = run_kernel(
            kernel, _copied(arguments), grid=grid, block=block, blocks=blocks[:1], dynamic_smem=dynamic_smem, compiler=compiler
        )
    resident = _occupancy(accelerator, threads, regs_per_thread, run.shared_bytes, dynamic_smem)
    at_once = min(resident.active_blocks, len(blocks))
    each = max(run.warp_instructions // len(run.blocks), 1)
    if each * at_once > MOST_ISSUES:
        text = f"{each * at_once:,} warp instructions live on one multiprocessor at once, {MOST_ISSUES:,} at most are timed"
        raise InputError(text, hint="give a smaller size")
    timed = int(min(len(blocks), max(at_once, min(timed_issues // each, MOST_GENERATIONS * at_once))))
    scale = 1.0
    if not whole:
        run = run_kernel(
            kernel, arguments, grid=grid, block=block, blocks=blocks[:timed], dynamic_smem=dynamic_smem, compiler=compiler
        )
        work = _work(run)
        if timed >= min(2 * at_once, len(blocks)) and work.std() > UNEVEN * work.mean() * timed**0.5:
            some = _spread(np.arange(total))[: CHECKED_LANES // threads]
            more = run_kernel(
                kernel,
                _copied(before),
                grid=grid,
                block=block,
                blocks=some,
                timed_blocks=1,
                dynamic_smem=dynamic_smem,
                compiler=compiler,
            )
            scale = float(_work(more).mean() / work.mean())
    run.events = scheduled(run.events, regs_per_thread // 2)
    checked, worst = _check(expected, run, before, tolerance, whole=whole)
    conditions = _conditions(accelerator, timing, resident, run, timed, total)
    measured = run_multiprocessor(run.events, timed, run.warps_per_block, conditions)
    cycles = _extrapolated(measured, timed, at_once, len(blocks)) * scale
    in_turn = _atomics_s(run, timed) * total / timed * accelerator.boost_hz
    if in_turn:
        cycles = max(cycles, _before_atomics(run, min(timed, at_once), conditions) + in_turn)
    return Simulation(
        name,
        accelerator.name,
        resident,
        total,
        threads,
        units,
        accelerator.boost_hz,
        cycles / accelerator.boost_hz,
        cycles,
        timed,
        len(blocks),
        checked,
        worst,
        tuple(run.findings),
        tuple(run.notes),
        measured,
        _counters(run, measured, timed * run.warps_per_block) | {"atomic_cycles": in_turn},
        _lines(run, timed * run.warps_per_block),
        kernel_text(source),
        tuple(run.events),
        timing,
    )


def _spread(blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """The blocks in an order of which every prefix is spread over the launch: the first ones may have less work than others."""
    return blocks[np.argsort((np.arange(len(blocks)) * GOLDEN) % 1.0, kind="stable")]


def _work(run: Run) -> NDArray[np.int64]:
    """Warp instructions of each block."""
    work = np.zeros(len(run.blocks), np.int64)
    for e in run.events:
        work += e.times * np.count_nonzero(e.warps.reshape(len(work), -1), axis=1)
    return work


def _copied(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in arguments.items()}


def _occupancy(a: Accelerator, threads: int, regs: int, shared: int, dynamic: int) -> Occupancy:
    """Raises InputError where no block fits."""
    capability = a.compute_capability or ""
    result = occupancy(capability, block_threads=threads, regs_per_thread=regs, static_smem=shared, dynamic_smem=dynamic)
    refused = refusal(result)
    if refused:
        raise InputError(refused[0], hint=refused[1])
    if result.active_blocks == 0:
        what = " and ".join(result.binding)
        raise InputError(f"no block of {threads:,} threads fits {a.name}: {what}", hint="`gpuwise lab occupancy` shows why")
    return result


def _conditions(a: Accelerator, timing: SmTiming, resident: Occupancy, run: Run, timed: int, total: int) -> Conditions:
    capability = a.compute_capability or ""
    like_h100 = capability in LIKE_H100
    fetched, apart = (FETCHED_TOGETHER, _apart(run, timed)) if like_h100 else (1, {})
    units, clock = a.compute_units or 1, a.boost_hz or 1.0
    sm = find_sm_limits(a.compute_capability or "")
    busy = min(units, total)
    long = single.stream(a, LONG_STREAM_BYTES, LONG_STREAM_BYTES)
    bandwidth = min(2 * LONG_STREAM_BYTES / float(long.time_s[0]) * _one_way(a, run, timed), a.memory_bandwidth_bytes_per_s)
    unit = architectures().get("sm_" + sm.compute_capability.replace(".", ""))
    l1 = (unit.l1_bytes if unit is not None and unit.l1_bytes else 0.0) or 128.0 * 1024
    used = resident.smem_allocated_per_block * resident.active_blocks
    carveout = next((c for c in sm.carveouts if c >= used), sm.carveouts[-1]) if used else 0
    lanes = a.fp32_flop_per_clock_per_unit or 128.0
    fp64 = a.fp64_vector_flop_per_s or a.peak_flop_per_s.get("fp64", 0.0)
    return Conditions(
        timing,
        lanes / 2,
        max(fp64 / (2 * units * clock), 2.0),
        4,
        resident.active_blocks,
        max(l1 - carveout, 8.0 * 1024),
        bandwidth / busy / clock,
        min(L2_PORT_BYTES, L2_BYTES.get(capability, math.inf) / busy),
        L2_REQUEST_BYTES if like_h100 or capability == "8.0" else float(SECTOR),
        BRANCH_CYCLES_OF.get(timing.compute_capability, BRANCH_CYCLES),
        BLOCK_CYCLES * busy,
        {name: 1 + SPARSE * share**SPARSE_POWER for name, share in apart.items()},
        SHALLOW * timing.dram_cycles * _mixture(run, timed) if like_h100 else 0.0,
        _written(run, timed, total, STAYS * (a.l2_bytes or 0.0)),
        _shared_by(run, timed, total, fetched, apart, L2_OF_ALL * (a.l2_bytes or math.inf)),
    )


def _one_way(a: Accelerator, run: Run, timed: int) -> float:
    """Bandwidth of this mixture of reads and writes relative to a copy: 1 for equal numbers of both."""
    return 1.0 + ONE_WAY_GAIN.get(a.memory_type, 0.0) * (1.0 - _mixture(run, timed))


def _mixture(run: Run, timed: int) -> float:
    """1 where as much is written as read, 0 where one of them is not done."""
    sectors = {"load": 0, "store": 0, "atomic": 0}
    for e in run.events:
        if e.op in sectors and e.access is not None:
            sectors[e.op] += int(e.access.sectors[: timed * run.warps_per_block].sum())
    written = (sectors["store"] + sectors["atomic"]) / max(sum(sectors.values()), 1)
    return 4.0 * written * (1.0 - written)


def _apart(run: Run, timed: int) -> dict[str, float]:
    """For each array that is read, the unrequested share of the 1 KB around a warp's requests."""
    warps, gaps = timed * run.warps_per_block, dict[str, list[float]]()
    for e in run.events:
        found = gaps.setdefault(e.array, []) if e.op == "load" and e.access is not None else None
        if found is None or e.access is None or len(found) >= SPARSE_EVENTS:
            continue
        pieces = np.sort(e.access.sector_ids[:warps] // 2, axis=1)
        between = np.diff(pieces, axis=1)[(pieces[:, :-1] >= 0) & (np.diff(pieces, axis=1) > 0)]
        found.append(float(np.minimum(between, SPARSE_PIECES).mean()) if len(between) else 1.0)
    pieces_of = {name: SPARSE_PIECES / (sum(found) / len(found)) for name, found in gaps.items()}
    return {name: 1 - (of - 1) / (SPARSE_PIECES - 1) for name, of in pieces_of.items()}


def _written(run: Run, timed: int, total: int, stays: float) -> dict[str, float]:
    """Array to the part of what the launch stores there that goes to the memory before its end."""
    warps, sectors = timed * run.warps_per_block, dict[str, float]()
    for name in {e.array for e in run.events if e.op in ("store", "atomic")}:
        accesses = [e.access for e in run.events if e.array == name and e.op in ("store", "atomic") and e.access is not None]
        ids = [access.sector_ids[:warps].ravel() for access in accesses]
        mine = len(np.unique(np.concatenate([i[i >= 0] for i in ids]))) * total / timed
        sectors[name] = min(mine, run.arrays[name].nbytes / SECTOR) if name in run.arrays else mine
    return dict.fromkeys(sectors, max(1 - stays / max(sum(sectors.values()) * SECTOR, 1), 0.0))


def _shared_by(run: Run, timed: int, total: int, fetched: int, apart: Mapping[str, float], l2_bytes: float) -> dict[str, float]:
    """For each array, how often the blocks of all multiprocessors first request its sectors, per sector; read-only data comes
    ``fetched`` sectors at a time, requested or not."""
    warps = timed * run.warps_per_block
    touched: dict[str, list[NDArray[np.int64]]] = {}
    written: set[str] = set()
    for e in run.events:
        if e.op in ("load", "store", "atomic") and e.access is not None:
            ids = e.access.sector_ids[:warps]
            touched.setdefault(e.array, []).append(np.unique(ids[ids >= 0]))
            if e.op != "load":
                written.add(e.array)
    shares: dict[str, float] = {}
    for name, parts in touched.items():
        each = 1 if name in written else fetched
        sectors = np.unique(np.concatenate(parts))
        if not len(sectors) or name not in run.arrays:
            shares[name] = math.inf  # local memory is written before it is read: it lives in the caches
            continue
        mine, there = len(np.unique(sectors // each)) * each, run.arrays[name].nbytes / SECTOR
        share = max(1.0, mine * total / timed / max(there, 1.0))
        gone = max(1 - l2_bytes / run.arrays[name].nbytes, 0.0) * apart.get(name, 0.0)
        shares[name] = 1 / (1 / share + (1 - 1 / share) * gone) * len(sectors) / mine
    return shares


def _atomics_s(run: Run, timed: int) -> float:
    """Seconds that the atomic accesses of the timed blocks take, at the line that has most of them."""
    warps, seconds = timed * run.warps_per_block, 0.0
    for name in {e.array for e in run.events if e.op == "atomic"}:
        accesses = [(e, e.access) for e in run.events if e.op == "atomic" and e.array == name and e.access is not None]
        requests = [np.sort(access.sector_ids[:warps] // LINE_SECTORS, axis=1) for _, access in accesses]
        lines = np.concatenate([r[(r >= 0) & (np.diff(r, axis=1, prepend=-1) != 0)] for r in requests])
        if not len(lines):
            continue
        every = sum(int(access.lines.sum()) for _, access in accesses)
        lanes = sum(e.lanes for e, _ in accesses) / max(every, 1)
        floating = run.arrays[name].dtype.kind == "f" if name in run.arrays else False
        words = LINE_SECTORS * SECTOR / accesses[0][0].size
        alone = every == sum(int(access.sectors.sum()) for _, access in accesses) and lanes > words / LINE_SECTORS
        one = ATOMIC_S * (lanes if alone else 1.0) if floating else WHOLE_ATOMIC_S
        each = LINE_ATOMIC_S if lanes > 1.5 and not alone else one
        seconds += int(np.unique(lines, return_counts=True)[1].max()) * each
    return seconds


def _before_atomics(run: Run, blocks: int, c: Conditions) -> float:
    """Cycles until the first block comes to its first atomic operation on global memory: none of them begins sooner."""
    first = next(n for n, e in enumerate(run.events) if e.op == "atomic")
    return min(run_multiprocessor(run.events[:first], blocks, run.warps_per_block, c).block_ends) if first else 0.0


def _extrapolated(measured: Timing, timed: int, at_once: int, of_one: int) -> float:
    """Cycles of all blocks of one multiprocessor, from the pace at which the last of the timed ones ended."""
    if timed >= of_one:
        return measured.cycles
    ends = np.sort(measured.block_ends)
    if timed >= 2 * at_once:
        pace = (ends[-1] - ends[at_once - 1]) / (timed - at_once)
        return float(measured.cycles + pace * (of_one - timed))
    return measured.cycles * of_one / timed


def _check(
    expected: Callable[[], Mapping[str, NDArray[Any]]] | None,
    run: Run,
    before: Mapping[str, Any],
    tolerance: float,
    *,
    whole: bool,
) -> tuple[bool | None, float]:
    """Whether the results equal the reference, and the largest difference over the largest value."""
    if expected is None:
        return None, 0.0
    worst = 0.0
    for name, right in expected().items():
        array = run.arrays[name]
        seen = np.ones(array.shape, bool) if whole else array != before[name]
        if not whole and array.size == 1:
            continue  # a sum of all blocks, of which only some were run
        if seen.any():
            scale = float(np.abs(right).max()) or 1.0
            worst = max(worst, float(np.abs(array - right)[seen].max()) / scale)
    return worst <= tolerance, worst


def _warp_counts(run: Run, first: int | None) -> list[int]:
    """For each event, how many of the ``first`` warps (all) run it; many events share one row of warps."""
    rows = {id(e.warps): e.warps for e in run.events}
    counts = {key: int(np.count_nonzero(row[:first])) for key, row in rows.items()}
    return [counts[id(e.warps)] for e in run.events]


def _counters(run: Run, measured: Timing, warps: int) -> dict[str, float]:
    """Counters of the timed blocks."""
    counters: dict[str, float] = {"warp_instructions": measured.issued}
    sectors = useful = conflicts = 0
    timed, every = _warp_counts(run, warps), _warp_counts(run, None)
    for e, of_timed, of_all in zip(run.events, timed, every, strict=True):
        counters[e.op] = counters.get(e.op, 0) + of_timed * e.times
        if e.access is None:
            continue
        if e.op.startswith("shared"):
            conflicts += int(np.maximum(e.access.wavefronts[:warps] - 1, 0).sum())
        else:
            sectors += int(e.access.sectors[:warps].sum())
            lanes = e.lanes * warps / max(of_all, 1) * (of_timed / min(warps, len(e.warps)) if warps else 0)
            useful += lanes * e.size * of_all / len(e.warps)
    lanes_of = sum(e.lanes for e in run.events)
    return counters | {
        "active_lanes": lanes_of / max(32 * sum(every), 1),
        "issue_share": measured.issued / max(4 * measured.cycles, 1.0),
        "sectors": sectors,
        "useful_share": min(useful / (sectors * SECTOR), 1.0) if sectors else 1.0,
        "bank_conflicts": conflicts,
        "dram_bytes": measured.dram_bytes,
        "l2_bytes": measured.l2_bytes,
        "l1_hit_share": measured.l1_hits / measured.l1_sectors if measured.l1_sectors else 0.0,
    }


def _lines(run: Run, warps: int) -> tuple[Mapping[str, Any], ...]:
    lines: dict[int, dict[str, Any]] = {}
    for e, of_timed in zip(run.events, _warp_counts(run, warps), strict=True):
        line = lines.setdefault(e.line, {"line": e.line, "instructions": 0, "sectors": 0, "bank_conflicts": 0})
        line["instructions"] += of_timed * e.times
        if e.access is not None and e.op.startswith("shared"):
            line["bank_conflicts"] += int(np.maximum(e.access.wavefronts[:warps] - 1, 0).sum())
        elif e.access is not None:
            line["sectors"] += int(e.access.sectors[:warps].sum())
    return tuple(lines[n] for n in sorted(lines))
