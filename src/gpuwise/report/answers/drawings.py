"""Bars, points and lines as SVG, by hand: colours by class, so that a page without inline style shows them, in light and dark."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpuwise.report.answers.values import CHOOSE, At, shown
from gpuwise.report.colours import BAD, DARK, GOOD, GRID, INK, MUTED, SERIES
from gpuwise.text import escape
from gpuwise.units import (
    DAY_S,
    GIB,
    GIGA,
    HOUR_S,
    KILO,
    MEGA,
    MIB,
    MICRO,
    MILLI,
    MINUTE_S,
    PETA,
    TERA,
    TIB,
    format_bytes,
    format_duration,
    format_rate,
)

WIDTH, HEIGHT = 560.0, 260.0
LEAST_PART = 1e-6
"""Of a bar: what is less is rounding of a sum."""
_XMLNS = 'xmlns="http://www.w3.org/2000/svg"'
LEFT, RIGHT, TOP, BOTTOM = 64.0, 16.0, 14.0, 44.0
"""Room around what is drawn, for the axes' text."""


def style() -> str:
    """CSS of every class used here, for light and dark."""
    inks = {f"f{i}": c for i, c in enumerate(SERIES)} | {"ink": INK, "muted": MUTED, "good": GOOD, "bad": BAD}
    light = "".join(f".{name}{{fill:{c}}}.l-{name}{{stroke:{c};fill:none}}" for name, c in inks.items())
    dark = "".join(f".{name}{{fill:{DARK[c]}}}.l-{name}{{stroke:{DARK[c]}}}" for name, c in inks.items())
    return (
        f"svg text{{font:12px system-ui,sans-serif;fill:{MUTED}}}.grid{{stroke:{GRID};stroke-width:1}}.line{{stroke-width:2}}"
        f".track{{fill:{GRID};fill-opacity:.5}}{light}@media (prefers-color-scheme:dark){{svg text{{fill:{DARK[MUTED]}}}"
        f".grid{{stroke:{DARK[GRID]}}}.track{{fill:{DARK[GRID]}}}{dark}}}"
    )


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a bar."""

    name: str
    place: At


def figure(key: str, title: str, body: str, description: str, height: float, caption: str = "") -> str:
    """A figure with its title; the description is what a screen reader reads in place of the drawing."""
    inside = drawing(WIDTH, height, description, body)
    return f'<figure id="{key}"><figcaption><b>{escape(title)}</b></figcaption>{inside}{caption}</figure>\n'


def drawing(width: float, height: float, description: str, body: str, more: str = "") -> str:
    """An SVG that a screen reader reads as its description; ``more`` are further attributes."""
    more = f" {more}" if more else ""
    return f'<svg {_XMLNS} viewBox="0 0 {width:g} {height:g}"{more} role="img" aria-label="{escape(description)}">{body}</svg>'


def colour(i: int) -> str:
    """Class of the i-th part: the series' colours, then greys."""
    return f"f{i}" if i < len(SERIES) else ("ink", "muted")[i % 2]


def mark(i: int) -> str:
    """A square in the colour of part ``i``, for the list of names."""
    return f'<svg class="mark" viewBox="0 0 10 10" aria-hidden="true"><rect class="{colour(i)}" width="10" height="10"/></svg>'


