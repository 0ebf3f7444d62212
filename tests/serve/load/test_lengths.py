"""Length distributions reproduce the figures they were typed from."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.errors import DataError
from gpuwise.serve.load.lengths import LEVELS, Lengths
from gpuwise.serve.load.workloads import catalogue

U = (np.arange(100_000) + 0.5) / 100_000


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_every_published_distribution_has_its_mean_and_its_quantiles(name: str) -> None:
    for lengths in (catalogue()[name].prompt, catalogue()[name].output):
        values = lengths.at(U)
        assert values.mean() == pytest.approx(lengths.mean, rel=0.04)
        for level, published in zip(LEVELS[:-1], lengths.quantiles, strict=False):
            assert np.quantile(values, level) == pytest.approx(published, rel=0.01)
        assert (np.diff(values) >= 0).all()


def test_a_given_variation_is_met() -> None:
    values = Lengths(1000.0, cv=0.5).at(U)
    assert values.mean() == pytest.approx(1000, rel=0.01)
    assert values.std() / values.mean() == pytest.approx(0.5, rel=0.02)
    assert (Lengths(1000.0).at(U) == 1000).all()
    assert Lengths(1000.0).tokens(U).dtype == np.int64


def test_quantiles_that_do_not_ascend_are_our_error() -> None:
    with pytest.raises(DataError, match="ascend"):
        Lengths(10.0, tuple(float(q) for q in (1, 2, 3, 2, 5, 6, 7, 8, 9)))
