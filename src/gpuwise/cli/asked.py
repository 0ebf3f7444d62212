"""The command line that is being answered, and who takes the answer where a command is called as a Python function."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from gpuwise.errors import InputError

if TYPE_CHECKING:
    from cyclopts import App

    from gpuwise.report.answers.answer import Answer

    Taken = tuple[dict[str, Any], Callable[[dict[str, Any]], Answer] | None]

_takers: ContextVar[list[Taken] | None] = ContextVar("takers", default=None)
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


@contextmanager
def taking() -> Generator[list[Taken]]:
    """While documents, each with what makes its answer, are taken instead of printed."""
    taken: list[Taken] = []
    token = _takers.set(taken)
    try:
        yield taken
    finally:
        _takers.reset(token)


_answers: list[Callable[[Sequence[str]], int]] = []
_judges: list[Callable[[Sequence[str]], list[InputError]]] = []
_parsers: list[Callable[[], App]] = []


def answer_with(
    answer: Callable[[Sequence[str]], int],
    judge: Callable[[Sequence[str]], list[InputError]],
    parser: Callable[[], App],
) -> None:
    """Register the application, which is above the commands: what answers a command line, what is wrong with one, and the parser
    of all commands."""
    _answers[:], _judges[:], _parsers[:] = [answer], [judge], [parser]


def parser() -> App:
    """The parser with every command and its options."""
    return _parsers[0]()


def faults_of(words: Sequence[str]) -> list[InputError]:
    """What is wrong with another command line, as far as it is seen without an answer."""
    return _judges[0](words)


def answer_of(words: Sequence[str]) -> tuple[int, Taken]:
    """The exit code and the answer of another command line. Raises GpuwiseError, and InputError where it is refused."""
    end = words.index("--") if "--" in words else len(words)
    with taking() as taken, asking(words):
        code = _answers[0]([*words[:end], "--json", *words[end:]])
    if not taken:
        raise InputError(f"gpuwise {words[0]} has no document", hint="ask for it on the command line")
    return code, taken[-1]


def give(document: dict[str, Any], answer: Callable[[dict[str, Any]], Answer] | None = None) -> bool:
    """Hand ``document`` to the caller of a command that was called as a function; False where it is to be printed."""
    taken = _takers.get()
    if taken is not None:
        taken.append((document, answer))
    return taken is not None
