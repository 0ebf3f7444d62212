"""Arrival processes: their rate, their burstiness, and a day."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.errors import InputError
from gpuwise.serve.load.arrivals import day_shape, unit_arrivals


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_gaps_have_the_mean_and_the_variation_asked_for(cv: float) -> None:
    times = unit_arrivals(40_000, cv, np.random.default_rng(3))
    gaps = np.diff(times)
    assert times[0] == 0
    assert gaps.mean() == pytest.approx(1.0)
    assert gaps.std() == pytest.approx(cv, rel=0.05, abs=1e-9)
    assert (gaps >= 0).all()


def test_no_requests_and_one_request_arrive_too() -> None:
    assert len(unit_arrivals(0, 1.0, np.random.default_rng(0))) == 0
    assert unit_arrivals(1, 1.0, np.random.default_rng(0)).tolist() == [0.0]


@pytest.mark.parametrize("peak", [1.0, 1.5, 3.0, 12.0])
def test_a_day_peaks_where_it_should_and_keeps_its_mean(peak: float) -> None:
    shape = day_shape(peak, 288)
    assert shape.mean() == pytest.approx(1.0)
    assert shape.max() == pytest.approx(peak, rel=0.01)
    assert (shape > 0).all() and (np.diff(shape[:144]) >= 0).all()  # it rises until the middle of the day
    assert shape == pytest.approx(shape[::-1])


@pytest.mark.parametrize("cv", [-1.0, 50.0, float("nan")])
def test_a_variation_nobody_has_is_refused(cv: float) -> None:
    with pytest.raises(InputError, match="vary"):
        unit_arrivals(10, cv, np.random.default_rng(0))


@pytest.mark.parametrize("peak", [0.5, 1000.0])
def test_a_peak_that_cannot_be_meant_is_refused(peak: float) -> None:
    with pytest.raises(InputError, match="peak"):
        day_shape(peak, 24)
