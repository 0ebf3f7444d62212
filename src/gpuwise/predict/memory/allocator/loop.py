"""The two loops over memory events: the lean one for the common settings, the plain one for all.

Both give the same placements (tested against each other and against a third, slow implementation). A block is one integer,
``units << SHIFT | start``: the entry in the sorted free list, the value in the neighbour dictionaries, and the record of a live
storage, so that a block that is used whole is never split.

Two cases are skipped: a storage freed by the next event leaves the free blocks unchanged, so only its place is looked up; and
repetitions (:mod:`gpuwise.predict.memory.allocator.repeats`) stop once a repetition starts with the same free blocks as the
one before.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuwise.predict.memory.allocator.pools import MASK, SHIFT, Pools
from gpuwise.predict.memory.allocator.repeats import Repeat, codes_of, find_repeats

I64 = NDArray[np.int64]
LONGEST_CYCLE = 4
"""Repetitions after which free blocks are still compared."""


@dataclass(slots=True)
class Events:
    """Memory events. ``units[e]``: size asked in 512 B units, 0 when the storage is freed."""

    units: I64
    storage: I64
    pool: I64
    birth: I64
    """[S] event that makes each storage."""
    done: dict[int, int]
    """Freeing event -> event by which the other streams that used the block are done with it."""
    copies: list[tuple[I64, I64]] = field(default_factory=list[tuple[I64, I64]])
    """Filled by :func:`run`: storages whose block is that of another, and the other, in order."""


def is_lean(pools: Pools, events: Events) -> bool:
    """True if :func:`run_lean` may be used: no oversize rule, no garbage collection, no deferred frees."""
    return pools.settings.max_split_size_bytes is None and is_repeatable(pools, events)


def is_repeatable(pools: Pools, events: Events) -> bool:
    """True if the free blocks are all that decides about the next placement: nothing ages, no free is under way."""
    return not pools.settings.gc_active and not events.done and not pools.pending


def _folded(pools: Pools, events: Events, span: range) -> tuple[list[int], list[int], list[int]]:
    """Units, storage and pool of events ``span``; an allocation whose storage the next event frees has negative units and
    represents both."""
    part = slice(span.start, span.stop)
    units, storage, pool = events.units[part], events.storage[part], events.pool[part]
    # what a preset left behind in expandable segments may have free neighbours that are not merged yet
    if pools.settings.expandable_segments and pools.preset:
        return units.tolist(), storage.tolist(), pool.tolist()
    pair = np.flatnonzero((storage[1:] == storage[:-1]) & (units[:-1] > 0))
    if pair.size:
        keep = np.ones(units.size, dtype=bool)
        keep[pair + 1] = False
        units = units.copy()
        units[pair] *= -1
        units, storage, pool = units[keep], storage[keep], pool[keep]
    return units.tolist(), storage.tolist(), pool.tolist()


def run_lean(pools: Pools, events: Events, span: range, block: list[int]) -> None:
    """Events ``span``; ``block[s]`` becomes the key of storage ``s``'s block. Raises NoRoomError.

    Everything is inlined and bound to local names: this loop is most of the time of a prediction.
    """
    frees, starts, ends, tails, keep = pools.free, pools.starts, pools.ends, pools.tails, pools.keep
    birth, grow, shift, mask, bisect = events.birth, pools.grow, SHIFT, MASK, bisect_left
    expandable = pools.settings.expandable_segments
    for units, storage, pool in zip(*_folded(pools, events, span), strict=True):
        keys = frees[pool]
        if units > 0:
            request = units << shift
            i = bisect(keys, request)
            try:
                key = keys[i]
            except IndexError:
                key = grow(int(birth[storage]), pool, units)
                start, have = key & mask, key >> shift
                remainder = have - units
                if remainder > keep[pool]:
                    rest = remainder << shift | start + units
                    insort(keys, rest)
                    starts[start + units] = ends[start + have] = rest
                    key = request | start
                block[storage] = key
                continue
            if expandable and (key & mask) + (key >> shift) in tails:
                i = pools.prefer_fixed(pool, i)
                key = keys[i]
            start, have = key & mask, key >> shift
            del starts[start]
            if have == units:
                del keys[i], ends[start + have]
                block[storage] = key
                continue
            remainder = have - units
            if remainder > keep[pool]:
                rest = remainder << shift | start + units
                if i and keys[i - 1] > rest:
                    del keys[i]
                    insort(keys, rest, 0, i)
                else:
                    keys[i] = rest
                starts[start + units] = ends[start + have] = rest
                block[storage] = request | start
            else:
                del keys[i], ends[start + have]
                block[storage] = key
            continue
        if not units:
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
            continue
        # allocated and freed at once: any split is merged again
        request = -units << shift
        i = bisect(keys, request)
        try:
            key = keys[i]
        except IndexError:
            key = grow(int(birth[storage]), pool, -units)
            start = key & mask
            insort(keys, key)
            starts[start] = ends[start + (key >> shift)] = key
        else:
            if expandable and (key & mask) + (key >> shift) in tails:
                key = keys[pools.prefer_fixed(pool, i)]
        block[storage] = request | key & mask if (key >> shift) + units > keep[pool] else key


def run_plain(pools: Pools, events: Events, span: range, block: list[int]) -> None:
    """Like :func:`run_lean`, with every rule and one call per rule."""
    part = slice(span.start, span.stop)
    requests: list[int] = events.units[part].tolist()
    storages: list[int] = events.storage[part].tolist()
    pool_of: list[int] = events.pool[part].tolist()
    for e, units, storage, pool in zip(span, requests, storages, pool_of, strict=True):
        if not units:
            start, length = block[storage] & MASK, block[storage] >> SHIFT
            completion = events.done.get(e, e)
            if completion > e:
                pools.pending.append((completion, start, length, pool))
            else:
                pools.add(pool, start, length)
            continue
        pools.settle(e)
        key = pools.find(pool, units) or pools.grow(e, pool, units)
        start, have = key & MASK, key >> SHIFT
        remainder = have - units
        unsplittable = units >= pools.max_split and pools.keep[pool]
        if remainder > pools.keep[pool] and not unsplittable:
            pools.insert(pool, start + units, remainder)
            have = units
        block[storage] = have << SHIFT | start


def run(pools: Pools, events: Events, block: list[int], empty_cache: Sequence[int] = (), first_event: int = 0) -> None:
    """Events from ``first_event`` on, with ``torch.cuda.empty_cache()`` before each of ``empty_cache``. Raises NoRoomError.

    Storages of copied repetitions have no ``block``, unless a later event frees them, but are in ``events.copies``.
    """
    total = events.units.size
    cuts = sorted({first_event, total, *(e for e in empty_cache if first_event <= e <= total)})
    markers = set(empty_cache)
    repeats: tuple[Repeat, ...] = ()
    if is_repeatable(pools, events):
        repeats = find_repeats(codes_of(events.units, events.storage, events.pool, events.birth, len(pools.keys)))
    for first, end in zip(cuts, [*cuts[1:], total], strict=True):
        if first in markers:
            pools.release_cached(first)
        at = first
        for repeat in repeats:
            inside = Repeat(max(repeat.first, at), min(repeat.end, end), repeat.period)
            if inside.end - inside.first > 2 * inside.period and is_repeatable(pools, events):
                _run_span(pools, events, range(at, inside.first), block)
                at = _run_repeats(pools, events, inside, block)
        _run_span(pools, events, range(at, end), block)


def _run_span(pools: Pools, events: Events, span: range, block: list[int]) -> None:
    loop = run_lean if is_lean(pools, events) else run_plain
    loop(pools, events, span, block)


def _run_repeats(pools: Pools, events: Events, repeat: Repeat, block: list[int]) -> int:
    """Run repetitions until the rest can be copied; the event to go on from.

    The free blocks may come back only after several repetitions: gradients that live until the next step change places
    with those of the step before.
    """
    period, changes, end = repeat.period, -1, repeat.first
    states: list[list[list[int]]] = []
    for first in range(repeat.first, repeat.end - period + 1, period):
        if len(pools.changes) != changes:
            states, changes = [], len(pools.changes)
        now = [keys.copy() for keys in pools.free]
        for n, before in enumerate(reversed(states), 1):
            if now == before and _crossing_alike(events, first, n * period, block):
                whole = (repeat.end - first) // (n * period)
                _copy(events, first, n * period, whole, block)
                return first + whole * n * period
        states = [*states[1 - LONGEST_CYCLE :], now]
        end = first + period
        _run_span(pools, events, range(first, end), block)
    return end


def _crossing_alike(events: Events, first: int, period: int, block: list[int]) -> bool:
    """Whether the storages allocated before ``first`` and freed in that repetition have the same blocks as those of the
    repetition before."""
    span = np.arange(first, min(first + period, events.units.size))
    freed = span[events.units[span] == 0]
    crossing = freed[events.birth[events.storage[freed]] < first]
    here: list[int] = events.storage[crossing].tolist()
    there: list[int] = events.storage[crossing - period].tolist()
    return all(block[a] == block[b] for a, b in zip(here, there, strict=True))


def _copy(events: Events, first: int, period: int, whole: int, block: list[int]) -> None:
    """Blocks of ``whole`` repetitions from ``first`` on, those of the one before."""
    end = first + whole * period
    births = np.flatnonzero(events.units[first - period : first] > 0) + first - period
    source = events.storage[births]
    target = events.storage[(births + period * np.arange(1, whole + 1)[:, None]).ravel()]
    events.copies.append((target, np.tile(source, whole)))
    later = events.storage[end:][events.units[end:] == 0]
    freed = np.zeros(events.birth.size, dtype=bool)
    freed[later] = True
    alive = np.flatnonzero(freed[target])
    for t, s in zip(target[alive].tolist(), np.tile(source, whole)[alive].tolist(), strict=True):
        block[t] = block[s]
