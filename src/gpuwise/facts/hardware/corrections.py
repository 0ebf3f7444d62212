"""Measured deviation of one device in one slot from the kernel model of its kind: data written by ``calibrate.machine``.

The catalogue's rows have none. A device with corrections is predicted by its measurements near measured shapes, and like its
kind elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

LAUNCH_KEY = "launch/eager"
"""Key of the correction for the launch rate of a device's host."""


@dataclass(frozen=True, slots=True)
class Correction:
    """log(measured / predicted) seconds of one family and format, over log2 of its sizes: a Gaussian process's mean.

    ``log_factor(x) = sum_i weights_i (constant_variance + shape_variance exp(-|x - points_i|^2 / (2 length^2)))``
    """

    points: tuple[tuple[float, ...], ...]
    """log2 of the sizes of each measurement: (m, n, k), or (bytes,)."""
    weights: tuple[float, ...]
    constant_variance: float
    """Variance of the part common to all shapes; 0 without one."""
    shape_variance: float
    """Variance of the shape-dependent part; 0 without one."""
    length: float
    """Octaves over which it changes."""
    log_sigma: float
    """Residual spread on held-out shapes, near measured ones."""
