"""Devices and work that exist only in tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.machine.bench.cases import CASES, BenchCase
from gpuwise.machine.bench.prepared_case import Check, PreparedCase
from gpuwise.machine.bench.subjects import Subject

RIGHT = Check(True, 0.1, "all")


def card(index: int = 0, name: str = "h100-sxm-80gb", **more: Any) -> Subject:
    """A GPU of the catalogue."""
    known = accelerators()[name]
    return Subject("cuda", index, known.name, f"GPU-{index}", accelerator=known, **more)


def case_of(key: str) -> BenchCase:
    return next(c for c in CASES if c.key == key)


def timed(
    seconds: Iterable[float],
    amount: float,
    *,
    check: Callable[[], Check | None] = lambda: RIGHT,
    digest: Callable[[], object] | None = None,
    conditions: Mapping[str, Any] | None = None,
) -> PreparedCase:
    """Work whose samples are given; the last one repeats."""
    left = list(seconds)

    def sample() -> float:
        return left.pop(0) if len(left) > 1 else left[0]

    return PreparedCase(sample, amount, check, conditions=conditions or {}, digest=digest)


def flop_of(case: BenchCase) -> float:
    p = case.parameters
    return 2.0 * p["m"] * p["n"] * p["k"]
