"""Answers that a notebook shows as HTML. The page is drawn by ``gpuwise.report``, which the package registers here as it is
imported: the classes of answers know nothing of pages."""

from __future__ import annotations

from collections.abc import Callable

_draw: list[Callable[[object], str]] = []


class Shown:
    """Base class of such an answer."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return _draw[0](self)


def draw_with(draw: Callable[[object], str]) -> None:
    """Have ``draw`` make the HTML of every answer."""
    _draw[:] = [draw]
