"""One kernel by its sizes: written as rows of the step table and timed by the registry, as in every step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.kernels.conditions import STEP, Conditions
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.workload.row_codes import CAUSAL, FUSED_ATTENTION, Kind, Phase
from gpuwise.workload.step import OpTableBuilder

F64 = NDArray[np.float64]
SIDE = 8192
"""Rows, columns and depth of the large product used for the achievable arithmetic rate."""


def matmul(
    accelerator: Accelerator,
    dtype: str,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    batch: ArrayLike = 1,
    conditions: Conditions = STEP,
) -> KernelTime:
    """[R] device seconds of ``batch`` products [m, k] x [k, n]; arrays broadcast.

    Raises UnpredictableError when the accelerator has no rate for ``dtype``.
    """
    table = OpTableBuilder()
    for one in _rows(batch, m, n, k):
        b, m_, n_, k_ = (int(x) for x in one)
        table.add("product", Kind.MATMUL, Phase.FORWARD, dtype, (b, m_, n_, k_), flop=2.0 * b * m_ * n_ * k_, kernel="tn")
    return _times(table, accelerator, conditions)


def reached(accelerator: Accelerator, dtype: str) -> Estimate | None:
    """FLOP/s of a square product of :data:`SIDE` in a long run, at most the peak; None where no kernel can be
    predicted."""
    try:
        time = matmul(accelerator, dtype, SIDE, SIDE, SIDE)
    except (UnpredictableError, LookupError):
        return None
    peak = max(accelerator.peak(dtype), accelerator.fp32_matrix_flop_per_s or 0.0) if dtype == "fp32" else accelerator.peak(dtype)
    rate = Estimate.from_log_sigma(2.0 * SIDE**3 / float(time.time_s[0]), float(time.log_sigma[0]), time.basis)
    return Estimate(rate.low, min(rate.expected, peak), min(rate.high, peak), rate.basis)


def attention(
    accelerator: Accelerator,
    dtype: str,
    batch: ArrayLike,
    q_len: ArrayLike,
    kv_len: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    *,
    causal: bool = True,
    conditions: Conditions = STEP,
) -> KernelTime:
    """[R] device seconds of fused attention, forward; arrays broadcast. Raises as :func:`matmul`."""
    table = OpTableBuilder()
    flag = FUSED_ATTENTION | (CAUSAL if causal else 0)
    for one in _rows(batch, q_len, kv_len, heads, kv_heads, head_dim):
        shape = tuple(int(x) for x in one)
        table.add("attention", Kind.ATTENTION, Phase.FORWARD, dtype, (*shape, shape[-1]), flop=1.0, flag=flag)
    return _times(table, accelerator, conditions)


def stream(
    accelerator: Accelerator,
    bytes_read: ArrayLike,
    bytes_written: ArrayLike,
    family: str = "copy",
    conditions: Conditions = STEP,
) -> KernelTime:
    """[R] device seconds of kernels by bytes read and written: a ``copy``, or an ``elementwise`` kernel of several inputs;
    arrays broadcast."""
    table = OpTableBuilder()
    for read_bytes, written_bytes in _rows(bytes_read, bytes_written):
        table.add(
            "stream",
            Kind.MEMORY,
            Phase.FORWARD,
            "fp32",
            read_bytes=float(read_bytes),
            written_bytes=float(written_bytes),
            family=family,
        )
    return _times(table, accelerator, conditions)


def _rows(*columns: ArrayLike) -> Iterable[tuple[float, ...]]:
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(c, dtype=np.float64)) for c in columns))
    return zip(*(a.tolist() for a in arrays), strict=True)


def _times(table: OpTableBuilder, accelerator: Accelerator, conditions: Conditions) -> KernelTime:
    times = kernel_times(table.build(), accelerator, conditions)
    return KernelTime(times.time_s, times.log_sigma, times.basis)
