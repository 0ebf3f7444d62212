"""Kernel time on a measured device: the model's time, times that device's deviation near such shapes.

The deviation is a Gaussian process over log2 of the sizes (:class:`gpuwise.facts.hardware.corrections.Correction`). Far from
measured shapes it tends to the mean of all shapes, or to 1 if there is no common part.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.corrections import Correction
from gpuwise.predict.estimate import Basis
from gpuwise.predict.kernels.kernel_time import KernelTime

F64 = NDArray[np.float64]
LARGEST_LOG_FACTOR = 0.9
"""A device is never taken to be more than exp(this) off its kind: beyond it something else is wrong with it."""
SAME_UNITS = {"matmul/fp16": "matmul/bf16", "matmul/bf16": "matmul/fp16"}
"""Formats that run the same kernels at the same rate: measured for one, measured for the other."""
CHUNK = 4096
"""Rows at a time: the table of distances stays small."""


def corrected(accelerator: Accelerator, key: str, time: KernelTime, *sizes: ArrayLike) -> KernelTime:
    """``time`` of any shape as this device was measured; as it is where ``accelerator`` has nothing for ``key``.

    ``sizes``: columns of that shape or scalars, at least 1. The spread is that left after the fit near measured shapes
    and that of the kind far from them.
    """
    correction = accelerator.corrections.get(key) or accelerator.corrections.get(SAME_UNITS.get(key, ""))
    if correction is None or not correction.weights:
        return time
    shape = time.time_s.shape
    columns = [np.broadcast_to(np.asarray(s, np.float64), shape).ravel() for s in sizes]
    at = np.log2(np.maximum(np.stack(columns, axis=1), 1.0))
    log_factor, near = (part.reshape(shape) for part in evaluate(correction, at))
    sigma = np.sqrt(near * correction.log_sigma**2 + (1.0 - near) * time.log_sigma**2)
    basis: Basis = "fitted" if time.basis in ("derived", "specified", "fitted") else time.basis
    return KernelTime(time.time_s * np.exp(log_factor), sigma, basis)


def evaluate(correction: Correction, at: F64) -> tuple[F64, F64]:
    """log factor [R] at log2 sizes ``at`` [R, D], and how near [R], 0 to 1, the nearest measured shape is."""
    points, weights = np.array(correction.points), np.array(correction.weights)
    factor, near = np.empty(at.shape[0]), np.empty(at.shape[0])
    for start in range(0, at.shape[0], CHUNK):
        rows = slice(start, start + CHUNK)
        alike = similarity(at[rows], points, correction.length)
        factor[rows] = (correction.constant_variance + correction.shape_variance * alike) @ weights
        near[rows] = alike.max(axis=1)
    return np.clip(factor, -LARGEST_LOG_FACTOR, LARGEST_LOG_FACTOR), near


def similarity(a: F64, b: F64, length: float) -> F64:
    """exp(-d^2 / (2 length^2)) of every row of ``a`` [R, D] with every row of ``b`` [S, D]: [R, S]."""
    squared = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2.0 * a @ b.T
    return np.exp(-np.maximum(squared, 0.0) / (2.0 * length * length))
