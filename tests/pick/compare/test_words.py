"""Sentences of a comparison."""

from __future__ import annotations

import datetime

from gpuwise.pick.compare.comparison import compare_accelerators

TODAY = datetime.date(2026, 11, 21)


def test_what_costs_the_same_is_not_called_cheaper() -> None:
    same, other = "h100-sxm-80gb", "l4"
    said = " ".join(compare_accelerators([same, same], today=TODAY).verdict)
    assert "arithmetic costs the same on all of them" in said and "cheapest" not in said
    assert "arithmetic is cheapest on" in " ".join(compare_accelerators([same, other], today=TODAY).verdict)
