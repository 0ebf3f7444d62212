"""Learning how a GPU runs a kernel: occupancy, a simulation of its warps beside a CPU, the crossover between the two.

>>> from gpuwise.lab import occupancy
>>> occupancy("7.0", block_threads=320, regs_per_thread=37).active_blocks
4
"""

from __future__ import annotations

from gpuwise.lab.residency import Occupancy, occupancy

__all__ = ["Occupancy", "occupancy"]
