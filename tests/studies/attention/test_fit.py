"""The fit of attention on made-up measurements."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.predict.kernels.attention.features import AttentionWork, Device, decode_work, free_features
from gpuwise.predict.kernels.attention.fused import shape_of
from gpuwise.predict.kernels.attention.net import bins, network_seconds, trees_log, unpack
from studies.attention.fit import Fit, Rows, fit_network, fit_trees


def made_up(rows: int, bandwidth: float) -> tuple[AttentionWork, np.ndarray, np.ndarray]:
    """Decode calls of an imagined device: 10 us, plus the cache read at nine tenths of the bandwidth."""
    rng = np.random.default_rng(1)
    s = shape_of(2 ** rng.integers(0, 8, rows), 1, 2 ** rng.integers(0, 16, rows), 32, 8, 128, None, 0)
    device = Device(100.0, 1.5e9, 3e14, 16.0, bandwidth, 2e7)
    work = decode_work(device, s, 2.0, 2.0)
    return work, free_features(s), 1e-5 + work.memory_s / 0.9


@pytest.mark.thorough
def test_the_fit_finds_the_bandwidth_term_and_carries_it_to_another_device() -> None:
    work, free, seconds = made_up(3000, 2e12)
    flat = fit_network(Rows(work, free, seconds), Fit(1.03, 1.3, steps=1500))
    again = fit_network(Rows(work, free, seconds), Fit(1.03, 1.3, steps=1500))
    assert (flat == again).all()
    parameters = unpack(flat, work.features.shape[1])
    assert np.abs(network_seconds(parameters, work, free) / seconds - 1).mean() < 0.03
    faster, _, there = made_up(3000, 3e12)
    assert np.abs(network_seconds(parameters, faster, free) / there - 1).mean() < 0.06


def test_trees_learn_a_kernels_bad_corner() -> None:
    rng = np.random.default_rng(2)
    values = rng.integers(0, 6, (4000, 3)).astype(float)
    corner = (values[:, 0] == 4) & (values[:, 1] == 4)
    residual = np.where(corner, 0.4, 0.0) + rng.normal(0, 0.01, 4000)
    edges = [np.arange(5) + 0.5] * 3
    codes = bins(values, edges)
    trees = fit_trees(codes, residual, 20, rate=0.3)
    left = residual - trees_log(trees, codes)
    assert np.abs(left[corner]).mean() < 0.05 and np.abs(left[~corner]).mean() < 0.02
