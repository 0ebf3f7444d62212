"""State of the simulated caching allocator: pools of free blocks, segments, and everything off the fast path.

Sizes and addresses are in units of 512 B (:mod:`gpuwise.predict.memory.allocator.address_space`). A pool (stream, small or large,
private pool) keeps its free blocks as one sorted list of integers ``size << SHIFT | address``: the order by (size, address)
of torch's own set, so best fit is a bisection. Neighbours are found through two dictionaries, by start and by end.

The fast loop of :mod:`gpuwise.predict.memory.allocator.simulation` works on the same lists and calls
:meth:`Pools.grow` when nothing fits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import NamedTuple

from gpuwise.predict.memory.allocator.address_space import PITCH, SLOT_UNITS, UNIT, Space
from gpuwise.predict.memory.allocator.settings import SMALL_SIZE, AllocatorSettings

SHIFT = 44
MASK = (1 << SHIFT) - 1
SMALL_UNITS = SMALL_SIZE // UNIT
NO_LIMIT = 1 << 62


class Change(NamedTuple):
    """Memory taken from or given back to the device. ``kind``: alloc, free (cudaMalloc, cudaFree), map, unmap (pages)."""

    event: int
    kind: str
    address: int
    units: int
    pool: int


@dataclass(frozen=True, slots=True)
class PoolKey:
    """One list of free blocks."""

    private: int
    stream: int
    small: bool


class NoRoomError(Exception):
    """No block even after everything that can be freed was freed. Never leaves the simulator."""


class Pools:
    """Mutable state of one run. ``limit_bytes`` is the device memory open to the process, ``total_bytes`` the whole device's."""

    def __init__(
        self, settings: AllocatorSettings, keys: list[PoolKey], limit_bytes: int, total_bytes: int, space: Space
    ) -> None:
        self.settings, self.keys, self.space = settings, keys, space
        self.limit, self.total = limit_bytes // UNIT, total_bytes // UNIT
        fraction = settings.memory_fraction
        self.allowed_bytes = limit_bytes if fraction is None else int(fraction * total_bytes)
        self.free: list[list[int]] = [[] for _ in keys]
        self.starts: dict[int, int] = {}
        """Start of each free block -> its ``size << SHIFT | start``."""
        self.ends: dict[int, int] = {}
        """End of each free block -> its ``size << SHIFT | start``."""
        self.segments: dict[int, int] = {}
        """Start -> units of each cudaMalloc'ed segment."""
        self.unmapped: list[list[tuple[int, int]]] = [[] for _ in keys]
        """Per pool, sorted (start, units) of reserved address ranges without memory."""
        self.tails: set[int] = set()
        """Start addresses of unmapped ranges: a free block that ends there can grow."""
        self.reserved = 0
        self.changes: list[Change] = []
        self.retries = 0
        self.max_split = NO_LIMIT if settings.max_split_size_bytes is None else settings.max_split_size_bytes // UNIT
        self.rounding = settings.max_non_split_rounding_bytes // UNIT
        expandable = settings.expandable_segments
        self.keep = [0 if key.small or expandable else SMALL_UNITS for key in keys]
        """Per pool, the largest remainder that stays with the block instead of being split off."""
        self.ranges: dict[int, int] = {}
        """Start -> units of each address range of an expandable segment."""
        self.range_pool: dict[int, int] = {}
        self.origins: list[int] = []
        """Start of every address range there ever was."""
        self.searches: dict[tuple[int, bool], int] = {}
        self.born: dict[int, int] = {}
        """Start of a free block -> count of searches when it was freed; only with garbage collection on."""
        self.pending: list[tuple[int, int, int, int]] = []
        """(event at which the other streams are done, start, units, pool) of blocks freed but still in use elsewhere."""
        self.preset = False
        """It did not start empty."""

    # free blocks

    def add(self, pool: int, start: int, units: int) -> None:
        """Put a block into the free list, merged with its free neighbours."""
        after = self.starts.get(start + units)
        if after is not None:
            self.drop(pool, after)
            units += after >> SHIFT
        before = self.ends.get(start)
        if before is not None:
            self.drop(pool, before)
            start, units = before & MASK, units + (before >> SHIFT)
        self.insert(pool, start, units)

    def insert(self, pool: int, start: int, units: int) -> None:
        """Put a block into the free list as it is."""
        key = units << SHIFT | start
        insort(self.free[pool], key)
        self.starts[start] = self.ends[start + units] = key
        if self.settings.gc_active:
            self.born[start] = self.searches.get((self.keys[pool].private, self.keys[pool].small), 0)

    def drop(self, pool: int, key: int) -> None:
        """Take a free block out of the lists."""
        keys = self.free[pool]
        del keys[bisect_left(keys, key)]
        start = key & MASK
        del self.starts[start], self.ends[start + (key >> SHIFT)]

    def find(self, pool: int, units: int) -> int:
        """Key of the best free block, taken out of the lists; 0 if no block will do.

        Best fit by (size, address). A block that can grow counts as large as it can grow. Below ``max_split_size`` no block
        of that size or more is taken; from there on, no block that is too much larger than the request.
        """
        keys = self.free[pool]
        if self.settings.gc_active:
            shared = (self.keys[pool].private, self.keys[pool].small)
            self.searches[shared] = self.searches.get(shared, 0) + 1
        i = bisect_left(keys, units << SHIFT)
        if i == len(keys):
            return 0
        key = keys[self.prefer_fixed(pool, i)]
        block_units = key >> SHIFT
        if units < self.max_split <= block_units or (units >= self.max_split and block_units >= units + self.rounding):
            return 0
        self.drop(pool, key)
        return key

    def prefer_fixed(self, pool: int, i: int) -> int:
        """From the ``i``-th free block on, the first that cannot grow further than the one after it."""
        keys = self.free[pool]
        while i + 1 < len(keys) and self._reach(pool, keys[i + 1]) < self._reach(pool, keys[i]):
            i += 1
        return i

    def _reach(self, pool: int, key: int) -> int:
        """Units of a free block with the unmapped range behind it."""
        start, units = key & MASK, key >> SHIFT
        end = start + units
        if end not in self.tails:
            return units
        ranges = self.unmapped[pool]
        return units + ranges[bisect_left(ranges, (end, 0))][1]

    # memory from the device

    def grow(self, event: int, pool: int, units: int) -> int:
        """Key of a new block, not in the free lists; frees cached memory when the device is full.

        Order: garbage collection, cudaMalloc, release of oversize blocks, cudaMalloc, release of all whole free segments,
        cudaMalloc; a private pool, which a CUDA graph is being captured into, stops before the last two. Raises NoRoomError.
        """
        if self.settings.gc_active:
            self._collect(event)
        block = self._obtain(event, pool, units)
        if not block and self._release_oversize(event, pool, units):
            block = self._obtain(event, pool, units)
        if not block and not self.keys[pool].private:
            self.release_cached(event)
            self.retries += 1
            block = self._obtain(event, pool, units)
        if not block:
            raise NoRoomError
        return block

    def _obtain(self, event: int, pool: int, units: int) -> int:
        """Key of a block of new memory, or 0."""
        size = self.settings.segment_bytes(units * UNIT) // UNIT
        if (self.reserved + size) * UNIT > self.allowed_bytes:
            return 0
        if self.settings.expandable_segments:
            return self._expand(event, pool, units)
        if self.reserved + size > self.limit:
            return 0
        start = self.space.take(-(-size // SLOT_UNITS)) * PITCH
        self.segments[start] = size
        self.changed(event, "alloc", start, size, pool)
        return size << SHIFT | start

    def changed(self, event: int, kind: str, start: int, units: int, pool: int) -> None:
        """Note that the driver gave (``alloc``, ``map``) or took ``units`` at ``start``, at memory event ``event``."""
        self.reserved += units if kind in ("alloc", "map") else -units
        self.changes.append(Change(event, kind, start, units, pool))

    # expandable segments

    def page(self, pool: int) -> int:
        """Units of one page of an expandable segment: 2 MiB in the small pool, the large segment's size in the other."""
        return SLOT_UNITS if self.keys[pool].small else self.settings.large_segment_bytes // UNIT

    def _expand(self, event: int, pool: int, units: int) -> int:
        """Map pages until a run of free and newly mapped memory holds the request: the lowest address that has the room."""
        start = self._where_to_expand(pool, units)
        key = self.starts.get(start, start)
        while (mapped := key >> SHIFT) < units:
            if not self._map(event, pool, start + mapped, units - mapped):
                return 0
            key = self.starts[start]
        self.drop(pool, key)
        return key

    def _where_to_expand(self, pool: int, units: int) -> int:
        """Start of the first sufficiently long run of free and unmapped memory; a new address range if there is none."""
        for start, _ in self.unmapped[pool]:
            first = self.ends.get(start, start) & MASK
            if self._run_from(pool, first, units) >= units:
                return first
        page = self.page(pool)
        slots = -(-(self.total + self.total // 8) // page) * (page // SLOT_UNITS)
        start = self.space.take(slots) * PITCH
        self.ranges[start], self.range_pool[start] = slots * SLOT_UNITS, pool
        self.origins.append(start)
        insort(self.unmapped[pool], (start, slots * SLOT_UNITS))
        self.tails.add(start)
        return start

    def _run_from(self, pool: int, start: int, enough: int) -> int:
        """Units of the run of free and unmapped blocks from ``start``, counted until ``enough``."""
        ranges, at = self.unmapped[pool], start
        while at - start < enough:
            if at in self.tails:
                at += ranges[bisect_left(ranges, (at, 0))][1]
            elif at in self.starts:
                at += self.starts[at] >> SHIFT
            else:
                break
        return at - start

    def _map(self, event: int, pool: int, start: int, units: int) -> bool:
        """Back the first pages of the unmapped range at ``start``; the memory joins the free lists. False if none is left."""
        ranges, page = self.unmapped[pool], self.page(pool)
        i = bisect_left(ranges, (start, 0))
        length = ranges[i][1]
        size = -(-min(units, length) // page) * page
        if self.reserved + size > self.limit:
            return False
        self.tails.discard(start)
        if size < length:
            ranges[i] = (start + size, length - size)
            self.tails.add(start + size)
        else:
            del ranges[i]
        self.changed(event, "map", start, size, pool)
        self.add(pool, start, size)
        return True

    def _unmap(self, event: int, pool: int, start: int, units: int) -> None:
        """Release the whole pages inside a free block; the remainders at both ends stay free.

        torch releases an address range with its last page and reserves a new one later; here it stays, as placements within a
        range do not depend on where it is.
        """
        page = self.page(pool)
        origin = max(at for at in self.ranges if at <= start)
        first = origin + -(-(start - origin) // page) * page
        last = origin + (start + units - origin) // page * page
        if first >= last:
            return
        self.drop(pool, units << SHIFT | start)
        if first > start:
            self.insert(pool, start, first - start)
        if start + units > last:
            self.insert(pool, last, start + units - last)
        self.changed(event, "unmap", first, last - first, pool)
        ranges, first_free, length = self.unmapped[pool], first, last - first
        i = bisect_left(ranges, (first, 0))
        if i < len(ranges) and ranges[i][0] == last:
            self.tails.discard(last)
            length += ranges.pop(i)[1]
        if i and sum(ranges[i - 1]) == first and first != origin:
            first_free, before = ranges.pop(i - 1)
            length += before
        insort(ranges, (first_free, length))
        self.tails.add(first_free)

    # memory back to the device

    def _free_segment(self, event: int, pool: int, start: int) -> None:
        units = self.segments.pop(start)
        self.drop(pool, units << SHIFT | start)
        self.space.give(start // PITCH, -(-units // SLOT_UNITS))
        self.changed(event, "free", start, units, pool)

    def release_cached(self, event: int) -> None:
        """Same as ``torch.cuda.empty_cache()``: wait for pending frees, release whole free segments and free pages."""
        self.settle(NO_LIMIT)
        order = sorted(range(len(self.keys)), key=lambda p: (self.keys[p].small, self.keys[p].stream))
        for pool in order:
            if self.keys[pool].private:
                continue
            for key in list(self.free[pool]):
                start, units = key & MASK, key >> SHIFT
                if self.segments.get(start) == units:
                    self._free_segment(event, pool, start)
                elif self.settings.expandable_segments:
                    self._unmap(event, pool, start, units)

    def settle(self, event: int) -> None:
        """Frees whose other streams are done by ``event`` complete."""
        if self.pending:
            for done, start, units, pool in self.pending:
                if done <= event:
                    self.add(pool, start, units)
            self.pending = [p for p in self.pending if p[0] > event]

    def _release_oversize(self, event: int, pool: int, units: int) -> bool:
        """Release one cached block of at least the request, or oversize ones, largest first, until they add up to it."""
        if self.max_split == NO_LIMIT or self.settings.expandable_segments:
            return False
        keys, target = self.free[pool], max(units, self.max_split)
        i = bisect_left(keys, target << SHIFT)
        if i < len(keys):
            self._free_segment(event, pool, keys[i] & MASK)
            return True
        released = 0
        while released < target and keys and keys[-1] >> SHIFT >= self.max_split:
            released += keys[-1] >> SHIFT
            self._free_segment(event, pool, keys[-1] & MASK)
        return released >= target

    def _collect(self, event: int) -> None:
        """Garbage collection: above the threshold, release whole free large segments of at least average age, repeatedly."""
        threshold = int(self.settings.garbage_collection_threshold * self.allowed_bytes) // UNIT
        if self.reserved <= threshold:
            return
        target, reclaimed = self.reserved - threshold, 0
        now = self.searches.get((0, False), 0)
        pools = [p for p, key in enumerate(self.keys) if not key.small and not key.private]
        whole: list[tuple[int, int]] = []
        for pool in sorted(pools, key=lambda p: self.keys[p].stream):
            whole += [(pool, k & MASK) for k in self.free[pool] if self.segments.get(k & MASK) == k >> SHIFT]
        age = {start: now - self.born[start] for _, start in whole}
        freed = True
        while reclaimed < target and freed and whole:
            mean = sum(age[start] for _, start in whole) / len(whole)
            freed, younger = False, list[tuple[int, int]]()
            for pool, start in whole:
                if age[start] >= mean:
                    freed = True
                    reclaimed += self.segments[start]
                    self._free_segment(event, pool, start)
                else:
                    younger.append((pool, start))
            whole = younger
