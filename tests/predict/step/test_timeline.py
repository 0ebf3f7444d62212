"""The timeline of a step is the recurrence that its docstring states, however it is worked out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.predict.step.timeline import BLOCKING, REPEATS, SYNC, WAIT, timeline

Lists = tuple[list[float], list[float], float]


def by_hand(device: list[float], host: list[float], waits: list[int], beside: list[bool]) -> Lists:
    """Start, waiting and step seconds, one operation after the other."""
    issued = free = remote = ended = period = 0.0
    start: list[float] = []
    waited: list[float] = []
    for _ in range(REPEATS):
        start, waited, begun = [], [], ended
        for duration, issuing, flags, other in zip(device, host, waits, beside, strict=True):
            issued += issuing
            free = max(free, remote) if flags & WAIT else free
            begin, idle = issued, 0.0
            if other:
                begin = max(issued, free, remote)
                remote = begin + duration
                free = remote if flags & BLOCKING else free
            elif duration:
                begin, idle = max(issued, free), max(issued - free, 0.0)
                free = begin + duration
            issued = max(issued, free, remote) if flags & SYNC else issued
            start.append(begin - begun)
            waited.append(idle)
        period, ended = max(free, remote, issued) - ended, max(free, remote, issued)
    return start, waited, period


@given(st.integers(0, 400), st.sampled_from([0.0, 0.005, 0.05, 0.5]), st.integers(0, 2**32 - 1))
def test_timeline_is_the_recurrence_of_its_operations(n: int, special: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    device = rng.exponential(1e-5, n) * (rng.random(n) < 0.7)
    host = rng.exponential(1e-5, n)
    beside = rng.random(n) < special
    waits = np.where(rng.random(n) < special, rng.integers(0, 8, n), 0)
    line = timeline(device, host, waits, beside)
    start, waited, period = by_hand(device.tolist(), host.tolist(), waits.tolist(), beside.tolist())
    assert line.start_s.tolist() == pytest.approx(start, abs=1e-12)
    assert line.waited_s.tolist() == pytest.approx(waited, abs=1e-12)
    assert line.step_s == pytest.approx(period, abs=1e-12)
    assert 0 <= line.busy_s <= line.step_s + 1e-15
