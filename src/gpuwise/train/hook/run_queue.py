"""How long this thread could have run and had no processor: the other programs of a busy machine."""

from __future__ import annotations

import os
from contextlib import suppress

_FILE = "/proc/thread-self/schedstat"


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
                self._waited_s = int(os.pread(self._file, 100, 0).split()[1]) * 1e-9
            except (OSError, IndexError, ValueError):
                self.close()
        return self._waited_s

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
