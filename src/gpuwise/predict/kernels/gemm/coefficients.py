"""The fitted coefficients of matrix products of one format on one accelerator, with the log-normal widths of their errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.predict.coefficients import load_arrays, load_json
from gpuwise.predict.estimate import Basis
from gpuwise.predict.kernels import boosted
from gpuwise.predict.kernels.gemm.formats import IMPLEMENTATIONS, Format, math_dtype, rate_share
from gpuwise.predict.kernels.gemm.physics import FIELDS, Device, PhysicalCoefficients, device_of

F64 = NDArray[np.float64]

NEAREST: dict[str, tuple[str, ...]] = {
    "Blackwell-RTX": ("Blackwell-RTX", "Ada", "Blackwell"),
    "Rubin": ("Rubin", "Blackwell", "Hopper"),
    "Thor": ("Thor", "Blackwell", "Ada"),
    "Ampere": ("Ampere", "Ada", "Ampere-GA100"),
    "Orin": ("Orin", "Ampere-GA100", "Ada"),
    "Turing": ("Turing", "Ada", "Ampere-GA100"),
    "Volta": ("Volta", "Ampere-GA100", "Ada"),
    "Hopper": ("Hopper", "Blackwell", "Ampere-GA100", "Ada"),
    "Blackwell": ("Blackwell", "Hopper", "Ampere-GA100", "Ada"),
    "Ada": ("Ada", "Ampere-GA100", "Hopper"),
    "Ampere-GA100": ("Ampere-GA100", "Ada", "Hopper"),
    "Xe-HPG": ("Xe-HPG", "Xe2-HPG"),
    "Xe-HPC": ("Xe-HPC", "Xe2-HPG"),
}
"""Families by how alike their matrix units, memory and libraries are; the first that was measured counts.
Others take the mean of all."""
DURATION_EDGES_S = np.array([5e-6, 2e-5, 1e-4, 1e-3])
"""Between the classes in which errors are counted: short kernels are the least certain."""
SCALE_ROWS = 4
"""Rows to which DeepGEMM pads the scales of A (16 bytes of 32-bit scales: the alignment that TMA requires)."""
_SAME_KERNELS = {"bf16": "fp16"}
"""Formats that run the same kernels at the same rate: measured for one, measured for the other."""
_FEATURE_TILES = ((64, 64), (128, 128), (128, 256), (256, 128))
"""Tiles whose waves on the family's reference device are features of the correction."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Coefficients of one implementation on one accelerator. Trees are None if nothing was fitted."""

    form: Format
    device: Device
    physics: PhysicalCoefficients
    family_trees: boosted.Trees | None
    device_trees: boosted.Trees | None
    reference_units: float
    basis: Basis
    sigma: F64
    """log_sigma of device time by class of duration."""
    host_floor_s: float
    """Host time per launch if the measurement was not graph-captured, else 0. Not device time."""
    host_floor_unpadded_s: float = 0.0
    """The same if the number of rows is not a multiple of :data:`SCALE_ROWS`, so that the host lays A's scales out again."""


def duration_class(time_s: F64) -> NDArray[np.intp]:
    """Index into ``Coefficients.sigma`` [R] of times in seconds [R]."""
    return np.searchsorted(DURATION_EDGES_S, time_s)


def coefficients_of(accelerator: Accelerator, name: str, kernel: str = "") -> Coefficients:
    """The shipped coefficients of ``name``, a key of ``IMPLEMENTATIONS``. Raises UnpredictableError when the accelerator has no
    rate for it.

    ``kernel``: the source of the measured kernel, which decides what its host took per launch; "" for any.
    """
    key = (accelerator.id, name, kernel)
    entry = _CACHE.get(key)
    if entry is None or entry[0] is not accelerator:
        entry = _CACHE[key] = (accelerator, build(accelerator, name, load_json("gemm"), load_arrays("gemm"), kernel))
    return entry[1]


_CACHE: dict[tuple[str, str, str], tuple[Accelerator, Coefficients]] = {}


