"""A benchmark case prepared for one device: the function to time, the amount of work, and the check of its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpuwise.errors import GpuwiseError
from gpuwise.records.record import Value


class NotHereError(GpuwiseError):
    """This device or software lacks the operation; ``message`` names the missing part. Not a failure."""


@dataclass(frozen=True, slots=True)
class Check:
    """A result against its reference. ``error`` is the largest error divided by its bound: at most 1 is correct."""

    correct: bool
    error: float
    what: str
    """Description of the comparison: ``4,096 elements and every column's sum``."""


def _no_close() -> None:
    """The default of ``close``."""


@dataclass(frozen=True, slots=True)
class PreparedCase:
    """Result of a family's maker for one case on one device."""

    sample: Callable[[], float]
    """Runs the case and returns the seconds of one execution."""
    amount: float
    """FLOP, bytes or items of one execution: the unit of the case."""
    check: Callable[[], Check | None]
    """Checks the result of the last execution; returns None where there is no reference."""
    close: Callable[[], None] = _no_close
    conditions: Mapping[str, Value] = field(default_factory=dict[str, Value])
    """How it was timed, stored with the record."""
    digest: Callable[[], object] | None = None
    """Runs the case once and returns its result for a bitwise comparison; None where the family has no result."""
