"""Repeating events: training steps and micro-batches request the same sizes in the same order repeatedly.

An event's code is its size and pool, or the number of events since the freed storage was allocated. If the codes have a
period, and a repetition starts with the same free blocks as the one before, all later repetitions place every storage at the
same address.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
SHORTEST = 64
"""Events of a repetition below which comparing the free blocks costs what it saves."""
LEAST_REPEATS = 3
"""Repetitions of which two are run for the comparison."""
BUCKETS = 1 << 16
N_CANDIDATES = 8


@dataclass(frozen=True, slots=True)
class Repeat:
    """Events ``first`` to ``end`` (exclusive) have the codes of the events ``period`` earlier, from the second repetition on."""

    first: int
    end: int
    period: int


def codes_of(units: I64, storage: I64, pool: I64, birth: I64, n_pools: int) -> I64:
    """[E] one number per event that, with the allocator's state, determines its placement. ``units`` is 0 for a free."""
    back = np.arange(units.size, dtype=np.int64) - birth[storage]
    return np.where(units > 0, units * n_pools + pool, -back)


def find_repeats(codes: I64) -> tuple[Repeat, ...]:
    """Stretches with the one period by which most events repeat; none where nothing does. Ascending, apart."""
    if codes.size < LEAST_REPEATS * SHORTEST:
        return ()
    best: tuple[Repeat, ...] = ()
    saved = 0
    for period in _candidates(codes):
        stretches = _stretches(codes, period)
        worth = sum(r.end - r.first - 2 * r.period for r in stretches)
        if worth > saved:
            best, saved = stretches, worth
    return best


def _candidates(codes: I64) -> list[int]:
    """Periods suggested by codes that are rare, yet come back: their usual distance."""
    bucket = ((codes * np.int64(0x9E3779B97F4A7C1 | 1)) >> 20) & (BUCKETS - 1)
    counts = np.bincount(bucket, minlength=BUCKETS)
    often = np.flatnonzero(counts >= LEAST_REPEATS)
    rare = often[np.argsort(counts[often], kind="stable")]
    # one code for each number of times it is met, rarest first: a code of every step before one of every layer
    _, first = np.unique(counts[rare], return_index=True)
    periods: dict[int, None] = {}
    for b in rare[first[:N_CANDIDATES]].tolist():
        distances, n = np.unique(np.diff(np.flatnonzero(bucket == b)), return_counts=True)
        period = int(distances[n.argmax()])
        if period >= SHORTEST:
            periods[period] = None
    return list(periods)


def _stretches(codes: I64, period: int) -> tuple[Repeat, ...]:
    same = codes[period:] == codes[:-period]
    breaks = np.flatnonzero(~same)
    starts = np.concatenate(([0], breaks + 1))
    ends = np.concatenate((breaks, [same.size]))
    long = ends - starts >= (LEAST_REPEATS - 1) * period
    stretches: list[Repeat] = []
    for start, end in zip(starts[long].tolist(), ends[long].tolist(), strict=True):
        first = max(start, stretches[-1].end if stretches else 0)
        if end + period - first >= LEAST_REPEATS * period:
            stretches.append(Repeat(first, end + period, period))
    return tuple(stretches)
