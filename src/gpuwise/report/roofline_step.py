"""The figure of a step's roofline: its products as points, as large as their share of the time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuwise.predict.step.roofline import StepPoint, StepRoofline
from gpuwise.report.figures import GRID, INK, MARKERS, MUTED, Drawing, colour, draw, legend_below, margins
from gpuwise.units import TERA

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEAST_SHARE = 0.002
"""Smaller points are left out; the caption says what share they have."""
_AREA = 900.0
"""Square points of a point that takes all the time."""


def roofline_drawing(line: StepRoofline, title: str = "") -> Drawing:
    """One panel: intensity against FLOP/s, both logarithmic. Area is the share of the device's time."""
    shown = [p for p in line.points if p.share >= _LEAST_SHARE]
    left_out = sum(p.share for p in line.points) - sum(p.share for p in shown)
    caption = (
        f"Products of the step on {line.accelerator} under its roofs; the area of a point is its share of the device's time. "
        f"{100 * line.without_flop_share:.0f} % of the time goes to operations without products, which have no place here"
        + (f", {100 * left_out:.0f} % to products too small to show." if left_out >= 0.005 else ".")
    )
    words = " ".join(
        f"{p.op} {p.module or 'outside modules'} ({p.shapes}): {p.intensity:.3g} FLOP per byte, "
        f"{p.flop_per_s / 1e12:.3g} TFLOP/s, {100 * p.share:.1f} % of the time, bound by "
        f"{p.bound.name.lower().replace('_', ' ')}."
        for p in shown[:10]
    )
    return draw("roofline-step", title or "Roofline of the step", caption, 3.4, lambda f: _paint(f, line, shown), words)


def _paint(figure: Figure, line: StepRoofline, shown: list[StepPoint]) -> None:
    axes = figure.add_subplot()
    xs = [p.intensity for p in shown] or [1.0]
    ridge = max(line.peak_flop_per_s.values(), default=line.bytes_per_s) / line.bytes_per_s
    low, high = 10 ** math.floor(math.log10(min(*xs, ridge) / 2)), 10 ** math.ceil(math.log10(max(*xs, ridge) * 2))
    for dtype, peak in sorted(line.peak_flop_per_s.items(), key=lambda p: -p[1]):
        knee = peak / line.bytes_per_s
        axes.plot([low, knee, high], [low * line.bytes_per_s, peak, peak], color=MUTED, linewidth=1.2, zorder=1)
        axes.text(high, peak * 1.06, dtype, color=INK, ha="right", va="bottom", fontsize=8)
    families = list(dict.fromkeys(p.family for p in shown))
    for i, family in enumerate(families):
        own = [p for p in shown if p.family == family]
        axes.scatter(
            [p.intensity for p in own],
            [p.flop_per_s for p in own],
            s=[max(14.0, _AREA * p.share) for p in own],
            color=colour(i),
            marker=MARKERS[i % len(MARKERS)],
            alpha=0.75,
            linewidths=0.5,
            edgecolors=GRID,
            label=family,
            zorder=2,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y / TERA:g}")
    axes.yaxis.set_minor_formatter(lambda y, _: "")
    axes.set_xlabel("FLOP per byte of its tensors")
    axes.set_ylabel("TFLOP/s")
    room = legend_below(figure, axes, 3)
    margins(figure, bottom=0.5 + room, top=0.2)
