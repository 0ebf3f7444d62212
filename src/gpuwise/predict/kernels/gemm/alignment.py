"""Cost of misaligned matrix rows: rows that start off a 32-byte or a 16-byte boundary.

Off 16 bytes. What counts is the leading dimension of each operand and of the result (:func:`row_alignment`): the reduction of
[4096, 4095] x [4095, 4096] is odd, yet where both operands lie along their other side the product runs at full rate. Neither
the bulk copies of Hopper nor 16-byte loads can fetch such rows. The library falls back to kernels of Turing and Ampere
(``cutlass_75_tensorop_bf16_s1688gemm_.._align1``) whose loads, not their tensor cores, set the pace: so many FLOP per clock
and unit, by the bytes that rows have in common with a boundary, whatever the unit's tensor cores could do. ``cp.async`` takes 4
bytes at least; rows of odd 16-bit numbers go through registers one by one.

Off 32 bytes, on cards before Hopper: rows are read in more transactions and by slower kernels (NVIDIA, Matrix Multiplication
Background User's Guide, section 4; measured grids contain only aligned sizes). That factor is fitted on BLOOM-176B's search
(hidden 14400 over 8 tensor ranks: 1800 and 5400 columns). Hopper reads rows of 4104 numbers as fast as those of 4096.

Constants: ``coefficients/kernels/alignment.json``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.accelerator_factors import factor_key
from gpuwise.predict.kernels.memory_bound import dram_rate

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
TENSOR_DTYPES = ("fp16", "bf16", "fp8", "mxfp8", "nvfp4")
VECTOR_BYTES = 16.0
"""Bytes per load of the fast kernels, and unit of a bulk copy's stride (CUDA driver API, ``cuTensorMapEncodeTiled``)."""
_FALLS_BACK = ("fp16", "bf16", "tf32")
"""Formats that have kernels for other rows; narrower ones are refused by the library."""
_BULK_COPIES = 9.0
"""Compute capability from which operands are fetched by bulk copies."""
_SPLITS = (1.0, 2.0, 4.0, 8.0, 16.0)


def alignment_slowdown(dtype: str, family: str, *sizes: I64) -> F64:
    """[R] factor on the time of products whose row lengths (in elements) are ``sizes`` [R]; 1 where all are aligned.

    ``family`` is ``matmul`` or ``attention`` (its batched products, where the head size is the row).
    """
    if dtype not in TENSOR_DTYPES:
        return np.ones(len(sizes[0]))
    rule = load_json("alignment")[family]
    aligned = np.ones(len(sizes[0]), dtype=bool)
    for size in sizes:
        aligned &= (size * FORMAT_BYTES[dtype]) % rule["bytes"] == 0
    return np.where(aligned, 1.0, rule["slowdown"])


def misaligned_time(
    accelerator: Accelerator,
    dtype: str,
    time_s: F64,
    m: F64,
    n: F64,
    k: F64,
    batch: F64,
    layout: NDArray[np.str_] | str = "tn",
    *,
    compiled: bool = False,
) -> F64:
    """[R] ``time_s`` of products [m, k] x [k, n], raised for misaligned rows of N or K elements.

    Off 32 bytes the slower kernels multiply slower; the time for memory and latency does not change: the part of ``time_s``
    that is arithmetic (at the rate large products reach) grows by the slowdown, parts add as a norm. Off 16 bytes it takes
    :func:`unvectorised_time` at least; a compiler pads a linear layer's operands instead, where that is shorter. Products that
    do not say how their operands lie (``layout`` is empty) are of tuned stacks, which pad what they multiply (Megatron-LM its
    vocabulary to a multiple of 128) and were fitted with the factor off 32 bytes on every card; cards fitted on whole networks
    have the cost of rows off 16 bytes in their own factor.
    """
    nvidia = accelerator.vendor == "NVIDIA" and factor_key(accelerator) is None
    bulk = nvidia and float(accelerator.compute_capability or 0.0) >= _BULK_COPIES
    slowed, plain = time_s, np.broadcast_to(layout, m.shape) == ""
    if plain.any() or not bulk:
        slow = alignment_slowdown(dtype, "matmul", n.astype(np.int64), k.astype(np.int64))
        slow = np.where(plain, slow, 1.0) if bulk else slow
        rate = accelerator.peak_flop_per_s.get(dtype) or accelerator.peak("fp32")
        arithmetic = np.minimum(2.0 * m * n * k * batch / (_REACHED * rate), time_s)
        rest = np.maximum(time_s**_OVERLAP - arithmetic**_OVERLAP, 0.0)
        slowed = np.where(slow == 1.0, time_s, (rest + (slow * arithmetic) ** _OVERLAP) ** (1.0 / _OVERLAP))
    if not nvidia or dtype not in _FALLS_BACK:
        return slowed
    boundary = row_alignment(dtype, m, n, k, layout)
    off = np.flatnonzero(boundary < VECTOR_BYTES)
    if not off.size:
        return slowed
    slowed, layouts = slowed.copy(), np.broadcast_to(layout, m.shape)[off]
    m, n, k, batch = m[off], n[off], k[off], batch[off]
    fallback = np.maximum(slowed[off], unvectorised_time(accelerator, dtype, m, n, k, batch, layouts, boundary[off]))
    if compiled:
        padded = time_s[off] + 2.0 * FORMAT_BYTES[dtype] * batch * k * (m + n) / dram_rate(accelerator)
        fallback = np.where(layouts == "nt", fallback, np.minimum(fallback, padded))
    slowed[off] = fallback
    return slowed


