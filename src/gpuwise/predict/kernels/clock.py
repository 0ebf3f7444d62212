"""Sustained clock under the power limit: why a 72 W card never runs at the clock its peak is quoted for.

A chip at relative clock ``x`` (1 = boost) and relative voltage ``v(x)`` draws ``P = P0 + D x v(x)^2``. ``D`` is what the work
would add at boost: joules per FLOP times the FLOP/s it would reach there. The governor chooses the largest ``x`` with ``P <=
TDP``. Voltage falls linearly with clock down to a floor: ``v(x) = max(v_floor, 1 - s (1 - x))``; memory, leakage and board losses
are ``P0 = a + b TDP``. Joules per FLOP are fitted per micro-architecture and arithmetic unit (vector or matrix) from cards that
are power-limited; a family without measurements takes its vendor's nearest in time.

A whole step has the same limit (:func:`step_clock`). Below the limit the same balance gives the power: ``P = min(TDP, P0 + (J
per FLOP) FLOP/s + (J per byte) bytes/s)`` of its mean rates. Joules per byte of memory traffic are those of families where
steps were metered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.interval import Z80
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Estimate

F64 = NDArray[np.float64]
VECTOR_DTYPES = ("fp32", "fp64")
_GRID = np.linspace(0.02, 1.0, 981)


def sustained_fraction(accelerator: Accelerator, intensity: ArrayLike = 1.0, dtype: str = "fp32") -> F64:
    """Sustained fraction of the boost clock while work of ``dtype`` runs.

    ``intensity`` (any shape) is the share of peak FLOP/s the work would reach at boost: about 0.95 for a large matrix product,
    near 0 for a memory-bound kernel. The result has its shape. 1.0 if the power limit or the rate is unknown.
    """
    busy = np.asarray(intensity, dtype=np.float64)
    budget_w, full_w = power_budget_w(accelerator), arithmetic_power_w(accelerator, dtype)
    if budget_w is None or full_w is None:
        return np.ones_like(busy)
    budget_share = budget_w / (full_w * np.maximum(busy, 1e-9))
    model = load_json("clock")
    power_share = _GRID * relative_voltage(_GRID, model["voltage_slope"], model["voltage_floor"]) ** 2
    return np.interp(budget_share, power_share, _GRID)


class StepClock(NamedTuple):
    """Relative to boost."""

    clock: float
    joules: float
    """Joules per FLOP."""


def power_budget_w(accelerator: Accelerator) -> float | None:
    """Watts left for arithmetic under the TDP; None when the TDP is unknown."""
    if accelerator.tdp_w is None:
        return None
    model = load_json("clock")
    return max(accelerator.tdp_w * (1.0 - model["static_per_tdp"]) - model["static_w"], 0.1 * accelerator.tdp_w)


def work_energy_j(
    accelerator: Accelerator,
    formats: Sequence[str],
    flop: ArrayLike,
    moved_bytes: ArrayLike,
    time_s: ArrayLike,
    most_j: Mapping[str, float] | None = None,
) -> F64 | None:
    """[S] joules that pieces of work add to the device's static draw; None if the family was not metered.

    ``formats`` [S] of the arithmetic, ``flop`` and ``moved_bytes`` [S] of each piece, ``time_s`` [S] its kernels: memory
    traffic is capped at the memory's rate in that time. ``most_j``: maximum joules per FLOP by format.
    """
    per_byte: Mapping[str, float] = load_json("clock")["memory_pj_per_byte"]
    if accelerator.family not in per_byte or accelerator.tdp_w is None:
        return None
    each = {f: min(_joules_of(accelerator, f), (most_j or {}).get(f, np.inf)) for f in dict.fromkeys(formats)}
    from_memory = np.minimum(moved_bytes, np.asarray(time_s, np.float64) * accelerator.memory_bandwidth_bytes_per_s)
    arithmetic = np.array([each[f] for f in formats], np.float64) * np.asarray(flop, np.float64)
    return arithmetic + per_byte[accelerator.family] * 1e-12 * from_memory


def mean_power_w(accelerator: Accelerator, work_j: float, time_s: float) -> Estimate | None:
    """Mean watts of the device over ``time_s`` in which work adds ``work_j`` (:func:`work_energy_j`): never above the design
    power. None where that is not published or there is no time."""
    budget_w = power_budget_w(accelerator)
    if budget_w is None or accelerator.tdp_w is None or time_s <= 0:
        return None
    plain = accelerator.tdp_w - budget_w + work_j / time_s
    spread = float(np.exp(Z80 * float(load_json("clock")["power_log_sigma"])))
    low, expected, high = (min(accelerator.tdp_w, w) for w in (plain / spread, plain, plain * spread))
    return Estimate(min(low, expected / spread), expected, high, "fitted")


def step_clock(accelerator: Accelerator, follows: NDArray[np.bool_], device_s: F64, work_j: F64, step_s: float) -> StepClock:
    """The clock at which a step of ``step_s`` keeps the design power.

    ``follows`` [N] whether a kernel is bound by arithmetic and timed at boost: its ``device_s`` [N] follow the clock, its
    ``work_j`` [N] (:func:`work_energy_j`) the voltage. Others keep the limit in their own time already. 1.0 where the power is
    not published or suffices.
    """
    budget_w = power_budget_w(accelerator)
    if budget_w is None or step_s <= 0:
        return StepClock(1.0, 1.0)
    arithmetic_j = float(work_j[follows].sum())
    other_j = float(np.minimum(work_j, budget_w * device_s)[~follows].sum())
    if arithmetic_j + other_j <= budget_w * step_s:
        return StepClock(1.0, 1.0)
    model = load_json("clock")
    joules = relative_voltage(_GRID, model["voltage_slope"], model["voltage_floor"]) ** 2
    taken_s = step_s + float(device_s[follows].sum()) * (1.0 / _GRID - 1.0)
    within = np.flatnonzero(arithmetic_j * joules + other_j <= budget_w * taken_s)
    at = int(within[-1]) if within.size else 0
    return StepClock(float(_GRID[at]), float(joules[at]))


def _joules_of(accelerator: Accelerator, dtype: str) -> float:
    """Joules of one FLOP in ``dtype`` at boost."""
    unit = "vector" if dtype in VECTOR_DTYPES else "matrix"
    return joules_per_flop(accelerator, unit) * float(load_json("clock")["energy_of_format"].get(dtype, 1.0))


def arithmetic_power_w(accelerator: Accelerator, dtype: str) -> float | None:
    """Watts that peak-rate arithmetic in ``dtype`` would add at boost; None when its rate is unknown."""
    rate = accelerator.peak_flop_per_s.get(dtype)
    if dtype == "fp32" and accelerator.fp32_matrix_flop_per_s is not None:
        rate = accelerator.fp32_matrix_flop_per_s
    if rate is None:
        return None
    return _joules_of(accelerator, dtype) * rate


def joules_per_flop(accelerator: Accelerator, unit: str) -> float:
    """Joules one FLOP costs at boost on the ``vector`` (fp32) or ``matrix`` (16-bit) unit of the family."""
    table: dict[str, dict[str, Any]] = load_json("clock")["energy"][unit]
    entry = table.get(f"sm_{(accelerator.compute_capability or '').replace('.', '')}") or table.get(accelerator.family)
    if entry is None:
        near = [e for e in table.values() if e["vendor"] == accelerator.vendor] or list(table.values())
        entry = min(near, key=lambda e: abs(e["year"] - accelerator.year))
    return float(entry["pj_per_flop"]) * 1e-12


def relative_voltage(x: F64, slope: float, floor: float) -> F64:
    """Voltage over its value at boost, at relative clock ``x``."""
    return np.maximum(floor, 1.0 - slope * (1.0 - x))
