"""Waiting for a processor, on a real one that another process keeps busy."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from gpuwise.train.hook.run_queue import RunQueue
from gpuwise.train.hook.ticks import Step, Tick, steps_of
from gpuwise.train.hook.watch import Watch

pytestmark = pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="the kernel keeps no delays")
BUSY_S = 0.3


def _work(seconds: float = BUSY_S) -> float:
    """Seconds that a fixed amount of own work took."""
    start, began = time.perf_counter(), time.thread_time()
    while time.thread_time() - began < seconds:
        pass
    return time.perf_counter() - start


@contextmanager
def _shared_processor() -> Iterator[None]:
    """This thread on one processor, which another process keeps busy."""
    before = os.sched_getaffinity(0)
    one = {min(before)}
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(other.pid, one)
        os.sched_setaffinity(0, one)
        yield
    finally:
        os.sched_setaffinity(0, before)
        other.kill()
        other.wait()


def test_what_another_process_takes_is_the_delay() -> None:
    with _shared_processor():
        queue = RunQueue()
        start_s = queue.waited_s()
        wall_s = _work()
        waited_s = queue.waited_s() - start_s
    assert waited_s > 0.2 * BUSY_S
    assert waited_s == pytest.approx(wall_s - BUSY_S, rel=0.2, abs=0.05)


def test_sleeping_is_no_delay_and_what_was_counted_stays() -> None:
    queue = RunQueue()
    start_s, start = queue.waited_s(), time.perf_counter()
    time.sleep(BUSY_S)
    last = queue.waited_s()
    slept_longer_s = time.perf_counter() - start - BUSY_S  # waking up is all that can wait
    assert 0.0 <= last - start_s <= slept_longer_s + 0.02
    queue.close()
    assert queue.waited_s() == last


class _Busy(nn.Linear):
    """Keeps the processor busy in its forward pass."""

    seconds = 0.0

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        _work(self.seconds)
        return super().forward(input)


def _steps(forward_s: float, python_s: float) -> list[Step]:
    ticks: list[Tick] = []
    model = _Busy(4, 4)
    model.seconds = forward_s
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with _shared_processor(), Watch(on_tick=ticks.append):
        for _ in range(6):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            _work(python_s)
    return steps_of(ticks)[1:]


@pytest.mark.parametrize(("forward_s", "python_s"), [(0.08, 0.0), (0.0, 0.08)])
def test_the_delay_belongs_to_where_the_loop_was(forward_s: float, python_s: float) -> None:
    steps = _steps(forward_s, python_s)
    whole_s, bare_s = sum(s.queue_s for s in steps), sum(s.bare_queue_s for s in steps)
    assert whole_s > 0.1 * len(steps) * (forward_s + python_s)
    assert bare_s <= whole_s
    assert bare_s >= 0.8 * whole_s if python_s else bare_s <= 0.2 * whole_s
    # without it, a phase is as long as its own work
    own_s = sum(s.alone.forward_s for s in steps)
    assert own_s == pytest.approx(len(steps) * forward_s, rel=0.25, abs=0.02)
    assert all(s.alone.wall_s == pytest.approx(s.undisturbed_s) for s in steps)