def bar(
    key: str, title: str, parts: Sequence[Part], whole: At, limit: At | None = None, colours: Sequence[str] = (), rest: str = ""
) -> str:
    """One bar of parts, on a scale to ``limit`` (a line) or to the whole, whichever is more; every part by name below. The names
    of ``colours`` have the first colours, in their order. Parts are shares of one where what ``rest`` names is left."""
    numbers = [p.place.number for p in parts]
    total = sum(numbers)
    visible = [(p, n) for p, n in zip(parts, numbers, strict=True) if n > LEAST_PART * total]
    names = list(dict.fromkeys([*colours, *(p.name for p, _ in visible)]))
    most = max(total, limit.number if limit is not None else float(bool(rest))) or 1.0
    x, legend = 0.0, list[str]()
    pieces = [f'<rect class="track" x="0" y="4" width="{WIDTH:g}" height="34"/>'] if total < most else []
    for p, number in visible:
        i, wide, name = names.index(p.name), number / most * WIDTH, escape(p.name)
        pieces.append(
            f'<rect class="{colour(i)}" x="{x:.2f}" y="4" width="{max(wide - 1, 0.5):.2f}" height="34">'
            f"<title>{name}: {escape(p.place.text)}</title></rect>"
        )
        legend.append(f"<li>{mark(i)} {name} {shown(p.place).html}</li>")
        x += wide
    if rest:
        legend.append(f"<li>{mark(0).replace(colour(0), 'track')} {escape(rest)}</li>")
    words = f"{title}: {whole.text}"
    if limit is not None:
        at = limit.number / most * WIDTH
        ink = "l-bad" if total > limit.number else "l-ink"
        pieces.append(f'<line class="{ink} line" x1="{at - 1:.2f}" x2="{at - 1:.2f}" y1="0" y2="42"/>')
        words += f" of {limit.text}"
    head = f"{escape(title)}: {shown(whole).html}" + (f" of {shown(limit).html}" if limit is not None else "")
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} 42" preserveAspectRatio="none" class="bar" role="img" '
        f'aria-label="{escape(words)}">{"".join(pieces)}</svg>'
    )
    return f'<figure id="{key}"><figcaption><b>{head}</b></figcaption>{svg}<ul class="legend">{"".join(legend)}</ul></figure>\n'


def ticks(low: float, high: float, n: int = 5) -> list[float]:
    """Round numbers from ``low`` to ``high``."""
    span = (high - low) or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(span / n))
    step *= next(m for m in (1, 2, 5, 10) if span / (step * m) <= n)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def si(value: float) -> str:
    """A number with the prefix of its size."""
    return format_rate(value, "").strip()


UNITS: Mapping[Callable[[float], str], Sequence[tuple[float, str]]] = {
    si: ((1.0, ""), (KILO, "k"), (MEGA, "M"), (GIGA, "G"), (TERA, "T"), (PETA, "P")),
    format_bytes: ((MIB, "MiB"), (GIB, "GiB"), (TIB, "TiB")),
    format_duration: (
        *((MICRO, "us"), (MILLI, "ms"), (1.0, "s")),
        *((MINUTE_S, "min"), (HOUR_S, "h"), (DAY_S, "days"), (365.25 * DAY_S, "years")),
    ),
}
"""Of an axis whose ticks are written so: they are round numbers of one of these."""


def labels(low: float, high: float, text: Callable[[float], str], n: int = 5) -> list[tuple[float, str]]:
    """Round ticks from ``low`` to ``high`` with their text, all in one unit."""
    unit = _unit(high, text)
    if unit is None:
        return [(v, text(v)) for v in ticks(low, high, n)]
    size, name = unit
    return [(v * size, f"{v:,.6g} {name}") for v in ticks(low / size, high / size, n)]


def _unit(value: float, text: Callable[[float], str]) -> tuple[float, str] | None:
    """The largest in which ``value`` is at least 1 (a time: 2)."""
    least = 2.0 if text is format_duration else 1.0
    sizes = UNITS.get(text)
    return None if sizes is None else next((s for s in reversed(sizes) if value >= least * s[0]), sizes[0])


@dataclass(frozen=True, slots=True)
class Axis:
    """``low`` to ``high``, named; ``text`` writes a value, and where the axis is ``logarithmic`` the power of ten of one."""

    title: str
    low: float
    high: float
    text: Callable[[float], str]
    logarithmic: bool = False

    def labels(self) -> list[tuple[float, str]]:
        """Ticks with their text: round numbers, or powers of ten."""
        if not self.logarithmic:
            return labels(self.low, self.high, self.text)
        ticks = ((e, 10.0**e, _unit(10.0**e, self.text)) for e in self._exponents())
        return [(e, self.text(v) if unit is None else f"{v / unit[0]:,.3g} {unit[1]}") for e, v, unit in ticks]

    def words(self, value: float) -> str:
        """A value of the axis as text."""
        return self.text(10.0**value if self.logarithmic else value)

    def _exponents(self) -> list[float]:
        """Whole ones where there are two, else those of 1, 2 and 5."""
        whole = [float(e) for e in range(math.ceil(self.low), math.floor(self.high) + 1)]
        if len(whole) > 1:
            return whole[:: math.ceil(len(whole) / 6)]
        finer = (e + math.log10(m) for e in range(math.floor(self.low), math.ceil(self.high)) for m in (1, 2, 5))
        return [e for e in finer if self.low <= e <= self.high]

    def share(self, value: float) -> float:
        return (value - self.low) / ((self.high - self.low) or 1.0)