def build(
    accelerator: Accelerator, name: str, document: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], kernel: str = ""
) -> Coefficients:
    """The coefficients in ``document`` and ``arrays`` (the shipped ones, or trial ones while fitting)."""
    implementation = IMPLEMENTATIONS[name]
    device = device_of(accelerator, math_dtype(accelerator, name), rate_share(accelerator, name))
    key = implementation.coefficients
    by_family: Mapping[str, Mapping[str, float]] = document["physics"][key]
    family = accelerator.family
    family_physics = by_family.get(family)
    trees = boosted.unpack(f"{key}/{family}", arrays) if family_physics and _same_units(accelerator, name, document) else None
    native = name in (key, _SAME_KERNELS.get(key))
    measured = family_physics is not None and native and accelerator.id in document["measured"][key]
    basis: Basis = "fitted" if measured else "derived" if family_physics else "specified"
    return Coefficients(
        form=implementation.form,
        device=device,
        physics=_for_format(
            PhysicalCoefficients(**family_physics) if family_physics else _borrowed(document, key, family), name, key
        ),
        family_trees=trees,
        device_trees=boosted.unpack(f"{key}/{accelerator.id}", arrays) if measured else None,
        reference_units=float(document["reference_units"].get(family, device.units)),
        basis=basis,
        sigma=_sigma(document, key, accelerator, basis, native),
        host_floor_s=host_floor_of(document["host_floor_s"].get(key, []), accelerator, kernel, "s"),
        host_floor_unpadded_s=host_floor_of(document["host_floor_s"].get(key, []), accelerator, kernel, "unpadded_s"),
    )


def _same_units(accelerator: Accelerator, name: str, document: Mapping[str, Any]) -> bool:
    """Whether a unit of ``accelerator`` multiplies as much a clock as those of its family that were measured.

    GeForce cards of a family sum 16-bit products at half the rate of its datacentre cards: what the correction learned of
    the balance between arithmetic and memory there is not true of them.
    """
    measured = document["measured"][IMPLEMENTATIONS[name].coefficients]
    catalogue = accelerators()
    references = [catalogue[i] for i, family in measured.items() if family == accelerator.family and i in catalogue]
    per_clock = _per_clock(accelerator, name)
    reference_rates = [r for a in references if (r := _per_clock(a, name)) is not None]
    return per_clock is None or not reference_rates or any(abs(per_clock - other) < 0.5 for other in reference_rates)


def _per_clock(accelerator: Accelerator, name: str) -> float | None:
    """log2 of the FLOP a unit does a clock; None where the catalogue lacks units, clock or rate."""
    rates = [accelerator.peak_flop_per_s[d] for d in IMPLEMENTATIONS[name].math if d in accelerator.peak_flop_per_s]
    if not (accelerator.compute_units and accelerator.boost_hz and rates):
        return None
    return math.log2(rates[0] / (accelerator.compute_units * accelerator.boost_hz))


def _borrowed(document: Mapping[str, Any], key: str, family: str) -> PhysicalCoefficients:
    """Coefficients for a family without measurements: the nearest one's, half way (in log) to the mean of all NVIDIA ones."""
    by_family: Mapping[str, Mapping[str, float]] = document["physics"][key]
    near = next((f for f in NEAREST.get(family, ()) if f in by_family), None)
    many = [v for f, v in by_family.items() if not f.startswith("Xe")] or list(by_family.values())
    out: dict[str, float] = {}
    for field in FIELDS:
        values = [v[field] for v in many]
        mean = _mean(values)
        out[field] = _mean([by_family[near][field], mean]) if near else mean
    reached = float(document["library_efficiency"].get(family, 1.0))
    out["math_efficiency"] *= reached
    # a matrix engine as large as several multiprocessors is fed and stepped like several
    for field, several in (("load_bytes_per_clock", max(reached, 1.0)), ("step_clocks", 1.0 / max(reached, 1.0))):
        out[field] *= several
    return PhysicalCoefficients(**out)


