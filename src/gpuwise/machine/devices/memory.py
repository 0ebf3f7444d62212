"""Main memory as Linux reports it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gpuwise.units import KIB


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes; None where not reported."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    """What a new application can have without swapping."""
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    huge_pages_total: int | None = None
    huge_pages_free: int | None = None
    huge_page_bytes: int | None = None


_LINES = {
    b"MemTotal": "total_bytes",
    b"MemAvailable": "available_bytes",
    b"SwapTotal": "swap_total_bytes",
    b"SwapFree": "swap_free_bytes",
    b"HugePages_Total": "huge_pages_total",
    b"HugePages_Free": "huge_pages_free",
    b"Hugepagesize": "huge_page_bytes",
}
_MOST_DIGITS = 15
"""A longer number is no size of memory."""


def read_memory(root: Path = Path("/")) -> HostMemory:
    """From ``/proc/meminfo`` under ``root``; everything None where there is none."""
    try:
        return memory_of((root / "proc/meminfo").read_bytes())
    except OSError:
        return HostMemory()


def total_bytes(root: Path = Path("/")) -> int | None:
    """All of the machine's memory; from the C library where there is no ``/proc``; None where nothing tells."""
    total = read_memory(root).total_bytes
    if total is not None:
        return total
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def memory_of(meminfo: bytes) -> HostMemory:
    """From the text of ``/proc/meminfo``; what it does not say is None."""
    bytes_by_field: dict[str, int] = {}
    for line in meminfo.splitlines():
        name, _, rest = line.partition(b":")
        field = _LINES.get(name.strip())
        parts = rest.split()
        if field and parts and parts[0].isdigit() and len(parts[0]) <= _MOST_DIGITS:
            bytes_by_field[field] = int(parts[0]) * (int(KIB) if parts[-1] == b"kB" else 1)
    return HostMemory(**bytes_by_field)
