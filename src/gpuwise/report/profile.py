# pyright: reportUnknownMemberType=false
# matplotlib leaves the types of its keyword arguments out
"""A profile as a page: the answer, the step in parts, one step as a timeline, its products under the roofs, all findings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpuwise.files import PAGE_SUFFIXES, write_text
from gpuwise.report.figures import GRID, INK, MARKERS, MUTED, SMALL, Drawing, colour, draw, legend_below, margins, room_for
from gpuwise.report.page import TableCell, TableRow, figures, heading, notes, page, table, verdict
from gpuwise.train.profile.spans import NO_SPANS, intersection, spans
from gpuwise.units import GIGA, MILLI, format_duration, format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gpuwise.train.profile.device_comparison import Slower
    from gpuwise.train.profile.finding import Finding
    from gpuwise.train.profile.result import Profile
    from gpuwise.train.profile.trace import Floats

LEAST = 0.002
"""Of the step: smaller parts are not drawn."""
MOST_PIECES = 1500
"""Of a lane of the timeline: neighbours nearer than a screen shows are drawn as one."""


def write_profile(profile: Profile, path: Path) -> None:
    """Raises InputError when it cannot be written there."""
    write_text(path, profile_page(profile), PAGE_SUFFIXES)


def profile_page(profile: Profile) -> str:
    """The page as HTML."""
    drawings = [_parts_drawing(profile)]
    timeline = _timeline_drawing(profile)
    drawings += [timeline] if timeline is not None else []
    roofline = _roofline_drawing(profile)
    drawings += [roofline] if roofline is not None else []
    body = [verdict([profile.verdict.sentence]), figures(drawings)]
    if profile.findings:
        head = ["", "saves a step", "share", "evidence", "fix"]
        rows = [_finding_row(f, profile.split.wall_s) for f in profile.findings]
        body += [heading("Findings"), table("Findings", head, rows)]
        body.append(notes(["What findings save overlaps: their sum says nothing."]))
    body += [heading("The step in parts"), _parts_table(profile)]
    if profile.slower:
        rows = [
            TableRow(
                f"{s.op} {s.shape} {s.dtype}",
                [
                    TableCell(f"{s.count:,}"),
                    *(TableCell(format_duration(t)) for t in (s.measured_s, s.expected_s, s.lost_s)),
                    TableCell(s.basis),
                ],
            )
            for s in profile.slower[:20]
        ]
        body += [
            heading("Operations against this device"),
            table("Operations", ["", "calls", "takes", "could take", "lost", "basis"], rows),
        ]
    if profile.ranks:
        body += [heading("Ranks"), _ranks_table(profile)]
    body.append(notes(profile.notes))
    return page(f"Profile of {profile.name}", f"{format_duration(profile.split.wall_s)} a step on {profile.device}.", body)


def _finding_row(finding: Finding, wall_s: float) -> TableRow:
    share = f"{100 * min(finding.saved_s / wall_s, 1.0):.0f} %" if wall_s else ""
    cells = [
        TableCell(format_duration(finding.saved_s), f"{finding.confidence} confidence"),
        TableCell(share),
        TableCell("; ".join(e.words for e in finding.evidence), mark="words"),
        TableCell(" ".join(finding.fix), finding.note, "words"),
    ]
    return TableRow(finding.title, cells)


def _parts_by_time(profile: Profile) -> list[tuple[str, float]]:
    split = profile.split
    every = {**{k: v for k, v in split.parts.items() if k != "compute"}, **split.families}
    return sorted(((k, v) for k, v in every.items() if v >= LEAST * split.wall_s), key=lambda p: -p[1])


def _parts_table(profile: Profile) -> str:
    wall = profile.split.wall_s
    rows = [
        TableRow(k, [TableCell(format_duration(v)), TableCell(f"{100 * v / wall:.1f} %")]) for k, v in _parts_by_time(profile)
    ]
    return table("The step in parts", ["", "a step", "share"], rows)


def _ranks_table(profile: Profile) -> str:
    parts = ("compute", "communication", "data wait", "host gaps", "sync points")
    rows = [
        TableRow(
            f"rank {rank}",
            [
                TableCell(format_duration(s.wall_s)),
                TableCell(f"{100 * s.busy_share:.0f} %"),
                *(TableCell(f"{100 * s.share(p):.0f} %") for p in parts),
            ],
        )
        for rank, s in profile.ranks
    ]
    return table("Ranks", ["", "step", "busy", *parts], rows)


def _parts_drawing(profile: Profile) -> Drawing:
    """Bars, largest first."""
    shown = _parts_by_time(profile)[:12]
    names = [name for name, _ in shown]

    def paint(figure: Figure) -> None:
        ax = figure.add_subplot()
        at = np.arange(len(shown))[::-1]
        ax.barh(at, [s / MILLI for _, s in shown], color=[colour(i) for i in range(len(shown))], height=0.7)
        for y, (_, s) in zip(at.tolist(), shown, strict=True):
            ax.text(s / MILLI, y, f" {100 * s / profile.split.wall_s:.0f} %", va="center", fontsize=SMALL, color=INK)
        ax.set_yticks(at, names)
        ax.set_xlabel("milliseconds a step")
        ax.set_xlim(0, max((s for _, s in shown), default=1.0) / MILLI * 1.14)
        ax.grid(visible=False, axis="y")
        margins(figure, left=room_for(names or [""]) + 0.15, top=0.1)

    parts_text = "; ".join(f"{name} {format_duration(s)}" for name, s in shown)
    caption = (
        f"Parts add up to the step of {format_duration(profile.split.wall_s)}; the device is busy "
        f"{100 * profile.split.busy_share:.0f} % of it."
    )
    return draw("step-parts", "The step in parts", caption, 0.75 + 0.26 * max(len(shown), 1), paint, parts_text)


def _timeline_drawing(profile: Profile) -> Drawing | None:
    """One step of the trace: each part in a lane of its own."""
    data = profile.data
    if data.traced is None or data.steps is None:
        return None
    lengths = data.steps.windows[:, 1] - data.steps.windows[:, 0]
    window = data.steps.windows[int(np.argsort(lengths)[len(lengths) // 2])]
    wide = float(window[1] - window[0])
    lanes: dict[str, Floats] = {}
    for name, layer_spans in data.traced.layers:
        inside = intersection(layer_spans, window.reshape(1, 2)) if len(layer_spans) else NO_SPANS
        if len(inside):
            lanes[name] = _visible_spans(inside, wide / MOST_PIECES)
    lanes = {k: v for k, v in lanes.items() if float((v[:, 1] - v[:, 0]).sum()) >= LEAST * wide}
    if not lanes:
        return None
    ordered = sorted(lanes, key=lambda k: float(lanes[k][0, 0]))

    def paint(figure: Figure) -> None:
        ax = figure.add_subplot()
        for i, name in enumerate(ordered):
            rows = lanes[name]
            pieces = [(float(a - window[0]) / MILLI, float(b - a) / MILLI) for a, b in rows]
            ax.broken_barh(pieces, (len(ordered) - 1 - i - 0.4, 0.8), facecolor=colour(i), linewidth=0)
        ax.set_yticks(range(len(ordered)), ordered[::-1])
        ax.set_xlim(0, wide / MILLI)
        ax.set_xlabel("milliseconds from the step's begin, under the profiler")
        ax.grid(visible=False, axis="y")
        margins(figure, left=room_for(ordered) + 0.15, top=0.1)

    caption = "One step as it was traced: at every moment, what it counts as. The profiler makes the host slower than it is."
    return draw("step-timeline", "One step", caption, 0.75 + 0.26 * len(ordered), paint, "Lanes: " + ", ".join(ordered) + ".")


def _visible_spans(rows: Floats, least_s: float) -> Floats:
    """Gaps shorter than can be seen are closed; pieces too short get a width that can."""
    widened = np.maximum(rows[:, 1], rows[:, 0] + least_s / 2)
    joined = spans(rows[:, 0], widened + least_s)
    joined[:, 1] -= least_s
    return joined


def _roofline_drawing(profile: Profile) -> Drawing | None:
    """What computes, by intensity and rate, under what the device is expected to reach at each."""
    points = [s for s in profile.slower if s.measured_s >= LEAST * profile.split.wall_s and s.moved_bytes > 0 and s.flop > 0][:40]
    if not points:
        return None

    def paint(figure: Figure) -> None:
        ax = figure.add_subplot()
        _scatter(ax, profile, points)
        room = legend_below(figure, ax, 3)
        margins(figure, bottom=0.5 + room, top=0.15)

    points_text = " ".join(
        f"{s.op} {s.shape} {s.dtype}: {s.flop / s.moved_bytes:.3g} FLOP per byte, {format_rate(s.flop_per_s, 'FLOP/s')}."
        for s in points[:10]
    )
    caption = "Products, convolutions, attention: filled as they ran, hollow as this device should run them; area is their time."
    return draw("profile-roofline", "Operations against this device", caption, 3.3, paint, points_text)


def _scatter(ax: Axes, profile: Profile, points: list[Slower]) -> None:
    kinds = list(dict.fromkeys(s.dtype for s in points))
    for i, kind in enumerate(kinds):
        of_dtype = [s for s in points if s.dtype == kind]
        x = [s.flop / s.moved_bytes for s in of_dtype]
        sizes = [max(16.0, 900 * s.measured_s / profile.split.wall_s) for s in of_dtype]
        ax.scatter(
            x,
            [s.flop_per_s / GIGA for s in of_dtype],
            s=sizes,
            color=colour(i),
            marker=MARKERS[i % len(MARKERS)],
            alpha=0.75,
            linewidths=0.5,
            edgecolors=GRID,
            label=kind,
            zorder=3,
        )
        ax.scatter(
            x,
            [s.flop / s.expected_s / GIGA for s in of_dtype],
            s=22,
            facecolors="none",
            edgecolors=colour(i),
            marker=MARKERS[i % len(MARKERS)],
            linewidths=1.0,
            zorder=2,
        )
        for s, at in zip(of_dtype, x, strict=True):
            ax.plot([at, at], [s.flop_per_s / GIGA, s.flop / s.expected_s / GIGA], color=MUTED, linewidth=0.7, zorder=1)
    ax.set_xscale("log")
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ax.set_ylim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    ax.yaxis.set_minor_formatter(lambda y, _: "")
    ax.xaxis.set_minor_formatter(lambda x, _: "")
    ax.set_xlabel("FLOP per byte of its tensors")
    ax.set_ylabel("GFLOP/s")
