"""What is being done, on one line of stderr that goes away: captures and simulations take a second or more."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from gpuwise.text import printable
from gpuwise.units import format_duration

listener: Callable[[str], None] | None = None
"""Receives progress messages too, if set."""
AFTER_S, EVERY_S = 1.0, 1.0
"""The line is shown from so long after the start, and drawn again as often."""
WIDTH = 78
_COUNT = re.compile(r"\[(\d+)/(\d+)\]")
"""Of messages: which of how many things begins."""
CLEAR = "\r\x1b[2K"


def timed(line: str, elapsed_s: float) -> str:
    """``line`` with the time since the start and, where it counts (``[3/40]``), the time that is left at this pace."""
    words = f"{format_duration(round(elapsed_s))}" if elapsed_s >= 1.0 else ""
    count = _COUNT.search(line)
    if count is not None and int(count[1]) > 1 and words:
        done, of = int(count[1]) - 1, int(count[2])
        words += f", about {format_duration(max(round(elapsed_s / done * (of - done)), 1))} left"
    tail = f" ({words})" if words else ""
    return line[: WIDTH - len(tail)] + tail


class _Line:
    """The line on a terminal, drawn again by a thread of its own, as what is done may take seconds without a word."""

    def __init__(self, line: str) -> None:
        self._line, self._began, self._done, self._lock = line, time.monotonic(), threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._done.wait(AFTER_S)
        while not self._done.is_set():
            self.draw()
            self._done.wait(EVERY_S)

    def draw(self, line: str | None = None) -> None:
        """Draw the line, or a new one, where it has been long enough."""
        with self._lock:
            self._line = self._line if line is None else line
            elapsed_s = time.monotonic() - self._began
            if elapsed_s >= AFTER_S and not self._done.is_set():
                sys.stderr.write(f"{CLEAR}{timed(self._line, elapsed_s)}")
                sys.stderr.flush()

    def end(self) -> None:
        """Clear it, once."""
        with self._lock:
            if not self._done.is_set():
                self._done.set()
                sys.stderr.write(CLEAR)
                sys.stderr.flush()
        self._thread.join()


@contextmanager
def progress(doing: str = "capturing") -> Generator[Callable[[str], None]]:
    """A function that takes progress messages: they are shown on one line with the time since the start and, of messages that
    count (``[3/40]``), what is left; silent unless stderr is a terminal or a listener is set."""
    shown = _Line(doing) if sys.stderr.isatty() else None

    def tell(what: str) -> None:
        line = f"{doing}: {printable(what, keep='')}"[:106]
        if listener is not None:
            listener(line)
        if shown is not None:
            shown.draw(line)

    try:
        yield tell
    finally:
        if shown is not None:
            shown.end()


_began: list[float] = []
"""When the lines of :func:`say` began; none before the first."""


def say(text: str) -> None:
    """Progress on stderr: one line that is written over on a terminal, a line each elsewhere; no ``text`` clears it."""
    if not sys.stderr.isatty():
        sys.stderr.write(f"{text}\n" if text else "")
    elif text:
        if not _began:
            _began.append(time.monotonic())
        sys.stderr.write(f"{CLEAR}{timed(text, time.monotonic() - _began[0])}")
    else:
        _began.clear()
        sys.stderr.write(CLEAR)
    sys.stderr.flush()
