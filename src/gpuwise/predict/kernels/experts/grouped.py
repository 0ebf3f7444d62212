"""Device time of grouped products and of fused expert layers (mixture of experts) on any accelerator.

A fused layer is what serving engines launch between router and residual: sort tokens by expert, two grouped
products around the activation, weighted combination; without shared experts and without communication. Its
time is ``physics(device) x exp(correction)``, fitted per kernel, format and micro-architecture like a
matrix product's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.kernels.experts.coefficients import Coefficients, coefficients_of, duration_class, features
from gpuwise.predict.kernels.experts.loads import Distribution, Loads, loads_of
from gpuwise.predict.kernels.experts.physics import layer_physical_time
from gpuwise.predict.kernels.gemm.product import gemm_time
from gpuwise.predict.kernels.kernel_time import KernelTime

F64 = NDArray[np.float64]

_ROUGH = 0.9
"""The correction never moves a time by more than exp(this)."""


def moe_layer_time(
    accelerator: Accelerator,
    dtype: str,
    tokens: ArrayLike,
    hidden: ArrayLike,
    ffn: ArrayLike,
    top_k: ArrayLike,
    n_experts: ArrayLike,
    tp: ArrayLike = 1,
    ep: ArrayLike = 1,
    *,
    distribution: Distribution = "balanced",
    gated: ArrayLike = True,
    reachable: ArrayLike = 1.0,
    implementation: str | None = None,
    cold: bool = False,
) -> KernelTime:
    """Time [R] of one fused expert layer on the busiest rank; arrays broadcast.

    ``tokens`` before routing, over all expert-parallel ranks; each chooses ``top_k`` of ``n_experts``
    experts of width ``ffn``, cut in ``tp`` parts and spread over ``ep`` ranks. ``gated``: three matrices
    per expert, else two. ``reachable``: share of the experts a batch can choose (below 1 with group-limited
    routing). ``dtype``: a key of ``coefficients.FORMATS``; ``implementation``: a measured kernel's name,
    else the preferred one of the family. ``cold``: L2 contains no weights from the launch before, since other layers came
    between.

    Raises InputError for sizes below 1, UnknownNameError for an unknown dtype and UnpredictableError when
    the accelerator has no rate for it.
    """
    sizes = (tokens, hidden, ffn, top_k, n_experts, tp, ep, np.where(gated, 2.0, 1.0), reachable)
    columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x, dtype=np.float64)) for x in sizes))
    if columns[0].size and not min(float(x.min()) for x in columns[:7]) >= 1.0:
        raise InputError("an expert layer needs sizes of at least 1", hint="tokens, widths, experts and degrees count")
    if columns[0].size and not (float(columns[8].min()) > 0.0 and float(columns[8].max()) <= 1.0):
        raise InputError("the reachable share of experts lies above 0 and up to 1", hint="1.0 unless routing is limited")
    c = coefficients_of(accelerator, dtype, implementation)
    time = evaluate(c, distribution, *columns, cold=cold)
    return KernelTime(time, c.sigma[duration_class(time)], c.basis)


def evaluate(
    c: Coefficients,
    distribution: Distribution,
    tokens: F64,
    hidden: F64,
    ffn: F64,
    top_k: F64,
    n_experts: F64,
    tp: F64,
    ep: F64,
    wide: F64,
    reachable: F64,
    *,
    cold: bool = False,
) -> F64:
    """Seconds [R] under coefficients ``c`` for float columns."""
    loads = loads_of(distribution, tokens, top_k, n_experts, ep, reachable)
    local = n_experts / ep
    part = ffn / tp
    time = layer_physical_time(c.physics, c.device, c.form, loads, tokens, tokens * top_k, hidden, part, local, wide, cold=cold)
    if c.trees is not None:
        columns = features(tokens, top_k, n_experts, ep, hidden, part, wide, loads, c.reference_units)
        time *= np.exp(np.clip(c.trees.evaluate(columns), -_ROUGH, _ROUGH))
    return np.maximum(time, bound(c, loads, hidden, part, wide, cold))


def bound(c: Coefficients, loads: Loads, hidden: F64, ffn: F64, wide: F64, cold: bool) -> F64:
    """Seconds [R] below which the device cannot do it: all products at peak, active weights at full
    bandwidth."""
    weights = (wide + 1.0) * hidden * ffn
    flop = 2.0 * loads.routed * weights
    moved = loads.active * weights * c.form.weight
    moved = np.maximum(moved - (0.0 if cold else c.device.l2_bytes), 0.0)
    return np.maximum(flop / c.device.rate_flop_per_s, moved / c.device.bandwidth_bytes_per_s)


def grouped_time(
    accelerator: Accelerator,
    dtype: str,
    n_experts_local: ArrayLike,
    tokens_routed: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    *,
    distribution: Distribution = "balanced",
    implementation: str | None = None,
) -> KernelTime:
    """Time [R] of one grouped product: ``tokens_routed`` rows over ``n_experts_local`` experts with a [k,
    n] weight each.

    Balanced: one product per expert with any row, of the mean height, as a batch. ``power_law``: the
    busiest experts' heights add partly filled tiles (see ``loads``). Arrays broadcast. Raises as
    :func:`gemm_time`.
    """
    sizes = (n_experts_local, tokens_routed, n, k)
    experts, tokens, n_, k_ = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x, dtype=np.float64)) for x in sizes))
    if experts.size and not min(float(experts.min()), float(tokens.min())) >= 1.0:
        raise InputError("a grouped product needs sizes of at least 1", hint="experts and routed rows are counts")
    one = np.ones(experts.shape)
    loads = loads_of(distribution, tokens, one, experts, one, one)
    active = np.maximum(loads.active, 1.0)
    rows = loads.routed / active
    padded = (loads.experts * np.ceil(loads.tokens / _TILE)).sum(axis=0) / active * _TILE
    height = np.where(distribution == "balanced", rows, np.maximum(rows, np.minimum(padded, rows + _TILE)))
    return gemm_time(accelerator, dtype, height, n_, k_, active, implementation=implementation)


_TILE = 64.0
"""Rows of the tile that grouped kernels pad each expert to."""
