"""The same arithmetic on every x86 machine: AVX-512 rounds some last digits otherwise than AVX2."""

from __future__ import annotations

import os
import subprocess
import sys

_FEATURES = (
    "from numpy._core import _multiarray_umath as umath\n"
    "print(*(n for n in umath.__cpu_dispatch__ if umath.__cpu_features__[n] and (n == 'X86_V4' or n.startswith('AVX512'))))"
)


def without_avx512() -> dict[str, str]:
    """Environment variables with which NumPy and OpenBLAS, imported later, use AVX2 at most. Empty where AVX-512 is missing or a
    person chose the instruction sets."""
    if "NPY_DISABLE_CPU_FEATURES" in os.environ:
        return {}
    asked = subprocess.run([sys.executable, "-c", _FEATURES], capture_output=True, text=True, check=False)
    if not (features := asked.stdout.strip()):
        return {}
    return {"NPY_DISABLE_CPU_FEATURES": features, "OPENBLAS_CORETYPE": "Haswell"}