def row_alignment(dtype: str, m: F64, n: F64, k: F64, layout: NDArray[np.str_] | str) -> F64:
    """[R] bytes of the largest boundary, up to 16, that every row of both operands and of the result starts on.

    ``tn``: both operands are contiguous along K, as in a linear layer's forward; ``nn``: the second along N (the gradient of
    its input); ``nt``: the first along M too (of its weight). A vector has no rows and counts as aligned.
    """
    layouts = np.broadcast_to(layout, m.shape)
    sides = (np.where(layouts == "nt", m, k), np.where(layouts == "tn", k, n), n)
    boundary = np.full(m.shape, VECTOR_BYTES)
    for side in sides:
        boundary = np.minimum(boundary, np.gcd((side * FORMAT_BYTES[dtype]).astype(np.int64), int(VECTOR_BYTES)))
    return np.where((np.minimum(np.minimum(m, n), k) == 1.0) | (layouts == ""), VECTOR_BYTES, boundary)


def unvectorised_time(
    accelerator: Accelerator, dtype: str, m: F64, n: F64, k: F64, batch: F64, layout: NDArray[np.str_], boundary: F64
) -> F64:
    """[R] seconds of products whose rows start on a ``boundary`` [R] below 16 bytes.

    Blocks of ``tile`` x ``tile`` of the result, in whole waves over the units; a short grid splits K and adds its parts up. A
    unit does ``flop_per_clock`` by boundary, a 16-bit format; half as many of numbers twice as wide. Where both operands of odd
    16-bit rows are aligned and the result alone is not (``result``: a vocabulary's logits) the library's choice is slower still.
    """
    rule: dict[str, Any] = load_json("alignment")["unvectorised"]
    rates: dict[str, float] = rule["flop_per_clock"]
    width, latency_s = FORMAT_BYTES[dtype], float(rule["latency_s"])
    result_only = (layout == "tn") & (np.fmod(k * width, VECTOR_BYTES) == 0)
    scalar: F64 = np.where(result_only, rates["result"], rates["2"])
    rate: F64 = np.where(boundary >= _ASYNC_COPY_BYTES, rates["4"], scalar) * 2.0 / width
    units = float(accelerator.compute_units or 1)
    peak = _REACHED * accelerator.peak(dtype)
    per_unit = np.minimum(rate * (accelerator.boost_hz or np.inf), peak / units)
    tile = float(rule["tile"])
    blocks = batch * np.ceil(m / tile) * np.ceil(n / tile)
    best = np.full(m.shape, np.inf)
    for split in _SPLITS:
        time = np.ceil(blocks * split / units) * 2.0 * tile * tile * np.ceil(k / split) / per_unit
        if split > 1:
            time = time + 8.0 * batch * m * n * split / dram_rate(accelerator) + latency_s
        best = np.minimum(best, time)
    return best + latency_s


_ASYNC_COPY_BYTES = 4.0
"""The least that ``cp.async`` takes (PTX ISA, ``cp.async.ca``)."""
_REACHED = 0.75
"""Share of the peak that large half-precision products reach in the runs the slowdown was fitted on (A100, 230 TFLOP/s)."""
_OVERLAP = 3.0
"""Exponent of the norm that joins arithmetic and memory, as in the products' own physical form (``gemm.json``, p)."""
