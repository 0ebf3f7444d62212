"""Evaluate every strategy of a space and keep what matters: the best choice of each row, and the
time-memory front.

No strategy is skipped: each gets its step time and its memory, and those that do not fit are counted and
refused. Blocks are cut into chunks of whole rows; chunks run on threads (numpy releases the lock inside its
loops).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.plan.space.strategies import Block
from gpuwise.predict.columns import Columns
from gpuwise.predict.memory.host import host_bytes_fit
from gpuwise.predict.memory.strategies import DeviceBytes, TensorBytes, bare_bytes, least_bytes, tensor_bytes
from gpuwise.predict.step.costs import PointCosts, point_costs
from gpuwise.predict.step.evaluate import points_of
from gpuwise.predict.step.times import step_times
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.strategy import COLUMNS, ROWS, Strategy

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
CHUNK = 65536
"""Strategies evaluated at once: their arrays stay in a core's caches."""
THREADED = CHUNK // 4
"""Strategies from which a sweep is shared between cores: below, starting them takes longer."""
TIGHT = 0.03
"""A strategy that leaves less than this share of the device free beside the allocator's usual slack is tight."""
SQUEEZED = 1.02
"""Factor on the time, for ranking only, of a strategy that is tight, fits only with minimum slack, or offloads to the host:
returning cached blocks waits for the device, measured memory varies from run to run, and predicted overlap is seldom complete.
A user who fixes such a layout gets a plan that is faster by at most this factor."""
UNLIKELY = 1e6
"""Factor by which a strategy that is expected to fit, but not with the requested probability, ranks behind all that do."""
TIE = 1e-6
"""Step times closer than this share are the same; the strategy that needs less memory is then the better."""
REMEMBERED = 1 << 18
"""Strategies up to which the bytes of a chunk's tensors stay for another accelerator: 24 bytes each."""
ROUNDING = 1e-9
"""Factor by which a bound is lowered, as it is summed in another order than its total."""
_BINS = 1024
_NOT_IN_POINTS = {"optimizer": "adamw", "gradient_dtype": "fp32", "master_weights": True, "step_in_backward": False}
"""Fields of a base that no op table depends on: bases that differ in them alone share their point costs."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Arrays [K] of the best strategies: block, flat position in it, ranking key (seconds per step, more if memory is tight or
    unlikely to suffice), minimum bytes of the fullest rank."""

    block: I64
    flat: I64
    rank_s: F64
    memory_bytes: F64

    def __len__(self) -> int:
        return len(self.block)

    def take(self, index: NDArray[np.intp]) -> Candidates:
        """Those at ``index`` (positions or a mask), in its order."""
        return Candidates(self.block[index], self.flat[index], self.rank_s[index], self.memory_bytes[index])

    def strategy(self, blocks: Sequence[Block], i: int) -> Strategy:
        """Candidate ``i`` as a Strategy."""
        return blocks[int(self.block[i])].columns.strategy(int(self.flat[i]))


@dataclass(frozen=True, slots=True)
class Sweep:
    """``rows`` the best fitting choice of each row that has one, best first; ``front`` the strategies that
    no other beats in both time and memory, fastest first; ``smallest`` the one strategy that needs least
    memory, fitting or not."""

    blocks: tuple[Block, ...]
    rows: Candidates
    front: Candidates
    smallest: Candidates
    n_strategies: int
    n_fit: int
    n_likely: int
    """Number of rows whose best choice fits with the requested probability."""
    seconds: float


@dataclass(slots=True)
class _Front:
    """Shortest time seen below each memory bin: a slower strategy is dominated and need not be sorted."""

    device_bytes: float
    best_below: F64
    lock: Lock

    @classmethod
    def of(cls, device_bytes: float) -> _Front:
        return cls(device_bytes, np.full(_BINS + 1, np.inf), Lock())

    def bins(self, memory: F64) -> I64:
        return np.minimum(memory * (_BINS / self.device_bytes), _BINS - 1).astype(np.int64)

    def add(self, step_s: F64, memory: F64) -> None:
        with self.lock:
            below = self.best_below.copy()
            np.minimum.at(below, self.bins(memory) + 1, step_s)
            self.best_below = np.minimum.accumulate(below)


