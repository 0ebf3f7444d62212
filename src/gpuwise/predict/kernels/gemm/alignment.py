"""Matrix dimensions that tensor cores do not like: rows that start off a 32-byte boundary.

A row of N or K elements whose size is no multiple of 32 bytes is read in more transactions and by slower kernels
(NVIDIA, Matrix Multiplication Background User's Guide, section 4; measured grids only hold aligned sizes). The factor is
fitted on BLOOM-176B's search (hidden 14400 over 8 tensor ranks: 1800 and 5400 columns) and stored in ``alignment.json``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
TENSOR_DTYPES = ("fp16", "bf16", "fp8", "mxfp8", "nvfp4")


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


def misaligned_time(accelerator: Accelerator, dtype: str, time_s: F64, m: F64, n: F64, k: F64, batch: F64) -> F64:
    """[R] ``time_s`` of products [m, k] x [k, n], as misaligned rows of N or K elements make it.

    The slower kernels multiply slower; what the product waits for memory, or to begin, is as long as before: the part of
    ``time_s`` that is arithmetic (at the rate large products reach) grows by the slowdown, parts add as a norm.
    """
    slow = alignment_slowdown(dtype, "matmul", n.astype(np.int64), k.astype(np.int64))
    if (slow == 1.0).all():
        return time_s
    rate = accelerator.peak_flop_per_s.get(dtype) or accelerator.peak("fp32")
    arithmetic = np.minimum(2.0 * m * n * k * batch / (_REACHED * rate), time_s)
    rest = np.maximum(time_s**_OVERLAP - arithmetic**_OVERLAP, 0.0)
    return np.where(slow == 1.0, time_s, (rest + (slow * arithmetic) ** _OVERLAP) ** (1.0 / _OVERLAP))


_REACHED = 0.75
"""Share of the peak that large half-precision products reach in the runs the slowdown was fitted on (A100, 230 TFLOP/s)."""
_OVERLAP = 3.0
"""Exponent of the norm that joins arithmetic and memory, as in the products' own physical form (``gemm.json``, p)."""
