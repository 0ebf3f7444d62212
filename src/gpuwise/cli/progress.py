"""What is being done, on one line of stderr that goes away: captures and simulations take a second or more."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from gpuwise.text import printable

listener: Callable[[str], None] | None = None
"""Receives progress messages too, if set."""


@contextmanager
def progress(doing: str = "capturing") -> Generator[Callable[[str], None], None, None]:
    """A function that prints progress messages; silent unless stderr is a terminal or a listener is set."""
    is_terminal = sys.stderr.isatty()

    def tell(what: str) -> None:
        line = f"{doing}: {printable(what, keep='')}"[:106]
        if listener is not None:
            listener(line)
        if is_terminal:
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()

    try:
        yield tell
    finally:
        if is_terminal:
            sys.stderr.write("\r\x1b[K")


def say(text: str) -> None:
    """Progress on stderr: one line that is written over on a terminal, a line each elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2K{text[:78]}")
    elif text:
        sys.stderr.write(text + "\n")
    sys.stderr.flush()
