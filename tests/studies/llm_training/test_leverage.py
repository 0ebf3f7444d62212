"""Errors of models left out, from slopes, beside those of fits that left them out."""

from __future__ import annotations

import numpy as np
import pytest

from studies.llm_training.leverage import LARGEST_LEVERAGE, Range, slopes, unseen_errors

MODELS, ROWS, COEFFICIENTS = 30, 4, 5


def _problem(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """Slopes [R, C], optimum [C] of least squares on noise, the noise [R], and the model of each row."""
    random = np.random.default_rng(seed)
    model = [m for m in range(MODELS) for _ in range(ROWS)]
    slope = random.normal(size=(MODELS * ROWS, COEFFICIENTS)) + random.normal(size=(MODELS, COEFFICIENTS))[model]
    noise = 0.05 * random.normal(size=MODELS * ROWS)
    return slope, np.linalg.lstsq(slope, -noise, rcond=None)[0], noise, model


def _unseen(slope: np.ndarray, error: np.ndarray, fit: np.ndarray, model: list[int]) -> np.ndarray:
    inside = np.full(slope.shape[1], 0.5)
    at = Range(inside, inside, np.full(slope.shape[1], 1e-6))
    return unseen_errors(error, slope, np.ones(len(error)), at, 1e6, fit, model)


def test_errors_are_as_large_as_those_of_fits_without_the_model() -> None:
    slope, x, noise, model = _problem(1)
    error, names = slope @ x + noise, np.array(model)
    refitted = np.empty_like(error)
    for m in range(MODELS):
        rest = names != m
        refitted[~rest] = slope[~rest] @ np.linalg.lstsq(slope[rest], -noise[rest], rcond=None)[0] + noise[~rest]
    found = _unseen(slope, error, np.ones(len(error), bool), model)
    assert np.std(found) == pytest.approx(np.std(refitted), rel=0.03)
    assert np.std(error) < 0.98 * np.std(refitted)


def test_rows_kept_from_the_fit_stay_as_they_are() -> None:
    slope, x, noise, model = _problem(2)
    error, fit = slope @ x + noise, np.array(model) % 3 > 0
    found = _unseen(slope, error, fit, model)
    assert found[~fit] == pytest.approx(error[~fit])
    assert np.abs(found[fit]).mean() > np.abs(error[fit]).mean()


def test_a_model_that_decides_alone_is_stretched_to_the_end() -> None:
    """One row, one coefficient: whatever is left of its error is what the pull left."""
    found = _unseen(np.array([[1.0]]), np.array([0.01]), np.array([True]), [0])
    assert found[0] == pytest.approx(0.01 * ((1 + LARGEST_LEVERAGE) / (1 - LARGEST_LEVERAGE)) ** 0.5)


def test_slopes_are_those_of_the_error_at_either_end_of_the_range() -> None:
    found = slopes(lambda x: np.array([2 * x[0] - 3 * x[1], x[1]]), np.array([0.0, 1.0]))
    assert found == pytest.approx(np.array([[2.0, -3.0], [0.0, 1.0]]))
