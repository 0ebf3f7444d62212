"""Limits of one multiprocessor, by CUDA compute capability. The table is ``data/hardware/sm_limits.csv``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.loading import Field, ShippedData
from gpuwise.facts.sources import cited_rows
from gpuwise.units import KIB

WARP_THREADS = 32
"""Threads of a warp on every capability so far (CUDA programming guide)."""
REGISTER_GRANULARITY = 256
"""Allocation unit of a warp's registers, on every capability from 3.5 on (from cuda_occupancy.h)."""
_WRITTEN = re.compile(r"(?:sm_?|compute_?|cc ?)?(\d{1,2})\.?(\d)[af]?", re.IGNORECASE | re.ASCII)

_count, _bytes = Field("integer"), Field("integer", minimum=0)
SM_LIMIT_SCHEMA: dict[str, Field] = {
    "compute_capability": Field("text"),
    **dict.fromkeys(("threads_per_block", "warps_per_sm", "blocks_per_sm", "registers_per_sm"), _count),
    **dict.fromkeys(("registers_per_block", "registers_per_thread", "sub_partitions", "shared_granularity"), _count),
    **dict.fromkeys(("shared_per_block", "shared_per_block_optin", "reserved_per_block"), _bytes),
    "carveouts_kib": Field("names"),
    "barriers_per_sm": Field("integer", required=False),
    "source": Field("text"),
}


_COUNTS = tuple(SM_LIMIT_SCHEMA)[1:12]


@dataclass(frozen=True, slots=True)
class SmLimits:
    """Limits of one multiprocessor; registers count 32 bits, shared memory bytes."""

    compute_capability: str
    threads_per_block: int
    warps_per_sm: int
    blocks_per_sm: int
    registers_per_sm: int
    registers_per_block: int
    registers_per_thread: int
    sub_partitions: int
    """Schedulers with their own registers; a warp stays on one."""
    shared_granularity: int
    shared_per_block: int
    shared_per_block_optin: int
    reserved_per_block: int
    """Shared memory that the driver takes of every block."""
    carveouts: tuple[int, ...]
    """Bytes of shared memory that one multiprocessor can be set to, rising."""
    barriers_per_sm: int | None
    source: str


@cache
def sm_limits() -> Mapping[str, SmLimits]:
    """Limits by compute capability, ascending. Raises DataError when the shipped file is corrupt."""
    by_capability: dict[str, SmLimits] = {}
    with ShippedData():
        for r in cited_rows("sm_limits.csv", SM_LIMIT_SCHEMA):
            counts = (r.integer(name) for name in _COUNTS)
            carveouts = tuple(int(size) * int(KIB) for size in r.names("carveouts_kib"))
            barriers = r.maybe_integer("barriers_per_sm")
            key = r.text("compute_capability")
            by_capability[key] = SmLimits(key, *counts, carveouts=carveouts, barriers_per_sm=barriers, source=r.text("source"))
    return MappingProxyType(by_capability)


def find_sm_limits(capability: str | float | tuple[int, int]) -> SmLimits:
    """The limits of ``9.0``, ``"9.0"``, ``(9, 0)``, ``"sm_90a"`` or ``90``. Raises UnknownNameError, InputError."""
    parts = capability if isinstance(capability, tuple) else (capability,)
    text = ".".join(str(part) for part in parts).strip()
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise InputError(f"{text[:40]!r} is not a compute capability", hint="write it like 9.0 or sm_90")
    limits = sm_limits().get(f"{match[1]}.{match[2]}")
    if limits is None:
        capabilities = list(sm_limits())
        hint = f"known are {capabilities[0]} to {capabilities[-1]}: " + ", ".join(capabilities)
        raise UnknownNameError("compute capability", f"{match[1]}.{match[2]}", capabilities, hint=hint)
    return limits
