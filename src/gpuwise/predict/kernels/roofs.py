"""What no kernel is faster than: the matrix rate of its format, and the memory or the cache that its bytes come from.

A working set that the last-level cache holds may move faster than memory delivers, as fast as the cache does; every
other may not. Fitted kernels know neither in their intervals, and clocks above the specified boost let a fit exceed the
data sheet: an answer about one kernel is held to the specification it names its share of.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.kernels.memory_bound import cache_rate
from gpuwise.units import MIB


class ByteRoof(NamedTuple):
    """The most bytes/s a working set moves at; ``cache`` names the cache that holds it, empty where memory bounds it."""

    bytes_per_s: float
    cache: str


def byte_roof(accelerator: Accelerator, working_set_bytes: float, fastest_s: float) -> ByteRoof:
    """What bounds a kernel that moves ``working_set_bytes`` in ``fastest_s`` at the least: memory where it is that fast, or where
    the cache is too small or its rate unknown."""
    memory = accelerator.memory_bandwidth_bytes_per_s
    held, rate = accelerator.l2_bytes or 0.0, cache_rate(accelerator) or 0.0
    if working_set_bytes <= memory * fastest_s or working_set_bytes > held or rate <= memory:
        return ByteRoof(memory, "")
    return ByteRoof(rate, f"{held / MIB:.3g} MiB L2 cache")