def _for_format(c: PhysicalCoefficients, name: str, key: str) -> PhysicalCoefficients:
    """``c`` converted from its fitted format to another one: energy scales with the width of A's elements."""
    width, fitted = IMPLEMENTATIONS[name].form.a, IMPLEMENTATIONS[key].form.a
    return c if width == fitted else replace(c, joules_per_flop=c.joules_per_flop * width / fitted)


def _mean(values: list[float]) -> float:
    """Geometric mean; 0 where any value is 0 (a term that is switched off)."""
    return 0.0 if min(values) <= 0 else math.exp(sum(math.log(v) for v in values) / len(values))


def _sigma(document: Mapping[str, Any], key: str, accelerator: Accelerator, basis: Basis, native: bool) -> F64:
    """Widths of device time. Another format's coefficients are trusted as another family's."""
    table: Mapping[str, Any] = document["log_sigma"]
    hidden = table.get("device_only", {}).get(f"{key}/{accelerator.family}")
    if hidden is not None:
        return np.array(hidden)
    if basis == "fitted":
        return np.array(table["fitted"].get(f"{key}/{accelerator.id}", table["specified"]))
    if basis == "derived" and native:
        return np.array(table["derived"].get(key, table["derived"]["bf16"]))
    return np.array(table["specified" if accelerator.vendor == "NVIDIA" else "unknown"])


def sigma_as_measured(accelerator: Accelerator, name: str) -> F64:
    """Widths of what a timing loop shows, by class of duration: with the host's launch where that is part
    of it."""
    document, c = load_json("gemm"), coefficients_of(accelerator, name)
    key = IMPLEMENTATIONS[name].coefficients
    if c.host_floor_s <= 0:
        return c.sigma
    table = document["log_sigma"]
    if c.basis == "fitted":
        return np.array(table["fitted"].get(f"{key}/{accelerator.id}", table["specified"]))
    width = np.array(table["derived"].get(key, table["derived"]["bf16"])) if c.basis == "derived" else c.sigma
    floors = [f for f in document["host_floor_s"][key] if f["family"] == accelerator.family]
    same_host = any(f["form"] == accelerator.form for f in floors)
    return width if same_host else np.hypot(width, document["host_floor_log_sigma"])


def host_floor_of(floors: Sequence[Mapping[str, Any]], accelerator: Accelerator, kernel: str, field: str) -> float:
    """Seconds a launch of ``kernel`` took the host: of this device, else of what is most like it.

    Alike are, in this order: the same kernel, the same family, the same kind of board (a Grace host is slower). 0 where the
    loops that timed the vendor's accelerators were captured.
    """
    alike = [f for f in floors if f["vendor"] == accelerator.vendor]
    for criteria in (
        {"accelerator": accelerator.id, "kernel": kernel},
        {"kernel": kernel},
        {"accelerator": accelerator.id},
        {"family": accelerator.family},
        {"form": accelerator.form},
    ):
        alike = [f for f in alike if all(f[key] == value for key, value in criteria.items())] or alike
    return _mean([f[field] for f in alike]) if alike else 0.0


def features(m: F64, n: F64, k: F64, batch: F64, reference_units: float) -> F64:
    """Inputs of the correction trees [F, R]: sizes, tile padding, waves on the reference device. Batches count as rows."""
    rows = m * batch
    columns = [
        np.log2(rows),
        np.log2(n),
        np.log2(k),
        np.log2(rows * n),
        np.log2(rows * k),
        np.log2(n * k),
        np.log2(rows * n * k),
        np.log2(rows * n + rows * k + n * k),
        np.ceil(m / 64) * 64 / m,
        np.ceil(m / 128) * 128 / m,
        np.ceil(m / 256) * 256 / m,
        np.ceil(n / 128) * 128 / n,
        np.ceil(n / 256) * 256 / n,
        np.mod(m, 8),
    ]
    for tile_m, tile_n in _FEATURE_TILES:
        waves = np.ceil(m / tile_m) * np.ceil(n / tile_n) * batch / reference_units
        columns += [np.log2(waves), np.ceil(waves) / waves]
    return np.stack(columns)
