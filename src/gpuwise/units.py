"""Quantities: the only place that knows 1e9 from 2**30, parses what people type and formats for people.

Inside gpuwise everything is SI: seconds, bytes, bytes/s, FLOP, FLOP/s, watts, joules, US dollars.
"""

from __future__ import annotations

import math
import re
import time

from gpuwise.errors import InputError

KILO, MEGA, GIGA, TERA, PETA, EXA = 1e3, 1e6, 1e9, 1e12, 1e15, 1e18
KIB, MIB, GIB, TIB = 2.0**10, 2.0**20, 2.0**30, 2.0**40
MICRO, MILLI = 1e-6, 1e-3
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0
J_PER_KWH = 3.6e6

_BYTE_UNITS = {
    "b": 1.0,
    "kb": KILO,
    "mb": MEGA,
    "gb": GIGA,
    "tb": TERA,
    "pb": PETA,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
}
_COUNT_UNITS = {"": 1.0, "k": KILO, "m": MEGA, "b": GIGA, "g": GIGA, "t": TERA, "q": PETA}
_TIME_UNITS = {
    "us": MICRO,
    "ms": MILLI,
    "s": 1.0,
    "m": MINUTE_S,
    "min": MINUTE_S,
    "h": HOUR_S,
    "d": DAY_S,
    "day": DAY_S,
    "days": DAY_S,
    "w": 7 * DAY_S,
    "hours": HOUR_S,
    "hour": HOUR_S,
    "weeks": 7 * DAY_S,
}
_NUMBER = re.compile(
    r"\s*((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII
)
"""A number and its unit; commas part thousands, so that ``1,5B`` is not read as 15B."""
_NEGATIVE = re.compile(r"\s*\$?\s*[-\u2212]\s*\$?\s*[0-9.]")
LARGEST_COUNT = 1e15
"""Tokens, samples or requests: thirty times what the largest published run read (36 trillion tokens)."""
LONGEST_SEQUENCE = 100_000_000
"""Maximum tokens of one sequence: ten times the longest context claimed by a published model (10M)."""
LONGEST_S = 100 * 365.25 * DAY_S
LARGEST_USD = 1e12


def hint_for(text: str, example: str) -> str:
    """How to write what ``text`` was meant to be; a value below zero is called so."""
    return ("it is negative; " if is_negative(text) else "") + f"write it like {example}"


def is_negative(text: str) -> bool:
    """Whether ``text`` begins like a number below zero."""
    return _NEGATIVE.match(text) is not None


def _parse(text: str, table: dict[str, float], what: str, example: str) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None or match[2].lower() not in table:
        raise InputError(f"{text!r} is not {what}", hint=hint_for(text, example))
    value = float(match[1].replace("_", "").replace(",", "")) * table[match[2].lower()]
    if not math.isfinite(value):
        raise InputError(f"{text!r} is too large for {what}", hint=f"write it like {example}")
    return value


def parse_bytes(text: str) -> float:
    """Bytes from ``"80GB"`` (decimal) or ``"80GiB"`` (binary). Raises InputError."""
    return _parse(text, _BYTE_UNITS, "a size in bytes", "80GB or 80GiB")


def parse_count(text: str) -> float:
    """A count from ``"15B"``, ``"1.5T"``, ``"300M"``, ``"2e9"`` (B = 1e9, T = 1e12). Raises InputError."""
    return _parse(text, _COUNT_UNITS, "a count", "15B, 300M or 2e9")


def parse_duration(text: str) -> float:
    """Seconds from ``"12h"``, ``"3d"``, ``"90min"``. Raises InputError."""
    return _parse(text, _TIME_UNITS, "a duration", "30s, 90min, 12h or 3d")


def format_bytes(n: float) -> str:
    """GiB for memory, as nvidia-smi and torch report it: ``"71.4 GiB"``."""
    for unit, size in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(n) >= size:
            return f"{_three(n / size)} {unit}"
    return f"{n:.0f} B"


def format_count(n: float) -> str:
    """``"8.03B"``, ``"15T"``, ``"124M"``."""
    for unit, size in (("T", TERA), ("B", GIGA), ("M", MEGA), ("K", KILO)):
        if abs(n) >= size:
            return f"{_three(n / size)}{unit}"
    return f"{n:.0f}"


def count_word(n: float) -> str:
    """A count as one writes it after an option, read back without loss: ``"15B"``, ``"1.5M"``, ``"1234567"``."""
    for unit, size in (("T", TERA), ("B", GIGA), ("M", MEGA)):
        if n >= size and n % (size / 1000) == 0:
            return f"{n / size:g}{unit}"
    return f"{n:.0f}"


