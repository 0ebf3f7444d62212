"""What a simulated run of the caching allocator gives: peaks, memory over the events, fragmentation, running out of memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.predict.memory.allocator.address_space import PITCH, SLOT, UNIT
from gpuwise.predict.memory.allocator.pools import Change, PoolKey
from gpuwise.predict.memory.allocator.settings import AllocatorSettings

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Peaks:
    """Most bytes at once over a range of events, each at its own time."""

    allocated_bytes: int
    """Blocks handed out, as torch.cuda.max_memory_allocated counts them: rounded, with unsplit remainders."""
    reserved_bytes: int
    """Taken from the device, as torch.cuda.max_memory_reserved counts it."""
    requested_bytes: int
    """Bytes requested by tensors."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One range of device memory at a moment, with the blocks in it. Addresses are bytes."""

    address: int
    stream: int
    small: bool
    private: int
    expandable: bool
    storages: tuple[int, ...]
    """Storages that live in it, by address."""
    size_bytes: int
    used_bytes: int
    free_bytes: int
    largest_free_bytes: int


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Location of the bytes that are reserved but not requested. The parts add up to reserved - requested."""

    event: int
    reserved_bytes: int
    allocated_bytes: int
    requested_bytes: int
    rounding_bytes: int
    """Sizes rounded up to 512 B or to power-of-two divisions."""
    unsplit_bytes: int
    """Remainders of at most 1 MiB (or any, from max_split_size on) that stay with a block of the large pool."""
    small_pool_bytes: int
    """Free in partly used segments of the small pool."""
    split_bytes: int
    """Free in partly used segments of the large pool: usable for requests that fit the gaps, never given back."""
    cached_bytes: int
    """Whole free segments: given back to the device when it runs out."""
    pinned: tuple[Segment, ...]
    """Partly used segments, most free bytes first: the storages in them keep those bytes from being given back."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The request that no block could serve, after everything that can be given back was given back."""

    event: int
    storage: int
    requested_bytes: int
    segment_bytes: int
    """Bytes requested from cudaMalloc."""
    capacity_bytes: int
    reserved_bytes: int
    allocated_bytes: int
    free_bytes: int
    """Reserved, free, and not usable for this request."""
    largest_free_bytes: int
    """Largest free block in the pool of the request."""
    reason: str
    """Why the free memory could not be used: for a person."""


