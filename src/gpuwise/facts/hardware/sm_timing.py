"""Measured cycles of one multiprocessor, by CUDA compute capability. The table is ``data/hardware/sm_timing.csv``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.errors import UnpredictableError
from gpuwise.facts.loading import Field, ShippedData
from gpuwise.facts.sources import cited_rows

_cycles = Field("number")
SM_TIMING_SCHEMA: dict[str, Field] = {
    "compute_capability": Field("text"),
    **dict.fromkeys(("fp32_cycles", "fp64_cycles", "sfu_cycles", "shared_cycles", "l1_cycles", "l2_cycles"), _cycles),
    **dict.fromkeys(("dram_cycles", "fma_share", "load_floor", "load_floor_64"), _cycles),
    "source": Field("names"),
}
_NUMBERS = tuple(SM_TIMING_SCHEMA)[1:11]
_NEAR = {"7.2": "7.0", "8.7": "8.6", "8.8": "8.6", "10.3": "10.0", "11.0": "10.0", "12.1": "12.0"}
"""Capabilities without measurements, and the one of their generation whose cycles they use."""


@dataclass(frozen=True, slots=True)
class SmTiming:
    """Cycles of the multiprocessor's clock."""

    compute_capability: str
    fp32_cycles: float
    fp64_cycles: float
    sfu_cycles: float
    shared_cycles: float
    l1_cycles: float
    l2_cycles: float
    dram_cycles: float
    fma_share: float
    """Share of the FP32 rate reached by long runs of multiply-adds."""
    load_floor: float
    load_floor_64: float
    source: tuple[str, ...]


@cache
def sm_timings() -> Mapping[str, SmTiming]:
    """Timings by compute capability. Raises DataError when the shipped file is corrupt."""
    by_capability: dict[str, SmTiming] = {}
    with ShippedData():
        for r in cited_rows("sm_timing.csv", SM_TIMING_SCHEMA):
            name, numbers = r.text("compute_capability"), (r.number(n) for n in _NUMBERS)
            by_capability[name] = SmTiming(name, *numbers, source=r.names("source"))
    return MappingProxyType(by_capability)


def find_sm_timing(capability: str) -> SmTiming:
    """The cycles of ``capability``, or of the nearest of its generation. Raises UnpredictableError before 7.0."""
    timing = sm_timings().get(_NEAR.get(capability, capability))
    if timing is None:
        capabilities = ", ".join(sm_timings())
        raise UnpredictableError(
            "no measured cycles",
            f"no measured cycles are known for compute capability {capability}",
            hint=f"known are {capabilities}",
        )
    return timing
