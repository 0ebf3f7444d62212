"""MLPerf's U-Net on volumes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import itertools

from gpuwise.workload.capture.api import capture
from studies.networks.zoo import build


def test_convolutions_of_a_patch() -> None:
    """Each output voxel of a 3 x 3 x 3 convolution sums 27 products a channel; a backward pass twice as many."""
    factory = build("mlperf-unet3d", "own", precision="amp", channels_last=True)
    made = capture(lambda: factory(1), n_steps=1, batch=1)
    widths = (32, 64, 128, 256, 320, 320)
    flop = 27 * (1 * 32 + 32 * 32) * 128**3
    for level, (a, b) in enumerate(itertools.pairwise(widths), 1):
        voxels = (128 >> level) ** 3
        flop += 27 * (a * b + b * b) * voxels  # down
        flop += 8 * b * a * voxels + 27 * (2 * a * a + a * a) * 8 * voxels  # up, and the two convolutions after it
    flop += 3 * 32 * 128**3
    first = 27 * 1 * 32 * 128**3  # no gradient of the volume
    assert made.flop() == pytest.approx(2 * (3 * flop - first), rel=1e-3)
