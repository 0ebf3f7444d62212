"""A place in a document, and what stands there as text: the unit is in the name of the field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast
from urllib.parse import urlencode

from gpuwise.report.page import Markup, TableCell, Text, text
from gpuwise.text import capital, escape
from gpuwise.units import chance, format_bytes, format_count, format_duration, format_kwh, format_rate, format_usd, speed_words

SHARES = (
    "occupancy",
    "active_lanes",
    "own_wins",
    "mfu",
    "hfu",
    "share",
    "goodput",
    "gain",
    "kv_fill",
    "utilisation",
    "cheapest_share",
    "of_expected",
)
"""Fields that are shares of one."""
BASIS = {
    "measured": "measured on this very setup",
    "fitted": "kernels fitted on this accelerator, software costs on published runs",
    "derived": "kernels taken from its family, software costs from published runs",
    "specified": "in part from specifications, where no kernel of its kind was measured on such an accelerator",
    "extrapolated": "beyond anything measured",
}
"""What an estimate is based on, in a sentence."""
SECONDS = {"parts": "parts_s", "families": "families_s", "seconds": "seconds_s"}
"""Parts of a step in seconds whose name does not tell it."""
LEAST_SHARE = 0.001
PLAIN = 100_000
"""Whole numbers below are written out."""


@dataclass(frozen=True, slots=True)
class At:
    """A place in ``document``: ``pointer`` is its JSON pointer (RFC 6901), ``value`` what stands there, if anything."""

    value: Any
    pointer: str = ""

    def __getitem__(self, key: str | int) -> At:
        value: Any = self.value
        inner: Any = None
        if isinstance(value, dict):
            inner = cast("dict[str, Any]", value).get(str(key))
        elif isinstance(value, list | tuple) and isinstance(key, int):
            items = cast("Sequence[Any]", value)
            inner = items[key] if key < len(items) else None
        return At(inner, f"{self.pointer}/{_step(key)}")

    def __bool__(self) -> bool:
        return self.value is not None and self.value != [] and self.value != {} and self.value != ()

    def __iter__(self) -> Iterator[At]:
        """The members of a list."""
        return (self[i] for i in range(len(self.value or ())))

    def items(self) -> list[tuple[str, At]]:
        """Names and places of an object's members."""
        return [(key, self[key]) for key in cast("dict[str, Any]", self.value or {})]

    @property
    def name(self) -> str:
        """The last name of the pointer that is not one of an interval's, nor a part's of a sum."""
        return _name(self.pointer)

    @property
    def expected(self) -> At:
        """Of an interval its middle, else this."""
        if not isinstance(self.value, dict):
            return self
        middle = self["expected"]
        return self if middle.value is None else middle

    @property
    def number(self) -> float:
        """The (expected) number here; 0.0 where there is none, for drawing."""
        value = self.expected.value
        return float(value) if isinstance(value, int | float) else 0.0

    @property
    def text(self) -> str:
        """The value here as a person reads it."""
        place = self.expected
        return words(place.name, place.value)


@lru_cache(8192)
def _step(key: str | int) -> str:
    """A step of a pointer."""
    return str(key).replace("~", "~0").replace("/", "~1")


@lru_cache(8192)
def _name(pointer: str) -> str:
    names = [
        SECONDS.get(n, n.partition("_by_")[0])
        for n in pointer.split("/")
        if n not in ("expected", "low", "high") and not n.isdigit()
    ]
    return next((n for n in reversed(names) if n.endswith(("_s", "_bytes", "_usd"))), names[-1]) if names else ""


def words(name: str, value: Any) -> str:
    """``value`` of the field ``name`` as text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float):
        return "..."
    if name == "slower":
        return speed_words(value)
    if name == "fit_probability":
        return chance(value)
    if name == "headroom_bytes":
        return f"{format_bytes(abs(value))} {'free' if value >= 0 else 'too much'}"
    if name in SHARES or name.endswith("_share"):
        if abs(value) >= 10:
            return f"{100 * value:,.0f} %"
        return f"{100 * value:.3g} %" if abs(value) >= LEAST_SHARE or not value else f"under {100 * LEAST_SHARE:g} %"
    if name == "bytes" or name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_usd") or name.startswith(("usd", "cost_")):
        return format_usd(value)
    if name.endswith("_s") and "_per_s" not in name:
        return format_duration(value)
    for end, unit in (("flop_per_s", "FLOP/s"), ("bytes_per_s", "B/s")):
        if name.endswith(end):
            return format_rate(value, unit)
    if name.endswith("_w"):
        return f"{value:,.0f} W"
    if name in ("kwh", "energy_kwh"):
        return format_kwh(value)
    if float(value).is_integer() and abs(value) < PLAIN:
        return f"{value:,.0f}"
    return format_count(value) if abs(value) >= PLAIN else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def shown(place: At) -> Markup:
    """The value here with where it is, as HTML."""
    at = place.expected
    if isinstance(at.value, int | float) and not isinstance(at.value, bool):
        return placed(at, words(at.name, at.value))
    return Markup(escape(at.text))


def placed(place: At, said: str) -> Markup:
    """A number as ``said``, with its value and where it is."""
    return Markup(f'<data value="{place.value!r}" data-path="{_escaped(place.pointer)}">{escape(said)}</data>')


_escaped = lru_cache(8192)(escape)
"""For pointers: documents of a kind have the same ones."""


def spread(place: At) -> Text:
    """The 80 % interval here; nothing where there is none."""
    low, high = place["low"], place["high"]
    if low.value is None or high.value is None or low.value == high.value:
        return ""
    return Markup(f"{shown(low).html} to {shown(high).html}")


def cell(place: At, *, small: Text | None = None, mark: str = "") -> TableCell:
    """The value here in a table, over its interval."""
    return TableCell(shown(place), spread(place) if small is None else small, mark)


def button(words: Text, query: Mapping[str, str]) -> Markup:
    """What asks again with these options on a live page, and is text on others."""
    return Markup(f'<button type="button" data-set="{escape(urlencode(query))}">{text(words)}</button>')


def tiles(figures: Sequence[tuple[str, At]]) -> str:
    """Figures with their names, side by side."""
    items = "".join(f"<div><dt>{escape(t)}</dt><dd>{shown(p).html}</dd></div>" for t, p in figures if p.value is not None)
    return f'<dl class="tiles">{items}</dl>\n'


CHOOSE = ": choose a point"
"""What the title of points says where they can be chosen."""


def inert(body: str) -> str:
    """An answer without what only the live page can do: buttons and tick boxes are text, points are pictures."""
    body = re.sub(r'<button[^>]*data-set="[^"]*"[^>]*>(.*?)</button>', r"\1", body)
    body = re.sub(r'<label for="[^"]*"><input[^>]*data-tick="[^"]*"[^>]*> *(.*?)</label>', r"\1", body)
    body = re.sub(r' data-set="[^"]*" tabindex="0" role="button"', ' role="img"', body)
    return re.sub(r' data-set="[^"]*"', "", body).replace(CHOOSE, "")


def sentences(place: At) -> list[str]:
    """The texts of a list, each with a capital letter."""
    return [capital(str(v)) for v in place.value or ()]


_CODE = re.compile("`([^`]+)`")


def coded(words: str) -> str:
    """HTML of a sentence with commands between backticks."""
    return _CODE.sub(r"<code>\1</code>", escape(words))