def around(
    title: str, values: Sequence[float], text: Callable[[float], str], *, zero: bool = False, logarithmic: bool = False
) -> Axis:
    """An axis that holds ``values`` with some room."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    low = min(low, 0.0) if zero else low
    room = 0.06 * (high - low) or 0.06 * abs(high) or 1.0
    return Axis(title, low if zero and low == 0.0 else low - room, high + room, text, logarithmic)


def axis_below(end: float, text: Callable[[float], str], y: float) -> str:
    """Ticks from nothing to ``end`` under what is drawn down to ``y``."""
    wide = WIDTH - LEFT - RIGHT
    placed = ((LEFT + v / end * wide, words) for v, words in labels(0.0, end, text))
    return "".join(_tick(x, y + 16, words) for x, words in placed)


def _tick(x: float, y: float, words: str) -> str:
    """Words under a place of an axis, the last of them within the picture, the first beside the words of the other axis."""
    if x < LEFT + RIGHT:
        return f'<text x="{x:.1f}" y="{y:g}">{escape(words)}</text>'
    if x > WIDTH - 2 * RIGHT:
        return f'<text x="{WIDTH:g}" y="{y:g}" text-anchor="end">{escape(words)}</text>'
    return f'<text x="{x:.1f}" y="{y:g}" text-anchor="middle">{escape(words)}</text>'


def _frame(x: Axis, y: Axis) -> str:
    out = list[str]()
    for v, words in y.labels():
        at = _y(y, v)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(words)}</text>')
    for v, words in x.labels():
        out.append(_tick(_x(x, v), HEIGHT - BOTTOM + 16, words))
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 5}" text-anchor="middle">{escape(x.title)}</text>')
    out.append(f'<text x="4" y="{TOP}">{escape(y.title)}</text>')
    return "".join(out)


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.share(value) * (HEIGHT - TOP - BOTTOM - 14)


@dataclass(frozen=True, slots=True)
class Dot:
    """A point; ``sets`` is the query that choosing it asks, nothing where it cannot be chosen."""

    x: float
    y: float
    words: str
    sets: str = ""
    chosen: bool = False


def points(key: str, title: str, x: Axis, y: Axis, dots: Sequence[Dot]) -> str:
    """Points one can choose, by mouse or keyboard."""
    body = _frame(x, y)
    for d in dots:
        act = f' data-set="{escape(d.sets)}" tabindex="0" role="button" aria-label="{escape(d.words)}"' if d.sets else ""
        at = f'cx="{_x(x, d.x):.1f}" cy="{_y(y, d.y):.1f}"'
        ink, size = ("f1", 8) if d.chosen else ("f0", 6)
        body += (
            f'<g{act}><circle class="{ink}" {at} r="{size}"/><circle class="hit" {at} r="16" fill="none" pointer-events="all"/>'
        )
        body += f"<title>{escape(d.words)}</title></g>"
    described = f"{title}. " + "; ".join(d.words for d in dots)
    drawn = figure(key, title + (CHOOSE if any(d.sets for d in dots) else ""), body, described, HEIGHT)
    return drawn.replace('role="img"', 'role="group"', 1)  # what can be chosen in it is not part of a picture


@dataclass(frozen=True, slots=True)
class Line:
    """A series by name."""

    name: str
    points: Sequence[tuple[float, float]]


def lines(
    key: str,
    title: str,
    x: Axis,
    y: Axis,
    series: Sequence[Line],
    marks: Sequence[tuple[float, str]] = (),
    dots: Sequence[Dot | None] = (),
    below: Sequence[str] = (),
) -> str:
    """Lines with their names and sentences ``below``, upright marks with a word, and for each line a dot in its colour."""
    body = _frame(x, y)
    for at, word in marks:
        place = _x(x, at)
        body += (
            f'<line class="l-bad" stroke-dasharray="4 3" x1="{place:.1f}" x2="{place:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        )
        body += f'<text x="{place - 4:.1f}" y="{TOP + 12}" text-anchor="end">{escape(word)}</text>'
    legend = list[str]()
    for i, s in enumerate(series):
        path = " ".join(f"{_x(x, a):.1f},{_y(y, b):.1f}" for a, b in s.points)
        body += f'<polyline class="l-f{i % len(SERIES)} line" points="{path}"/>'
        legend.append(f"<li>{mark(i)} {escape(s.name)}</li>")
    body += _readings(
        x, y, {a: [(s.name, b) for s in series for at, b in s.points if at == a] for s in series for a, _ in s.points}
    )
    for i, dot in enumerate(dots):
        if dot is not None:
            at = f'cx="{_x(x, dot.x):.1f}" cy="{_y(y, dot.y):.1f}"'
            body += f'<circle class="f{i % len(SERIES)}" {at} r="6"><title>{escape(dot.words)}</title></circle>'
    described = f"{title}. " + "; ".join(d.words for d in dots if d is not None) + (". " if dots else "")
    described += "; ".join(f"{s.name}: {y.words(s.points[0][1])} to {y.words(s.points[-1][1])}" for s in series if s.points)
    legend += [f"<li>{escape(sentence)}</li>" for sentence in below]
    return figure(key, title, body, described, HEIGHT, f'<ul class="legend">{"".join(legend)}</ul>')


def _readings(x: Axis, y: Axis, values: Mapping[float, Sequence[tuple[str, float]]]) -> str:
    """Unseen bands around each place of ``values`` that say its values by name, as wide as to the middles between places."""
    at = sorted(values)
    ends = [LEFT, *(_x(x, (a + b) / 2) for a, b in itertools.pairwise(at)), WIDTH - RIGHT]
    made = ""
    for place, start, stop in zip(at, ends, ends[1:], strict=False):
        words = f"{x.words(place)} {x.title}: " + ", ".join(f"{name} {y.words(value)}" for name, value in values[place])
        box = f'x="{start:.1f}" width="{max(stop - start, 0.1):.1f}" y="{TOP}" height="{HEIGHT - TOP - BOTTOM}"'
        made += f'<rect class="hit" fill="none" pointer-events="all" {box}><title>{escape(words)}</title></rect>'
    return made


@dataclass(frozen=True, slots=True)
class Layer:
    """A part of a sum as it changes, by name."""

    name: str
    heights: Sequence[float]


def layers(
    key: str,
    title: str,
    x: Axis,
    y: Axis,
    at: Sequence[float],
    stack: Sequence[Layer],
    over: Layer | None = None,
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """Parts on top of each other from below, each from its moment to the next; a line ``over`` them; marks with their words
    along the top."""
    body = _frame(x, y)

    def stairs(heights: Sequence[float]) -> list[tuple[float, float]]:
        """Corners, left to right."""
        ends = [*at[1:], x.high]
        return [p for a, b, h in zip(at, ends, heights, strict=True) for p in ((_x(x, a), _y(y, h)), (_x(x, b), _y(y, h)))]

    below = [0.0] * len(at)
    legend = list[str]()
    for i, layer in enumerate(stack):
        top = [a + b for a, b in zip(below, layer.heights, strict=True)]
        corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*stairs(top), *reversed(stairs(below))])
        body += f'<polygon class="{colour(i)}" points="{corners}"><title>{escape(layer.name)}</title></polygon>'
        legend.append(f"<li>{mark(i)} {escape(layer.name)}</li>")
        below = top
    if over is not None:
        corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in stairs(over.heights))
        body += f'<polyline class="l-ink line" points="{corners}"/>'
        legend.append(f"<li>line: {escape(over.name)}</li>")
    ends = list[float]()  # of the words of each row, left to right: one that has no room goes a row down
    for place, word in marks:
        across = _x(x, place)
        body += (
            f'<line class="l-ink" stroke-dasharray="4 3" x1="{across:.1f}" x2="{across:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        )
        wide = WORD * len(word) + 8
        away, anchor, start = (-4, "end", across - wide) if across > WIDTH - 100 else (4, "start", across)
        row = next((i for i, end in enumerate(ends) if end <= start), len(ends))
        ends[row : row + 1] = [start + wide]
        body += f'<text x="{across + away:.1f}" y="{TOP + 20 * row}" text-anchor="{anchor}">{escape(word)}</text>'
    text = "; ".join(f"{s.name} up to {y.words(max(s.heights))}" for s in [*stack, *([over] if over else [])] if s.heights)
    return figure(key, title, body, f"{title}. {text}", HEIGHT, f'<ul class="legend">{"".join(legend)}</ul>')


WORD = 10.0
"""Width of a letter at its largest, on a telephone."""
ROW, ROW_GAP = 20.0, 8.0
"""Height of a row of parts, and between two."""


def stacks(key: str, title: str, rows: Sequence[tuple[str, Sequence[Part]]], text: Callable[[float], str]) -> str:
    """A row of parts for each name, on one axis from nothing; parts of a name have one colour."""
    if not rows:
        return ""
    most = max(sum(p.place.number for p in parts) for _, parts in rows) or 1.0
    names = list(dict.fromkeys(p.name for _, parts in rows for p in parts if p.place.number > 0))
    wide = WIDTH - LEFT - RIGHT
    y, body = 6.0, ""
    for name, parts in rows:
        body += f'<text x="{LEFT:g}" y="{y + 9:g}">{escape(name)}</text>'
        x, y = LEFT, y + 14
        for p in parts:
            size = p.place.number / most * wide
            if size > 0:
                ink = colour(names.index(p.name))
                place = f'x="{x:.2f}" y="{y:g}" width="{max(size, 0.5):.2f}" height="{ROW:g}"'
                body += f'<rect class="{ink}" {place}><title>{escape(f"{name}, {p.name}: {p.place.text}")}</title></rect>'
            x += max(size, 0.0)
        y += ROW + ROW_GAP
    body += axis_below(most, text, y)
    legend = "".join(f"<li>{mark(i)} {escape(n)}</li>" for i, n in enumerate(names))
    texts = (f"{name}: " + ", ".join(f"{p.name} {p.place.text}" for p in parts) for name, parts in rows)
    return figure(key, title, body, f"{title}. " + "; ".join(texts), y + 24, f'<ul class="legend">{legend}</ul>')


def ranges(key: str, title: str, rows: Sequence[tuple[str, At, At]], base: At, text: Callable[[float], str]) -> str:
    """A tornado: for each name a bar from the outcome at its low end to that at its high end, a half in the colour of each; the
    widest first, beside the expected outcome."""
    rows = sorted(rows, key=lambda r: -abs(r[2].number - r[1].number))[:10]
    axis = around("", [0.0, base.number, *(v.number for r in rows for v in r[1:])], text)
    high = 34.0 * len(rows) + 34
    body = "".join(
        f'<text x="{_x(axis, v):.1f}" y="{high - 8}" text-anchor="middle">{escape(words)}</text>'
        for v, words in labels(axis.low, axis.high, text, 4)
    )
    middle, zero = _x(axis, base.number), _x(axis, 0.0)
    for i, (name, low, top) in enumerate(rows):
        y = 34.0 * i + 6
        half = _x(axis, (low.number + top.number) / 2)
        for j, end in enumerate((low, top)):
            at = _x(axis, end.number)
            box = f'x="{min(at, half):.1f}" y="{y + 14}" width="{abs(at - half):.1f}" height="12"'
            body += f'<rect class="f{j}" {box}><title>{escape(name)}: {escape(end.text)}</title></rect>'
        body += f'<text x="4" y="{y + 9}">{escape(name)}</text>'
    body += f'<line class="l-ink" x1="{middle:.1f}" x2="{middle:.1f}" y1="0" y2="{high - 24}"/>'
    body += f'<line class="grid" stroke-dasharray="4 3" x1="{zero:.1f}" x2="{zero:.1f}" y1="0" y2="{high - 24}"/>'
    described = f"{title}, {base.text} expected. " + "; ".join(f"{n}: {a.text} to {b.text}" for n, a, b in rows)
    named = f"<li>{mark(0)} at its low end</li><li>{mark(1)} at its high end</li>"
    named += "<li>each alone, the others at their middle; solid line: mean of all scenarios, dashed: zero</li>"
    return figure(key, f"{title}: {base.text} expected", body, described, high, f'<ul class="legend">{named}</ul>')


def lanes(key: str, title: str, rows: Sequence[tuple[str, Sequence[tuple[float, float]]]], end_s: float) -> str:
    """A lane for each name with its pieces, from when to when in seconds, on one axis from nothing to ``end_s``."""
    wide, y, body = WIDTH - LEFT - RIGHT, 6.0, ""
    for i, (name, pieces) in enumerate(rows):
        body += f'<text x="{LEFT:g}" y="{y + 9:g}">{escape(name)}</text>'
        y += 14
        for start, stop in pieces:
            place = f'x="{LEFT + start / end_s * wide:.2f}" width="{max((stop - start) / end_s * wide, 0.3):.2f}"'
            words = f"{name}: {format_duration(start)} to {format_duration(stop)}"
            body += f'<rect class="{colour(i)}" {place} y="{y:g}" height="10"><title>{escape(words)}</title></rect>'
        y += 18
    body += axis_below(end_s, format_duration, y)
    return figure(key, title, body, f"{title}. Lanes: " + ", ".join(name for name, _ in rows), y + 24)


def bars(key: str, title: str, rows: Sequence[tuple[str, At, At]], text: Callable[[float], str]) -> str:
    """A bar from nothing for each name, with its interval (``low`` and ``high`` of the last) as a line through its end."""
    if not rows:
        return ""
    most = max(max(p.number, e["high"].number if e["high"] else 0.0) for _, p, e in rows) or 1.0
    body = ""
    for i, (name, p, ends) in enumerate(rows):
        y, wide = 34.0 * i + 6, p.number / most * (WIDTH - 4)
        body += f'<text x="4" y="{y + 9}">{escape(f"{name}: {text(p.number)}")}</text>'
        words = f"{name}: {text(p.number)}"
        if ends["low"] and ends["high"]:
            words += f", {text(ends['low'].number)} to {text(ends['high'].number)}"
        body += (
            f'<rect class="f0" x="4" y="{y + 14}" width="{max(wide, 0.5):.1f}" height="12"><title>{escape(words)}</title></rect>'
        )
        if ends["low"] and ends["high"]:
            low, high = (4 + ends[end].number / most * (WIDTH - 4) for end in ("low", "high"))
            body += f'<line class="l-ink" x1="{low:.1f}" x2="{high:.1f}" y1="{y + 20}" y2="{y + 20}"/>'
    described = f"{title}. " + "; ".join(f"{name} {text(p.number)}" for name, p, _ in rows)
    return figure(key, title, body, described, 34.0 * len(rows) + 8)


CELL = 18.0
PALE, FULL = 0.04, 0.5
"""Of the first colour, behind a cell of nothing and of the most: the text on it stays readable in both looks."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Shares of one: ``shares[row][column]``, the names of rows and columns, and the query that choosing a cell asks."""

    rows: Sequence[str]
    columns: Sequence[str]
    shares: Sequence[Sequence[At]]
    sets: Callable[[str, str], str]
    here: tuple[int, int]
    """Row and column that are nearest to what was asked."""


