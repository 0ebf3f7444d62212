"""When each operation of a step starts: the host issues, the device executes in order, a sync makes the host wait.

    issued_i = issued_{i-1} + host_i            (a sync: at least the end of the last operation of the device)
    start_i  = max(issued_i, end of the last operation of the stream, what it waits for)
    end_i    = start_i + device_i

Steps run back to back and the host may run ahead into the next one, so the time of a step is the distance between the ends of
two steps, of host and device, once they repeat. Collectives run beside the default stream, after what was issued before them;
a blocking one, ``wait_tensor`` and the optimizer wait for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
REPEATS = 3
"""Steps run; the last one is reported."""
LEAST_RUN = 64
"""Operations that follow one another without a wait, from which on they are worked out all at once: it is faster there."""
BLOCKING, SYNC, WAIT = 1, 2, 4
"""Bits of ``waits``: the stream waits for this collective immediately; the host waits for the device; the stream waits for all
collectives so far."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Seconds from the start of the step (the end of the one before)."""

    start_s: F64
    """[N]"""
    waited_s: F64
    """[N] how long the device stood idle before the operation because it was not issued yet."""
    step_s: float
    busy_s: float
    """Device time of the default stream in which something runs."""


def timeline(device_s: F64, host_s: F64, waits: I64, beside: NDArray[np.bool_]) -> Timeline:
    """Start, waiting and step seconds of the last of ``REPEATS`` repetitions of a step of [N] operations in program order.

    ``beside`` [N]: collectives, which run on a second stream.
    """
    n = len(device_s)
    start, waited = np.zeros(n), np.zeros(n)
    if not n:
        return Timeline(start, waited, 0.0, 0.0)
    runs: list[tuple[slice, list[tuple[float, float, int, bool]] | None]] = []
    for first, end, plain in _runs((waits == 0) & ~beside):
        part = slice(first, end)
        columns = None if plain else (column[part].tolist() for column in (device_s, host_s, waits, beside))
        runs.append((part, None if columns is None else list(zip(*columns, strict=True))))
    issued = free = remote = ended = before = period = 0.0
    for _ in range(REPEATS):
        for part, ops in runs:
            if ops is None:
                start[part], waited[part], issued, free = _in_order(device_s[part], host_s[part], issued, free)
            else:
                start[part], waited[part], issued, free, remote = _one_by_one(ops, issued, free, remote)
        finish = max(free, remote, issued)
        period, before = finish - ended, ended
        ended = finish
    busy = float(device_s[~beside].sum())
    return Timeline(start - before, waited, max(period, 0.0), min(busy, period))


def _runs(plain: NDArray[np.bool_]) -> Iterator[tuple[int, int, bool]]:
    """First, end and whether nothing waits in it, of the parts of a program; what is shorter than :data:`LEAST_RUN` joins its
    neighbours."""
    edges = [0, *(np.flatnonzero(np.diff(plain)) + 1).tolist(), len(plain)]
    rest = 0
    for first, end in itertools.pairwise(edges):
        if plain[first] and end - first >= LEAST_RUN:
            if rest < first:
                yield rest, first, False
            yield first, end, True
            rest = end
    if rest < len(plain):
        yield rest, len(plain), False


def _in_order(device_s: F64, host_s: F64, issued: float, free: float) -> tuple[F64, F64, float, float]:
    """Start and waiting of operations of one stream of which none waits, and when the last is issued and ends.

    With D the sum of the device times up to and with i: ``end_i = D_i + max(free, max over j <= i of (issued_j - D_{j-1}))``.
    """
    issues, done = issued + np.cumsum(host_s), np.cumsum(device_s)
    runs = device_s > 0.0
    late = np.where(runs, issues - (done - device_s), -np.inf)
    ends = done + np.maximum(np.maximum.accumulate(late), free)
    ready = np.append(free, ends[:-1])
    start = np.where(runs, np.maximum(issues, ready), issues)
    waited = np.where(runs, np.maximum(issues - ready, 0.0), 0.0)
    return start, waited, float(issues[-1]), float(ends[-1])


def _one_by_one(
    ops: Sequence[tuple[float, float, int, bool]], issued: float, free: float, remote: float
) -> tuple[list[float], list[float], float, float, float]:
    """Start and waiting of operations (device and host seconds, ``waits``, ``beside``), and when the last is issued and each
    stream is free."""
    start: list[float] = []
    waited: list[float] = []
    for duration, host, flags, other in ops:
        issued += host
        if flags & WAIT and remote > free:
            free = remote
        idle = 0.0
        begin = issued
        if other:
            begin = max(issued, free, remote)
            remote = begin + duration
            if flags & BLOCKING:
                free = remote
        elif duration > 0.0:
            if issued > free:
                idle = issued - free
            else:
                begin = free
            free = begin + duration
        if flags & SYNC:
            issued = max(issued, free, remote)
        start.append(begin)
        waited.append(idle)
    return start, waited, issued, free, remote
