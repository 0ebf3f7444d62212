"""Sustained clock under the power limit: why a 72 W card never runs at the clock its peak is quoted for.

A chip at relative clock ``x`` (1 = boost) and relative voltage ``v(x)`` draws ``P = P0 + D x v(x)^2``, where ``D`` is what
full-rate arithmetic would add at boost: energy per FLOP times peak FLOP/s times ``intensity``. The governor holds the
largest ``x`` with ``P <= TDP``. Voltage falls linearly with clock down to a floor: ``v(x) = max(v_floor, 1 - s (1 - x))``.
Idle, memory and board power are ``P0 = a + b TDP``. Energies per FLOP are fitted per micro-architecture and arithmetic
(vector or matrix unit); a family nobody measured takes the nearest one in time of its vendor.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.facts.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json

F64 = NDArray[np.float64]
_VECTOR_DTYPES = ("fp32", "fp64")
_GRID = np.linspace(0.05, 1.0, 951)


def sustained_fraction(accelerator: Accelerator, intensity: ArrayLike = 1.0, dtype: str = "fp32") -> F64:
    """Fraction of the boost clock held while the unit of ``dtype`` works.

    ``intensity`` (any shape) is how busy that unit is, 1 for a large matrix product, near 0 for a memory-bound kernel;
    the result has its shape. 1.0 where the power limit or the rate is unknown: no limit is invented.
    """
    busy = np.asarray(intensity, dtype=np.float64)
    budget = _budget(accelerator, dtype)
    if budget is None:
        return np.ones_like(busy)
    wanted = np.divide(budget, busy, out=np.full_like(busy, np.inf), where=busy > 0)
    model = load_json("clock")
    drawn = _GRID * _voltage(_GRID, model["voltage_slope"], model["voltage_floor"]) ** 2
    return np.interp(wanted, drawn, _GRID, left=_GRID[0], right=1.0)


def _budget(accelerator: Accelerator, dtype: str) -> float | None:
    """Power left for arithmetic over what full-rate arithmetic would draw at boost; None when unknown."""
    rate = accelerator.peak_flop_per_s.get(dtype)
    if accelerator.tdp_w is None or rate is None:
        return None
    model = load_json("clock")
    unit = "vector" if dtype in _VECTOR_DTYPES else "matrix"
    energy = energy_j_per_flop(accelerator, unit) * (1.0 if unit == "vector" else _format_scale(model, dtype))
    left_w = accelerator.tdp_w - (model["static_w"] + model["static_per_tdp"] * accelerator.tdp_w)
    return max(left_w, 1.0) / (energy * rate)


def energy_j_per_flop(accelerator: Accelerator, unit: str) -> float:
    """Joules per FLOP at boost of the ``vector`` or ``matrix`` (16-bit) unit, of the family or the nearest in time."""
    table = _energies(unit)
    family = table.get(accelerator.family)
    if family is None:
        same_vendor = [e for e in table.values() if e["vendor"] == accelerator.vendor] or list(table.values())
        family = min(same_vendor, key=lambda e: abs(e["year"] - accelerator.year))
    return float(family["pj_per_flop"]) * 1e-12


@cache
def _energies(unit: str) -> dict[str, dict[str, Any]]:
    return load_json("clock")["energy"][unit]


def _format_scale(model: dict[str, Any], dtype: str) -> float:
    """Energy of one FLOP in ``dtype`` relative to 16-bit."""
    return float(model["format_scale"].get(dtype, 1.0))


def _voltage(x: F64, slope: float, floor: float) -> F64:
    return np.maximum(floor, 1.0 - slope * (1.0 - x))
