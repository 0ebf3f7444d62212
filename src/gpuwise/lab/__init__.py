"""Learning how a GPU runs a kernel: occupancy, a simulation of its warps beside a CPU, the crossover between the two.

>>> from gpuwise.lab import occupancy
>>> occupancy("7.0", block_threads=320, regs_per_thread=37).active_blocks
4
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.lab.residency import Occupancy, occupancy

if TYPE_CHECKING:
    from gpuwise.lab.simulation import Simulation, simulate_kernel, simulate_task

__all__ = ["Occupancy", "Simulation", "occupancy", "simulate_kernel", "simulate_task"]


def __getattr__(name: str) -> object:
    if name not in ("Simulation", "simulate_kernel", "simulate_task"):
        raise AttributeError(f"module 'gpuwise.lab' has no attribute {name!r}")
    from gpuwise.lab import simulation

    return getattr(simulation, name)
