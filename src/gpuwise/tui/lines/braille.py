"""Charts of braille dots: two values to a column, four levels to a row, filled to the ground.

A value that is unknown (NaN) leaves its column empty, so that a gap in the readings is seen as one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

DOTS = 4
"""Levels of one row."""
PER_COLUMN = 2
_LEFT = (0x00, 0x40, 0x44, 0x46, 0x47)
_RIGHT = (0x00, 0x80, 0xA0, 0xB0, 0xB8)
CELLS = tuple(tuple(chr(0x2800 + _LEFT[a] + _RIGHT[b]) if a or b else " " for b in range(5)) for a in range(5))
"""Braille cells by the levels of the left and right value, 0 to 4 (Unicode, block 2800: dots 1-3, 7 left and 4-6, 8 right)."""


def plot(values: Sequence[float], low: float, high: float, width: int, height: int) -> list[str]:
    """The newest values in ``height`` rows of ``width`` columns, top row first. A value at ``low`` still shows one dot."""
    n, top = width * PER_COLUMN, height * DOTS
    shown = list(values[-n:]) if n else []
    span = high - low
    levels, scale = [0] * (n - len(shown)), top / span if span > 0 else 0.0
    for v in shown:
        if v != v:
            levels.append(0)
        else:
            level = round((v - low) * scale)
            levels.append(1 if level < 1 else top if level > top else level)
    rows = list[str]()
    for row in range(height):
        ground = (height - 1 - row) * DOTS
        levels_above = [0 if v <= ground else DOTS if v >= ground + DOTS else v - ground for v in levels]
        rows.append("".join([CELLS[levels_above[i]][levels_above[i + 1]] for i in range(0, n, 2)]))
    return rows


def squeeze(values: Sequence[float], n: int) -> list[float]:
    """Means of ``n`` values at a time, the newest group whole: NaN where a group has no value."""
    if n <= 1:
        return list(values)
    out, end = list[float](), len(values)
    while end > 0:
        group = [v for v in values[max(0, end - n) : end] if v == v]
        out.append(sum(group) / len(group) if group else math.nan)
        end -= n
    return out[::-1]
