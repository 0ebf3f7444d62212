"""Parts of a sum as they change, in the terminal: columns of characters, as wide as the terminal is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpuwise.cli.bars import COLOURS, GLYPHS

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from gpuwise.report.answers.answer import Area

HEIGHT, MARGIN, WIDEST, LABELLED = 8, 11, 110, 3
"""Lines of a sketch; columns on its left, and at most; every so many lines one has its value."""
SMALLEST = 0.001
"""Share of the highest moment below which a part is left out of the legend."""
OVER = "▔"


def area(block: Area, width: int) -> Iterator[RenderableType]:
    """The sketch: a column for each stretch with the state at its highest moment, ``▔`` what is over the parts."""
    from rich.text import Text

    n = max(min(width - MARGIN - 2, WIDEST), 20)
    shown, over = columns(block, n)
    totals = [sum(column) for column in shown]
    top = max([*totals, *over, 1.0])
    yield Text(block.title, "bold")
    if block.marks:
        yield Text(" " * MARGIN + _marks(block, n), "dim")
    for i in range(HEIGHT):
        label = block.y.words(top * (HEIGHT - i) / HEIGHT) if i % LABELLED == 0 else ""
        yield Text.assemble((f"{label:>{MARGIN - 2}} │", "dim"), _line(shown, over, top, HEIGHT - i))
    yield Text(" " * (MARGIN - 1) + "└" + "─" * n, "dim")
    yield from _legend(block, totals, shown, over, width)


def columns(block: Area, n: int) -> tuple[list[list[float]], list[float]]:
    """(the heights of each part at the highest moment of each of ``n`` columns, the most over them in each)."""
    low, high = block.x.low, block.x.high or 1.0
    shown: list[list[float]] = []
    over: list[float] = []
    for i in range(n):
        first = max(bisect_right(block.at, low + (high - low) * i / n) - 1, 0)
        last = max(bisect_right(block.at, low + (high - low) * (i + 1) / n) - 1, first)
        moments = range(first, last + 1)
        best = max(moments, key=lambda m: sum(layer.heights[m] for layer in block.layers))
        shown.append([layer.heights[best] for layer in block.layers])
        over.append(max(block.over.heights[m] for m in moments) if block.over is not None else 0.0)
    return shown, over


def _line(shown: Sequence[Sequence[float]], over: Sequence[float], top: float, row: int) -> Text:
    """A line of the sketch, the ``row``-th from below: in each column the part at its middle."""
    from rich.text import Text

    line, middle = Text(), top * (row - 0.5) / HEIGHT
    for heights, limit in zip(shown, over, strict=True):
        below, i = 0.0, 0
        while i < len(heights) and below + heights[i] <= middle:
            below, i = below + heights[i], i + 1
        if i < len(heights):
            line.append(GLYPHS[i % len(GLYPHS)], COLOURS[i % len(COLOURS)])
        else:
            line.append(OVER if limit and -(-limit * HEIGHT // top) == row else " ")
    return line


def _marks(block: Area, n: int) -> str:
    """Words of the marks above where each stands, where there is room."""
    line, free = [" "] * n, 0
    for place, name in block.marks:
        at, word = int(block.x.share(place) * n), "╷" + name
        if at >= free and at + len(word) <= n:
            line[at : at + len(word)] = word
            free = at + len(word) + 1
    return "".join(line)


def _legend(
    block: Area, totals: Sequence[float], shown: Sequence[Sequence[float]], over: Sequence[float], width: int
) -> Iterator[Text]:
    """Each part at the highest moment, whole on its line."""
    from rich.text import Text

    peak = max(range(len(totals)), key=lambda i: totals[i])
    items = [Text(f"at the peak {block.y.words(totals[peak])}:")]
    for i, layer in enumerate(block.layers):
        here, most = shown[peak][i], max(layer.heights)
        if most >= SMALLEST * totals[peak]:
            amount = block.y.words(here) if here else f"none, up to {block.y.words(most)}"
            items.append(Text.assemble((GLYPHS[i % len(GLYPHS)], COLOURS[i % len(COLOURS)]), f" {layer.name} {amount}"))
    if any(over) and block.over is not None:
        items.append(Text(f"{OVER} {block.over.name} {block.y.words(max(over))}"))
    line = Text()
    for item in items:
        if line and len(line) + len(item) > width - 2:
            line.rstrip()
            yield line
            line = Text()
        line.append_text(item).append("   ")
    line.rstrip()
    yield line