def format_rate(n: float, unit: str) -> str:
    """An SI rate: ``format_rate(3.35e12, "B/s") == "3.35 TB/s"``."""
    for prefix, size in (("E", EXA), ("P", PETA), ("T", TERA), ("G", GIGA), ("M", MEGA), ("k", KILO)):
        if abs(n) >= size:
            return f"{_three(n / size)} {prefix}{unit}"
    return f"{_three(n)} {unit}"


def format_duration(seconds: float) -> str:
    """``"412 ms"``, ``"4.1 s"``, ``"3.2 h"``, ``"12.4 days"``; from 1,000 days on ``"4.1 years"``."""
    if seconds < MILLI:
        return f"{_three(seconds / MICRO)} us"
    if seconds < 1:
        return f"{_three(seconds / MILLI)} ms"
    if seconds < 2 * MINUTE_S:
        return f"{_three(seconds)} s"
    if seconds < 2 * HOUR_S:
        return f"{_three(seconds / MINUTE_S)} min"
    if seconds < 2 * DAY_S:
        return f"{_three(seconds / HOUR_S)} h"
    if seconds < 1000 * DAY_S:
        return f"{_three(seconds / DAY_S)} days"
    years = seconds / (365.25 * DAY_S)
    return f"{_three(years) if years < 1000 else f'{years:,.0f}'} years"


def format_day(unix_s: float) -> str:
    """``2026-11-27``, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(unix_s))


def format_measured(value: float, unit: str) -> str:
    """``703 TFLOP/s``, ``5.1 us``, ``1,240 /s``."""
    if unit == "s":
        return format_duration(value) if value >= 1 else (f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us")
    if unit == "1/s":
        return f"{value:,.0f} /s" if value >= 10 else f"{value:.2g} /s"
    return format_rate(value, unit)


def ordinal(n: int) -> str:
    """``"1st"``, ``"22nd"``, ``"3rd"``, ``"11th"``, ``"1,000th"``."""
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n:,}{ending}"


def format_usd(usd: float) -> str:
    """``"$412"``, ``"$1,204"``, ``"$0.0042"``, ``"-$412"``."""
    sign, usd = "-" if usd < 0 else "", abs(usd)
    if usd >= 100:
        return f"{sign}${usd:,.0f}"
    return f"{sign}${usd:.2f}" if usd >= 1 else f"{sign}${usd:.3g}"


def format_kwh(kwh: float) -> str:
    """``"627 kWh"``, ``"0.18 kWh"``, ``"2.1 GWh"``."""
    if kwh >= MEGA:
        return f"{kwh / MEGA:,.3g} GWh"
    return f"{kwh:,.0f} kWh" if kwh >= 10 else f"{kwh:.2g} kWh"


def format_number(x: float) -> str:
    """Three significant digits, never with an exponent above one: ``"0.0694"``, ``"27.1"``, ``"31,500"``."""
    return f"{x:.3g}" if abs(x) < 999.5 else f"{float(f'{x:.3g}'):,.0f}"


def _three(x: float) -> str:
    """Three significant digits without exponent."""
    if x == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(x))))
    text = f"{x:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text and digits > 1 else text


SMALL = 0.005
"""Below half a percent a change makes no difference worth a sentence."""


def percent(share: float) -> str:
    """``0.4 %``, ``12 %``, ``3.1x`` from a share."""
    if share >= 2:
        return f"{share + 1:.1f}x"
    return f"{100 * share:.1f} %" if abs(share) < 0.0995 else f"{100 * share:.0f} %"


def probability(p: float) -> str:
    """``62 %``; at the ends ``more than 99 %`` and ``less than 1 %``, since nothing is sure."""
    if p > 0.99:
        return "more than 99 %"
    return "less than 1 %" if p < 0.01 else f"{math.floor(100 * p + 1e-9)} %"


def chance(p: float) -> str:
    """``97 %`` in a column; ``>99 %`` at the end."""
    return probability(p).replace("more than ", ">").replace("less than ", "<")


def speed_words(slower: float | None, *, least: float = SMALL) -> str:
    """``12 % slower``, ``same`` (by less than ``least``), ``30 % faster`` from a ratio of times minus one: slowdown by time,
    speedup by speed; a dash without a time."""
    if slower is None:
        return "-"
    if abs(slower) < least:
        return "same"
    return f"{percent(slower)} slower" if slower > 0 else f"{percent(1 / (1 + slower) - 1)} faster"
