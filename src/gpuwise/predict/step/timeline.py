"""When each operation of a step starts: the host issues, the device executes in order, a sync makes the host wait.

    issued_i = issued_{i-1} + host_i            (a sync: at least the end of the last operation of the device)
    start_i  = max(issued_i, end of the last operation of the stream, what it waits for)
    end_i    = start_i + device_i

Steps run back to back and the host may run ahead into the next one, so the time of a step is the distance between the ends of
two steps, of host and device, once they repeat. Collectives run beside the default stream, after what was issued before them;
a blocking one, ``wait_tensor`` and the optimizer wait for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
REPEATS = 3
"""Steps run; the last one is reported."""
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
    device, host, code, other = device_s.tolist(), host_s.tolist(), waits.tolist(), beside.tolist()
    issued = free = remote = ended = before = period = 0.0
    for repeat in range(REPEATS):
        last = repeat == REPEATS - 1
        for i in range(n):
            issued += host[i]
            flags = code[i]
            if flags & WAIT:
                free = max(free, remote)
            duration = device[i]
            if other[i]:
                begin = max(issued, free, remote)
                remote = begin + duration
                if flags & BLOCKING:
                    free = remote
            elif duration > 0.0:
                begin = issued if issued > free else free
                if last and issued > free:
                    waited[i] = issued - free
                free = begin + duration
            else:
                begin = issued
            if flags & SYNC and issued < (end := max(free, remote)):
                issued = end
            if last:
                start[i] = begin
        finish = max(free, remote, issued)
        period, before = finish - ended, ended
        ended = finish
    busy = float(device_s[~beside].sum())
    return Timeline(start - before, waited, max(period, 0.0), min(busy, period))
