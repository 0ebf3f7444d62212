# pyright: reportUnknownMemberType=false
# matplotlib leaves the types of its keyword arguments out
"""The figures of a comparison: radar, rooflines, bars with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpuwise.errors import UnpredictableError
from gpuwise.interval import P80
from gpuwise.pick.compare.comparison import Comparison
from gpuwise.pick.compare.facts import RATES, WORK_DTYPE, dtype_of
from gpuwise.pick.compare.rows import FigureRow, find_row, say
from gpuwise.pick.compare.words import names_of
from gpuwise.pick.roofline import Roofline, roofline, with_points
from gpuwise.report.figures import (
    DASHES,
    GRID,
    INK,
    MARKERS,
    MUTED,
    SMALL,
    Drawing,
    colour,
    draw,
    legend_below,
    margins,
    room_for,
    tick_labels,
)
from gpuwise.units import GIGA, format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RADAR = (
    ("arithmetic", "reached_{dtype}"),
    ("memory speed", "reached_stream"),
    ("memory size", "memory"),
    ("device link", "link"),
    ("work a watt", "work_per_watt"),
    ("work a rented dollar", "usd_per_reached_pflop_hour"),
    ("training", "train"),
    ("one sequence", "decode_one"),
    ("full batches", "decode_batch"),
)
"""Axis and the row behind it; those some column lacks are left out."""
WORK_ROWS = (
    "train_full",
    "train_light",
    "train_lora",
    "train_qlora",
    "decode_one",
    "decode_batch",
    "prefill",
    "train_usd",
    "serve_usd",
    "serve_joule",
)
LONGEST_LABEL = 14
"""Characters on one line beside a radar."""
GAP = 0.36
"""Inches between the panels of a bar figure: the title of the next."""
_PEAK_OF = {**{f"reached_{rate}": f"peak_{rate}" for rate in RATES}, "reached_stream": "bandwidth"}
"""What a reached rate is at most."""
PLAIN_ROWS = ("reached_fp32", "reached_bf16", "reached_fp8", "reached_stream", "rent", "usd_per_reached_pflop_hour")
LOWEST, HIGHEST = 0.5, 1e4
"""FLOP per byte a roofline is drawn over: from one row of weights read to products far above any ridge."""


def comparison_drawings(comparison: Comparison) -> list[Drawing]:
    """Every figure of the comparison, the ones that sum up first."""
    drawings = [d for d in (_radar(comparison), *_bars(comparison)) if d is not None]
    return drawings + _rooflines(comparison)


def common_dtype(comparison: Comparison) -> str | None:
    """The format all columns are compared in: bf16, or the widest-used one all of them have."""
    for dtype in (WORK_DTYPE, "fp16", "fp32"):
        if all(dtype_of(s.accelerator, dtype) for s in comparison.subjects):
            return dtype
    return None


def radar_axes(comparison: Comparison) -> list[tuple[str, FigureRow, tuple[float, ...]]]:
    """(label, row, value of each column as a share of the best one) of every axis that all columns have."""
    axes: list[tuple[str, FigureRow, tuple[float, ...]]] = []
    for label, key in RADAR:
        row = _radar_row(comparison, key)
        values = [] if row is None else [c.value for c in row.cells]
        if row is None or not values or any(v is None or v <= 0 for v in values):
            continue
        present = [v for v in values if v is not None]
        higher = row.better == "higher"
        top = max(present) if higher else min(present)
        axes.append((label, row, tuple(v / top if higher else top / v for v in present)))
    return axes


def _radar_row(comparison: Comparison, key: str) -> FigureRow | None:
    if key == "train":  # the last way is the one most columns can do
        return next((r for r in reversed([find_row(comparison.rows, k) for k in WORK_ROWS[:4]]) if r is not None), None)
    return find_row(comparison.rows, key.format(dtype=common_dtype(comparison) or WORK_DTYPE))


def _radar(comparison: Comparison) -> Drawing | None:
    axes = radar_axes(comparison)
    if len(axes) < 3:
        return None
    names = names_of(comparison.subjects)
    turn = [math.pi / 2 - 2 * math.pi * i / len(axes) for i in range(len(axes))]

    def paint(figure: Figure) -> None:
        ax = figure.add_subplot()
        ax.set_aspect("equal")
        ax.axis("off")
        _web(ax, turn, [label for label, _, _ in axes])
        for s, name in enumerate(names):
            r = [values[s] for _, _, values in axes]
            x = [v * math.cos(t) for v, t in zip(r, turn, strict=True)]
            y = [v * math.sin(t) for v, t in zip(r, turn, strict=True)]
            ax.plot([*x, x[0]], [*y, y[0]], color=colour(s), ls=DASHES[s], marker=MARKERS[s], ms=4.5, label=name)
        ax.set_xlim(-1.75, 1.75)
        ax.set_ylim(-1.3, 1.3)
        margins(figure, left=0.0, right=0.0, top=0.0, bottom=legend_below(figure, ax))

    best = "; ".join(f"{label}: {names[max(range(len(values)), key=values.__getitem__)]}" for label, _, values in axes)
    return draw(
        "radar",
        "Who is ahead at what",
        "Each axis is a share of the best of the columns: 1 at the rim, 0 in the middle, on a linear scale; of prices the "
        "reciprocal.",
        4.4,
        paint,
        f"Best at {best}.",
    )


def _web(ax: Axes, turn: Sequence[float], labels: Sequence[str]) -> None:
    """Rings at quarters, spokes, and the axes' names outside."""
    for ring in (0.25, 0.5, 0.75, 1.0):
        x, y = [ring * math.cos(t) for t in turn], [ring * math.sin(t) for t in turn]
        ax.plot([*x, x[0]], [*y, y[0]], color=GRID, lw=0.8 if ring < 1 else 1.3, zorder=0)
    for t, label in zip(turn, labels, strict=True):
        x, y = math.cos(t), math.sin(t)
        ax.plot([0, x], [0, y], color=GRID, lw=0.7, zorder=0)
        side = "center" if abs(x) < 0.2 else "left" if x > 0 else "right"
        words = label if len(label) <= LONGEST_LABEL else "\n".join(label.rsplit(" ", 1))
        ax.text(1.1 * x, 1.12 * y, words, ha=side, va="center", fontsize=SMALL, color=INK)
    mid = (turn[0] + turn[1]) / 2
    reach = math.cos((turn[0] - turn[1]) / 2)
    for ring in (0.5, 1.0):
        ax.text(
            ring * reach * math.cos(mid),
            ring * reach * math.sin(mid),
            f"{ring:g}",
            ha="center",
            va="center",
            fontsize=SMALL - 1.5,
            color=MUTED,
        )


