"""Memory over a step in the terminal: columns of characters, as wide as the terminal is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuwise.cli.bars import COLOURS, GLYPHS
from gpuwise.predict.memory.timeline import MemoryTimeline
from gpuwise.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

HEIGHT = 12
MARGIN = 11
SMALLEST = 0.001
"""Share of the peak below which a category is left out of the legend."""


def show_timeline(to: Console, timeline: MemoryTimeline, *, height: int = HEIGHT, where: bool = True) -> None:
    """Print the sketch: one column per stretch of events with the state at its highest moment, ``▔`` what is reserved.

    ``where``: name the operation at the peak below it.
    """
    from rich.text import Text

    width = max(min(to.width - MARGIN - 2, 110), 20)
    shares, reserved, ends = columns(timeline, width)
    top = max(float(shares.sum(axis=0).max(initial=0.0)), float(reserved.max(initial=0.0)), 1.0)
    to.print()
    to.print("Memory over the step", style="bold")
    to.print(Text(" " * MARGIN) + _phase_line(timeline, ends))
    rows = _painted(shares, reserved, top, height)
    for i, row in enumerate(rows):
        label = format_bytes(top * (height - i) / height) if i % 3 == 0 else ""
        to.print(Text(f"{label:>{MARGIN - 2}} ", "dim") + Text("│", "dim") + row)
    to.print(Text(" " * (MARGIN - 1) + "└" + "─" * shares.shape[1], "dim"))
    at = int(np.searchsorted(ends, timeline.peak.row, side="left"))
    peak_label = f"peak {format_bytes(timeline.peak.requested_bytes)}"
    mark = f"▲ {peak_label}" if at + len(peak_label) + 2 <= shares.shape[1] else f"{peak_label} ▲"
    to.print(Text(" " * (MARGIN + at - (len(mark) - 1 if mark.endswith("▲") else 0)) + mark))
    if where and timeline.peak.words:
        to.print(Text("  at " + timeline.peak.words, "dim", overflow="fold"))
    _legend(to, timeline, reserved)


def columns(timeline: MemoryTimeline, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """([C, W] bytes at the highest moment of each column, [W] most reserved in it, [W] its last row)."""
    count = timeline.n_rows
    edges = np.arange(width + 1) * count // width
    first, last = edges[:-1], np.maximum(edges[1:], edges[:-1] + 1)
    total = timeline.total_bytes
    best = np.array([int(a + total[a:b].argmax()) for a, b in zip(first.tolist(), last.tolist(), strict=True)])
    reserved_bytes = np.zeros(count, dtype=np.int64) if timeline.reserved_bytes is None else timeline.reserved_bytes
    reserved = np.array([reserved_bytes[a:b].max() for a, b in zip(first.tolist(), last.tolist(), strict=True)], dtype=np.float64)
    return timeline.bytes_by_category[:, best].astype(np.float64), reserved, last - 1


def _painted(shares: NDArray[np.float64], reserved: NDArray[np.float64], top: float, height: int) -> list[Text]:
    """Lines from the top; a cell shows the category at its middle."""
    from rich.text import Text

    ceilings = np.cumsum(shares, axis=0)
    lines: list[Text] = []
    for row in range(height):
        middle = top * (height - row - 0.5) / height
        band = (ceilings <= middle).sum(axis=0)
        line = Text()
        high = np.clip(np.ceil(reserved / top * height).astype(int), 0, height)
        for i, b in enumerate(int(n) for n in band):
            if b < shares.shape[0]:
                line.append(GLYPHS[b % len(GLYPHS)], COLOURS[b % len(COLOURS)])
            else:
                line.append("▔" if high[i] == height - row and reserved[i] else " ")
        lines.append(line)
    return lines


def _phase_line(timeline: MemoryTimeline, ends: np.ndarray) -> Text:
    """Names of the phases above where each begins, where there is room."""
    from rich.text import Text

    line = [" "] * len(ends)
    free = 0
    for span in timeline.phases:
        at = int(np.searchsorted(ends, span.first, side="left"))
        last = int(np.searchsorted(ends, span.end - 1, side="left"))
        word = "╷" + span.name
        if at >= free and at + len(word) <= len(line) and last - at >= 3:
            line[at : at + len(word)] = word
            free = at + len(word) + 1
    return Text("".join(line), "dim")


def _legend(to: Console, timeline: MemoryTimeline, reserved: np.ndarray) -> None:
    from rich.text import Text

    values = timeline.bytes_by_category
    items: list[Text] = []
    for i, name in enumerate(timeline.categories):
        here, most = float(values[i, timeline.peak.row]), float(values[i].max())
        if most < SMALLEST * timeline.peak.requested_bytes:
            continue
        amount = format_bytes(here) if here else f"none, up to {format_bytes(most)}"
        items.append(Text.assemble((GLYPHS[i % len(GLYPHS)], COLOURS[i % len(COLOURS)]), f" {name} {amount}"))
    if reserved.any():
        items.append(Text(f"▔ reserved {format_bytes(float(reserved.max()))}"))
    # an item stays on one line
    line = Text("  at the peak: ", "dim")
    for item in items:
        if len(line) + len(item) > to.width:
            line.rstrip()
            to.print(line)
            line = Text("  ")
        line.append_text(item).append("   ")
    line.rstrip()
    to.print(line)
