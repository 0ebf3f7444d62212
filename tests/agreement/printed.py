"""Numbers of a screen, and whether the document has them: a second reading of the text, beside the places it was made from."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

NUMBER = re.compile(
    r"(?<![\w.>])(\$?)-?(\d(?:[\d,]*\d)?(?:\.\d+)?)([kKMBTG]?)(?!\w|\.\d)(?: to \$?-?[\d,.]+[kKMBTG]?)? ?(%|[A-Za-z]+(?:/\w+)?)?"
)
UNITS: dict[str, tuple[float, ...]] = {
    "%": (100.0, 1.0),
    **{unit: (1024.0**-i,) for i, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))},
    **{
        f"{p}{unit}": (10.0**-e,)
        for unit in ("B", "B/s", "FLOP/s")
        for p, e in (("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15))
    },
    "s": (1.0,),
    "ms": (1e3,),
    "us": (1e6,),
    "min": (1 / 60,),
    "h": (1 / 3600, 1.0),
    "days": (1 / 86400, 1.0),
    "years": (1 / 12, 1 / (365.25 * 86400), 1.0),
    "requests/min": (60.0,),
    "requests/h": (3600.0,),
    "MWh": (1e-3, 1.0),
    "Wh": (1e3, 1.0),
    "mJ": (1e3,),
    "mWh": (1e6, 1e3),
}
"""By a printed unit, factors from what a document has."""
LETTERS = {"": 1.0, "k": 1e-3, "K": 1e-3, "M": 1e-6, "G": 1e-9, "B": 1e-9, "T": 1e-12}
NO_QUANTITIES = re.compile(r"\b80 % interval|\b80 %$|\b80 % {2,}|^ *80 %|within .{0,9}80 %|\b\d+ more$")
"""The width of all intervals, in titles of columns, and how many entries of a list a line leaves out."""


def flat(document: Any) -> Iterator[float | str]:
    """Numbers, texts and lengths of lists of a document."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield key
            yield from flat(value)
    elif isinstance(document, list):
        yield float(len(document))
        for value in document:
            yield from flat(value)
    elif isinstance(document, (int, float)) and not isinstance(document, bool):
        yield float(document)
    elif isinstance(document, str):
        yield document


def unknown_numbers(screen: str, document: Any, words: Sequence[str]) -> list[str]:
    """Numbers of ``screen`` that are neither, within rounding and in any unit they may have, in ``document``, nor in its texts or
    the question's ``words``; each with its line."""
    every = list(flat(document))
    values = sorted({abs(v) for v in every if isinstance(v, float)})
    ratios = [1 / (1 + v) - 1 for v in (v for v in every if isinstance(v, float)) if -1 < v < 0]  # of "slower": so much faster
    texts = {n for t in (*(v for v in every if isinstance(v, str)), *words) for n in re.findall(r"\d(?:[\d,]*\d)?(?:\.\d+)?", t)}
    values = sorted({*values, *map(abs, ratios)})
    unknown: list[str] = []
    for line in screen.splitlines():
        for match in NUMBER.finditer(NO_QUANTITIES.sub("", line)):
            usd, number, letter, unit = match.groups()
            if number not in texts and not any(_has(values, number, f) for f in _factors(usd, letter, unit)):
                unknown.append(f"{match[0]!r} in {line!r}")
    return unknown


def _factors(usd: str, letter: str, unit: str | None) -> Iterator[float]:
    if usd:
        yield from (LETTERS[letter], 1000 * LETTERS[letter])  # a PFLOP's dollars as an EFLOP's
    elif letter:
        yield LETTERS[letter]
    else:
        yield from UNITS.get(unit or "", (1.0, 100.0, 1000.0, 1 / 3600))


def _has(values: Sequence[float], number: str, factor: float) -> bool:
    """Whether a value times ``factor`` rounds to ``number``, or down to it: as many decimals, or three digits of a large one."""
    shown = float(number.replace(",", ""))
    decimals = len(number.partition(".")[2])
    half = max(10.0**-decimals, 10.0 ** (len(str(int(shown))) - 3) if not decimals else 0.0) * 0.501
    i = bisect_left(values, (shown - half) / factor)
    return i < len(values) and values[i] <= (shown + 2 * half) / factor
