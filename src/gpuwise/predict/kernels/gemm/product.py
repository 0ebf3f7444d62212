"""Device time of a matrix product on any accelerator of the catalogue.

``time = physics(device) x exp(correction)``. The physical form (``physics``) has coefficients per implementation and
micro-architecture; the correction (boosted trees over the shape, evaluated on the family's reference device) covers what the
physics lacks: a library's choice of kernels. It is the same for all devices of a family, so a device that is better in every
respect is never slower. A measured device gets a second, smaller correction. A family without measurements takes the physics of
the nearest one, half way to the mean of all, without a correction.

Calibrated on CUDA-graph bursts with operands partly left in L2 (``cold=True`` takes them from memory, as a
training step or a decode step over all layers does). Long runs settle at the sustained clock:
``sustained=True``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.kernels.clock import sustained_fraction
from gpuwise.predict.kernels.corrections import corrected
from gpuwise.predict.kernels.gemm.coefficients import SCALE_ROWS, Coefficients, coefficients_of, duration_class, features
from gpuwise.predict.kernels.gemm.formats import IMPLEMENTATIONS, WIDER, implementation_name, math_dtype
from gpuwise.predict.kernels.gemm.fp32 import linear_time
from gpuwise.predict.kernels.gemm.physics import physical_time, traffic
from gpuwise.predict.kernels.kernel_time import KernelTime

F64 = NDArray[np.float64]

_ROUGH = 0.9
"""The correction never moves a time by more than exp(this): beyond it a measurement is a glitch."""
_MISALIGNED_SIGMA = 0.2
"""Judgement, not fit: rows of A or B that are no multiple of 16 bytes were not measured and take other
kernels."""


def gemm_time(
    accelerator: Accelerator,
    dtype: str,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    batch: ArrayLike = 1,
    *,
    implementation: str | None = None,
    cold: bool = False,
    sustained: bool = False,
) -> KernelTime:
    """Time of ``batch`` products C[m, n] = A[m, k] B[k, n]; layouts cost the same. Arrays broadcast to [R].

    ``dtype``: fp64, fp32, tf32, fp16, bf16, fp8, mxfp8, nvfp4, int8, or a key of
    ``formats.IMPLEMENTATIONS``; ``implementation`` chooses another kernel than the dtype's default.
    fp8, fp8_block and nvfp4 include turning A into the narrow format, as the measured kernels did.
    ``sustained`` gives the time in a long run: divided by :func:`sustained_factor`, without transients seen
    on one device only.

    Raises InputError for sizes below 1, UnknownNameError for an unknown dtype and UnpredictableError when the
    accelerator has no rate for it.
    """
    name = implementation_name(dtype, implementation)
    columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x, dtype=np.float64)) for x in (m, n, k, batch)))
    if columns[0].size and not min(float(x.min()) for x in columns) >= 1.0:
        raise InputError("a matrix product needs sizes of at least 1", hint="m, n, k and batch count elements")
    if name == "fp32" and accelerator.compute_units:
        return linear_time(accelerator, *columns)
    coefficients = coefficients_of(accelerator, name)
    time = never_below_half_the_batch(
        lambda m, n, k, b: evaluate(coefficients, m, n, k, b, cold=cold, sustained=sustained), *columns
    )
    wider = WIDER.get(name)
    if wider is not None and coefficients.basis == "specified" and wider in accelerator.peak_flop_per_s:
        # an engine that has no faster narrow kernel multiplies in 16 bits; slower ones are only believed where measured
        wide = coefficients_of(accelerator, wider)
        time = np.minimum(
            time,
            never_below_half_the_batch(lambda m, n, k, b: evaluate(wide, m, n, k, b, cold=cold, sustained=sustained), *columns),
        )
    if sustained:
        time = time / sustained_factor(accelerator, name)
    sigma = coefficients.sigma[duration_class(time)]
    row_bytes = coefficients.form.a
    odd = (np.mod(columns[1] * row_bytes, 16.0) != 0) | (np.mod(columns[2] * row_bytes, 16.0) != 0)
    result = KernelTime(time, np.where(odd, np.hypot(sigma, _MISALIGNED_SIGMA), sigma), coefficients.basis)
    if not accelerator.corrections:
        return result
    rows, n_, k_ = columns[0] * columns[3], columns[1], columns[2]
    result = corrected(accelerator, f"matmul/{name}", result, rows, n_, k_)
    least = bound(coefficients, columns[0], n_, k_, columns[3], cold)
    return result._replace(time_s=np.maximum(result.time_s, least))


def never_below_half_the_batch(seconds: Callable[[F64, F64, F64, F64], F64], m: F64, n: F64, k: F64, batch: F64) -> F64:
    """``seconds(m, n, k, batch)`` [R], and for a batch never less than half of it takes, or half of that, down to one.

    The correction sees a batch as rows; where the device is not full yet its steps would make more work shorter. The physical
    time grows with the batch and the correction moves it by exp(0.9) at most, so parts exp(1.8) times shorter than the whole
    need no check.
    """
    time = seconds(m, n, k, batch)
    rows, part = np.flatnonzero(batch > 1.0), batch[batch > 1.0]
    while rows.size:
        part = np.ceil(part / 2.0)
        shorter = seconds(m[rows], n[rows], k[rows], part)
        time[rows] = np.maximum(time[rows], shorter)
        unresolved = (part > 1.0) & (shorter * np.exp(2.0 * _ROUGH) > time[rows])
        rows, part = rows[unresolved], part[unresolved]
    return time


def evaluate(c: Coefficients, m: F64, n: F64, k: F64, batch: F64, *, cold: bool = False, sustained: bool = False) -> F64:
    """Seconds [R] under coefficients ``c`` for float columns."""
    time = physical_time(c.physics, c.device, c.form, m, n, k, batch, cold=cold)
    if c.host_floor_s <= 0:
        time *= correction(c, m, n, k, batch, sustained)
    return np.maximum(time, bound(c, m, n, k, batch, cold))


def evaluate_as_measured(c: Coefficients, m: F64, n: F64, k: F64, batch: F64) -> F64:
    """Seconds [R] that a timing loop shows: where it was not graph-captured, never less than the host needs
    to launch.

    There the correction is one of what was seen, host and device together, so device time goes without.
    """
    if c.host_floor_s <= 0:
        return evaluate(c, m, n, k, batch)
    time = physical_time(c.physics, c.device, c.form, m, n, k, batch)
    return joined_with_host(time, host_floor(c, m)) * correction(c, m, n, k, batch, False)


def host_floor(c: Coefficients, m: F64) -> F64:
    """Seconds [R] a launch took the host that was measured."""
    return np.where(np.mod(m, SCALE_ROWS) == 0, c.host_floor_s, c.host_floor_unpadded_s)


def joined_with_host(time_s: F64, floor_s: F64) -> F64:
    """Seconds [R]: p-norm of device and host time (``_FLOOR_NORM``); they overlap almost wholly."""
    return (time_s**_FLOOR_NORM + floor_s**_FLOOR_NORM) ** (1.0 / _FLOOR_NORM)


_FLOOR_NORM = 6.0
"""Fixed; ``host_floor_s`` is fitted with it."""


def correction(c: Coefficients, m: F64, n: F64, k: F64, batch: F64, sustained: bool) -> F64:
    """Factor [R] of the correction trees on the physical time; 1 where none were fitted."""
    if c.family_trees is None:
        return np.ones(m.shape)
    columns = features(m, n, k, batch, c.reference_units)
    log_factor = c.family_trees.evaluate(columns)
    if c.device_trees is not None and not sustained:
        log_factor += c.device_trees.evaluate(columns)
    return np.exp(np.clip(log_factor, -_ROUGH, _ROUGH))


def bound(c: Coefficients, m: F64, n: F64, k: F64, batch: F64, cold: bool) -> F64:
    """Seconds [R] below which the device cannot do it: arithmetic at boost; what is not in L2 at full
    bandwidth."""
    dram, hot = traffic(c.physics, c.device, c.form, m, n, k, batch)
    least = (m * k * c.form.a + n * k * c.form.b + m * n * c.form.c) * batch
    bytes_moved = np.minimum(dram, least) * (1.0 if cold else 1.0 - hot)
    return np.maximum(2.0 * m * n * k * batch / c.device.rate_flop_per_s, bytes_moved / c.device.bandwidth_bytes_per_s)


def sustained_factor(accelerator: Accelerator, dtype: str) -> float:
    """Rate of large products in a long run over that in the bursts :func:`gemm_time` is calibrated on, at most 1.

    The long-run clock is that of ``predict.clock`` (fitted on best sustained matmul rates, stas00/ml-engineering MAMF: A100 87
    %, H100 80 %, B200 78 % of peak against bursts of 87.5, 92 and 85 %). 1 if the clock is not power-limited, or already was
    in the bursts.
    """
    name = implementation_name(dtype, None)
    c = coefficients_of(accelerator, name)
    side = np.array([8192.0])
    one = np.ones(1)
    time = float(evaluate(c, side, side, side, one, sustained=True)[0])
    busy = 2.0 * 8192.0**3 / time / c.device.rate_flop_per_s
    at_boost = max(busy, _UTILISATION_AT_BOOST)
    clock_fraction = float(sustained_fraction(accelerator, at_boost, math_dtype(accelerator, name)))
    return min(1.0, at_boost * clock_fraction / busy)


_UTILISATION_AT_BOOST = 0.92
"""Best burst over peak at boost clock (H100, bf16): what a large product reaches when power does not hold
it back."""

__all__ = ["IMPLEMENTATIONS", "gemm_time", "sustained_factor"]
