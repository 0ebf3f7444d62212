"""Answers of exercises as people type them: a number with or without a unit, and the slips of units among wrong ones."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from gpuwise.errors import InputError
from gpuwise.units import DAY_S, GIB, GIGA, HOUR_S, J_PER_KWH, KIB, KILO, MEGA, MIB, TERA, TIB

_NUMBER = re.compile(r"[~≈]?\s*([-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:e[-+]?\d+)?)\s*(.*)", re.IGNORECASE | re.DOTALL)
_DRIVER = re.compile(r"r?(\d{2,4})(?:\.\d+)*(?:\s+driver(?: series)?)?", re.IGNORECASE)
DRIVER = "driver series"
RATIOS = ("times", "workers", "tokens/s")
"""Units of which one over the truth is a known mistake."""
COUNTS = {"k": KILO, "m": MEGA, "b": GIGA, "t": TERA}
UNITS: Mapping[str, Mapping[str, float]] = {
    "GiB": {
        "GiB": 1.0,
        "MiB": MIB / GIB,
        "KiB": KIB / GIB,
        "TiB": TIB / GIB,
        "GB": GIGA / GIB,
        "MB": MEGA / GIB,
        "TB": TERA / GIB,
        "bytes": 1 / GIB,
    },
    "ms": {"ms": 1.0, "s": 1e3, "us": 1e-3, "min": 6e4, "seconds": 1e3},
    "percent": {"%": 1.0, "percent": 1.0},
    "kWh": {"kWh": 1.0, "Wh": 1e-3, "MWh": 1e3, "MJ": MEGA / J_PER_KWH, "GJ": GIGA / J_PER_KWH},
    "hours": {"hours": 1.0, "h": 1.0, "days": DAY_S / HOUR_S, "weeks": 7 * DAY_S / HOUR_S, "months": 730.5, "years": 8766.0},
    "times": {"times": 1.0, "x": 1.0},
    "tokens/s": {"tokens/s": 1.0, "tok/s": 1.0, "/s": 1.0, "tokens a second": 1.0},
    "million tokens": {
        "million tokens": 1.0,
        "tokens": 1e-6,
        "billion tokens": 1e3,
        "M": 1.0,
        "M tokens": 1.0,
        "B": 1e3,
        "B tokens": 1e3,
        "million": 1.0,
        "billion": 1e3,
    },
    "workers": {"workers": 1.0, "worker": 1.0},
    "billion parameters": {"billion parameters": 1.0, "billion": 1.0, "B": 1.0, "parameters": 1e-9, "million": 1e-3, "M": 1e-3},
}
"""Other accepted units by requested unit, with their size in it."""
SLIPS: Mapping[str, Sequence[tuple[float, str]]] = {
    "GiB": (
        (8.0, "are those bits? A byte has 8"),
        (1 / 8, "was it divided by 8? These are bytes already"),
        (2.0**30, "that is in bytes: GiB are asked"),
    ),
    "percent": ((0.01, "that is a share of 1: percent are asked"),),
    "ms": ((1e-3, "that is in seconds: ms are asked"), (1e3, "that is in microseconds: ms are asked")),
    "kWh": ((1e3, "that is in Wh: kWh are asked"), (1e-3, "that is in MWh: kWh are asked")),
    "hours": ((1 / 24, "that is in days: hours are asked"),),
    "million tokens": ((1e6, "that is in tokens: millions of them are asked"), (1e-3, "that is in billions: millions are asked")),
}
"""Ratio to the true value for answers in another unit, by requested unit."""
CLOSE = 1.07
"""A ratio this near to a slip's is taken for it."""


def read_answer(text: str, unit: str) -> float:
    """The number of an answer in ``unit``. Raises InputError for what is no number, or is of another kind."""
    if unit == DRIVER and (driver := _DRIVER.fullmatch(text.strip())):
        return float(driver[1])
    match = _NUMBER.fullmatch(text.strip())
    number = match[1].replace(",", "") if match else ""
    example = f"write it like 25 or 25 {unit}" if unit != DRIVER else "write it like 525"
    if match is None or not any(c.isdigit() for c in number):
        raise InputError(f"{text[:60]!r} is not a number of {unit}", hint=example)
    value, unit_text = float(number), " ".join(match[2].lower().split())
    units = UNITS.get(unit, {unit: 1.0})
    sizes = {"": 1.0, **COUNTS, **{name.lower(): size for name, size in units.items()}}
    if unit_text in sizes:
        return value * sizes[unit_text]
    understood = ", ".join(units)
    hint = (
        "write a point for the decimals: 12.5"
        if unit_text.startswith(",")
        else f"the question asks in {unit}; understood: {understood}"
    )
    raise InputError(f"{text[:60]!r} is not a number of {unit}", hint=hint)


def slip(ratio: float, unit: str, known: Sequence[tuple[float, str]]) -> str:
    """Explanation of a wrong answer from its ratio to the true value; may be empty."""
    near = [(max(ratio / at, at / ratio), words) for at, words in (*known, *SLIPS.get(unit, ()))]
    if unit == DRIVER:
        near = [(1.0, words) for off, words in near if off < 1.001]
    best = min(near, default=(CLOSE, ""))
    if best[0] < CLOSE:
        return best[1]
    power = round(math.log10(ratio))
    if power and abs(math.log(ratio / 10.0**power)) < math.log(CLOSE):
        other = abs(power) >= 3 and len(UNITS.get(unit, ())) > 2
        return "check the powers of ten" + (f", and that it is in {unit}" if other else "")
    return ""