def _bars(comparison: Comparison) -> list[Drawing]:
    """Bars of predicted work, speeds and costs apart; without a model of what is reached and what it costs."""
    if comparison.work is None:
        rows = [r for k in PLAIN_ROWS if (r := find_row(comparison.rows, k)) is not None]
        return _bar_figure(
            comparison,
            "reached",
            "What is really reached",
            rows,
            f"Bars: reached in a long run; whiskers: {P80} intervals; grey line: the peak",
        )
    rows = [r for k in WORK_ROWS if (r := find_row(comparison.rows, k)) is not None]
    whiskers = f"Whiskers are {P80} intervals"
    work = comparison.work
    return [
        *_bar_figure(
            comparison,
            "speed",
            f"{work.arch.name}: how fast",
            [r for r in rows if r.better == "higher"],
            f"{whiskers}; longer is faster. A column without a bar cannot do it",
        ),
        *_bar_figure(
            comparison,
            "money",
            f"{work.arch.name}: what it takes",
            [r for r in rows if r.better == "lower"],
            f"{whiskers} of the time, at the typical rent; shorter is cheaper",
        ),
    ]


def _bar_figure(comparison: Comparison, key: str, title: str, rows: Sequence[FigureRow], what: str) -> list[Drawing]:
    rows = [r for r in rows if sum(c.value is not None for c in r.cells) > 0]
    if not rows:
        return []
    names = names_of(comparison.subjects)

    def paint(figure: Figure) -> None:
        panels = figure.subplots(len(rows), 1, squeeze=False)[:, 0]
        for ax, row in zip(panels, rows, strict=True):
            _bar_panel(ax, row, names, find_row(comparison.rows, _PEAK_OF.get(row.key, "")))
        margins(figure, left=room_for(names), right=0.05, top=GAP, bottom=0.1, gap=GAP)

    caption = "; ".join(
        f"{r.title}: "
        + ", ".join(f"{n} {say(r.unit, c.value)}" for n, c in zip(names, r.cells, strict=True) if c.value is not None)
        for r in rows
    )
    height = 0.1 + sum(GAP + 0.22 * len(names) for _ in rows)
    return [draw(key, title, f"{what}.", height, paint, f"{caption}.")]


