"""An allocator that does not start empty: the segments and blocks that a recorded history begins with."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from gpuwise.predict.memory.allocator.address_space import PITCH, SLOT, SLOT_UNITS, UNIT
from gpuwise.predict.memory.allocator.pools import SHIFT, Pools
from gpuwise.predict.memory.allocator.settings import SMALL_SIZE


@dataclass(frozen=True, slots=True)
class PresetSegment:
    """Device memory allocated at the start. Addresses are bytes, multiples of 2 MiB."""

    address: int
    size_bytes: int
    stream: int
    small: bool
    private: int = 0


@dataclass(frozen=True, slots=True)
class Preset:
    """State before the first event. Storage ``i`` sits at ``block_addresses[i]``: storages 0 to len - 1 live at the start."""

    segments: tuple[PresetSegment, ...] = ()
    block_addresses: tuple[int, ...] = ()


def place(address: int) -> int:
    """The simulator's own units of a byte address."""
    return address // SLOT * PITCH + address % SLOT // UNIT


def apply(pools: Pools, preset: Preset, units: list[int], pool_of: list[int], block: list[int]) -> None:
    """Seed ``pools`` and ``block``. Gaps between the blocks of a segment are free; in the large pool a gap of at most 1 MiB,
    or after a block of at least max_split_size, is that block's unsplit remainder: no such gap is ever split off."""
    pools.preset = True
    order = sorted(range(len(preset.block_addresses)), key=lambda s: preset.block_addresses[s])
    index = {(k.private, k.stream, k.small): i for i, k in enumerate(pools.keys)}
    pools.space.below([s.address // SLOT for s in preset.segments])
    at = 0
    expandable = pools.settings.expandable_segments
    for segment in sorted(preset.segments, key=lambda s: s.address):
        pool = index[segment.private, segment.stream, segment.small]
        start, size = _start(pools, pool, segment.address), segment.size_bytes // UNIT
        inside: list[int] = []
        while at < len(order) and preset.block_addresses[order[at]] < segment.address + segment.size_bytes:
            inside.append(order[at])
            at += 1
        cursor = start
        edges = [start + (preset.block_addresses[s] - segment.address) // UNIT for s in inside]
        for i, (storage, begin) in enumerate(zip(inside, edges, strict=True)):
            if begin > cursor:
                pools.insert(pool, cursor, begin - cursor)
            following = edges[i + 1] if i + 1 < len(edges) else start + size
            length, gap = units[storage], following - begin - units[storage]
            whole = gap <= SMALL_SIZE // UNIT or units[storage] >= pools.max_split
            if gap > 0 and whole and not segment.small and not expandable:
                length += gap
            block[storage] = length << SHIFT | begin
            cursor = begin + length
            pool_of[storage] = pool
        if cursor < start + size:
            pools.insert(pool, cursor, start + size - cursor)
        _hold(pools, pool, start, size)


def _start(pools: Pools, pool: int, address: int) -> int:
    """Units of a segment's address; parts of one expandable range keep their distance within it, without padding."""
    if pools.settings.expandable_segments:
        for origin in pools.ranges:
            if pools.range_pool[origin] == pool and origin <= place(address):
                return origin + (address - origin // PITCH * SLOT) // UNIT
    return place(address)


def _hold(pools: Pools, pool: int, start: int, size: int) -> None:
    if not pools.settings.expandable_segments:
        pools.segments[start] = size
        pools.changed(0, "alloc", start, size, pool)
        return
    pools.changed(0, "map", start, size, pool)
    origin = next((o for o in pools.ranges if pools.range_pool[o] == pool), None)
    if origin is None:
        page = pools.page(pool)
        length = max(-(-(pools.total + pools.total // 8) // page), size // page + 1) * page
        pools.ranges[start], pools.range_pool[start] = -(-length // SLOT_UNITS) * SLOT_UNITS, pool
        pools.origins.append(start)
        pools.unmapped[pool] = [(start + size, pools.ranges[start] - size)]
        pools.tails.add(start + size)
        return
    hole, length = pools.unmapped[pool].pop()
    pools.tails.discard(hole)
    for first, last in ((hole, start), (start + size, hole + length)):
        if last > first:
            insort(pools.unmapped[pool], (first, last - first))
            pools.tails.add(first)
