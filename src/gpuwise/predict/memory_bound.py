"""Kernels that wait for memory: elementwise, reductions, norms, softmax, copies, gathers, optimizer updates.

    t = t_latency + bytes / B,    1/B = h / B_L2 + (1 - h) / (e B_peak)

``e`` is the fraction of the specified bandwidth a long stream reaches (by memory technology, or by family where it was
measured: error correction takes its part on GDDR datacentre cards), ``h = min(1, c L2 / bytes)`` the share that hits the
last-level cache because the producer has just written it, ``B_L2`` bytes per clock and unit times units times boost. A
pattern that reads its input again, or jumps, multiplies the bytes.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.facts.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis
from gpuwise.predict.kernel_time import KernelTime

F64 = NDArray[np.float64]
Pattern = Literal["elementwise", "reduction", "norm", "softmax", "transpose", "gather"]


def memory_time(
    accelerator: Accelerator, bytes_read: ArrayLike, bytes_written: ArrayLike, *, pattern: Pattern = "elementwise"
) -> KernelTime:
    """Device time of memory-bound kernels that read and write so many bytes each ([R] or scalar)."""
    model = load_json("memory_bound")
    moved = np.atleast_1d(np.asarray(bytes_read, np.float64) + np.asarray(bytes_written, np.float64))
    time = model["latency_s"] + _stream_time(accelerator, moved, 1.0 / model["pattern"][pattern])
    return KernelTime(time, np.full_like(time, model["log_sigma"][pattern]), _basis(accelerator))


def embedding_time(accelerator: Accelerator, rows: ArrayLike, row_bytes: ArrayLike, backward: bool) -> KernelTime:
    """Gather of ``rows`` rows of ``row_bytes`` each (forward), or scatter-add of their gradients (backward: the
    gradient is read, the row read and written)."""
    model = load_json("memory_bound")
    n, width = np.broadcast_arrays(np.asarray(rows, np.float64), np.asarray(row_bytes, np.float64))
    moved = np.atleast_1d(n * np.maximum(width, model["gather_bytes_floor"]) * (3.0 if backward else 2.0))
    time = model["latency_s"] + _stream_time(accelerator, moved, 1.0 / model["pattern"]["gather"])
    return KernelTime(time, np.full_like(time, model["log_sigma"]["gather"]), _basis(accelerator))


def optimizer_time(
    accelerator: Accelerator, bytes_read: ArrayLike, bytes_written: ArrayLike, n_tensors: ArrayLike, fused: bool
) -> KernelTime:
    """Optimizer update over ``n_tensors`` parameter tensors. ``fused`` runs many tensors in one launch; unfused
    pays one kernel latency per tensor (bytes of the several passes are the caller's)."""
    model = load_json("memory_bound")
    moved = np.atleast_1d(np.asarray(bytes_read, np.float64) + np.asarray(bytes_written, np.float64))
    per_launch = float(model["optimizer_tensors_per_launch"]) if fused else 1.0
    launches = np.ceil(np.asarray(n_tensors, np.float64) / per_launch)
    rate = dram_rate(accelerator) * model["optimizer_efficiency"]
    time = model["latency_s"] * np.maximum(launches, 1.0) + moved / rate
    return KernelTime(time, np.full_like(time, model["log_sigma"]["optimizer"]), _basis(accelerator))


def dram_rate(accelerator: Accelerator) -> float:
    """Bytes/s a long stream reaches."""
    model = load_json("memory_bound")
    by_type: dict[str, float] = model["dram_efficiency"]
    share = model["family_efficiency"].get(accelerator.family)
    if share is None:
        share = by_type.get(accelerator.memory_type, model["default_efficiency"])
    return accelerator.memory_bandwidth_bytes_per_s * float(share)


def _stream_time(accelerator: Accelerator, moved: F64, factor: float) -> F64:
    """Seconds to move ``moved`` bytes ``factor`` times, cache hits included."""
    model = load_json("memory_bound")
    slow = dram_rate(accelerator)
    hit = np.minimum(1.0, model["l2_share"] * (accelerator.l2_bytes or 0.0) / np.maximum(moved, 1.0))
    return moved * factor * (hit / max(_cache_rate(accelerator, model), slow) + (1.0 - hit) / slow)


def _cache_rate(accelerator: Accelerator, model: dict[str, Any]) -> float:
    if accelerator.compute_units is None or accelerator.boost_hz is None:
        return accelerator.memory_bandwidth_bytes_per_s * model["l2_over_dram_without_clock"]
    return accelerator.compute_units * accelerator.boost_hz * model["l2_bytes_per_clock_per_unit"]


def _basis(accelerator: Accelerator) -> Basis:
    return "fitted" if accelerator.family in load_json("memory_bound")["measured_families"] else "derived"