def sweep(
    arch: Architecture,
    cluster: Cluster,
    blocks: Sequence[Block],
    seq_len: int,
    packed_document_len: int | None = None,
    risk: float = 0.1,
    faster_than_s: float | None = None,
) -> Sweep:
    """Evaluate all strategies of ``blocks``; strategies that fit with probability 1 - ``risk`` come first. With
    ``faster_than_s``, omit rows that take that long even with the least recomputation of their block.

    Raises UnpredictableError when the accelerator lacks a needed rate.
    """
    started = time.perf_counter()
    front = _Front.of(cluster.accelerator.memory_bytes)
    tasks: list[_Chunk] = []
    alike: dict[Strategy, list[int]] = {}
    for i, block in enumerate(blocks):
        alike.setdefault(block.columns.base.with_(**_NOT_IN_POINTS), []).append(i)
    n = sum(len(b.columns) for b in blocks)
    for mine in alike.values():
        shared = _shared(arch, cluster.system.count, tuple(blocks[i] for i in mine), seq_len, packed_document_len)
        remembered = shared.tensors if n <= REMEMBERED and faster_than_s is None else None
        costs = point_costs(arch, shared.points, cluster.system, timed=None if remembered is None else ())
        parts = [
            _Chunk(i, blocks[i], costs, at, np.arange(blocks[i].n_rows), remembered)
            for i, at in zip(mine, shared.index, strict=True)
        ]
        if faster_than_s is not None:
            parts = _hopeful(arch, cluster, parts, faster_than_s)
        chunks = [chunk for part in parts for chunk in part.cut()]
        if costs.own_host and remembered is not None:
            # operations timed one by one take long: only of points that fit some way
            fit = {i for chunk in chunks for i in chunk.fitting_points(arch, cluster)}
            costs = point_costs(arch, shared.points, cluster.system, timed=fit)
            chunks = [replace(chunk, costs=costs) for chunk in chunks]
        tasks += chunks

    def run(chunk: _Chunk) -> tuple[Candidates, Candidates, Candidates, int, int]:
        return chunk.best(arch, cluster, front, risk)

    if n > THREADED and len(tasks) > 2 and (os.cpu_count() or 1) > 1:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            done = list(pool.map(run, tasks))
    else:
        done = [run(task) for task in tasks]
    rows, fronts, small = (_join([d[k] for d in done]) for k in (0, 1, 2))  # type: ignore[misc]
    return Sweep(
        tuple(blocks),
        rows.take(_ranked(rows)),
        _pareto(fronts),
        small.take(np.argsort(small.memory_bytes, kind="stable")[:1]),
        n,
        sum(d[3] for d in done),
        sum(d[4] for d in done),
        time.perf_counter() - started,
    )


def beside(one: Sweep, other: Sweep) -> Sweep:
    """Both sweeps as one, of which ``one`` has the smallest strategy."""

    def joined(first: Candidates, second: Candidates) -> Candidates:
        return _join([first, replace(second, block=second.block + len(one.blocks))])

    rows = joined(one.rows, other.rows)
    return Sweep(
        (*one.blocks, *other.blocks),
        rows.take(_ranked(rows)),
        _pareto(joined(one.front, other.front)),
        one.smallest,
        one.n_strategies + other.n_strategies,
        one.n_fit + other.n_fit,
        one.n_likely + other.n_likely,
        one.seconds + other.seconds,
    )


def least_bytes_on(arch: Architecture, cluster: Cluster, blocks: Sequence[Block]) -> float:
    """A bound that no strategy of ``blocks`` needs less than of a device of ``cluster``: nothing of them is evaluated."""
    bare = {b.columns.base.stack: bare_bytes(arch, b.columns.base.stack, cluster.accelerator) for b in blocks}
    least = (_least_bytes(arch, cluster.system.count, b) + bare[b.columns.base.stack] for b in blocks)
    return (1 - ROUNDING) * min(least)


@lru_cache(maxsize=128)
def _least_bytes(arch: Architecture, system_count: int, block: Block) -> float:
    return float(least_bytes(arch, system_count, block.without_activations()).min())


@dataclass(frozen=True, slots=True, eq=False)
class _Shared:
    """Blocks whose bases have the same op tables: their points and the point of each block's rows [A, 1, 1]. ``tensors`` fills
    with the bytes of chunks that were met, by block and first row: they are the same for all accelerators."""

    points: tuple[Point, ...]
    index: tuple[I64, ...]
    tensors: dict[tuple[Block, int], TensorBytes]


