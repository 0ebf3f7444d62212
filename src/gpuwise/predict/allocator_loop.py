"""The two loops over memory events: the lean one for the common settings, the plain one for all.

Both give the same placements (tested against each other and against a third, slow implementation). A block is one integer,
``units << SHIFT | start``: the entry in the sorted free list, the value in the neighbour dictionaries, and what is kept
per storage while it lives, so that a block that is taken and given back whole is never taken apart.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.predict.allocator_pools import MASK, SHIFT, Pools


@dataclass(slots=True)
class Events:
    """Memory events as plain lists. ``units[e]``: size asked in 512 B units, 0 when the storage is freed."""

    units: list[int]
    storage: list[int]
    pool: list[int]
    birth: list[int]
    """Per storage, the event that makes it."""
    done: dict[int, int]
    """Freeing event -> event by which the other streams that used the block are done with it."""


def is_lean(pools: Pools, events: Events) -> bool:
    """True if :func:`run_lean` may be used: no oversize rule, no garbage collection, no deferred frees."""
    settings = pools.settings
    return settings.max_split_size_bytes is None and not settings.gc_active and not events.done and not pools.pending


def run_lean(pools: Pools, events: Events, span: range, block: list[int]) -> None:
    """Events ``span``; ``block[s]`` becomes the key of storage ``s``'s block. Raises NoRoomError.

    Everything is inlined and bound to local names: this loop is most of the time of a prediction.
    """
    frees, starts, ends, tails, keep = pools.free, pools.starts, pools.ends, pools.tails, pools.keep
    birth, grow, shift, mask, bisect = events.birth, pools.grow, SHIFT, MASK, bisect_left
    part = slice(span.start, span.stop)
    for units, storage, pool in zip(events.units[part], events.storage[part], events.pool[part], strict=True):
        keys = frees[pool]
        if units:
            i = bisect(keys, units << shift)
            try:
                key = keys[i]
            except IndexError:
                key = grow(birth[storage], pool, units)
                start, have = key & mask, key >> shift
                left = have - units
                if left > keep[pool]:
                    rest = left << shift | start + units
                    insort(keys, rest)
                    starts[start + units] = ends[start + have] = rest
                    key = units << shift | start
                block[storage] = key
                continue
            start, have = key & mask, key >> shift
            end = start + have
            if end in tails and (j := pools.prefer_fixed(pool, i)) != i:
                i, key = j, keys[j]
                start, have = key & mask, key >> shift
                end = start + have
            left = have - units
            del starts[start]
            if left > keep[pool]:
                rest = left << shift | start + units
                if i and keys[i - 1] > rest:
                    del keys[i]
                    insort(keys, rest, 0, i)
                else:
                    keys[i] = rest
                starts[start + units] = ends[end] = rest
                block[storage] = units << shift | start
            else:
                del keys[i], ends[end]
                block[storage] = key
            continue
        key = block[storage]
        start = key & mask
        end = start + (key >> shift)
        if end in starts:
            after = starts.pop(end)
            have = after >> shift
            key += have << shift
            end += have
            del keys[bisect(keys, after)]
        if start in ends:
            before = ends.pop(start)
            key = (key >> shift) + (before >> shift) << shift | before & mask
            start = before & mask
            del keys[bisect(keys, before)]
        insort(keys, key)
        starts[start] = ends[end] = key


def run_plain(pools: Pools, events: Events, span: range, block: list[int]) -> None:
    """As :func:`run_lean`, with every rule and one call per rule."""
    for e in span:
        units, storage, pool = events.units[e], events.storage[e], events.pool[e]
        if not units:
            start, length = block[storage] & MASK, block[storage] >> SHIFT
            done = events.done.get(e, e)
            if done > e:
                pools.pending.append((done, start, length, pool))
            else:
                pools.add(pool, start, length)
            continue
        pools.settle(e)
        key = pools.find(pool, units) or pools.grow(e, pool, units)
        start, have = key & MASK, key >> SHIFT
        left = have - units
        unsplittable = units >= pools.max_split and pools.keep[pool]
        if left > pools.keep[pool] and not unsplittable:
            pools.insert(pool, start + units, left)
            have = units
        block[storage] = have << SHIFT | start


def run(pools: Pools, events: Events, block: list[int], empty_cache: Sequence[int] = (), first_event: int = 0) -> None:
    """Events from ``first_event`` on, with ``torch.cuda.empty_cache()`` before each of ``empty_cache``. Raises NoRoomError."""
    total = len(events.units)
    cuts = sorted({first_event, total, *(e for e in empty_cache if first_event <= e <= total)})
    markers = set(empty_cache)
    for first, end in zip(cuts, [*cuts[1:], total], strict=True):
        if first in markers:
            pools.release_cached(first)
        loop = run_lean if is_lean(pools, events) else run_plain
        loop(pools, events, range(first, end), block)