@dataclass(frozen=True, slots=True, eq=False)
class AllocatorRun:
    """A finished (or failed) run. ``E`` events, ``S`` storages; events after an out-of-memory did not run."""

    settings: AllocatorSettings
    capacity_bytes: int | None
    storage: I64 = field(repr=False)
    """[E]"""
    sign: I64 = field(repr=False)
    """[E] +1 born, -1 freed."""
    size_bytes: I64 = field(repr=False)
    """[S] requested sizes."""
    rounded_bytes: I64 = field(repr=False)
    """[S] as rounded by the allocator."""
    block_bytes: I64 = field(repr=False)
    """[S] size of the block each storage got; 0 if it never lived or requested nothing."""
    block_units: I64 = field(repr=False)
    """[S] start of the block in the simulator's own units."""
    pool: I64 = field(repr=False)
    """[S] index into ``pools``."""
    pools: tuple[PoolKey, ...] = field(repr=False)
    changes: tuple[Change, ...] = field(repr=False)
    origins: tuple[int, ...] = field(repr=False)
    """Starts of the address ranges of expandable segments."""
    n_events: int
    """Events that ran."""
    retries: int
    """Times cached memory had to be given back before a request could be served."""
    oom: OutOfMemory | None

    @property
    def address_bytes(self) -> I64:
        """[S] address of each storage's block, -1 without one."""
        placed = np.flatnonzero(self.block_bytes > 0)
        out = np.full(self.block_bytes.size, -1, dtype=np.int64)
        base = _bases(self, placed)
        out[placed] = to_address(base) + (self.block_units[placed] - base) * UNIT
        return out

    @property
    def n_segments(self) -> int:
        """cudaMallocs, or page mappings of expandable segments."""
        return sum(c.kind in ("alloc", "map") for c in self.changes)

    @property
    def n_segments_freed(self) -> int:
        """cudaFrees, or unmappings."""
        return len(self.changes) - self.n_segments

    def allocated(self) -> I64:
        """[E] bytes in blocks after each event that ran."""
        return self._running(self.block_bytes)

    def requested(self) -> I64:
        """[E] bytes requested and not freed after each event that ran."""
        return self._running(self.size_bytes)

    def _running(self, bytes_of: I64) -> I64:
        part = slice(0, self.n_events)
        return np.cumsum(self.sign[part] * bytes_of[self.storage[part]])

    def reserved(self) -> I64:
        """[E] bytes taken from the device after each event that ran."""
        delta = np.zeros(self.n_events + 1, dtype=np.int64)
        for change in self.changes:
            delta[min(change.event, self.n_events)] += _signed(change)
        return np.cumsum(delta[: self.n_events])

    def reserved_within(self) -> I64:
        """[E] maximum bytes taken from the device up to the end of each event: a retry may map and release."""
        high = self.reserved()
        now = 0
        for change in self.changes:
            now += _signed(change)
            if change.event < self.n_events:
                high[change.event] = max(high[change.event], now)
        return high

    def peaks(self, first: int = 0, end: int | None = None) -> Peaks:
        """Peaks over events ``first`` to ``end`` (exclusive), including memory allocated before ``first``."""
        return self.peaks_of((first, self.n_events if end is None else end))[0]

    def peaks_of(self, *spans: tuple[int, int]) -> list[Peaks]:
        """:meth:`peaks` of each of ``spans``."""
        every = self.allocated(), self.reserved_within(), self.requested()
        out: list[Peaks] = []
        for first, end in spans:
            stop = min(end, self.n_events)
            if not 0 <= first <= stop:
                raise InputError(f"events {first} to {stop} are not in a run of {self.n_events}", hint="give 0 <= first <= end")
            out.append(Peaks(*(int(series[max(first - 1, 0) : stop].max(initial=0)) for series in every)))
        return out

    @property
    def peak_reserved_bytes(self) -> int:
        """torch's max_memory_reserved over the whole run."""
        return self.peaks().reserved_bytes

    def peak_event(self) -> int:
        """First event of the most reserved bytes; among the events until the next cudaFree, the one with most allocated."""
        reserved, allocated = self.reserved(), self.allocated()
        if not reserved.size:
            return 0
        at_peak = reserved == reserved.max()
        return int(np.where(at_peak, allocated, -1).argmax())

    def live(self, event: int) -> I64:
        """Storages with a block right after ``event``, by address."""
        part = slice(0, event + 1)
        alive = np.zeros(self.size_bytes.size, dtype=np.int64)
        np.add.at(alive, self.storage[part], self.sign[part])
        storages = np.flatnonzero((alive > 0) & (self.block_bytes > 0))
        return storages[np.argsort(self.block_units[storages], kind="stable")]

    def segments(self, event: int | None = None) -> tuple[Segment, ...]:
        """Device memory reserved right after ``event`` (default: at the end), by address, with its contents."""
        at = self.n_events - 1 if event is None else event
        ranges = _segments_after(self.changes, at if event is not None else self.n_events)
        live = self.live(at)
        starts = self.block_units[live]
        out: list[Segment] = []
        for start, units, pool in ranges:
            inside = live[np.searchsorted(starts, start) : np.searchsorted(starts, start + units)]
            begin, size = self.block_units[inside], self.block_bytes[inside] // UNIT
            edges = np.concatenate(([start], begin + size))
            gaps = np.concatenate((begin, [start + units])) - edges
            key, used_bytes = self.pools[pool], int(size.sum()) * UNIT
            base = max((o for o in self.origins if o <= start), default=start)
            address = int(to_address(np.int64(base))) + (start - base) * UNIT
            lives, expandable = tuple(inside.tolist()), self.settings.expandable_segments
            sizes = (units * UNIT, used_bytes, units * UNIT - used_bytes, int(gaps.max()) * UNIT)
            out.append(Segment(address, key.stream, key.small, key.private, expandable, lives, *sizes))
        return tuple(out)

    def fragmentation(self, event: int | None = None) -> Fragmentation:
        """Location of the unused bytes right after ``event`` (default: when most is reserved)."""
        at = self.peak_event() if event is None else event
        live = self.live(at)
        segments = self.segments(at)
        partly = [s for s in segments if s.storages]
        requested, rounded = int(self.size_bytes[live].sum()), int(self.rounded_bytes[live].sum())
        allocated = int(self.block_bytes[live].sum())
        return Fragmentation(
            event=at,
            reserved_bytes=sum(s.size_bytes for s in segments),
            allocated_bytes=allocated,
            requested_bytes=requested,
            rounding_bytes=rounded - requested,
            unsplit_bytes=allocated - rounded,
            small_pool_bytes=sum(s.free_bytes for s in partly if s.small),
            split_bytes=sum(s.free_bytes for s in partly if not s.small),
            cached_bytes=sum(s.size_bytes for s in segments if not s.storages),
            pinned=tuple(sorted((s for s in partly if s.free_bytes), key=lambda s: (-s.free_bytes, s.address))),
        )