@lru_cache(maxsize=128)
def _shared(
    arch: Architecture, system_count: int, blocks: tuple[Block, ...], seq_len: int, packed_document_len: int | None
) -> _Shared:
    """Values shared by ``blocks`` in systems of ``system_count`` accelerators."""
    lists = [b.row_list() for b in blocks]
    first = lists[0]
    joined = {f: np.concatenate([getattr(c, f) for c in lists]) for f in ROWS}
    points, index = points_of(replace(first, **joined), seq_len, packed_document_len)
    ends = np.cumsum([b.n_rows for b in blocks])
    each = tuple(index[end - b.n_rows : end][:, None, None] for end, b in zip(ends, blocks, strict=True))
    return _Shared(tuple(points), each, {})


@dataclass(frozen=True, slots=True)
class _Chunk:
    """``rows`` of a block; ``index`` [A, 1, 1] is the point of each row of the block in ``costs``."""

    number: int
    block: Block
    costs: PointCosts
    index: I64
    rows: NDArray[np.intp]
    remembered: dict[tuple[Block, int], TensorBytes] | None = None

    def cut(self) -> Iterator[_Chunk]:
        """The same in parts of at most :data:`CHUNK` strategies."""
        step = max(1, CHUNK // self.block.n_choices)
        return (replace(self, rows=self.rows[a : a + step]) for a in range(0, len(self.rows), step))

    def least(self) -> tuple[Columns, I64]:
        """Columns [A * S] of the rows with each choice of states and as little recomputed as may be, and their points."""
        c = self.block.least_recomputed().columns
        shape = len(self.rows), len(c) // len(self.rows)
        fields = {f: np.broadcast_to(getattr(c, f), (*shape, 1)).ravel() for f in COLUMNS}
        return replace(c, **fields), np.broadcast_to(self.index[:, :, 0], shape).ravel()

    def best(
        self, arch: Architecture, cluster: Cluster, front: _Front, risk: float
    ) -> tuple[Candidates, Candidates, Candidates, int, int]:
        """Best choice of each row, candidates for the front, the smallest, number that fit, and number of rows with a choice
        that fits with the requested probability."""
        block, costs = self.block, self.costs
        c, at = block.at(self.rows), self.index[self.rows]
        memory, fits = self._memory(arch, cluster, c, at)
        step_s = np.full(c.shape, np.inf)
        if len(timed := np.flatnonzero(np.broadcast_to(fits, c.shape).any(axis=(1, 2)))):
            columns = block.at(self.rows[timed])
            step_s[timed] = step_times(arch, cluster.system, costs, columns, at[timed]).step_s
        on_host = (c.offload_optimizer + c.offload_activations) > 0
        return _best(self.number, self.rows, memory, fits, on_host, step_s, front, risk)

    def fitting_points(self, arch: Architecture, cluster: Cluster) -> set[int]:
        """The points of rows of which some choice fits."""
        c, at = self.block.at(self.rows), self.index[self.rows]
        _, fits = self._memory(arch, cluster, c, at)
        return set(at[np.broadcast_to(fits, c.shape).any(axis=(1, 2))].ravel().tolist())

    def _memory(self, arch: Architecture, cluster: Cluster, c: Columns, at: I64) -> tuple[DeviceBytes, NDArray[np.bool_]]:
        """Memory of each strategy, and whether it fits on the device and the host."""
        memory = self._tensors(arch, cluster, c, at).on(cluster.accelerator)
        return memory, memory.fits() & host_bytes_fit(arch, cluster, self.costs.saved, self.costs.n_layers, c, at)

    def _tensors(self, arch: Architecture, cluster: Cluster, c: Columns, at: I64) -> TensorBytes:
        remembered = {} if self.remembered is None else self.remembered
        key = self.block, int(self.rows[0])
        if key not in remembered:
            remembered[key] = tensor_bytes(arch, cluster.system.count, self.costs, c, at)
        return remembered[key]


def _hopeful(arch: Architecture, cluster: Cluster, parts: Sequence[_Chunk], faster_than_s: float) -> list[_Chunk]:
    """``parts`` without the rows that take ``faster_than_s`` or longer with as little recomputed as their block allows, as if
    they fitted so."""
    found: list[_Chunk] = []
    bases = dict.fromkeys(p.block.columns.base for p in parts)
    for base in bases:
        mine = [p for p in parts if p.block.columns.base == base]
        columns, points = zip(*(p.least() for p in mine), strict=True)
        joined = Columns(base, **{f: np.concatenate([getattr(c, f) for c in columns]) for f in COLUMNS})
        step_s = step_times(arch, cluster.system, mine[0].costs, joined, np.concatenate(points)).step_s
        ends = np.cumsum([len(at) for at in points])[:-1]
        for part, seconds in zip(mine, np.split(step_s, ends), strict=True):
            rows = np.flatnonzero(seconds.reshape(len(part.rows), -1).min(axis=1) < faster_than_s)
            found += [replace(part, rows=rows)] if len(rows) else []
    return found


def _best(
    number: int,
    rows: NDArray[np.intp],
    memory: DeviceBytes,
    fits: NDArray[np.bool_],
    on_host: NDArray[np.bool_],
    step_s: F64,
    front: _Front,
    risk: float,
) -> tuple[Candidates, Candidates, Candidates, int, int]:
    """:meth:`_Chunk.best` of ``rows`` of block ``number``."""
    shape = step_s.shape
    n_choices = step_s.size // len(step_s)
    total, fits = np.broadcast_to(memory.needed, shape), np.broadcast_to(fits, shape)
    rank_s = _ranked_by(memory, step_s, fits, on_host, risk)

    def candidates(flat: NDArray[np.intp]) -> Candidates:
        return Candidates(
            np.full(len(flat), number, np.int64),
            rows[flat // n_choices] * n_choices + flat % n_choices,
            rank_s.reshape(-1)[flat],
            total.reshape(-1)[flat],
        )

    seconds = rank_s.reshape(len(rank_s), -1)
    smallest = candidates(np.array([int(np.argmin(total))]))
    fastest = seconds.min(axis=1, keepdims=True)
    some = np.isfinite(fastest[:, 0])
    if not some.any():
        none = candidates(np.zeros(0, np.intp))
        return none, none, smallest, 0, 0
    tied = np.where(seconds <= fastest * (1 + TIE), total.reshape(len(rank_s), -1), np.inf)
    best = tied.argmin(axis=1)[some] + np.flatnonzero(some) * seconds.shape[1]
    flat_s, flat_m = seconds.reshape(-1), total.reshape(-1)
    unbeaten = np.flatnonzero(flat_s < front.best_below[front.bins(np.minimum(flat_m, front.device_bytes))])
    edge = _pareto(candidates(unbeaten))
    front.add(edge.rank_s, edge.memory_bytes)
    likely = np.broadcast_to(memory.fits(risk), shape).reshape(-1)[best]
    return candidates(best), edge, smallest, int(np.count_nonzero(fits)), int(np.count_nonzero(likely))


def _ranked_by(memory: DeviceBytes, step_s: F64, fits: NDArray[np.bool_], on_host: NDArray[np.bool_], risk: float) -> F64:
    """Step times, more where the memory is squeezed, the host's or unlikely to suffice, infinite where nothing fits."""
    likely = np.broadcast_to(memory.fits(risk), fits.shape)
    easy = np.broadcast_to(memory.fits_at_ease(TIGHT) & ~on_host, fits.shape)
    out = np.where(fits, step_s, np.inf)
    behind = np.flatnonzero(fits & ~(likely & easy))
    factor = np.where(easy.ravel()[behind], 1.0, SQUEEZED) * np.where(likely.ravel()[behind], 1.0, UNLIKELY)
    out.reshape(-1)[behind] *= factor
    return out


def _pareto(candidates: Candidates) -> Candidates:
    """The candidates that none beats in both time and memory, fastest first; of equals the first."""
    order = np.lexsort((candidates.flat, candidates.block, candidates.rank_s, candidates.memory_bytes))
    seconds = candidates.rank_s[order]
    before = np.concatenate([[np.inf], np.minimum.accumulate(seconds)[:-1]]) if len(order) else seconds
    rows = order[seconds < before]
    return candidates.take(rows[np.argsort(candidates.rank_s[rows], kind="stable")])


def _ranked(rows: Candidates) -> NDArray[np.intp]:
    """Order by time; times within ``TIE`` of the very best are ordered by memory."""
    if not len(rows):
        return np.zeros(0, np.intp)
    fastest = rows.rank_s.min()
    seconds = np.where(rows.rank_s <= fastest * (1 + TIE), fastest, rows.rank_s)
    return np.lexsort((rows.flat, rows.block, rows.memory_bytes, seconds))


def _join(parts: Sequence[Candidates]) -> Candidates:
    if not parts:
        return Candidates(*(np.zeros(0, kind) for kind in (np.int64, np.int64, np.float64, np.float64)))  # type: ignore[arg-type]
    return Candidates(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("block", "flat", "rank_s", "memory_bytes")))
