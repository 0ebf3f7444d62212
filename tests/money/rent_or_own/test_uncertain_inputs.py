from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.facts.sources import sources
from gpuwise.interval import Z80
from gpuwise.money.rent_or_own.uncertain_inputs import UncertainInput, economics, number

three = st.lists(st.floats(0.01, 1e6), min_size=3, max_size=3).map(sorted)


@given(three)
def test_an_input_goes_through_its_percentiles(values: list[float]) -> None:
    uncertain_input = UncertainInput("x", *values, "x", "x", "given")
    assert uncertain_input.at(np.array([-Z80, 0.0, Z80])) == pytest.approx(values)


@given(st.floats(-6, 6))
def test_a_share_stays_a_share(score: float) -> None:
    assert 0 <= float(UncertainInput("x", 0.0, 0.8, 1.0, "x", "x", "given", most=1.0).at(score)) <= 1


def test_every_shipped_input_has_a_known_source() -> None:
    found = economics()
    assert len(found) >= 15
    assert {d.source for d in found.values()} <= set(sources())
    assert all(d.low < d.high for d in found.values())


@pytest.mark.parametrize("values", [(2.0, 1.0, 3.0), (-1.0, 0.0, 1.0), (0.0, 1.0, float("inf")), (float("nan"),) * 3])
def test_disordered_values_are_refused(values: tuple[float, float, float]) -> None:
    with pytest.raises(InputError):
        UncertainInput("x", *values, "x", "x", "given")


def test_a_known_number_does_not_move() -> None:
    assert np.all(number("x", 3.0, "x", "x").at(np.linspace(-3, 3, 7)) == 3)
    assert number("x", 3.0, "x", "x").with_range(2.0, 8.0).expected == pytest.approx(4)
