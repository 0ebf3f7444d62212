"""Occupancy: how many blocks of a kernel live on one multiprocessor at once.

    warps of a block       w = ceil(threads / 32)
    registers of a warp    r = ceil(32 x registers / 256) x 256
    blocks by warps        W / w
    blocks by registers    P x floor(R / P / r) / w, where each of P sub-partitions has its own registers and a warp
                           stays on one; none where r x (w rounded up to P) exceeds what one block may have
    blocks by shared       the carve-out over (static + dynamic + reserve), rounded up to the granularity
    blocks by barriers     barriers of a multiprocessor over those of a block, from 9.0 on

The least of these and the limit on blocks are active. The limits are ``facts/data/hardware/sm_limits.csv``. The answers equal
those of NVIDIA's ``cuda_occupancy.h`` (13.5), which the tests compile and ask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuwise.arguments import checked
from gpuwise.errors import InputError
from gpuwise.facts.hardware.sm_limits import REGISTER_GRANULARITY, WARP_THREADS, SmLimits, find_sm_limits
from gpuwise.shown import Shown

FACTORS = {1: "warps", 2: "registers", 4: "shared memory", 8: "blocks", 16: "barriers"}
"""Bits of ``limiting_factors``, as NVIDIA numbers them."""
LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Occupancy(Shown):
    """The query, and the result of NVIDIA's calculator; limits count blocks, ``inf`` for none."""

    compute_capability: str
    block_threads: int
    regs_per_thread: int
    static_smem: int
    dynamic_smem: int
    carveout_percent: int
    """Preferred share of shared memory in the L1; -1 means none."""
    optin: bool
    """Whether the kernel requested more than the default shared memory per block."""
    block_barriers: int
    status: int
    """0: the question could be answered (NVIDIA's CUDA_OCC_SUCCESS), also where the answer is 0 blocks."""
    active_blocks: int
    limit_warps: int
    limit_blocks: int
    limit_regs: float
    limit_smem: float
    limit_barriers: float
    limiting_factors: int
    """Sum of the bits of :data:`FACTORS` that bind."""
    regs_allocated_per_block: int
    smem_allocated_per_block: int

    @property
    def warps_per_block(self) -> int:
        return -(-self.block_threads // WARP_THREADS)

    @property
    def active_warps(self) -> int:
        return self.active_blocks * self.warps_per_block

    @property
    def max_warps(self) -> int:
        return find_sm_limits(self.compute_capability).warps_per_sm

    @property
    def occupancy(self) -> float:
        """Active warps over the most a multiprocessor holds."""
        return self.active_warps / self.max_warps

    @property
    def binding(self) -> tuple[str, ...]:
        """Names of what binds."""
        return tuple(name for bit, name in FACTORS.items() if self.limiting_factors & bit)


@checked
def occupancy(
    compute_capability: str | float | tuple[int, int],
    *,
    block_threads: int,
    regs_per_thread: int = 0,
    static_smem: int = 0,
    dynamic_smem: int = 0,
    carveout_percent: int = -1,
    optin: bool = False,
    block_barriers: int = 1,
) -> Occupancy:
    """Active blocks of a kernel on one multiprocessor, and each limit. Shared memory in bytes.

    What no launch accepts (a block of 2,000 threads) gives 0 blocks and the limit that is 0. Raises InputError for what is
    no count, UnknownNameError for a compute capability that is not in the table.
    """
    sm = find_sm_limits(compute_capability)
    _check(1, LARGEST, block_threads=block_threads)
    _check(0, LARGEST, registers=regs_per_thread, static_smem=static_smem, dynamic_smem=dynamic_smem, barriers=block_barriers)
    _check(-1, 100, carveout_percent=carveout_percent)
    warps = -(-block_threads // WARP_THREADS)
    by_warps = sm.warps_per_sm // warps if block_threads <= sm.threads_per_block else 0
    per_warp = _up(regs_per_thread * WARP_THREADS, REGISTER_GRANULARITY)
    by_regs = _register_limit(sm, sm.sub_partitions, regs_per_thread, per_warp, warps)
    if sm.compute_capability == "6.0" and _register_limit(sm, 4, regs_per_thread, per_warp, warps) == 0:
        by_regs = 0  # code for 6.0 must launch on 6.1 too, which has four sub-partitions
    by_smem, allocated = _shared_limit(sm, static_smem + dynamic_smem, carveout_percent, optin=optin)
    by_barriers = math.inf
    if sm.barriers_per_sm is not None and block_barriers:
        by_barriers = sm.barriers_per_sm // block_barriers
    others = {1: by_warps, 2: by_regs, 4: by_smem, 8: sm.blocks_per_sm}
    least = min(others.values())
    factors = sum(bit for bit, limit in others.items() if limit == least)
    factors += 16 if by_barriers <= least else 0
    return Occupancy(
        sm.compute_capability,
        block_threads,
        regs_per_thread,
        static_smem,
        dynamic_smem,
        carveout_percent,
        bool(optin),
        block_barriers,
        0,
        int(min(least, by_barriers)),
        by_warps,
        sm.blocks_per_sm,
        by_regs,
        by_smem,
        by_barriers,
        factors,
        per_warp * warps,
        allocated,
    )


def _register_limit(sm: SmLimits, partitions: int, regs: int, per_warp: int, warps: int) -> float:
    if regs == 0:
        return math.inf
    if regs > sm.registers_per_thread or per_warp * _up(warps, partitions) > sm.registers_per_block:
        return 0
    return sm.registers_per_sm // partitions // per_warp * partitions // warps


def _shared_limit(sm: SmLimits, used: int, percent: int, *, optin: bool) -> tuple[float, int]:
    """Blocks by shared memory, and the bytes that one takes."""
    allocated = _up(used + sm.reserved_per_block, sm.shared_granularity)
    most = (sm.shared_per_block_optin if optin else sm.shared_per_block) + sm.reserved_per_block
    if allocated > most:
        return 0, allocated
    if allocated == 0:
        return math.inf, 0
    largest = sm.carveouts[-1]
    wanted = largest if percent < 0 or not _chooses_carveout(sm) else percent * largest // 100
    fitting = (size for size in sm.carveouts if size >= max(wanted, allocated))
    return next(fitting, largest) // allocated, allocated


def _chooses_carveout(sm: SmLimits) -> bool:
    """Whether a kernel's preference in percent is heard: from Volta on (before, a cache configuration was set)."""
    return float(sm.compute_capability) >= 7


def _up(value: int, granularity: int) -> int:
    return -(-value // granularity) * granularity


def _check(least: int, most: int, **counts: int) -> None:
    for name, count in counts.items():
        if not least <= count <= most:
            hint = f"it is a whole number from {least:,} to {most:,}"
            raise InputError(f"{name.replace('_', ' ')} is {count:,}", hint=hint)


# --- what to change ---


@dataclass(frozen=True, slots=True)
class OccupancyChange:
    """One thing to change, and what comes of it."""

    what: str
    """An imperative: ``use 32 registers a thread (now 37)``."""
    active_blocks: int
    occupancy: float


def naive_blocks(o: Occupancy) -> int:
    """Blocks by a calculation without sub-partitions and the driver's reserve of shared memory."""
    sm = find_sm_limits(o.compute_capability)
    used = o.static_smem + o.dynamic_smem
    regs = sm.registers_per_sm // o.regs_allocated_per_block if o.regs_allocated_per_block else sm.blocks_per_sm
    shared = sm.carveouts[-1] // used if used else sm.blocks_per_sm
    return min(o.limit_warps, o.limit_blocks, regs, shared)


def changes(o: Occupancy) -> tuple[OccupancyChange, ...]:
    """The smallest change of each kind that raises the occupancy, best first; at most one a kind."""
    sm = find_sm_limits(o.compute_capability)
    found: list[tuple[str, Occupancy]] = []

    def first(text: str, tries: Sequence[Occupancy]) -> None:
        better = next((t for t in tries if t.active_warps > o.active_warps), None)
        if better is not None:
            found.append((text, better))

    regs = range(min(o.regs_per_thread, sm.registers_per_thread) - 1, 15, -1) if o.regs_per_thread else ()
    first("registers", [_with(o, regs_per_thread=r) for r in regs])
    blocks = [_with(o, block_threads=t) for t in range(WARP_THREADS, sm.threads_per_block + 1, WARP_THREADS)]
    best = max(blocks, key=lambda t: (t.active_warps, -abs(t.block_threads - o.block_threads)))
    first("block", [best])
    first("shared", [_with(o, dynamic_smem=d) for d in _steps(o.dynamic_smem)])
    first("static", [_with(o, static_smem=s) for s in _steps(o.static_smem)])
    if not o.optin:
        first("optin", [_with(o, optin=True)])
    if o.carveout_percent >= 0:
        first("carveout", [_with(o, carveout_percent=100)])
    first("barriers", [_with(o, block_barriers=b) for b in range(o.block_barriers - 1, 0, -1)])
    ranked = sorted(found, key=lambda f: -f[1].active_warps)
    return tuple(OccupancyChange(_words(kind, o, new), new.active_blocks, new.occupancy) for kind, new in ranked)


def _steps(used: int) -> list[int]:
    """Smaller sizes of shared memory, in steps of 128 bytes or, for large ones, of a 256th."""
    step = max(128, used // 256 // 128 * 128)
    return list(range(used - 1 - (used - 1) % step, -1, -step)) if used else []


def _with(o: Occupancy, **new: int) -> Occupancy:
    names = ("block_threads", "regs_per_thread", "static_smem", "dynamic_smem", "carveout_percent", "optin", "block_barriers")
    given: dict[str, Any] = {name: getattr(o, name) for name in names} | new
    return occupancy(o.compute_capability, **given)


def _words(kind: str, o: Occupancy, new: Occupancy) -> str:
    now = f"now {o.static_smem if kind == 'static' else o.dynamic_smem:,}"
    return {
        "registers": f"use {new.regs_per_thread} registers a thread (now {o.regs_per_thread}): "
        f"__launch_bounds__({o.block_threads}, {new.active_blocks}) or -maxrregcount={new.regs_per_thread}",
        "block": f"use blocks of {new.block_threads:,} threads (now {o.block_threads:,})",
        "shared": f"use {new.dynamic_smem:,} bytes of dynamic shared memory a block ({now})",
        "static": f"use {new.static_smem:,} bytes of static shared memory a block ({now})",
        "optin": "ask for more shared memory: cudaFuncSetAttribute(..., MaxDynamicSharedMemorySize, ...), here --optin",
        "carveout": f"prefer shared memory to L1 (--carveout 100, now {o.carveout_percent})",
        "barriers": f"use {new.block_barriers} barriers a block (now {o.block_barriers})",
    }[kind]


def refusal(o: Occupancy) -> tuple[str, str] | None:
    """Why no launch of this shape is possible on this capability, and what to do; None where one is."""
    sm = find_sm_limits(o.compute_capability)
    where, used = f"compute capability {sm.compute_capability}", o.static_smem + o.dynamic_smem
    if o.block_threads > sm.threads_per_block:
        most = sm.threads_per_block
        return f"a block of {o.block_threads:,} threads: {where} takes {most:,} at most", "use smaller blocks, and more of them"
    if o.regs_per_thread > 255:
        return f"{o.regs_per_thread:,} registers a thread: an instruction can name 255", "the compiler spills what is more"
    if used > sm.shared_per_block_optin:
        most = sm.shared_per_block_optin
        return f"{used:,} bytes of shared memory a block: {where} has {most:,} at most", "use a smaller tile, or a larger GPU"
    return None


def occupancy_chart(o: Occupancy, blocks: Sequence[int], registers: Sequence[int]) -> list[list[float]]:
    """Occupancy by registers a thread (rows) and threads of a block (columns), all else as in ``o``."""
    return [[_with(o, block_threads=b, regs_per_thread=r).occupancy for b in blocks] for r in registers]
