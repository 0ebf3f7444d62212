"""Devices outside the catalogue: built from the driver's readings and measurements."""

from __future__ import annotations

import math
from types import MappingProxyType

from gpuwise.calibrate.machine.calibration import DeviceCoefficients
from gpuwise.errors import DataError
from gpuwise.facts.hardware.accelerators import PCIE_BYTES_PER_S, Accelerator, architectures
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.predict.coefficients import load_json

_CPU_VENDORS = ("AMD", "Intel", "Apple", "AWS")
SOURCE = "measured on this machine, and what its driver says"


def accelerator_from(
    coefficients: DeviceCoefficients | None,
    *,
    name: str,
    vendor: str,
    memory_bytes: float | None,
    capability: tuple[int, int] | None,
    units: int | None,
    clock_hz: float | None,
    power_w: float | None,
    l2_bytes: float | None,
    unified_memory: bool | None,
    pcie: tuple[int, int] | None = None,
) -> Accelerator:
    """An accelerator whose rates are the best that were measured: estimates on it cannot promise more.

    Raises DataError where nothing was measured or the driver does not say how much memory there is.
    """
    if coefficients is None or "memory" not in coefficients.rates or len(coefficients.rates) < 2:
        raise DataError(
            f"{name} is not in the catalogue and was not measured",
            hint="run `gpuwise bench --calibrate`: its rates are measured then",
        )
    if not memory_bytes:
        raise DataError(f"the driver does not report the memory of {name}", hint="name a GPU of the catalogue with --on")
    compute_capability = None if capability is None else f"{capability[0]}.{capability[1]}"
    unit = architectures().get(f"sm_{compute_capability.replace('.', '')}") if compute_capability else None
    link = PCIE_BYTES_PER_S.get(f"{pcie[0]}.0 x{pcie[1]}") if pcie else None
    rates = {dtype: rate for dtype, rate in coefficients.rates.items() if dtype != "memory"}
    return Accelerator(
        id="this-machine",
        name=name,
        vendor=vendor,
        family=unit.family if unit else "unknown",
        year=2026,
        compute_units=units,
        boost_hz=clock_hz,
        peak_flop_per_s=MappingProxyType(rates),
        memory_bytes=float(memory_bytes),
        memory_type="unknown",
        memory_bandwidth_bytes_per_s=coefficients.rates["memory"],
        l2_bytes=l2_bytes,
        shared_memory_per_unit_bytes=unit.shared_memory_bytes if unit else None,
        registers_per_unit=unit.registers if unit else None,
        max_warps_per_unit=unit.max_warps if unit else None,
        compute_capability=compute_capability,
        tdp_w=power_w,
        form="SoC" if unified_memory else "PCIe",
        pcie_bytes_per_s=link,
        link_kind=None,
        link_bytes_per_s=None,
        list_price_usd=None,
        source=SOURCE,
        fp32_flop_per_clock_per_unit=unit.flop_per_clock.get("fp32") if unit else None,
    )


def processor_from(coefficients: DeviceCoefficients, catalogued: Cpu | None, cores: int) -> Cpu:
    """The processor as measured: the peaks and the bandwidth at which the shares of peak every processor reaches give
    the measured rates. Raises DataError where products or memory were not measured.
    """
    if "fp32" not in coefficients.rates or "memory" not in coefficients.rates:
        raise DataError("this processor's products and memory were not measured", hint="run `gpuwise bench --device cpu --quick`")
    shares = load_json("cpu")["shares"]
    name = coefficients.name
    vendor = catalogued.vendor if catalogued else next((v for v in _CPU_VENDORS if v.lower() in name.lower()), "unknown")
    matrix = (
        "bf16" in coefficients.rates
        and "fp32" in coefficients.rates
        and coefficients.rates["bf16"] > 2.5 * coefficients.rates["fp32"]
    )
    unit = "matrix-apple" if vendor == "Apple" else "matrix-intel"
    peaks: dict[str, float] = {}
    for dtype in ("fp32", "bf16", "int8"):
        rate = coefficients.rates.get(dtype)
        if rate is not None and (dtype == "fp32" or rate > coefficients.rates["fp32"]):
            kind = unit if matrix and dtype != "fp32" else "product"
            peaks[dtype] = rate / float(shares[kind]["share"])
    bandwidth = coefficients.rates["memory"] / float(shares["stream"]["share"])
    if not all(math.isfinite(v) and v > 0 for v in (*peaks.values(), bandwidth)):
        raise DataError("a measured rate of this processor is not above zero", hint="run `gpuwise bench --device cpu` again")
    return Cpu(
        id="this-machine",
        name=name,
        vendor=vendor,
        family=catalogued.family if catalogued else "unknown",
        year=catalogued.year if catalogued else 2026,
        kind=catalogued.kind if catalogued else "unknown",
        cores=cores,
        efficiency_cores=0,
        base_hz=None,
        allcore_hz=None,
        peak_flop_per_s=MappingProxyType(peaks),
        matrix_dtypes=tuple(d for d in ("bf16", "int8") if matrix and d in peaks),
        memory_bandwidth_bytes_per_s=bandwidth,
        memory_type=catalogued.memory_type if catalogued else "unknown",
        tdp_w=catalogued.tdp_w if catalogued else None,
        list_price_usd=None,
        rental=None,
        source=SOURCE,
        weak=(),
    )
