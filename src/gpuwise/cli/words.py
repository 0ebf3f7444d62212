"""Estimates in words: the expected value with its 80 % interval."""

from __future__ import annotations

from collections.abc import Callable

from gpuwise.predict.estimate import Estimate


def between(value: Estimate, say: Callable[[float], str]) -> str:
    """``"1.13 days (0.95 to 1.35 days)"``."""
    return f"{say(value.expected)} ({span(value, say)})"


def span(value: Estimate, say: Callable[[float], str]) -> str:
    """``"0.95 to 1.35 days"``: the unit once when both ends share it."""
    low, high = say(value.low), say(value.high)
    unit_low, unit_high = low.split(" ", 1)[1:], high.split(" ", 1)[1:]
    if unit_low and unit_low == unit_high:
        return f"{low.split(' ', 1)[0]} to {high}"
    if low.endswith("%") and high.endswith("%"):
        return f"{low.rstrip(' %')} to {high}"
    return f"{low} to {high}"


def percent(share: float) -> str:
    """``share`` as a percentage: no decimal from a tenth upwards, else one."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def plain(value: float) -> str:
    """A count with thousands separators."""
    return f"{value:,.0f}"


METERS = {
    "energy counter": "the GPU's own counter",
    "integrated power": "the driver's power over time",
    "RAPL": "the processor's own counters (RAPL)",
}
"""How the energy of a run was measured, in words."""
