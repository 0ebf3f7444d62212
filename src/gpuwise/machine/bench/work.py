"""What a family makes ready for one case on one device, and how its answer is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpuwise.errors import GpuwiseError
from gpuwise.records.record import Value


class NotHereError(GpuwiseError):
    """This device or this software has no such operation; ``message`` says what is missing. Not a failure."""


@dataclass(frozen=True, slots=True)
class Check:
    """An answer against its reference. ``error`` is the largest error over its bound: at most 1 is correct."""

    correct: bool
    error: float
    what: str
    """What was compared: ``4,096 elements and every column's sum``."""


def _nothing() -> None:
    """The default of ``close``."""


@dataclass(frozen=True, slots=True)
class Work:
    """A case made ready."""

    sample: Callable[[], float]
    """Runs it and returns seconds of one execution."""
    amount: float
    """FLOP, bytes or items of one execution."""
    check: Callable[[], Check | None]
    """Of the answer the last execution left; None where there is nothing to compare."""
    close: Callable[[], None] = _nothing
    conditions: Mapping[str, Value] = field(default_factory=dict[str, Value])
    """How it was timed, as it is kept with the result."""
    digest: Callable[[], object] | None = None
    """Runs it once and returns the answer for a comparison bit by bit; None where the family has none."""
