"""Threads of the libraries that multiply on the processor."""

from __future__ import annotations

import os
import sys

from gpuwise.machine.devices.cpu import usable_cores


def use_every_core() -> None:
    """Let numpy's OpenBLAS use the cores this process may run on, unless OMP_NUM_THREADS is set: the command line starts with
    one thread, which is right except for measurements. PyTorch sets its own threads."""
    if "numpy" not in sys.modules and "OMP_NUM_THREADS" not in os.environ:
        os.environ["OPENBLAS_NUM_THREADS"] = str(usable_cores())
