"""Accelerators: one device as the software sees it (an MI250X is two).

Rates are dense. Link rates are per device, one direction. Memory is what the device reports as its total.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8", "int4")
"""Numeric formats a matrix rate may be given for. ``fp32`` is the vector (non tensor-core) rate."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The specification of one device.

    ``peak_flop_per_s`` maps a dtype of :data:`DTYPES` to the dense rate with FP32 accumulation; a dtype that is
    absent is unsupported or unpublished. ``None`` means unknown, never zero.
    """

    id: str
    name: str
    vendor: str
    family: str
    """Micro-architecture as coefficients are shared by it: Pascal, Volta, Turing, Ampere-GA100, Ampere, Ada,
    Hopper, Blackwell, Blackwell-RTX, CDNA2, ..."""
    year: int
    compute_units: int | None
    """Streaming multiprocessors, compute units or cores."""
    boost_hz: float | None
    peak_flop_per_s: Mapping[str, float]
    memory_bytes: float
    memory_type: str
    memory_bandwidth_bytes_per_s: float
    l2_bytes: float | None
    shared_memory_per_unit_bytes: float | None
    registers_per_unit: int | None
    max_warps_per_unit: int | None
    compute_capability: str | None
    tdp_w: float | None
    form: str
    pcie_bytes_per_s: float | None
    """Host link, one direction."""
    link_kind: str | None
    """``nvlink3``, ``nvlink4``, ``nvlink5``, ``xgmi``, ``ici``, ... or None."""
    link_bytes_per_s: float | None
    """Device-to-device link, one direction, all lanes together."""
    list_price_usd: float | None
    source: str
    """Where the row comes from; cells with another source are named in the catalogue file."""
    weak: tuple[str, ...] = ()
    """Fields whose source is not the vendor or that were inferred; results that lean on one say so."""

    def peak(self, dtype: str) -> float:
        """Dense peak in FLOP/s for ``dtype``.

        Raises UnpredictableError when the catalogue has no rate for it.
        """
        from gpuwise.errors import UnpredictableError

        rate = self.peak_flop_per_s.get(dtype)
        if rate is None:
            have = ", ".join(self.peak_flop_per_s)
            raise UnpredictableError(
                f"no {dtype} rate for accelerator", f"{self.name} has no published dense {dtype} rate",
                hint=f"it has {have}",
            )  # fmt: skip
        return rate
