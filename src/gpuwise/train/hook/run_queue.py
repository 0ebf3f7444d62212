"""Time in which this thread, or the loader worker it waits for, was runnable but had no processor, because of other programs."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_FILE = "/proc/thread-self/schedstat"


def _delay_s(schedstat: bytes) -> float:
    """Seconds waited on a run queue. Raises IndexError or ValueError for what is no line of these statistics."""
    return int(schedstat.split()[1]) * 1e-9


class RunQueue:
    """The delay of the thread that makes it, from Linux's scheduler statistics (Documentation/scheduler/sched-stats.rst: the
    second number, nanoseconds spent waiting on a runqueue). Always 0 where the kernel does not keep them."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._waited_s = 0.0
        with suppress(OSError):
            self._file = os.open(_FILE, os.O_RDONLY | os.O_CLOEXEC)

    def waited_s(self) -> float:
        """Seconds since the thread began; what it was at last once the thread has ended."""
        if self._file is not None:
            try:
                self._waited_s = _delay_s(os.pread(self._file, 100, 0))
            except (OSError, IndexError, ValueError):
                self.close()
        return self._waited_s

    def close(self) -> None:
        """Release the turn to the next waiting process; no effect if it is not held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class WorkerQueue:
    """The delay of the worker whose batch a loader returns next, from now on. A worker that waits for a processor delays the
    loop, and the loop's own delay does not include it."""

    def __init__(self, iterator: Any) -> None:
        """``iterator`` is a loader's; one without workers, or whose batch is there already, has no delay."""
        self._pid, self._n_workers = _awaited(iterator)
        self._began_s, self._before_s = time.perf_counter(), self._waited_s()

    def _waited_s(self) -> float | None:
        if self._pid is None:
            return None
        try:
            return _delay_s(Path(f"/proc/{self._pid}/schedstat").read_bytes())
        except (OSError, IndexError, ValueError):
            return None

    def taken_s(self) -> float:
        """Seconds that other programs took of the worker, at most what this thread has waited: without the delay that the
        workers are to each other where they are more than the processors. 0 where the worker has ended."""
        after_s = self._waited_s()
        if after_s is None or self._before_s is None:
            return 0.0
        from gpuwise.machine.devices.cpu import usable_cores

        wall_s = time.perf_counter() - self._began_s
        by_siblings_s = wall_s * max(1.0 - usable_cores() / self._n_workers, 0.0) if self._n_workers > 1 else 0.0
        return max(min(after_s - self._before_s, wall_s) - by_siblings_s, 0.0)


def _awaited(iterator: Any) -> tuple[int | None, int]:
    """Process of the worker that makes the next batch, if there is one to wait for, and the number of workers."""
    workers: list[Any] = list(getattr(iterator, "_workers", ()))
    task: tuple[Any, ...] = getattr(iterator, "_task_info", {}).get(getattr(iterator, "_rcvd_idx", None), ())
    if len(task) != 1 or not 0 <= task[0] < len(workers):
        return None, len(workers)
    return workers[task[0]].pid, len(workers)
