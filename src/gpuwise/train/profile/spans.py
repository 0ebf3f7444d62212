"""Sets of time intervals as sorted, disjoint rows ``[n, 2]`` of (start_s, end_s): union, intersection, difference, length."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from gpuwise.train.profile.trace import Floats

NO_SPANS: Floats = np.zeros((0, 2))


def spans(start_s: ArrayLike, end_s: ArrayLike) -> Floats:
    """The intervals ``[n, 2]``, sorted and merged, without empty ones."""
    start, end = np.asarray(start_s, np.float64), np.asarray(end_s, np.float64)
    keep = end > start
    if not keep.any():
        return NO_SPANS
    start, end = start[keep], end[keep]
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], start[1:] > end[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.stack((start[first], end[last]), axis=1)


def union(parts: Iterable[Floats]) -> Floats:
    """The union of several sets of intervals, ``[n, 2]``."""
    rows = [p for p in parts if len(p)]
    if not rows:
        return NO_SPANS
    every = np.concatenate(rows)
    return spans(every[:, 0], every[:, 1])


def intersection(a: Floats, b: Floats) -> Floats:
    """The intersection of two sets of intervals, ``[n, 2]``."""
    if not len(a) or not len(b):
        return NO_SPANS
    at = np.concatenate((a[:, 0], b[:, 0], a[:, 1], b[:, 1]))
    change = np.concatenate((np.ones(len(a) + len(b), np.int64), -np.ones(len(a) + len(b), np.int64)))
    order = np.lexsort((change, at))
    at, depth = at[order], np.cumsum(change[order])
    inside = np.flatnonzero(depth[:-1] == 2)
    return spans(at[inside], at[inside + 1])


def difference(a: Floats, b: Floats) -> Floats:
    """The part of ``a`` outside ``b``, ``[n, 2]``."""
    if not len(a) or not len(b):
        return a
    low, high = float(a[0, 0]), float(max(a[-1, 1], b[-1, 1])) + 1.0
    edges = np.concatenate(([min(low, float(b[0, 0])) - 1.0], b.ravel(), [high])).reshape(-1, 2)
    return intersection(a, spans(edges[:, 0], edges[:, 1]))


def length(a: Floats) -> float:
    """Total length in seconds."""
    return float((a[:, 1] - a[:, 0]).sum())


def inside(at_s: Floats, a: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether each moment of ``at_s`` (s, ``[n]``) is in one of the intervals; ``[n]`` of bool."""
    if not len(a):
        return np.zeros(len(at_s), dtype=bool)
    row = np.searchsorted(a[:, 0], at_s, side="right") - 1
    return (row >= 0) & (at_s < a[np.maximum(row, 0), 1])
