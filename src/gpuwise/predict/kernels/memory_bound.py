"""Memory-bound kernels: elementwise, reductions, norms, softmax, copies, gathers, optimizer updates.

    t = t_latency + max(passes x bytes / B, elements / E),    1/B = h / B_L2 + (1 - h) / (e B_peak)

``e`` is the fraction of the specified bandwidth a long stream reaches (of the family where it was measured, else of the memory
technology: inline error correction takes its part on GDDR datacentre cards). ``h = min(1, c L2 / bytes)`` is the share that
hits the last-level cache because the producer has just written it, ``B_L2`` bytes per clock and unit. ``E`` bounds kernels
that spend instructions on an element: index arithmetic of a broadcast or a gather, random numbers of dropout (elements per
clock and unit). A norm gives each row a block of threads, with a fixed cost per row (``row_cycles``). ``passes`` grows when a
row is read again and the rows in flight have left the cache (LayerNorm, softmax over more than 1024 elements). Constants:
``coefficients/memory_bound.json``.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis
from gpuwise.predict.kernels.corrections import corrected
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.units import GIB

F64 = NDArray[np.float64]
Pattern = Literal[
    "elementwise",
    "broadcast",
    "broadcast_half",
    "cast",
    "mixed",
    "join",
    "pooling",
    "dropout",
    "reduction",
    "norm",
    "softmax",
    "transpose",
    "gather",
]
WARP_SOFTMAX_ROW = 1024
"""Rows up to this length stay in registers in PyTorch's softmax (softmax_warp_forward); longer ones are read
again."""


def memory_time(
    accelerator: Accelerator,
    bytes_read: ArrayLike,
    bytes_written: ArrayLike,
    *,
    pattern: Pattern = "elementwise",
    elements: ArrayLike | None = None,
    row_bytes: ArrayLike | None = None,
    blocks: ArrayLike | None = None,
    again_bytes: ArrayLike | None = None,
) -> KernelTime:
    """Device time of memory-bound kernels by bytes read and written ([R] or scalar).

    ``elements`` [R] (default: bytes written / 4, or read / 4 where nothing is written) matters to the patterns that spend
    instructions per element; ``row_bytes`` [R] is the length of a normalised row of ``norm`` and ``softmax`` (default: short
    enough to be read once), ``blocks`` [R] number of rows normalised by a block of threads each (default: none),
    ``again_bytes`` [R] input bytes read again (default: all).
    """
    model = load_json("memory_bound")
    input_bytes, output_bytes = np.broadcast_arrays(np.asarray(bytes_read, np.float64), np.asarray(bytes_written, np.float64))
    moved = np.atleast_1d(input_bytes + output_bytes)
    passes = np.full_like(moved, model["passes"][pattern])
    if row_bytes is not None and pattern in ("norm", "softmax"):
        row = np.broadcast_to(np.asarray(row_bytes, np.float64), moved.shape)
        again = np.atleast_1d(input_bytes if again_bytes is None else np.asarray(again_bytes, np.float64))
        passes = passes + _extra_passes(accelerator, pattern, row, model) * again / np.maximum(moved, 1.0)
    time = stream_time(accelerator, moved, passes)
    per_clock = model["elements_per_clock_per_unit"].get(pattern)
    if per_clock is not None and accelerator.compute_units and accelerator.boost_hz:
        visited = (
            np.where(output_bytes > 0, output_bytes, input_bytes) / 4.0 if elements is None else np.asarray(elements, np.float64)
        )
        time = np.maximum(time, visited / (per_clock * accelerator.compute_units * accelerator.boost_hz))
    if blocks is not None and accelerator.compute_units and accelerator.boost_hz:
        count, width = np.asarray(blocks, np.float64), np.asarray(0.0 if row_bytes is None else row_bytes, np.float64)
        clocks = model["row_cycles"] + width / model["row_bytes_per_clock"]
        time = np.maximum(time, count * clocks / (accelerator.compute_units * accelerator.boost_hz))
    result = _result(accelerator, time + model["latency_s"], pattern)
    return corrected(accelerator, "memory", result, moved) if accelerator.corrections else result


def dram_rate(accelerator: Accelerator) -> float:
    """Bytes/s a long stream reaches."""
    share = load_json("memory_bound")["family_efficiency"].get(accelerator.family)
    share = technology_share(accelerator) if share is None else float(share)
    return accelerator.memory_bandwidth_bytes_per_s * share


def technology_share(accelerator: Accelerator) -> float:
    """Share of its bandwidth that a long stream reaches on memory of this technology, whatever the family."""
    model = load_json("memory_bound")
    kind = accelerator.memory_type
    if kind.startswith("GDDR") and _has_inline_ecc(accelerator, model):
        kind = "GDDR-ECC"
    return float(model["memory_efficiency"].get(kind, model["memory_efficiency"]["other"]))


def rate_without_ecc(accelerator: Accelerator) -> float | None:
    """Bytes/s a long stream reaches with the error correction of the GDDR memory switched off; None where :func:`dram_rate` has
    none in it."""
    model = load_json("memory_bound")
    corrected_memory = accelerator.memory_type.startswith("GDDR") and _has_inline_ecc(accelerator, model)
    if accelerator.family in model["family_efficiency"] or not corrected_memory:
        return None
    return accelerator.memory_bandwidth_bytes_per_s * float(model["memory_efficiency"][accelerator.memory_type])


def cache_rate(accelerator: Accelerator) -> float | None:
    """Bytes/s the last-level cache delivers; None where its units or clock are unknown."""
    return _cache_rate(accelerator, load_json("memory_bound")) or None


def _has_inline_ecc(accelerator: Accelerator, model: dict[str, Any]) -> bool:
    """Cards that store error correction in the GDDR itself report less memory than the label (1/16 less on NVIDIA)."""
    label = accelerator.memory_nominal_gb
    return label is not None and accelerator.memory_bytes < model["inline_ecc_below"] * label * GIB


def stream_time(accelerator: Accelerator, moved: F64, passes: F64 | float) -> F64:
    """[R] seconds to move ``moved`` bytes ``passes`` times, cache hits included."""
    model = load_json("memory_bound")
    slow = dram_rate(accelerator)
    hit = np.minimum(1.0, model["l2_share"] * (accelerator.l2_bytes or 0.0) / np.maximum(moved, 1.0))
    return moved * passes * (hit / max(_cache_rate(accelerator, model), slow) + (1.0 - hit) / slow)


def _cache_rate(accelerator: Accelerator, model: dict[str, Any]) -> float:
    if accelerator.compute_units is None or accelerator.boost_hz is None:
        return 0.0
    return accelerator.compute_units * accelerator.boost_hz * model["l2_bytes_per_clock_per_unit"]


def _extra_passes(accelerator: Accelerator, pattern: str, row_bytes: F64, model: dict[str, Any]) -> F64:
    """Extra passes over the input: the share of rows in flight that the last-level cache no longer holds."""
    if not accelerator.compute_units or not accelerator.l2_bytes:
        return np.zeros_like(row_bytes)
    threads = 32.0 * (accelerator.max_warps_per_unit or 64)
    block = model["threads_per_row"][pattern]
    if pattern == "softmax":  # one block of up to 1024 threads, four elements a thread and step
        block = 2.0 ** np.floor(np.log2(np.clip(row_bytes / 16.0, 32.0, 1024.0)))
    in_flight = accelerator.compute_units * threads / block * row_bytes
    start, width = model["cache_miss"][pattern]
    again = np.clip((in_flight / accelerator.l2_bytes - start) / width, 0.0, 1.0) * model["passes_again"][pattern]
    return np.where(row_bytes <= 4.0 * WARP_SOFTMAX_ROW, 0.0, again) if pattern == "softmax" else again


def _result(accelerator: Accelerator, time: F64, pattern: str) -> KernelTime:
    model = load_json("memory_bound")
    basis: Basis = "fitted" if accelerator.family in model["family_efficiency"] else "derived"
    sigma = model["log_sigma"][pattern] * (1.0 if basis == "fitted" else model["log_sigma"]["new_family_factor"])
    return KernelTime(np.atleast_1d(time), np.full(np.atleast_1d(time).shape, sigma), basis)
