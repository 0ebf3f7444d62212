# pyright: reportUnknownMemberType=false
# matplotlib leaves the types of its keyword arguments out
"""Memory over a step as a figure (SVG) and as a page: what is used by category, what is reserved, the peak and its cause."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuwise.files import FIGURE_SUFFIXES, PAGE_SUFFIXES, check_target, write_text
from gpuwise.predict.memory.timeline import MemoryTimeline, thin
from gpuwise.report.figures import BAD, GRID, INK, MUTED, SMALL, Drawing, colour, draw, margins, stand_alone
from gpuwise.report.page import TableCell, TableRow, figures, heading, notes, page, table, verdict
from gpuwise.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (*FIGURE_SUFFIXES, *PAGE_SUFFIXES)


def write_timeline(timeline: MemoryTimeline, path: Path) -> None:
    """Write a figure (.svg) or a page (.html). Raises InputError when it cannot be written there."""
    check_target(path, SUFFIXES)
    if path.suffix.lower() in FIGURE_SUFFIXES:
        write_text(path, stand_alone([timeline_drawing(timeline)]), FIGURE_SUFFIXES)
    else:
        write_text(path, timeline_page(timeline), PAGE_SUFFIXES)


def timeline_page(timeline: MemoryTimeline) -> str:
    """The page as HTML: the figure, what holds the memory at the peak, every category at its own most."""
    peak = timeline.peak
    values, total = timeline.bytes_by_category, timeline.total_bytes
    rows: list[TableRow] = []
    for i, name in reversed(list(enumerate(timeline.categories))):
        then, share = float(values[i, peak.row]), _share(values[i, peak.row], total[peak.row])
        cells = [format_bytes(then), share, format_bytes(float(values[i].max()))]
        rows.append(TableRow(name, [TableCell(c) for c in cells]))
    body = [
        verdict(timeline_words(timeline)),
        figures([timeline_drawing(timeline)]),
        heading("At the peak"),
        table("At the peak", ["", "at the peak", "share", "most at any time"], rows),
    ]
    if peak.largest:
        largest = [TableRow(name, [TableCell(format_bytes(n))]) for name, n in peak.largest]
        body += [heading("Largest at the peak"), table("Largest at the peak", ["", "size"], largest)]
    return page(f"Memory of {timeline.title}", f"{timeline.n_rows - 1:,} allocations and frees.", [*body, notes(timeline.notes)])


def timeline_words(timeline: MemoryTimeline) -> list[str]:
    """The answer in sentences."""
    peak, sentences = timeline.peak, list[str]()
    at = f", at {peak.words}" if peak.words else ""
    sentences.append(f"Most in use: {format_bytes(peak.requested_bytes)}{at}.")
    reserved = timeline.reserved_bytes
    if reserved is not None and reserved.size:
        most = int(reserved.max())
        sentences.append(
            f"The allocator reserves {format_bytes(most)}: {_more(most, peak.requested_bytes)} for rounding and gaps."
        )
    if timeline.oom_row is not None:
        sentences.append("The device runs out of memory before the end; what follows is what it would have needed.")
    elif timeline.capacity_bytes is not None and reserved is not None:
        free_bytes = timeline.capacity_bytes - int(reserved.max(initial=0))
        sentences.append(
            f"Of {format_bytes(timeline.capacity_bytes)} open to the process, {format_bytes(max(free_bytes, 0))} stay free."
        )
    return sentences


def _more(most: int, used: int) -> str:
    return f"{format_bytes(most - used)} more" if most > used else "no more"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def timeline_drawing(timeline: MemoryTimeline) -> Drawing:
    """Stacked areas by category from below, the reserved memory above, phases along the top, the peak marked."""
    at, values, reserved = thin(timeline)
    scale, unit = (GIB, "GiB") if float(timeline.total_bytes.max(initial=1)) >= GIB else (MIB, "MiB")

    def paint(figure: Figure) -> None:
        ax = figure.add_subplot()
        x = timeline.time_s[at] if timeline.time_s is not None else at
        base = np.zeros(at.size)
        for i, name in enumerate(timeline.categories):
            top = base + values[i] / scale
            ax.fill_between(x, base, top, step="post", color=colour(i), alpha=0.78, lw=0, label=name)
            base = top
        if reserved is not None:
            ax.step(x, reserved / scale, where="post", color=INK, lw=1.3, label="reserved")
        _limits(ax, timeline, x, base, reserved, scale, unit)
        handles, labels = ax.get_legend_handles_labels()
        columns = 1 if max(len(name) for name in labels) > 24 else 3
        figure.legend(handles, labels, loc="lower center", ncols=columns, handlelength=1.4, borderaxespad=0.1, columnspacing=1.2)
        lines = -(-len(labels) // columns)
        margins(figure, left=0.62, right=0.2, top=0.38, bottom=0.62 + 0.178 * lines)

    count = len(timeline.categories) + 1
    long = max((len(c) for c in timeline.categories), default=0) > 24
    height = 3.5 + 0.178 * (count if long else -(-count // 3))
    caption = "; ".join(
        f"{name} {format_bytes(float(timeline.bytes_by_category[i, timeline.peak.row]))}"
        for i, name in enumerate(timeline.categories)
    )
    return draw(
        "memory",
        f"Memory over the step: {format_bytes(timeline.peak.requested_bytes)} in use at most",
        " ".join(timeline_words(timeline)),
        height,
        paint,
        f"At the peak: {caption}.",
    )


def _limits(ax: Axes, timeline: MemoryTimeline, x: Any, top: Any, reserved: Any, scale: float, unit: str) -> None:
    """Axes, capacity, phases and the peak's mark."""
    highest = max(float(top.max(initial=0.0)), float(reserved.max(initial=0)) / scale if reserved is not None else 0.0, 1e-9)
    capacity = timeline.capacity_bytes
    if capacity is not None and capacity / scale < 4 * highest:
        ax.axhline(capacity / scale, color=BAD, lw=1.2, ls=(0, (5, 2)), label=f"capacity {format_bytes(capacity)}")
        highest = max(highest, capacity / scale)
    ax.set_ylim(0, highest * 1.08)
    end = float(x[-1]) if len(x) and x[-1] > x[0] else 1.0
    ax.set_xlim(float(x[0]) if len(x) else 0.0, end)
    place = timeline.time_s if timeline.time_s is not None else np.arange(timeline.n_rows)
    wide = end - float(x[0]) if len(x) else 1.0
    previous = -1.0
    for span in timeline.phases:
        first, last = float(place[min(span.first, place.size - 1)]), float(place[min(span.end, place.size) - 1])
        if span.first > 1:
            ax.axvline(first, color=GRID, lw=0.9)
        if (last - first) > 0.1 * wide and first >= previous:
            ax.text(first + 0.006 * wide, 1.015, span.name, transform=ax.get_xaxis_transform(), fontsize=SMALL, color=MUTED)
            previous = first + 0.16 * wide
    peak_x, peak_y = float(place[timeline.peak.row]), timeline.peak.requested_bytes / scale
    ax.plot([peak_x], [peak_y], marker="v", ms=6, color=BAD, ls="none", label="most in use")
    if timeline.oom_row is not None:
        ax.axvline(float(place[min(timeline.oom_row, place.size - 1)]), color=BAD, lw=1.4, label="out of memory")
    ax.set_ylabel(unit)
    ax.set_xlabel("seconds" if timeline.time_s is not None else "allocations and frees, in order")
    ax.grid(visible=False, axis="x")
