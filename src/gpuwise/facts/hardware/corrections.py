"""What one device in one slot differs by from what the kernel model says of its kind: data, made by ``calibrate.machine``.

The catalogue's rows have none. A device with some answers as it was measured near the shapes that were measured, and as
its kind elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

LAUNCH_KEY = "launch/eager"
"""The correction that says how fast the host of a device issues operations."""


@dataclass(frozen=True, slots=True)
class Correction:
    """log(measured / predicted) seconds of one family and format, over log2 of its sizes: a Gaussian process's mean.

    ``log_factor(x) = sum_i weights_i (constant_variance + shape_variance exp(-|x - points_i|^2 / (2 length^2)))``
    """

    points: tuple[tuple[float, ...], ...]
    """log2 of the sizes of each measurement: (m, n, k), or (bytes,)."""
    weights: tuple[float, ...]
    constant_variance: float
    """Of what is common to all shapes; 0 where nothing was found."""
    shape_variance: float
    """Of what changes with the shape; 0 where nothing was found."""
    length: float
    """Octaves over which it changes."""
    log_sigma: float
    """Spread left on shapes kept from the fit, near what was measured."""
