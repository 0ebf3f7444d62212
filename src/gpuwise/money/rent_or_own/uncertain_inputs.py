"""Uncertain numbers of a cost comparison: 10th, 50th and 90th percentile, and a source.

Defaults are in ``data/economics.toml``; the user's own figure replaces one, as a single number or a range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import DataError, FieldError, InputError
from gpuwise.facts.loading import Field, parse_toml
from gpuwise.facts.operations import Quantity
from gpuwise.interval import Z80

Array = NDArray[np.floating]
"""Numbers by scenario, month or both, as the docstring of each use states."""

DATA = Path(__file__).parent.parent / "data"
_SCHEMA = {
    "low": Field("number", minimum=0.0),
    "expected": Field("number", minimum=0.0),
    "high": Field("number", minimum=0.0),
    "most": Field("number", required=False),
    "unit": Field("text"),
    "label": Field("text"),
    "source": Field("text"),
    "note": Field("text", required=False),
}


@dataclass(frozen=True, slots=True)
class UncertainInput:
    """One uncertain number: ``low`` and ``high`` bound its central 80 %, ``expected`` is its median."""

    name: str
    low: float
    expected: float
    high: float
    unit: str
    label: str
    """Label in a table."""
    source: str
    """A key of ``sources.csv``, or ``given`` for a person's own figure."""
    most: float = math.inf
    """Upper bound (of a share: 1)."""
    note: str = ""

    def __post_init__(self) -> None:
        ordered = 0 <= self.low <= self.expected <= self.high <= self.most
        if not (ordered and math.isfinite(self.high)):
            raise InputError(
                f"{self.label}: {self.low:g}, {self.expected:g}, {self.high:g} are not a low, a middle and a high value"
                + (f" up to {self.most:g}" if math.isfinite(self.most) else ""),
                hint="give one number, or a range like 150-250",
            )

    @property
    def is_exact(self) -> bool:
        """Whether it has no spread."""
        return self.low == self.high

    def at(self, score: Array | float) -> Array:
        """Its value at a standard normal ``score``: log-normal on either side of the median, through all
        three percentiles, cut at ``most``. Where ``low`` is zero it is normal on that side, cut at 0.
        """
        z = np.asarray(score)
        kind = z.dtype.type if z.dtype.kind == "f" else np.float64
        if self.is_exact:
            return np.full_like(z, self.expected, dtype=kind)
        logarithmic = self.low > 0
        if logarithmic:
            down, up = math.log(self.expected / self.low) / Z80, math.log(self.high / self.expected) / Z80
        else:
            down, up = (self.expected - self.low) / Z80, (self.high - self.expected) / Z80
        moved = z * np.where(z < 0, kind(down), kind(up))
        value = self.expected * np.exp(moved) if logarithmic else np.maximum(self.expected + moved, 0.0)
        return np.minimum(value, self.most)

    def with_range(self, low: float, high: float | None = None) -> UncertainInput:
        """The same input with a person's own figure: one number, or a range around its geometric middle."""
        top = low if high is None else high
        middle = low if top == low else (math.sqrt(low * top) if low > 0 else (low + top) / 2)
        return UncertainInput(self.name, low, middle, top, self.unit, self.label, "given", self.most, "")

    def as_dict(self) -> dict[str, object]:
        """The 80 % range, its middle, unit and source as a document has them."""
        return {
            "low": self.low,
            "expected": self.expected,
            "high": self.high,
            "unit": self.unit,
            "source": self.source,
        }


def number(name: str, value: float, unit: str, label: str) -> UncertainInput:
    """A known number, given by a person."""
    return UncertainInput(name, value, value, value, unit, label, "given")


def from_quantity(
    name: str, quantity: Quantity, label: str, *, most: float = math.inf, scale: float = 1.0, unit: str = ""
) -> UncertainInput:
    """A fact of :mod:`gpuwise.facts.operations` as an uncertain input, multiplied by ``scale``."""
    low, middle, high = quantity.low * scale, quantity.expected * scale, quantity.high * scale
    return UncertainInput(name, low, middle, high, unit or quantity.unit, label, quantity.source_key, most, quantity.note)


@cache
def economics() -> Mapping[str, UncertainInput]:
    """The shipped uncertain inputs by name. Raises DataError when the file is corrupt."""
    file = "economics.toml"
    try:
        records = parse_toml((DATA / file).read_text(encoding="utf-8"), _SCHEMA, file)
        by_name = {
            name: UncertainInput(
                name,
                r.number("low"),
                r.number("expected"),
                r.number("high"),
                r.text("unit"),
                r.text("label"),
                r.text("source"),
                r.maybe("most") or math.inf,
                r.text("note"),
            )
            for name, r in records.items()
        }
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the file {file} cannot be read: {error}", hint="reinstall gpuwise") from error
    except (FieldError, InputError) as error:
        raise DataError(error.message, hint=error.hint) from error
    return MappingProxyType(by_name)
