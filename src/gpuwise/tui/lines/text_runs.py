"""Terminal-independent content of a screen: lines of runs. Pure; needs neither textual nor rich.

A run is ``(text, role, action)``. The role is its meaning (``bad``, ``dim``, ``bar``); :mod:`gpuwise.tui.lines.palette` maps
it to a colour. The action, if any, is the effect of a click on the run (``sort:memory``, ``card:3``).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from gpuwise.units import DAY_S, GIGA, HOUR_S, KIB, KILO, MEGA, MINUTE_S

UNKNOWN = "–"
"""Shown for a reading that is not there; the details of the card say why."""
FULL, HALF, EMPTY = "━", "╸", "─"

Run = tuple[str, str, str]


class Line(NamedTuple):
    """One line of a panel."""

    runs: tuple[Run, ...] = ()
    back: str = ""
    """Role of its background: ``selected``, ``heading`` or none."""
    action: str = ""
    """Action of a click anywhere on it, if the run under the pointer has none."""


BLANK = Line()


def run(text: str, role: str = "", action: str = "") -> Run:
    """A run of text with its role and action."""
    return (text, role, action)


def line(*runs: Run, back: str = "", action: str = "") -> Line:
    """A line of runs."""
    return Line(tuple([r for r in runs if r[0]]), back, action)


_narrow = re.compile(r"[ -~\u00a1-\u02ff\u2500-\u25ff\u2800-\u28ff–…•↑↓→←✖✕]*").fullmatch
"""One column each: Latin, what bars, frames and charts are drawn with, and our own marks."""


@lru_cache(1024)
def _wide(text: str) -> int:
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def width_of(text: str) -> int:
    """Columns the text takes on a terminal."""
    return len(text) if text.isascii() or _narrow(text) else _wide(text)


def cut(text: str, width: int) -> str:
    """At most ``width`` columns; what is cut off is an ellipsis."""
    if width <= 0:
        return ""
    if text.isascii() or _narrow(text):
        return text if len(text) <= width else text[: width - 1] + "…"
    if width_of(text) <= width:
        return text
    characters: list[str] = []
    used = 0
    for c in text:
        w = width_of(c)
        if used + w > width - 1:
            break
        characters.append(c)
        used += w
    return "".join(characters) + "…"


def left(text: str, width: int) -> str:
    """Exactly ``width`` columns, from the left."""
    if text.isascii() and len(text) <= width:
        return text.ljust(width)
    text = cut(text, width)
    return text + " " * (width - width_of(text))


def right(text: str, width: int) -> str:
    """Exactly ``width`` columns, from the right."""
    if text.isascii() and len(text) <= width:
        return text.rjust(width)
    text = cut(text, width)
    return " " * (width - width_of(text)) + text


def clip(of: Line, width: int) -> Line:
    """The line in at most ``width`` columns."""
    if line_width(of) <= width:
        return of
    used, runs = 0, list[Run]()
    for text, role, action in of.runs:
        room = width - used
        if room <= 0:
            break
        w = width_of(text)
        if w > room:
            text, w = cut(text, room), room
        runs.append((text, role, action))
        used += w
    return Line(tuple(runs), of.back, of.action)


def line_width(of: Line) -> int:
    # one text, because reading its parts costs more than joining
    """Columns that the line takes."""
    return width_of("".join([text for text, _, _ in of.runs]))


def spread(before: Sequence[Run], after: Sequence[Run], width: int, *, back: str = "", fill: str = " ") -> Line:
    """``before`` at the left and ``after`` at the right of ``width`` columns; what has no room is cut from ``before``."""
    used = line_width(Line(tuple(after)))
    if used > width:
        return clip(Line(tuple(after), back), width)
    head = clip(Line(tuple(before)), max(0, width - used - 1))
    gap = width - used - line_width(head)
    return Line((*head.runs, (fill * gap, "dim" if fill != " " else "", ""), *after), back)


@lru_cache(256)
def wrap(text: str, width: int) -> tuple[str, ...]:
    """Words of ``text`` in lines of ``width`` columns; a longer word is broken."""
    if (text.isascii() or _narrow(text)) and len(text) <= width:
        return (" ".join(text.split()),)
    out, now = list[str](), ""
    for word in text.split():
        while width_of(word) > width > 0:
            room = width - (width_of(now) + 1 if now else 0)
            if room < 4 and now:
                out.append(now)
                now, room = "", width
            n = max(1, min(len(word), room))
            while n > 1 and width_of(word[:n]) > room:
                n -= 1
            out.append(f"{now} {word[:n]}".strip())
            now, word = "", word[n:]
        if not now:
            now = word
        elif width_of(now) + 1 + width_of(word) <= width:
            now = f"{now} {word}"
        else:
            out.append(now)
            now = word
    return (*out, now) if now or not out else tuple(out)


def bar(share: float | None, width: int, role: str = "bar") -> tuple[Run, ...]:
    """A bar in steps of half a column; an unknown share is an empty track. What is more than nothing shows."""
    if width <= 0:
        return ()
    if share is None or share != share:
        return ((EMPTY * width, "track", ""),)
    halves = round(min(1.0, max(0.0, share)) * width * 2)
    if share > 0 and halves == 0:
        halves = 1
    full, part = divmod(halves, 2)
    filled, rest = FULL * full + HALF * part, width - full - part
    return tuple(r for r in ((filled, role, ""), (EMPTY * rest, "track", "")) if r[0])


def percent(share: float | None) -> str:
    """A share as a percentage."""
    return UNKNOWN if share is None else f"{share * 100:.0f}%"


def watts(value: float | None) -> str:
    """Watts as text."""
    return UNKNOWN if value is None else f"{value:.0f}"


def celsius(value: float | None) -> str:
    """Degrees Celsius as text."""
    return UNKNOWN if value is None else f"{value:.0f}°C"


def mhz(value: float | None) -> str:
    """Hertz as text in MHz."""
    return UNKNOWN if value is None else f"{value / MEGA:.0f}"


def short_bytes(n: float | None) -> str:
    """Four characters and a letter, powers of 1024: ``61.2G``, ``812M``."""
    if n is None:
        return UNKNOWN
    value, unit = float(n), "B"
    for unit in "BKMGTP":
        if value < 999.5 or unit == "P":
            break
        value /= KIB
    return f"{value:.0f}{unit}" if value >= 99.95 or unit == "B" or value == 0 else f"{value:.1f}{unit}"


def short_rate(bytes_per_s: float | None) -> str:
    """Powers of 1000, per second: ``3.4G``, ``210M``."""
    if bytes_per_s is None:
        return UNKNOWN
    for size, unit in ((GIGA, "G"), (MEGA, "M"), (KILO, "K")):
        if bytes_per_s >= 0.9995 * size:
            value = bytes_per_s / size
            return f"{value:.0f}{unit}" if value >= 99.95 else f"{value:.1f}{unit}"
    return f"{bytes_per_s:.0f}"


def clock_words(seconds: float | None) -> str:
    """A process's age as ``ps`` has it: ``4:05``, ``3:12:45``, ``2d 03h``."""
    if seconds is None:
        return UNKNOWN
    s = max(0, int(seconds))
    if s >= DAY_S:
        return f"{s // int(DAY_S)}d {s % int(DAY_S) // int(HOUR_S):02d}h"
    hours, rest = divmod(s, int(HOUR_S))
    minutes, s = divmod(rest, int(MINUTE_S))
    return f"{hours}:{minutes:02d}:{s:02d}" if hours else f"{minutes}:{s:02d}"
