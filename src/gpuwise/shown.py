"""Answers that print as the first screen of a command and that a notebook shows as HTML. Both are drawn by rooms above, which the
package registers here as it is imported: the classes of answers know nothing of pages."""

from __future__ import annotations

from collections.abc import Callable

_draw: list[Callable[[object], str]] = []


class Shown:
    """Base class of such an answer. A dataclass of it has ``repr=False``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _draw[1](self)

    def _repr_html_(self) -> str:
        return _draw[0](self)


def draw_with(markup: Callable[[object], str], words: Callable[[object], str]) -> None:
    """Have ``markup`` make the HTML of every answer, ``words`` its text."""
    _draw[:] = [markup, words]
