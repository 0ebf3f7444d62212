"""Bars of characters: each part has its own glyph as well as its own colour, so they read without colour
too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

GLYPHS = "█▓▒░▚▞▩#=+:"
COLOURS = (
    "blue",
    "cyan",
    "green",
    "yellow",
    "magenta",
    "red",
    "bright_blue",
    "bright_cyan",
    "bright_green",
    "bright_yellow",
    "bright_magenta",
)
FREE, OVER = "·", "!"


def stacked(parts: Mapping[str, float], whole: float, width: int) -> tuple[Text, list[tuple[str, Text]]]:
    """One bar of ``width`` characters for ``parts`` of ``whole``, and the key of each part that is shown.

    When the parts exceed ``whole``, the bar spans their sum and the part beyond ``whole`` is marked with
    ``!``.
    """
    from rich.text import Text

    total = sum(parts.values())
    cells = shares([*parts.values(), max(whole - total, 0.0)], width)
    keep = width if total <= whole else max(1, round(width * whole / total))
    bar, n_cells, keys = Text(), 0, list[tuple[str, Text]]()
    for i, (name, n) in enumerate(zip([*parts, ""], cells, strict=True)):
        glyph, colour = (GLYPHS[i % len(GLYPHS)], COLOURS[i % len(COLOURS)]) if name else (FREE, "dim")
        inside = min(n, max(keep - n_cells, 0))
        bar.append(glyph * inside, colour)
        bar.append(OVER * (n - inside), "bold red")
        n_cells += n
        if name:
            keys.append((name, Text(glyph, colour)))
    return bar, keys


def shares(values: Sequence[float], width: int) -> list[int]:
    """Cells for each value: they sum to ``width``, by largest remainder; what is above zero and would
    vanish gets one while there is room."""
    total = sum(values)
    if total <= 0:
        return [0] * len(values)
    exact = [v / total * width for v in values]
    cells = [int(x) for x in exact]
    for i in sorted(range(len(exact)), key=lambda i: cells[i] - exact[i])[: width - sum(cells)]:
        cells[i] += 1
    return cells


def single(share: float, width: int, colour: str = "blue") -> Text:
    """A bar of eighths for one share of 1."""
    from rich.text import Text

    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    return Text("█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8], colour)
