from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.money.combine import exactly, product, sum_independent, sum_together
from gpuwise.predict.estimate import Estimate

positive = st.floats(1e-6, 1e6)


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    middle, down, up = draw(positive), draw(st.floats(1.0, 5.0)), draw(st.floats(1.0, 5.0))
    return Estimate(middle / down, middle, middle * up, "derived")


@given(st.lists(estimates(), min_size=1, max_size=6))
def test_sums_expect_the_sum_and_dependence_widens(parts: list[Estimate]) -> None:
    apart, together = sum_independent(parts), sum_together(parts)
    total = sum(p.expected for p in parts)
    assert apart.expected == pytest.approx(total) and together.expected == pytest.approx(total)
    assert apart.low <= apart.expected <= apart.high
    assert together.low <= apart.low * (1 + 1e-9) and apart.high <= together.high * (1 + 1e-9)


@given(st.lists(estimates(), min_size=1, max_size=5))
def test_products_expect_the_product(parts: list[Estimate]) -> None:
    found = product(parts)
    assert found.expected == pytest.approx(math.prod(p.expected for p in parts))
    assert found.low <= found.expected * (1 + 1e-12) and found.expected <= found.high * (1 + 1e-12)


@given(estimates(), positive)
def test_an_exact_factor_only_scales(value: Estimate, factor: float) -> None:
    found, scaled = product([value, exactly(factor)]), value.scaled(factor)
    assert found.low == pytest.approx(scaled.low) and found.high == pytest.approx(scaled.high)


def test_a_product_of_log_normals_is_the_textbook_one() -> None:
    a, b = (Estimate.from_log_sigma(x, s, "fitted") for x, s in ((3.0, 0.3), (5.0, 0.4)))
    both = Estimate.from_log_sigma(15.0, 0.5, "fitted")
    assert product([a, b]).low == pytest.approx(both.low) and product([a, b]).high == pytest.approx(both.high)


def test_zero_stays_zero_and_the_weakest_basis_wins() -> None:
    nothing = product([exactly(0.0), Estimate(1.0, 2.0, 3.0, "measured")])
    assert (nothing.low, nothing.expected, nothing.high) == (0.0, 0.0, 0.0)
    assert product([Estimate(0.0, 0.5, 1.0, "measured"), exactly(2.0)]).low == 0.0
    assert sum_together([exactly(1.0, "measured"), exactly(1.0, "extrapolated")]).basis == "extrapolated"
