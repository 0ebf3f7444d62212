"""Waiting for a processor, on a real one that another process keeps busy."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuwise.train.hook.run_queue import RunQueue

pytestmark = pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="the kernel keeps no delays")
BUSY_S = 0.3


def _work() -> float:
    """Seconds that a fixed amount of own work took."""
    start, began = time.perf_counter(), time.thread_time()
    while time.thread_time() - began < BUSY_S:
        pass
    return time.perf_counter() - start


def test_what_another_process_takes_is_the_delay() -> None:
    before = os.sched_getaffinity(0)
    one = {min(before)}
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(other.pid, one)
        os.sched_setaffinity(0, one)
        queue = RunQueue()
        start_s = queue.waited_s()
        wall_s = _work()
        waited_s = queue.waited_s() - start_s
    finally:
        os.sched_setaffinity(0, before)
        other.kill()
        other.wait()
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
