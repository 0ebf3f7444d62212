"""An end that holds even inside a measurement: the system's timer raises :class:`TimeIsUp` in the main thread."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class TimeIsUp(BaseException):
    """The time of a measurement is over; the run goes on. Like KeyboardInterrupt no library takes it for its own error."""


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raises TimeIsUp in the block after ``seconds`` of the clock on the wall. None: no limit.

    Nothing is raised outside the main thread and on systems without such a timer (Windows); one long call into a library
    ends first. A timer that somebody else has set is left alone.
    """
    timer = getattr(signal, "setitimer", None)
    if seconds is None or timer is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, ring)
    try:
        timer(signal.ITIMER_REAL, max(seconds, 1e-3))
        yield
    finally:
        timer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