def _bar_panel(ax: Axes, row: FigureRow, names: Sequence[str], peak: FigureRow | None) -> None:
    """One row as horizontal bars, best at its own scale."""
    values = [0.0 if c.value is None else c.value for c in row.cells]
    ends = [max(v, c.high or 0.0) for v, c in zip(values, row.cells, strict=True)]
    if peak is not None:
        ends = [max(e, p.value or 0.0) for e, p in zip(ends, peak.cells, strict=True)]
    longest = max(ends)
    for i, (cell, value) in enumerate(zip(row.cells, values, strict=True)):
        ax.barh(i, value, height=0.62, color=colour(i), alpha=0.85 if i in row.best else 0.6)
        if cell.low is not None and cell.high is not None and cell.value is not None:
            ax.plot([cell.low, cell.high], [i, i], color=INK, lw=1.1, marker="|", ms=6)
        limit = None if peak is None else peak.cells[i].value
        if limit is not None:
            ax.plot([limit, limit], [i - 0.36, i + 0.36], color=MUTED, lw=1.4)
        words = (cell.words or "no") if cell.value is None else say(row.unit, cell.value)
        ax.text(
            ends[i] + 0.015 * longest,
            i,
            words,
            va="center",
            fontsize=SMALL,
            color=MUTED if cell.value is None else INK,
            fontweight="bold" if i in row.best else "normal",
        )
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_xlim(0, longest * 1.38)
    ax.set_title(row.title)
    ax.set_xticks([])
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.spines["bottom"].set_visible(False)


def _rooflines(comparison: Comparison) -> list[Drawing]:
    dtype = common_dtype(comparison)
    if dtype is None:
        return []
    distinct = {s.accelerator.id: s.accelerator for s in comparison.subjects}
    lines: list[Roofline] = []
    for a in distinct.values():
        try:
            line = roofline(a, dtype)
        except UnpredictableError:
            continue
        if comparison.work is not None:
            line = with_points(line, a, comparison.work.arch, seq_len=comparison.work.seq_len or comparison.work.context)
        lines.append(line)
    if not lines:
        return []
    each = [_one_roofline(i, line) for i, line in enumerate(lines) if line.points]
    return [_all_rooflines(lines, dtype), *each]


def _log_axes(ax: Axes, top: float, bottom: float) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(LOWEST, HIGHEST)
    ax.set_ylim(bottom, top)
    ax.xaxis.set_major_formatter(tick_labels(lambda v: f"{v:,.0f}" if v >= 1 else f"{v:g}"))
    ax.yaxis.set_major_locator(LogLocator(numticks=8))
    ax.yaxis.set_major_formatter(tick_labels(lambda v: format_rate(v, "")))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.set_xlabel("FLOP for each byte moved")
    ax.set_ylabel("FLOP/s of one accelerator")


def _limits(lines: Sequence[Roofline]) -> tuple[float, float]:
    top = max(line.specified.flop_per_s for line in lines) * 2.0
    bottom = min(float(line.specified.attainable(LOWEST)) for line in lines) * 0.6
    points = [p.flop_per_s for line in lines for p in line.points]
    return top, max(min([bottom, *(0.6 * p for p in points)]), GIGA)


