"""Fused attention where nothing related was measured: typical shares of the specified rates, and the FLOP it counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.kernels.attention import implementations as kernels
from gpuwise.predict.kernels.attention.features import (
    Shape,
)
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.units import MICRO
from gpuwise.workload.attention_flop import attention_pairs

F64 = NDArray[np.float64]


def attention_flop(
    batch: ArrayLike,
    q_len: ArrayLike,
    kv_len: ArrayLike,
    heads: ArrayLike,
    head_dim: ArrayLike,
    v_head_dim: ArrayLike | None = None,
    causal: bool = True,
    window: ArrayLike = 0,
) -> F64:
    """FLOP of the two products of the forward pass, [R], counting only the query-key pairs a mask leaves (a multiply-add is 2).

    ``2 (head_dim + v_head_dim)`` for each pair and head; softmax is not counted. Causal: the exact sum over queries of the
    keys each may see, not half the square. A window without causal mask lets each query see ``min(kv_len, window)`` keys. The
    backward pass is 2.5 times this where it recomputes the scores (flash), 2 times if they were saved.
    """
    b, h, d = (np.asarray(x, dtype=np.float64) for x in (batch, heads, head_dim))
    dv = d if v_head_dim is None else np.asarray(v_head_dim, dtype=np.float64)
    return 2.0 * b * h * (d + dv) * attention_pairs(q_len, kv_len, causal=causal, window=window)


def specified(accelerator: Accelerator, dtype: str, s: Shape, causal: bool) -> KernelTime:
    """Time [R] where no related device was measured: typical shares of the specified rates, a wide interval.

    The larger of arithmetic at the median share of the matrix rate and bytes at the median share of the
    bandwidth over the measured devices, plus a fixed latency.
    """
    generic = kernels.coefficients()["generic"]
    width = kernels.dtype_bytes(dtype)
    flop = attention_flop(s.batch, s.q_len, s.kv_len, s.heads, s.head_dim, s.v_head_dim, causal, s.window)
    attended = np.where(s.window > 0, np.minimum(s.kv_len, s.window + s.q_len), s.kv_len)
    moved_bytes = s.batch * (s.q_len * s.heads + attended * s.kv_heads) * (s.head_dim + s.v_head_dim) * width
    rate = accelerator.peak("fp8" if kernels.arithmetic(dtype) == "fp8" else dtype)
    seconds = (
        np.maximum(
            flop / (rate * generic["matrix_share"]),
            moved_bytes / (accelerator.memory_bandwidth_bytes_per_s * generic["bandwidth_share"]),
        )
        + generic["latency_us"] * MICRO
    )
    return KernelTime(seconds, np.full(seconds.shape, generic["log_sigma"]), "specified")