def heat(key: str, title: str, across: str, g: Grid) -> str:
    """A table of shares in percent, the darker the more."""
    wide = (WIDTH - LEFT - RIGHT) / len(g.columns)
    body = "".join(
        f'<text x="{LEFT + (j + 0.5) * wide:.1f}" y="12" text-anchor="middle">{escape(name)}</text>'
        for j, name in enumerate(g.columns)
    )
    for i, (name, shares) in enumerate(zip(g.rows, g.shares, strict=True)):
        y = 18.0 + i * CELL
        body += f'<text x="{LEFT - 6}" y="{y + 13:g}" text-anchor="end">{escape(name)}</text>'
        for j, share in enumerate(shares):
            x, edge = LEFT + j * wide, ' class="l-ink"' if (i, j) == g.here else ""
            box = f'x="{x:.1f}" y="{y:g}" width="{wide - 1:.1f}" height="{CELL - 1:g}"'
            ink = PALE + (FULL - PALE) * min(max(share.number, 0.0), 1.0)
            body += f'<g data-set="{escape(g.sets(name, g.columns[j]))}"><rect class="f0" fill-opacity="{ink:.2f}" {box}/>'
            body += f'<rect{edge} fill="none" {box}/>' if edge else ""
            body += (
                f'<text class="ink" x="{x + wide / 2:.1f}" y="{y + 13:g}" text-anchor="middle">{100 * share.number:.0f}</text>'
            )
            body += f"<title>{escape(f'{name}, {g.columns[j]}: {share.text}')}</title></g>"
    described = f"{title}. " + "; ".join(
        f"{name}: " + ", ".join(s.text for s in shares) for name, shares in zip(g.rows, g.shares, strict=True)
    )
    high = 18.0 + CELL * len(g.rows) + 20
    body += f'<text x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{high - 4:g}" text-anchor="middle">{escape(across)}</text>'
    drawn = figure(key, title, body, described, high)
    # on a telephone it is wider than the screen, so that its numbers can be read, and moves by keys too
    return drawn.replace("<svg", '<div class="wide" tabindex="0"><svg', 1).replace("</svg>", "</svg></div>", 1)
