from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.money.rent_or_own.demand import Demand, beyond

peaks = st.floats(1.0, 50.0)


@given(peaks, st.floats(0.01, 1.0))
def test_levels_keep_the_mean(peak: float, part: float) -> None:
    shares, levels = Demand(100.0, peak, peak_share=part / peak).levels()
    assert shares.sum() == pytest.approx(1)
    assert (shares * levels).sum() == pytest.approx(1)
    assert levels.max() == pytest.approx(peak) and levels.min() >= 0


@given(peaks, st.floats(0.1, 1e4), st.floats(0, 1e5))
def test_work_is_owned_or_beyond(peak: float, load: float, capacity: float) -> None:
    shares, levels = Demand(100.0, peak).levels()
    above = float(beyond(np.array(capacity), np.array(load), shares, levels))
    assert -1e-9 <= above <= load * (1 + 1e-12)
    assert above >= load - capacity - 1e-9 * load
    more = float(beyond(np.array(capacity * 1.5), np.array(load), shares, levels))
    assert more <= above + 1e-9


def test_nothing_owned_leaves_everything() -> None:
    shares, levels = Demand(1.0, 3.0).levels()
    assert float(beyond(np.array(0.0), np.array(7.0), shares, levels)) == pytest.approx(7.0)


@given(st.floats(-0.5, 2.0), st.lists(st.floats(0.1, 5), min_size=12, max_size=12))
def test_the_first_year_has_the_hours_that_were_said(growth: float, profile: list[float]) -> None:
    by_month = Demand(1000.0, growth_per_year=growth, profile=tuple(profile)).by_month(24)
    assert by_month[:12].mean() == pytest.approx(1000)
    assert by_month[12:].sum() == pytest.approx(by_month[:12].sum() * (1 + growth))


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpu_hours_per_month": 0.0},
        {"gpu_hours_per_month": -1.0},
        {"gpu_hours_per_month": math.nan},
        {"gpu_hours_per_month": math.inf},
        {"peak_over_mean": 0.5},
        {"peak_over_mean": 3.0, "peak_share": 0.5},
        {"peak_over_mean": 3.0, "peak_share": 0.0},
        {"growth_per_year": -1.0},
        {"growth_per_year": math.nan},
        {"profile": (1.0, 2.0)},
        {"profile": (0.0,) * 12},
        {"profile": (-1.0,) + (1.0,) * 11},
    ],
)
def test_demands_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        Demand(**({"gpu_hours_per_month": 100.0} | wrong))  # type: ignore[arg-type]
    assert caught.value.hint
