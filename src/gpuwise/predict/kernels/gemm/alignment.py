"""Matrix dimensions that tensor cores do not like: rows that start off a 32-byte boundary.

A row of N or K elements whose size is no multiple of 32 bytes is read in more transactions and by slower kernels
(NVIDIA, Matrix Multiplication Background User's Guide, section 4; measured grids only hold aligned sizes). The factor is
fitted on BLOOM-176B's search (hidden 14400 over 8 tensor ranks: 1800 and 5400 columns) and stored in ``alignment.json``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuwise.predict.coefficients import load_json
from gpuwise.workload.transformer.point import BYTES_PER_ELEMENT

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
        aligned &= (size * BYTES_PER_ELEMENT[dtype]) % rule["bytes"] == 0
    return np.where(aligned, 1.0, rule["slowdown"])
