"""The fit finds factors that made the times it is given."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("scipy")

from gpuwise.calibrate.capture_time.fit import FAMILY_FACTORS, LEAST_ON_MEMORY, Problem, factors_of, fit_factors, predicted

CARDS = ("sm_86", "sm_89")
FAMILIES = (*FAMILY_FACTORS, "matmul", "fused")
TRUE = {"sm_86": {"matmul": 0.84, "elementwise": 1.2, "norm": 1.4}, "sm_89": {"matmul": 0.97, "elementwise": 1.2, "norm": 1.4}}


def problem() -> Problem:
    """Sixty made-up networks on two cards, whose products, pointwise operations and norms have factors."""
    rng = np.random.default_rng(20261121)
    n = 60
    seconds = np.zeros((2 * n, len(FAMILIES)))
    for family in ("matmul", "elementwise", "norm"):
        seconds[:, FAMILIES.index(family)] = np.tile(rng.uniform(1e-3, 1e-2, n), 2)
    p = Problem(
        families=FAMILIES,
        seconds=seconds,
        fixed=np.full(2 * n, 1e-3),
        card=np.repeat(np.array(CARDS, dtype=object), n),
        gpu=np.repeat(np.array(["a", "b"], dtype=object), n),
        compiled=np.zeros(2 * n, bool),
        measured=np.ones(2 * n),
        network=np.tile(np.array([f"net{i}" for i in range(n)], dtype=object), 2),
    )
    p.measured[:] = predicted(p, TRUE)
    return p


def test_times_made_by_factors_are_found_again() -> None:
    p = problem()
    everything = np.ones(len(p.measured), bool)
    found = fit_factors(p, everything)
    assert np.abs(predicted(p, found) / p.measured - 1.0).mean() < 0.02
    assert found["sm_86"]["matmul"] == pytest.approx(0.84, rel=0.06)
    assert found["sm_89"]["matmul"] == pytest.approx(0.97, rel=0.06)


def test_a_card_without_rows_has_no_factors() -> None:
    p = problem()
    only = p.card == "sm_86"
    found = fit_factors(p, only)
    assert set(found) == {"sm_86"}
    assert (predicted(p, found)[~only] == p.seconds[~only].sum(axis=1) + 1e-3).all()


def test_no_stream_is_faster_than_the_memory() -> None:
    low = factors_of(np.full(len(FAMILY_FACTORS) + 3, np.log(0.5)), ["sm_86"])["sm_86"]
    assert low["copy"] == low["elementwise"] == LEAST_ON_MEMORY
    assert low["matmul"] == pytest.approx(0.5)
