"""Estimates: an interval and a basis go with the value through arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.predict.estimate import Estimate

POSITIVE = st.floats(1e-6, 1e6)


@given(POSITIVE, st.floats(0.0, 2.0), POSITIVE)
def test_a_rate_turns_back_into_its_time(seconds: float, sigma: float, count: float) -> None:
    time = Estimate.from_log_sigma(seconds, sigma, "fitted")
    per_s = time.inverse(count)
    assert per_s.low <= per_s.expected <= per_s.high and per_s.basis == "fitted"
    assert per_s.expected == pytest.approx(count / seconds) and per_s.low == pytest.approx(count / time.high)
    back = per_s.inverse(count)
    assert (back.low, back.expected, back.high) == pytest.approx((time.low, time.expected, time.high))
    assert time.inverse().expected == pytest.approx(1 / seconds)
