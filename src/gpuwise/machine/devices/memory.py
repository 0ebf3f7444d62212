"""Main memory as Linux and udev report it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from gpuwise.units import KIB


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes; None where not reported."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    """Memory available to a new application without swapping."""
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
    """From ``/proc/meminfo`` under ``root``; all None if it does not exist."""
    try:
        return memory_of((root / "proc/meminfo").read_bytes())
    except OSError:
        return HostMemory()


def total_bytes(root: Path = Path("/")) -> int | None:
    """Total memory of the machine; from the C library without ``/proc``; None if neither reports it."""
    total = read_memory(root).total_bytes
    if total is not None:
        return total
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def memory_of(meminfo: bytes) -> HostMemory:
    """From the text of ``/proc/meminfo``; missing values are None."""
    bytes_by_field: dict[str, int] = {}
    for line in meminfo.splitlines():
        name, _, rest = line.partition(b":")
        field = _LINES.get(name.strip())
        parts = rest.split()
        if field and parts and parts[0].isdigit() and len(parts[0]) <= _MOST_DIGITS:
            bytes_by_field[field] = int(parts[0]) * (int(KIB) if parts[-1] == b"kB" else 1)
    return HostMemory(**bytes_by_field)


@dataclass(frozen=True, slots=True)
class MemoryModule:
    """One installed module, as the firmware describes it; None for missing values."""

    type: str | None
    """``DDR4``."""
    mt_s: int | None
    """Configured rate, else its own rate."""
    size_bytes: int | None


_MODULE = re.compile(r"E:MEMORY_DEVICE_(\d{1,4})_(\w+)=(.*)")


def read_modules(root: Path = Path("/")) -> tuple[MemoryModule, ...]:
    """The modules in udev's database, readable by every user (filled by ``dmi_memory_id`` of systemd 248 and later); may be
    empty."""
    try:
        text = (root / "run/udev/data/+dmi:id").read_text("utf-8", errors="replace")
    except OSError:
        return ()
    slots: dict[int, dict[str, str]] = {}
    for found in _MODULE.finditer(text):
        slots.setdefault(int(found[1]), {})[found[2]] = found[3].strip()

    def number(slot: dict[str, str], *names: str) -> int | None:
        return next((int(slot[n]) for n in names if slot.get(n, "").isdigit() and len(slot[n]) <= _MOST_DIGITS), None)

    return tuple(
        MemoryModule(
            slot["TYPE"] if "DDR" in slot.get("TYPE", "") else None,
            number(slot, "CONFIGURED_SPEED_MTS", "SPEED_MTS"),
            number(slot, "SIZE"),
        )
        for slot in slots.values()
        if slot.get("PRESENT") != "0" and number(slot, "SIZE")
    )
