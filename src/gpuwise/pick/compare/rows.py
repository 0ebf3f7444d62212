"""Structure of a comparison: subjects side by side, rows of cells, each cell with its source.

A cell has an SI value (or words), its 80 % interval if predicted, and its ``kind``: for a fact that of its source (``vendor``,
``measured``, ``rule``, ``third-party``, ``estimate``, ``offer``), for a prediction its basis (``fitted``, ``derived``,
``specified``, ``extrapolated``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.predict.estimate import Estimate
from gpuwise.units import format_bytes, format_duration, format_rate, format_usd

Better = Literal["higher", "lower", ""]
TIE = 0.005
"""Values closer than this share are shown alike, so none of them is called the better one."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One column: ``asked`` is what the person wrote."""

    asked: str
    cluster: Cluster

    @property
    def accelerator(self) -> Accelerator:
        return self.cluster.accelerator

    @property
    def count(self) -> int:
        return self.cluster.n_accelerators

    @property
    def name(self) -> str:
        """``"RTX 4090"`` or ``"8x H100 SXM5 80GB"``."""
        return self.accelerator.name if self.count == 1 else f"{self.count}x {self.accelerator.name}"


@dataclass(frozen=True, slots=True)
class Cell:
    """``value`` None means unknown or not applicable; ``words`` then gives the reason, otherwise a remark. ``source`` is a key
    of ``facts/data/sources.csv`` or a description of the computation."""

    value: float | None = None
    words: str = ""
    kind: str = ""
    source: str = ""
    weak: bool = False
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, estimate: Estimate, source: str, words: str = "") -> Cell:
        """A prediction."""
        weak = estimate.basis in ("specified", "extrapolated")
        return cls(estimate.expected, words, estimate.basis, source, weak, estimate.low, estimate.high)


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure of every subject. ``unit`` is a unit of :func:`say`; ``better`` is which end is."""

    key: str
    title: str
    section: str
    unit: str
    better: Better
    cells: tuple[Cell, ...]

    @property
    def best(self) -> tuple[int, ...]:
        """Columns with the best value, ties included; empty if fewer than two are known or all are equal."""
        values = [(i, c.value) for i, c in enumerate(self.cells) if c.value is not None]
        if not self.better or len(values) < 2:
            return ()
        top = (max if self.better == "higher" else min)(v for _, v in values)
        tied = tuple(i for i, v in values if abs(v - top) <= TIE * abs(top))
        return () if len(tied) == len(values) else tied

    @property
    def ratios(self) -> tuple[float | None, ...]:
        """Value over the first column's; None where either is unknown or the row has no better end."""
        first = self.cells[0].value
        if not self.better or not first:
            return (None,) * len(self.cells)
        return tuple(None if c.value is None else c.value / first for c in self.cells)

    def ahead(self, i: int, j: int) -> float | None:
        """How many times better column ``i`` is than ``j``; below 1 when it is worse."""
        a, b = self.cells[i].value, self.cells[j].value
        if not a or not b or not self.better:
            return None
        return a / b if self.better == "higher" else b / a


def say(unit: str, value: float) -> str:
    """``value`` in words, by ``unit``: ``B``, ``s``, ``$``, ``$/h``, ``W``, ``count``, ``year``, ``%``, ``x``, a
    rate (``FLOP/s``, ``OP/s``, ``B/s``, ``token/s``), or any other, which follows three digits."""
    if unit == "B":
        return format_bytes(value)
    if unit == "s":
        return format_duration(value)
    if unit.startswith("$"):
        return format_usd(value) + unit[1:]
    if unit in ("FLOP/s", "OP/s", "B/s", "FLOP/J", "B/J"):
        return format_rate(value, unit)
    if unit == "year":
        return f"{value:.0f}"
    if unit == "%":
        return f"{100 * value:.0f} %"
    if unit in ("count", "tokens/s", "W") and value >= 100:
        return f"{value:,.0f}" + ("" if unit == "count" else f" {unit}")
    number = format_rate(value, "") if value < 1000 else f"{value:,.0f}"
    return number.strip() if unit == "count" else f"{number.strip()} {unit}"


def say_span(unit: str, low: float, high: float) -> str:
    """``"436 to 512 tokens/s"``: the unit once where both ends share it."""
    first, last = say(unit, low), say(unit, high)
    number, space, name = first.partition(" ")
    return f"{number} to {last}" if space and last.endswith(f" {name}") else f"{first} to {last}"


def find_row(rows: Sequence[FigureRow], key: str) -> FigureRow | None:
    """The row called ``key``."""
    return next((r for r in rows if r.key == key), None)
