"""Variables of this process that are not for those it starts."""

from __future__ import annotations

import os

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_own: set[str] = set()


def limit_own_products() -> None:
    """Let numpy's OpenBLAS start with one thread in this process, unless its environment variable is set."""
    if BLAS_THREADS not in os.environ:
        os.environ[BLAS_THREADS] = "1"
        _own.add(BLAS_THREADS)


def script_environment() -> dict[str, str]:
    """The environment of a person's script: this process's, without what it has set for itself."""
    return {name: value for name, value in os.environ.items() if name not in _own}
