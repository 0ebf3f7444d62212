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

from gpuwise.train.hook.run_queue import RunQueue, WorkerQueue
from gpuwise.train.hook.watch import Watch
from gpuwise.train.ticks import Step, Tick, steps_of

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
    start, start_s = time.perf_counter(), queue.waited_s()
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


# --- workers of a loader ---


class _Slow(torch.utils.data.Dataset[torch.Tensor]):
    """Two rows a batch of a known length of work."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        _work(self.seconds)
        return torch.ones(4)


def _fed_steps(item_s: float, forward_s: float) -> list[Step]:
    ticks: list[Tick] = []
    model = _Busy(4, 4)
    model.seconds = forward_s
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with _shared_processor(), Watch(on_tick=ticks.append):
        for rows in torch.utils.data.DataLoader(_Slow(item_s), batch_size=2, num_workers=1, prefetch_factor=1):
            model(rows).sum().backward()
            optimizer.step()
    return steps_of(ticks)[2:]


@pytest.mark.thorough
def test_a_worker_that_has_no_processor_is_no_wait_for_data() -> None:
    steps = _fed_steps(0.04, 0.01)
    n, waited_s = len(steps), sum(s.data_s for s in steps)
    # one processor for this process, its worker and another program: the worker has about half of it
    assert waited_s > 1.4 * 0.08 * n
    assert sum(s.worker_queue_s for s in steps) > 0.2 * waited_s
    own_s = sum(s.alone.data_s for s in steps)
    assert own_s < 0.85 * waited_s
    # and what the worker computes is one
    assert own_s > 0.5 * 0.08 * n
    assert all(s.data_queue_s >= s.worker_queue_s and s.queue_s >= s.data_queue_s - 1e-9 for s in steps)


def test_workers_that_are_in_each_others_way_are_the_loops_own(monkeypatch: pytest.MonkeyPatch) -> None:
    iterator = iter(torch.utils.data.DataLoader(_Slow(0.02), batch_size=2, num_workers=2, prefetch_factor=1))
    delays = iter([1.0, 1e6])  # it waited for a processor all the time, however long that was
    monkeypatch.setattr(WorkerQueue, "_waited_s", lambda _: next(delays, 1e6))
    monkeypatch.setattr("gpuwise.machine.devices.cpu.usable_cores", lambda: 1)
    start = time.perf_counter()
    queue = WorkerQueue(iterator)
    next(iterator)
    taken_s, wall_s = queue.taken_s(), time.perf_counter() - start
    # half of the time is what two workers take of one processor from each other
    assert 0.0 < taken_s <= 0.5 * wall_s


def test_a_loader_without_workers_waits_for_none() -> None:
    assert WorkerQueue(iter(torch.utils.data.DataLoader(_Slow(0.0)))).taken_s() == 0.0
    assert WorkerQueue(iter([])).taken_s() == 0.0