def _all_rooflines(lines: Sequence[Roofline], dtype: str) -> Drawing:
    x = np.geomspace(LOWEST, HIGHEST, 241)

    def paint(figure: Figure) -> None:
        ax = figure.add_subplot()
        for i, line in enumerate(lines):
            shown = line.reached or line.specified
            ax.plot(x, shown.attainable(x), color=colour(i), ls=DASHES[i], label=line.accelerator)
            ax.plot(x, line.specified.attainable(x), color=colour(i), lw=0.8, alpha=0.55)
            ax.plot([shown.ridge], [shown.flop_per_s], color=colour(i), marker=MARKERS[i], ms=5)
        _log_axes(ax, *_limits([Roofline(r.accelerator, r.dtype, r.specified, r.reached, r.cache) for r in lines]))
        margins(figure, bottom=0.48 + legend_below(figure, ax))

    ridges = ", ".join(f"{r.accelerator} {(r.reached or r.specified).ridge:,.0f}" for r in lines)
    return draw(
        "rooflines",
        f"Rooflines in {dtype}",
        "Thick: what a long run reaches; thin: on paper. Left of its marker an accelerator waits for memory, right of it "
        f"arithmetic is the limit; the markers lie at {ridges} FLOP a byte.",
        3.9,
        paint,
    )


def _one_roofline(number: int, line: Roofline) -> Drawing:
    """Ceilings of one accelerator with the model's operations."""
    x = np.geomspace(LOWEST, HIGHEST, 241)
    training = list(dict.fromkeys(p.name for p in line.points if p.phase != "decode"))

    def paint(figure: Figure) -> None:
        ax = figure.add_subplot()
        ax.plot(x, line.specified.attainable(x), color=MUTED, lw=1.0, label="on paper")
        if line.reached is not None:
            ax.plot(x, line.reached.attainable(x), color=INK, label="reached, memory")
        if line.cache is not None:
            ax.plot(x, line.cache.attainable(x), color=INK, ls=DASHES[2], lw=1.1, label="reached, L2")
        for p in sorted(line.points, key=lambda p: (training.index(p.name) if p.name in training else 99, p.phase != "forward")):
            if p.phase == "decode":
                continue
            i = training.index(p.name)
            forward = p.phase == "forward"
            ax.plot(
                [p.intensity],
                [p.flop_per_s],
                color=colour(i),
                marker=MARKERS[i],
                ms=7,
                ls="none",
                mfc=colour(i) if forward else "none",
                mew=1.4,
                label=f"{p.name}, {p.phase}",
            )
        decode = [p for p in line.points if p.phase == "decode"]
        if decode:
            ax.plot(
                [p.intensity for p in decode],
                [p.flop_per_s for p in decode],
                color=colour(5),
                ls=DASHES[4],
                marker="X",
                ms=7,
                label="products of a decode step",
            )
            for p in decode:
                label = p.name.removeprefix("products, ").removesuffix("s")
                label = label if label.startswith("1 ") else f"{label}s"
                ax.annotate(
                    label, (p.intensity, p.flop_per_s), (8, -11), textcoords="offset points", fontsize=SMALL - 1, color=INK
                )
        _log_axes(ax, *_limits([line]))
        margins(figure, bottom=0.48 + legend_below(figure, ax))

    caption = "; ".join(f"{p.name} {p.phase} {p.intensity:,.0f} FLOP/B at {say('FLOP/s', p.flop_per_s)}" for p in line.points)
    return draw(
        f"roofline-{number}",
        f"{line.accelerator}: where {line.points_of.split(',')[0]} runs",
        f"Operations of one {line.points_of.split(', ', 1)[1]}, {line.dtype}, as the kernel predictor puts them; crosses: "
        "a decode step's products over more and more sequences.",
        4.3,
        paint,
        f"{caption}.",
    )
