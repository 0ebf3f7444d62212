"""How the spreads of single kernels make that of a step's passes."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.predict.step.costs import _spread


def test_kernels_of_a_family_miss_together_and_families_apart() -> None:
    seconds, sigma = np.array([1.0, 1.0]), np.array([0.1, 0.1])
    point = np.zeros(2, dtype=np.int64)
    assert _spread(seconds, sigma, np.array([0, 0]), point, 1) == pytest.approx([0.1])
    assert _spread(seconds, sigma, np.array([0, 2]), point, 1) == pytest.approx([0.1 / 2**0.5])


def test_a_short_kernel_hardly_counts_and_points_are_apart() -> None:
    seconds, sigma = np.array([1.0, 1e-3, 2.0]), np.array([0.1, 0.9, 0.3])
    spread = _spread(seconds, sigma, np.array([0, 2, 1]), np.array([0, 0, 1]), 2)
    assert spread == pytest.approx([0.1, 0.3], rel=2e-3)