def to_address(units: I64 | np.int64) -> I64:
    """Byte address of the start of a segment or address range, from the simulator's padded units."""
    return np.asarray(units // PITCH * SLOT + units % PITCH * UNIT)


def _bases(run: AllocatorRun, storages: I64) -> I64:
    """Start of the segment, or address range, of each storage's block."""
    units = run.block_units[storages]
    if run.origins:
        starts = np.array(sorted(run.origins), dtype=np.int64)
        return starts[np.searchsorted(starts, units, side="right") - 1]
    birth = np.zeros(run.size_bytes.size, dtype=np.int64)
    births = np.flatnonzero(run.sign > 0)
    birth[run.storage[births]] = births
    born, out = birth[storages], np.zeros(storages.size, dtype=np.int64)
    segments: set[int] = set()
    since = 0
    # ranges that are given back may be taken again with other starts: segments are looked up among those of the time
    frees = sorted({c.event for c in run.changes if c.kind == "free"})
    later = iter([*run.changes, None])
    change = next(later)
    for until in [*frees, run.n_events + 1]:
        while change is not None and change.event < until:
            segments.add(change.address) if change.kind == "alloc" else segments.discard(change.address)
            change = next(later)
        now = (born >= since) & (born < until)
        if now.any():
            starts = np.array(sorted(segments), dtype=np.int64)
            out[now] = starts[np.searchsorted(starts, units[now], side="right") - 1]
        since = until
    return out


def _signed(change: Change) -> int:
    return (change.units if change.kind in ("alloc", "map") else -change.units) * UNIT


def _segments_after(changes: tuple[Change, ...], event: int) -> list[tuple[int, int, int]]:
    """(start, units, pool) of memory reserved after ``event``: one per cudaMalloc, one per unbroken mapped range."""
    segments: dict[int, tuple[int, int, int]] = {}
    edges: dict[int, dict[int, int]] = {}
    for change in changes:
        if change.event > event:
            break
        if change.kind == "alloc":
            segments[change.address] = (change.address, change.units, change.pool)
        elif change.kind == "free":
            del segments[change.address]
        else:
            steps = edges.setdefault(change.pool, {})
            sign = 1 if change.kind == "map" else -1
            steps[change.address] = steps.get(change.address, 0) + sign
            end = change.address + change.units
            steps[end] = steps.get(end, 0) - sign
    out = list(segments.values())
    for pool, steps in edges.items():
        depth, start = 0, 0
        for at in sorted(steps):
            if steps[at] and depth == 0:
                start = at
            depth += steps[at]
            if steps[at] and depth == 0:
                out.append((start, at - start, pool))
    return sorted(out)
