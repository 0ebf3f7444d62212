"""Upper bounds of a kernel's rate: the matrix rate of its format, and the bandwidth of the memory or cache that its bytes come
from.

Only a working set that fits the last-level cache may move faster than memory, up to the cache's rate. Fitted kernels and their
intervals ignore these bounds, and clocks above the specified boost let a fit exceed the data sheet; so the answer for one
kernel is capped at the specification that its share refers to.
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
    """The bound of a kernel that moves ``working_set_bytes`` in at least ``fastest_s``: memory if it is that fast, or if the
    cache is too small or its rate unknown."""
    memory = accelerator.memory_bandwidth_bytes_per_s
    held, rate = accelerator.l2_bytes or 0.0, cache_rate(accelerator) or 0.0
    if working_set_bytes <= memory * fastest_s or working_set_bytes > held or rate <= memory:
        return ByteRoof(memory, "")
    return ByteRoof(rate, f"{held / MIB:.3g} MiB L2 cache")
