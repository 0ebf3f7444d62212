"""Processes that this one starts: their environment, and how they are ended."""

from __future__ import annotations

import os
import signal

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_own: set[str] = set()
END_AT_ONCE = getattr(signal, "SIGKILL", signal.SIGTERM)
"""The signal that a process cannot refuse. On Windows SIGTERM is one, and there is no other."""


def limit_own_products() -> None:
    """Let numpy's OpenBLAS start with one thread in this process, unless its environment variable is set."""
    if BLAS_THREADS not in os.environ:
        os.environ[BLAS_THREADS] = "1"
        _own.add(BLAS_THREADS)


def script_environment() -> dict[str, str]:
    """The environment of a person's script: this process's, without what it has set for itself."""
    return {name: value for name, value in os.environ.items() if name not in _own}
