"""A slow, plain caching allocator to check the fast one against: a linked list of block objects, linear searches.

Written from torch's rules, sharing with the package only the settings' rounding and the model of addresses. Units of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuwise.predict.memory.allocator.address_space import PITCH, SLOT, UNIT, Space
from gpuwise.predict.memory.allocator.settings import AllocatorSettings

MIB = 1 << 20


class OutOfMemoryError(Exception):
    pass


@dataclass(eq=False)
class Block:
    pool: tuple[int, int, bool]
    start: int
    size: int
    segment: Segment
    free: bool = True
    mapped: bool = True
    base: int = 0


@dataclass(eq=False)
class Segment:
    """``blocks`` tile it, by address."""

    blocks: list[Block] = field(default_factory=list)
    expandable: bool = False
    size: int = 0

    def beside(self, block: Block, step: int) -> Block | None:
        i = self.blocks.index(block) + step
        return self.blocks[i] if 0 <= i < len(self.blocks) else None


class Reference:
    def __init__(self, settings: AllocatorSettings, capacity: int, device: int) -> None:
        self.s, self.capacity, self.device = settings, capacity, device
        fraction = settings.memory_fraction
        self.allowed = capacity if fraction is None else int(fraction * device)
        self.segments: list[Segment] = []
        self.space = Space()
        self.reserved = 0
        self.retries = 0
        self.calls: dict[tuple[int, bool], int] = {}
        self.waiting: list[tuple[int, Block]] = []

    @property
    def blocks(self) -> list[Block]:
        return [b for s in self.segments for b in s.blocks]

    @property
    def gc(self) -> bool:
        return self.s.garbage_collection_threshold > 0 and self.s.memory_fraction is not None

    # requests

    def malloc(self, now: int, size: int, stream: int, private: int) -> Block:
        for done, block in list(self.waiting):
            if done <= now:
                self.waiting.remove((done, block))
                self.release(block)
        rounded = int(self.s.rounded([size])[0])
        pool = (private, stream, rounded <= MIB)
        block = self.best(pool, rounded)
        if block is None:
            if self.gc:
                self.collect()
            block = self.new(pool, rounded)
            if block is None and self.drop_oversize(pool, rounded):
                block = self.new(pool, rounded)
            if block is None and not private:
                self.empty()
                self.retries += 1
                block = self.new(pool, rounded)
            if block is None:
                raise OutOfMemoryError
        rest = block.size - rounded
        limit = self.s.max_split_size_bytes
        anywhere = pool[2] or self.s.expandable_segments
        if (anywhere and rest >= 512) or (not anywhere and rest > MIB and (limit is None or rounded < limit)):
            self.cut(block, rounded)
        block.free = False
        return block

    def cut(self, block: Block, size: int) -> Block:
        """Shorten ``block`` to ``size``; the rest is a new free block behind it."""
        rest = Block(block.pool, block.start + size, block.size - size, block.segment, True, block.mapped)
        rest.base = self.calls.get((block.pool[0], block.pool[2]), 0)
        blocks = block.segment.blocks
        blocks.insert(blocks.index(block) + 1, rest)
        block.size = size
        return rest

    def free(self, now: int, block: Block, done: int) -> None:
        if done > now:
            self.waiting.append((done, block))
        else:
            self.release(block)

    def release(self, block: Block) -> None:
        block.free = True
        block.base = self.calls.get((block.pool[0], block.pool[2]), 0)
        self.merge(block)

    def merge(self, block: Block) -> None:
        for step in (-1, 1):
            other = block.segment.beside(block, step)
            if other is not None and other.free and other.mapped == block.mapped:
                block.start = min(block.start, other.start)
                block.size += other.size
                block.segment.blocks.remove(other)

    # searches

    def available(self, pool: tuple[int, int, bool]) -> list[Block]:
        found = [b for b in self.blocks if b.pool == pool and b.free and b.mapped]
        return sorted(found, key=lambda b: (b.size, b.start))

    def reach(self, block: Block) -> int:
        after = block.segment.beside(block, 1)
        return block.size + (after.size if after is not None and not after.mapped else 0)

    def best(self, pool: tuple[int, int, bool], size: int) -> Block | None:
        if self.gc:
            self.calls[pool[0], pool[2]] = self.calls.get((pool[0], pool[2]), 0) + 1
        fitting = [b for b in self.available(pool) if b.size >= size]
        if not fitting:
            return None
        i = 0
        while self.s.expandable_segments and i + 1 < len(fitting) and self.reach(fitting[i + 1]) < self.reach(fitting[i]):
            i += 1
        limit = self.s.max_split_size_bytes
        if limit is not None:
            if size < limit and fitting[i].size >= limit:
                return None
            if size >= limit and fitting[i].size >= size + self.s.max_non_split_rounding_bytes:
                return None
        return fitting[i]

    # device memory

    def new(self, pool: tuple[int, int, bool], size: int) -> Block | None:
        want = self.s.segment_bytes(size)
        if self.reserved + want > self.allowed:
            return None
        if self.s.expandable_segments:
            return self.expand(pool, size)
        if self.reserved + want > self.capacity:
            return None
        start = self.space.take(-(-want // SLOT)) * PITCH * UNIT
        segment = Segment(size=want)
        segment.blocks.append(Block(pool, start, want, segment))
        self.segments.append(segment)
        self.reserved += want
        return segment.blocks[0]

    def expand(self, pool: tuple[int, int, bool], size: int) -> Block | None:
        page = 2 * MIB if pool[2] else self.s.large_segment_bytes
        chosen: Block | None = None
        for hole in sorted((b for b in self.blocks if b.pool == pool and not b.mapped), key=lambda b: b.start):
            first = hole
            before = hole.segment.beside(hole, -1)
            if before is not None and before.free:
                first = before
            room, at = 0, first
            while at is not None and at.free and room < size:
                room += at.size
                at = at.segment.beside(at, 1)
            if room >= size:
                chosen = first
                break
        if chosen is None:
            total = -(-(self.device // UNIT + self.device // UNIT // 8) * UNIT // page) * page
            start = self.space.take(total // SLOT) * PITCH * UNIT
            segment = Segment(expandable=True, size=total)
            chosen = Block(pool, start, total, segment, True, False)
            segment.blocks.append(chosen)
            self.segments.append(segment)
        if not chosen.mapped:
            mapped = self.map(chosen, min(chosen.size, size), page)
            if mapped is None:
                return None
            chosen = mapped
        while chosen.size < size:
            hole = chosen.segment.beside(chosen, 1)
            assert hole is not None and not hole.mapped
            mapped = self.map(hole, min(size - chosen.size, hole.size), page)
            if mapped is None:
                return None
            chosen = mapped
        return chosen

    def map(self, hole: Block, size: int, page: int) -> Block | None:
        size = -(-size // page) * page
        if self.reserved + size > self.capacity:
            return None
        if size < hole.size:
            self.cut(hole, size)
        hole.mapped = True
        self.reserved += size
        self.merge(hole)
        return hole

    def unmap(self, block: Block) -> None:
        page = 2 * MIB if block.pool[2] else self.s.large_segment_bytes
        origin = block.segment.blocks[0].start
        first = origin + -(-(block.start - origin) // page) * page
        last = origin + (block.start + block.size - origin) // page * page
        if first >= last:
            return
        if first > block.start:
            block = self.cut(block, first - block.start)
        if block.start + block.size > last:
            self.cut(block, last - block.start)
        self.reserved -= block.size
        block.mapped = False
        self.merge(block)

    def whole(self, block: Block) -> bool:
        return block.segment.blocks == [block] and not block.segment.expandable

    def remove(self, block: Block) -> None:
        self.segments.remove(block.segment)
        self.reserved -= block.size
        self.space.give(block.start // UNIT // PITCH, -(-block.size // SLOT))

    def empty(self) -> None:
        for _, block in self.waiting:
            self.release(block)
        self.waiting = []
        pools = sorted({b.pool for b in self.blocks if not b.pool[0]}, key=lambda p: (p[2], p[1]))
        for pool in pools:
            for block in self.available(pool):
                if self.whole(block):
                    self.remove(block)
                elif block.segment.expandable:
                    self.unmap(block)

    def drop_oversize(self, pool: tuple[int, int, bool], size: int) -> bool:
        limit = self.s.max_split_size_bytes
        if limit is None or self.s.expandable_segments:
            return False
        wanted = max(size, limit)
        free = self.available(pool)
        for block in free:
            if block.size >= wanted:
                self.remove(block)
                return True
        total = 0
        for block in reversed(free):
            if total >= wanted or block.size < limit:
                break
            total += block.size
            self.remove(block)
        return total >= wanted

    def collect(self) -> None:
        threshold = int(self.s.garbage_collection_threshold * self.allowed)
        if self.reserved <= threshold:
            return
        target, reclaimed, freed = self.reserved - threshold, 0, True
        while reclaimed < target and freed:
            pools = sorted({b.pool for b in self.blocks if not b.pool[0] and not b.pool[2]}, key=lambda p: p[1])
            whole = [b for p in pools for b in self.available(p) if self.whole(b)]
            if not whole:
                return
            calls = self.calls.get((0, False), 0)
            mean = sum(calls - b.base for b in whole) / len(whole)
            old = [b for b in whole if calls - b.base >= mean]
            freed = bool(old)
            for block in old:
                reclaimed += block.size
                self.remove(block)


def run(trace, conf, capacity, done, empty, private):
    """Blocks by storage, reserved bytes after each event, the allocator, and the event that failed."""
    storage, sign, sizes, streams = trace
    ref = Reference(conf, capacity, capacity)
    blocks, live, reserved = {}, {}, []
    for e, (s, way) in enumerate(zip(storage, sign, strict=True)):
        if e in empty:
            ref.empty()
        if way > 0:
            try:
                block = ref.malloc(e, sizes[s], streams[s], private[s])
            except OutOfMemoryError:
                return blocks, reserved, ref, e
            blocks[s] = (block.start, block.size)
            live[s] = block
        else:
            ref.free(e, live.pop(s), done.get(e, e))
        reserved.append(ref.reserved)
    return blocks, reserved, ref, None
