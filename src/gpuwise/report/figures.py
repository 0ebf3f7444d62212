# pyright: reportUnknownMemberType=false
# matplotlib leaves the types of its keyword arguments out
"""Figures as SVG: one style, drawn by matplotlib without its global state, the same bytes for the same values.

Text stays text. Colours are those of :data:`INK` and :data:`SERIES`; :func:`dark_style` turns each into its dark
counterpart where the reader's screen is dark, by rules that other SVG viewers ignore. The series are Okabe and Ito's
colours (jfly.uni-koeln.de/color), darkened where they were too pale for text on white.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuwise.errors import require
from gpuwise.text import escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

INK, MUTED, GRID, PAPER = "#1f2430", "#5b6270", "#d5d9e0", "#fdfdfe"
SERIES = ("#0060a8", "#c14a00", "#007a5a", "#b0478a", "#8a6d00", "#0b7fae", "#6b4fbb", "#5c6670")
GOOD, BAD = "#00724f", "#b3261e"
DARK = {
    INK: "#e8eaf0",
    MUTED: "#a9b0bd",
    GRID: "#3a404c",
    PAPER: "#15181e",
    **dict(zip(SERIES, ("#6cb6ff", "#ff9a57", "#43cfa4", "#f08cc8", "#e6c34a", "#5fd0f5", "#b8a1ff", "#b4bdc9"), strict=True)),
    GOOD: "#4fd6a5",
    BAD: "#ff8a80",
}
"""Every colour a figure may use, and what it is on a dark screen."""
DASHES = (
    "solid",
    (0, (5, 2)),
    (0, (2, 1.5)),
    (0, (6, 2, 1.5, 2)),
    (0, (1, 1)),
    (0, (8, 3)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (4, 4)),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
WIDTH_IN, SMALL, FONT = 5.2, 8.5, 9.5
"""Drawn narrow, so that its text is still readable on a telephone."""
FAMILIES = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gpuwise",
    "font.family": "DejaVu Sans",
    "font.size": FONT,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "axes.labelsize": SMALL,
    "axes.titlesize": FONT,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": SMALL,
    "lines.linewidth": 1.8,
    "axes.unicode_minus": False,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
}


@dataclass(frozen=True, slots=True)
class Drawing:
    """One figure. ``caption`` is printed under it; ``description`` states its contents in words for screen readers, inside
    ``svg``."""

    key: str
    title: str
    caption: str
    description: str
    svg: str


def draw(
    key: str, title: str, caption: str, height_in: float, paint: Callable[[Figure], None], figures_in_words: str = ""
) -> Drawing:
    """Let ``paint`` fill a figure and turn it into SVG.

    ``key`` is the id of the figure in its page; ``figures_in_words`` are the values it shows. Raises MissingExtraError
    without matplotlib.
    """
    description = f"{caption} {figures_in_words}".strip()
    require("matplotlib", "a figure")
    from matplotlib import rc_context  # pyright: ignore[reportUnknownVariableType]
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH_IN, height_in))
        canvas = FigureCanvasSVG(figure)
        paint(figure)
        figure.patch.set_alpha(0.0)
        for axes in figure.axes:
            axes.patch.set_alpha(0.0)
        out = io.StringIO()
        canvas.print_svg(out, metadata={"Date": None, "Creator": None})
    return Drawing(key, title, caption, description, _clean(out.getvalue(), key, title, description))


def stand_alone(drawings: list[Drawing]) -> str:
    """One SVG file of all drawings below one another."""
    sizes = [_size(d.svg) for d in drawings]
    width, height = max(w for w, _ in sizes), sum(h for _, h in sizes)
    parts, y = list[str](), 0.0
    for d, (_, h) in zip(drawings, sizes, strict=True):
        parts.append(d.svg.replace("<svg ", f'<svg y="{y:g}" width="{width:g}" height="{h:g}" ', 1))
        y += h
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}pt" height="{height:g}pt">\n'
        f"<style>{dark_style()}</style>\n{''.join(parts)}</svg>\n"
    )


def dark_style() -> str:
    """CSS that gives every colour its dark counterpart on a dark screen, and not on paper."""
    rules = "".join(
        f'[style*="fill: {light}"]{{fill:{dark}!important}}[style*="stroke: {light}"]{{stroke:{dark}!important}}'
        for light, dark in DARK.items()
    )
    return f"@media screen and (prefers-color-scheme:dark){{{rules}}}"


def _size(svg: str) -> tuple[float, float]:
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert box is not None
    return float(box[1]), float(box[2])


def _clean(svg: str, key: str, title: str, description: str) -> str:
    """Without prologue, fixed size or metadata; ids made unique to the figure; with title and description."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    box = re.search(r'viewBox="([^"]+)"', body)
    assert box is not None
    body = re.sub(r'(\bid="|href="#|url\(#)(?=[^")])', rf"\g<1>{key}-", body)
    body = body.replace("'DejaVu Sans'", FAMILIES)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{box[1]}" role="img" '
        f'aria-labelledby="{key}-title {key}-desc">\n<title id="{key}-title">{escape(title)}</title>\n'
        f'<desc id="{key}-desc">{escape(description)}</desc>'
    )
    return head + body[body.index(">") + 1 :].rstrip() + "\n"


def margins(
    figure: Figure, *, left: float = 0.72, right: float = 0.28, top: float = 0.12, bottom: float = 0.5, gap: float = 0.0
) -> None:
    """Room around the axes in inches, and ``gap`` between panels; set by hand, for laying out by measuring all text
    costs more than drawing."""
    height = figure.get_figheight()
    n = max(1, len(figure.axes))
    panel = (height - top - bottom - gap * (n - 1)) / n
    figure.subplots_adjust(
        left=left / WIDTH_IN, right=1 - right / WIDTH_IN, top=1 - top / height, bottom=bottom / height, hspace=gap / panel
    )


def legend_below(figure: Figure, axes: Axes, columns: int = 2) -> float:
    """The legend under the axes, where it covers no data; returns its height in inches."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return 0.0
    columns = min(columns, len(labels))
    figure.legend(handles, labels, loc="lower center", ncols=columns, handlelength=2.4, borderaxespad=0.1, labelspacing=0.4)
    return 0.08 + 0.178 * math.ceil(len(labels) / columns)


def tick_labels(text: Callable[[float], str]) -> FuncFormatter:
    """A formatter of an axis that labels each tick with ``text`` of its value."""
    from matplotlib.ticker import FuncFormatter

    def label(value: float, position: int | None) -> str:
        return text(value)

    return FuncFormatter(label)


def room_for(names: list[str] | tuple[str, ...]) -> float:
    """Inches that the longest of ``names`` takes beside an axis."""
    return 0.2 + 0.076 * max(len(n) for n in names)


def colour(i: int) -> str:
    """The colour of series ``i``."""
    return SERIES[i % len(SERIES)]
