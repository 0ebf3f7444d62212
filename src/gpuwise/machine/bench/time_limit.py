"""A wall-clock limit on a block of code: the system's timer raises :class:`MeasurementTimeout` in the main thread."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator
from types import FrameType


class MeasurementTimeout(BaseException):
    """Raised when the time of one measurement is over. A BaseException, so that no library catches it as its own error."""


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Generator[None, None, None]:
    """Context manager that raises MeasurementTimeout in its block after ``seconds`` (wall clock). None: no limit.

    Nothing is raised outside the main thread and on systems without such a timer (Windows); one long call into a library
    ends first. Where a timer is set already, it stays and there is no limit here.
    """
    timer = getattr(signal, "setitimer", None)
    if seconds is None or timer is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise MeasurementTimeout

    before = signal.signal(signal.SIGALRM, ring)
    try:
        timer(signal.ITIMER_REAL, max(seconds, 1e-3))
        yield
    finally:
        timer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
