"""Sentences of a comparison."""

from __future__ import annotations

import datetime

from gpuwise.pick.compare.comparison import compare_accelerators

TODAY = datetime.date(2026, 11, 21)


def test_what_costs_the_same_is_not_called_cheaper() -> None:
    same, other = "h100-sxm-80gb", "l4"
    said = " ".join(compare_accelerators([same, same], today=TODAY).verdict)
    assert "arithmetic costs the same on both" in said and "cheapest" not in said
    assert "arithmetic is cheapest on" in " ".join(compare_accelerators([same, other], today=TODAY).verdict)


def test_an_order_on_paper_is_told_only_where_it_is_another() -> None:
    """H100 and H200 have one peak; the L40S has a higher one than the A100 and delivers less."""
    assert "on paper" not in " ".join(compare_accelerators(["h100-sxm-80gb", "h200", "b200"], today=TODAY).verdict)
    assert "on paper the order is L40S" in " ".join(compare_accelerators(["l40s", "a100-sxm-80gb"], today=TODAY).verdict)
