"""A finding of the profiler: one waste, its evidence and its fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuwise.units import format_duration

Confidence = Literal["high", "medium", "low"]


OF_GAPS = ("small operations", "launch-bound")
"""Wastes seen as gaps between operations: other programs that take the processor in them make them longer."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation. ``count`` and ``seconds`` are those of a step."""

    what: str
    where: str = ""
    """``file:line``, if known."""
    count: float | None = None
    seconds: float | None = None

    @property
    def words(self) -> str:
        """In one line."""
        said = [self.what]
        if self.where:
            said.append(f"at {self.where}")
        if self.count is not None:
            said.append(f"{self.count:,.3g} a step")
        if self.seconds is not None:
            said.append(format_duration(self.seconds))
        return ", ".join(said)


@dataclass(frozen=True, slots=True)
class Finding:
    """One waste. ``saved_s`` is the estimated reduction of the step time in seconds when it is fixed."""

    kind: str
    """Short stable name."""
    title: str
    saved_s: float
    confidence: Confidence
    """``high``: timed or proved by a run; ``medium``: from times in the trace; ``low``: from counts, or a rate of the data
    sheet."""
    evidence: tuple[Evidence, ...]
    fix: tuple[str, ...]
    """Lines of code."""
    note: str = ""
    """Caution about the change."""
