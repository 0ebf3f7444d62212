"""Memory over a step in the terminal: columns of characters, as wide as the terminal is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuwise.cli.bars import COLOURS, GLYPHS
from gpuwise.predict.memory_timeline import MemoryTimeline
from gpuwise.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

HEIGHT = 12
MARGIN = 11


def show_timeline(to: Console, timeline: MemoryTimeline, *, height: int = HEIGHT) -> None:
    """Print the sketch: one column per stretch of events with the state at its highest moment, ``▔`` what is reserved."""
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
    said = f"▲ peak {format_bytes(timeline.peak.requested_bytes)}"
    start = min(at, max(shares.shape[1] - len(said), 0))
    to.print(
        Text(" " * MARGIN + (" " * at + "▲" if start != at else ""), "bold") if start != at else Text(" " * (MARGIN + at) + said)
    )
    if start != at:
        to.print(Text(" " * (MARGIN + start) + said[2:]))
    if timeline.peak.words:
        to.print(Text("  at " + timeline.peak.words, "dim", overflow="fold"))
    _legend(to, timeline, reserved)


def columns(timeline: MemoryTimeline, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """([C, W] bytes at the highest moment of each column, [W] most reserved in it, [W] its last row)."""
    count = timeline.n_rows
    width = min(width, count)
    edges = np.linspace(0, count, width + 1).astype(np.int64)
    total = timeline.total_bytes
    best = np.array([int(a + total[a:b].argmax()) for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)])
    reserved = np.zeros(width) if timeline.reserved_bytes is None else np.maximum.reduceat(timeline.reserved_bytes, edges[:-1])
    return timeline.bytes_by_category[:, best].astype(np.float64), reserved.astype(np.float64), edges[1:] - 1


def _painted(shares: np.ndarray, reserved: np.ndarray, top: float, height: int) -> list[Text]:
    """Lines from the top; a cell shows the category at its middle."""
    from rich.text import Text

    ceilings = np.cumsum(shares, axis=0)
    lines: list[Text] = []
    for row in range(height):
        middle = top * (height - row - 0.5) / height
        band = (ceilings <= middle).sum(axis=0)
        line = Text()
        high = np.clip(np.ceil(reserved / top * height).astype(int), 0, height)
        for i, b in enumerate(band.tolist()):
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
    from rich.padding import Padding
    from rich.text import Text

    text = Text()
    values = timeline.bytes_by_category[:, timeline.peak.row]
    for i, name in enumerate(timeline.categories):
        text.append(GLYPHS[i % len(GLYPHS)], COLOURS[i % len(COLOURS)])
        # a key and its value stay on one line
        text.append(f" {name} {format_bytes(float(values[i]))}".replace(" ", "\u00a0") + "   ")
    if reserved.any():
        text.append(f"▔ reserved {format_bytes(float(reserved.max()))}".replace(" ", "\u00a0"))
    to.print(Padding(text, (0, 0, 0, 2)))
