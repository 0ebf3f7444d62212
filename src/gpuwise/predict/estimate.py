"""An estimate: a value with an interval and a basis. There is no default basis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import date
from enum import Enum
from functools import cache
from statistics import NormalDist
from typing import Any, Literal, cast

from gpuwise.interval import Z80

Basis = Literal["measured", "fitted", "derived", "specified", "extrapolated"]
"""Basis of an answer, best first: a measurement of this very case; coefficients fitted on this device; on its family
(derived); specification only; outside the measured range."""
_ORDER: tuple[Basis, ...] = ("measured", "fitted", "derived", "specified", "extrapolated")


def weakest(*bases: Basis) -> Basis:
    """The basis of a sum: that of its weakest part."""
    return max(bases, key=_ORDER.index)


LEAST_PROBABILITY = 1e-6
"""No prediction is surer than this."""


def fit_probability(expected: float, log_sigma: float, limit: float) -> float:
    """Probability that a value stays within ``limit``: its logarithm is normal around that of ``expected`` with ``log_sigma``.
    Never exactly 0 or 1."""
    p = NormalDist().cdf(math.log(limit / expected) / log_sigma)
    return min(max(p, LEAST_PROBABILITY), 1.0 - LEAST_PROBABILITY)


@dataclass(frozen=True, slots=True)
class Estimate:
    """``low`` and ``high`` bound the central 80 %."""

    low: float
    expected: float
    high: float
    basis: Basis

    @classmethod
    def from_log_sigma(cls, expected: float, log_sigma: float, basis: Basis, *, log_bias: float = 0.0) -> Estimate:
        """Log-normal interval: ``expected * exp(+-1.28 sigma)``. ``log_sigma`` is the residuals' standard deviation."""
        centre = expected * math.exp(log_bias)
        spread = math.exp(Z80 * log_sigma)
        return cls(centre / spread, centre, centre * spread, basis)

    @property
    def log_sigma(self) -> float:
        """Half the width of the interval in standard deviations of the logarithm; ``low`` must be above zero."""
        return math.log(self.high / self.low) / (2.0 * Z80)

    def scaled(self, factor: float) -> Estimate:
        """The estimate times ``factor``; a negative one swaps the ends of the interval."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Estimate(low, self.expected * factor, high, self.basis)

    def widened(self, log_sigma: float) -> Estimate:
        """The interval with a second, independent doubt of ``log_sigma``."""
        if not log_sigma:
            return self
        return Estimate.from_log_sigma(self.expected, math.hypot(self.log_sigma, log_sigma), "extrapolated")

    def bounded_below(self, least: float) -> Estimate:
        """The interval without what no value can be under; the middle stays."""
        return Estimate(min(max(self.low, least), self.expected), self.expected, self.high, self.basis)

    def at_least(self, least: float) -> Estimate:
        """The estimate, no part of which is under ``least``."""
        return Estimate(max(self.low, least), max(self.expected, least), max(self.high, least), self.basis)

    def inverse(self, count: float = 1.0) -> Estimate:
        """``count`` over the value, both ends swapped: the seconds of an amount to a rate, a rate to seconds."""
        return Estimate(count / self.high, count / self.expected, count / self.low, self.basis)

    def _repr_html_(self) -> str:
        """HTML for a notebook, without a unit, which is not known here."""
        return f"{self.expected:.4g} <small>{self.low:.4g} to {self.high:.4g}, {self.basis}</small>"

    def as_dict(self) -> dict[str, float | str]:
        """The 80 % interval, its middle and the basis as a document has them."""
        return {"low": self.low, "expected": self.expected, "high": self.high, "basis": self.basis}


_PLAIN = frozenset({type(None), str, bool, int, float})


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


def to_document(value: object) -> object:
    """``value`` as JSON: an estimate as ``{low, expected, high, basis}``, what knows its own document by ``as_dict``, another
    dataclass by its fields, an enumeration by its name in lower case, a date as ISO 8601, arrays and tuples as lists."""
    kind = type(value)
    if kind in _PLAIN:  # nearly all of a document
        return value
    if kind is Estimate:
        return cast(Estimate, value).as_dict()
    if isinstance(value, str | bool | int | float) and not isinstance(value, Enum):
        return value
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {str(k): v if type(v) in _PLAIN else to_document(v) for k, v in items}
    if hasattr(value, "as_dict"):
        return to_document(cast(Any, value).as_dict())
    if is_dataclass(value):
        items = [(name, getattr(value, name)) for name in _field_names(kind)]
        return {name: v if type(v) in _PLAIN else to_document(v) for name, v in items}
    if isinstance(value, date):
        return value.isoformat()
    if hasattr(value, "tolist"):
        return to_document(cast(Any, value).tolist())
    return [v if type(v) in _PLAIN else to_document(v) for v in cast("Iterable[object]", value)]
