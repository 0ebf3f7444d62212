from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.money.rent_or_own.price_process import PriceProcess, calibration, fit_process, still
from gpuwise.money.rent_or_own.renting import shipped_histories


def _walk(seed: int, months: int, drift: float, volatility: float) -> dict[int, float]:
    steps = np.random.Generator(np.random.PCG64(seed)).normal(drift, volatility, months)
    return {24_000 + i: float(3 * math.exp(x)) for i, x in enumerate(np.cumsum(steps))}


def test_the_fit_finds_the_volatility_that_made_the_data() -> None:
    histories = {f"gpu {i}": _walk(i, 200, -0.01, 0.06) for i in range(8)}
    process = fit_process(histories)
    assert process.volatility == pytest.approx(0.06, rel=0.15)
    assert process.drift == pytest.approx(-0.01, abs=0.004)
    assert process.noise < 0.03


def test_paths_have_the_spread_they_say() -> None:
    process = PriceProcess(0.0, 0.01, 0.05, 1e6, 0.0, "")
    moves = process.paths(np.random.Generator(np.random.PCG64(1)), 24, 40_000)
    assert moves.shape == (25, 40_000) and np.all(moves[0] == 1)
    for month in (1, 6, 24):
        assert np.log(moves[month]).std() == pytest.approx(float(process.log_sigma(month)), rel=0.02)


def test_prices_go_both_ways_and_no_path_is_straight() -> None:
    process = fit_process(shipped_histories(), "H100 SXM5 80GB")
    moves = process.paths(np.random.Generator(np.random.PCG64(0)), 36, 20_000)
    assert 0.2 < np.mean(moves[12] > 1) < 0.8
    assert np.quantile(moves[12], 0.9) > 1.2 and np.quantile(moves[12], 0.1) < 0.85
    bends = np.abs(np.diff(np.log(moves), 2, axis=0)).max(axis=0)
    assert bends.min() > 0


def test_the_band_holds_what_came_after() -> None:
    """Fitted on the past alone; about 80 of 100 months 3, 6 and 12 months later lie inside, own history or not."""
    for without_own in (False, True):
        held = calibration(shipped_histories(), without_own=without_own)
        inside, of = (sum(v[i] for v in held.values()) for i in (0, 1))
        assert of > 150
        assert 0.72 <= inside / of <= 0.88
        assert all(v[0] / v[1] >= 0.45 for v in held.values())


def test_a_history_of_one_gpu_moves_its_drift_towards_its_own() -> None:
    falling = {"a": _walk(1, 60, -0.05, 0.01), "b": _walk(2, 60, 0.0, 0.01)}
    assert fit_process(falling, "a").drift < fit_process(falling).drift < fit_process(falling, "b").drift


def test_too_little_history_is_refused() -> None:
    with pytest.raises(UnpredictableError):
        fit_process({"a": {24_000: 2.0, 24_001: 2.1}})
    with pytest.raises(UnpredictableError):
        fit_process({})


@pytest.mark.parametrize("price", [0.0, -1.0, math.nan, math.inf])
def test_a_bad_price_is_refused(price: float) -> None:
    with pytest.raises(InputError):
        fit_process({"a": {24_000 + i: 2.0 for i in range(20)} | {24_005: price}})


@settings(max_examples=settings().max_examples, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 48))
def test_same_seed_same_bytes(seed: int, months: int) -> None:
    process = fit_process(shipped_histories())
    one, other = (process.paths(np.random.Generator(np.random.PCG64(seed)), months, 50) for _ in range(2))
    assert one.tobytes() == other.tobytes() and np.all(one > 0)


def test_still_prices_do_not_move() -> None:
    assert np.all(still().paths(np.random.Generator(np.random.PCG64(0)), 12, 10) == 1)
