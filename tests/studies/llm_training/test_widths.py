"""Spreads of stacks count models, not rows, and cover what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from studies.llm_training.widths import LEAST_SPREAD, Residuals, kernel_share, left_out_coverage, spreads
from studies.spreads import weighted_quantile


def _runs(between: float, models: int, rows: int, *, stack: str = "eager", seed: int = 0) -> Residuals:
    """``rows`` runs of each of ``models`` whose errors are the model's own, with a little noise."""
    random = np.random.default_rng(seed)
    error = np.repeat(random.normal(0.0, between, models), rows) + random.normal(0.0, between / 10, models * rows)
    names = [("source", f"{stack} {m}", "GPU") for m in range(models) for _ in range(rows)]
    return Residuals(error, np.zeros(len(error)), [(stack, False)] * len(error), names)


def _together(*parts: Residuals) -> Residuals:
    return Residuals(
        np.concatenate([p.log_ratio for p in parts]),
        np.concatenate([p.kernel for p in parts]),
        [c for p in parts for c in p.cell],
        [m for p in parts for m in p.model],
    )


def test_a_stacks_spread_is_that_of_its_models() -> None:
    found = spreads(_runs(0.1, models=400, rows=3), 1.0)
    assert found["eager", False] == pytest.approx(0.1, rel=0.1)


def test_a_model_never_tried_is_inside_four_times_in_five() -> None:
    assert left_out_coverage(_runs(0.1, models=60, rows=5), 1.0) == pytest.approx(0.8, abs=0.07)


def test_one_model_of_many_rows_does_not_decide_alone() -> None:
    """Four hundred near-perfect rows of one model do not hide what two hundred other models show."""
    close, far = _runs(1e-4, models=1, rows=400), _runs(0.2, models=200, rows=1, seed=1)
    other = Residuals(far.log_ratio, far.kernel, far.cell, [(s, f"other {m}", g) for s, m, g in far.model])
    assert spreads(_together(close, other), 1.0)["eager", False] > 0.15


def test_a_stack_with_one_model_borrows_from_the_others_of_its_kind() -> None:
    lucky, known = _runs(1e-4, models=1, rows=1, stack="lucky"), _runs(0.1, models=50, rows=2)
    experts = _runs(0.5, models=50, rows=2, stack="eager+experts", seed=2)
    alone, beside = spreads(lucky, 1.0)["lucky", False], spreads(_together(lucky, known, experts), 1.0)["lucky", False]
    assert alone == LEAST_SPREAD
    assert 0.07 < beside < 0.2


def test_kernels_that_miss_apart_show_little_in_a_step() -> None:
    """Runs on devices whose kernels are given a spread of 0.3 miss by 0.05 as those on other devices do; of runs that miss by
    0.3 there, all of it shows."""
    plain, pretended = _runs(0.05, models=200, rows=1), _runs(0.05, models=200, rows=1, stack="other", seed=5)
    real = _runs(0.3, models=200, rows=1, stack="other", seed=5)
    wide = np.full(200, 0.3)
    assert kernel_share(_together(plain, replace(pretended, kernel=wide))) < 0.2
    assert kernel_share(_together(plain, replace(real, kernel=wide, cell=plain.cell))) > 0.8


def test_a_weighted_quantile_is_the_plain_one_for_equal_weights() -> None:
    values = np.random.default_rng(4).random(1000)
    assert weighted_quantile(values, np.full(1000, 0.3), 0.8) == pytest.approx(float(np.quantile(values, 0.8)), abs=2e-3)


def test_what_the_kernels_explain_is_not_counted_twice() -> None:
    """Errors of spread 0.13 on devices whose kernels bring 0.12 leave 0.05 for the stack."""
    runs = replace(_runs(0.13, models=400, rows=1), kernel=np.full(400, 0.12))
    found = spreads(runs, 1.0)["eager", False]
    assert found == pytest.approx(0.05, abs=0.02)
    assert runs.inside(np.full(400, found), 1.0).mean() == pytest.approx(0.8, abs=0.01)
