"""The fit finds constants that made the times it is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy")

from gpuwise.calibrate.capture_time.fit import PARAMETERS, Problem, fit_form, model_of, predicted
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.kernels.measured_networks import FAMILIES, Features


def problem(true: dict[str, Any]) -> Problem:
    """Forty made-up networks of convolutions, products and pointwise operations on two cards."""
    rng = np.random.default_rng(20261121)
    kinds = [FAMILIES.index(n) for n in ("convolution", "product", "pointwise")]
    n = 40
    table = Features(
        family=np.tile(kinds, n),
        flop=(rng.uniform(1e11, 1e13, 3 * n) * np.tile([1, 1, 0], n)),
        moved=rng.uniform(1e8, 1e10, 3 * n),
        kernels=np.ones(3 * n),
        padding=np.ones(3 * n),
        narrow=np.tile([64.0, 512.0, 0.0], n),
        layout=np.tile([1.0, 0.0, 0.0], n),
        single=np.zeros(3 * n, bool),
        product=np.tile([False, True, False], n),
    )
    cards = {"a": find_accelerator("RTX 3090"), "b": find_accelerator("RTX 4090")}
    p = Problem(
        table,
        np.ones(3 * n),
        np.repeat(np.arange(n), 3),
        np.full(n, 3.0),
        np.tile(np.arange(n), 2),
        np.repeat(np.array(["a", "b"], dtype=object), n),
        np.zeros(2 * n, bool),
        np.zeros(2 * n, bool),
        np.ones(2 * n),
        np.tile(np.array([f"net{i}" for i in range(n)], dtype=object), 2),
        cards,
    )
    p.measured[:] = predicted(p, true, np.ones(2 * n, bool))
    return p


def test_times_made_by_the_form_are_found_again() -> None:
    start = np.log([v[0] for v in PARAMETERS.values()])
    moved = dict(zip(PARAMETERS, start, strict=True))
    moved |= {"efficiency.product": np.log(0.6), "architecture.rate.sm_89": np.log(1.3), "bandwidth.pointwise": np.log(0.7)}
    p = problem(model_of(np.array(list(moved.values()))))
    everything = np.ones(len(p.measured), bool)
    found = fit_form(p, everything)
    error = np.abs(predicted(p, found, everything) / p.measured - 1.0)
    assert error.mean() < 0.03
    assert found["architecture"]["rate"]["sm_89"] == pytest.approx(1.3, rel=0.1)
