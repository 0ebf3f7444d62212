"""The command line that is being answered."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_words: ContextVar[tuple[str, ...]] = ContextVar("asked", default=())


def asked() -> tuple[str, ...]:
    """Its words, without the program's name; none where a function was called."""
    return _words.get()


@contextmanager
def asking(words: Sequence[str]) -> Generator[None]:
    """While these words are answered."""
    token = _words.set(tuple(words))
    try:
        yield
    finally:
        _words.reset(token)
