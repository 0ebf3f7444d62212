"""What one person runs a model on: the GPUs of a machine, or its processor alone, with its RAM."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.facts.hardware.systems import Cluster


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """A machine that runs a local program. Bytes are those available to the program; None if unknown."""

    cluster: Cluster | None
    """Its GPUs; None: it runs on the processor."""
    processor: Cpu | None
    """None: unknown."""
    ram_bytes: float | None
    free_bytes: float | None = None
    """Free now on the fullest of the GPUs; None: all of it."""
    here: bool = False
    """Whether it is the machine that runs gpuwise."""
