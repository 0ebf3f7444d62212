"""Carbon of the hours: electricity on the grid, and making the hardware.

What is owned counts whole, what is rented by the part of its life that is used (:mod:`gpuwise.money.carbon`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpuwise.facts.grid import Grid
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.operations import operations
from gpuwise.interval import BAND
from gpuwise.money.carbon import making_kg
from gpuwise.money.rent_or_own.demand import HOURS_PER_MONTH, MONTHS_PER_YEAR
from gpuwise.money.rent_or_own.uncertain_inputs import Array
from gpuwise.predict.estimate import Estimate


@dataclass(frozen=True, slots=True)
class Footprint:
    """Inputs of the carbon of an answer."""

    kg_co2e_per_kwh: float | None
    """Emissions of the grid; None without a place: electricity then has no carbon figure."""
    grid: str
    making_kg_per_gpu: Estimate
    """Making one GPU with its part of a server."""
    used_hours: float
    """Hours of use in a machine's life."""

    def embodied(self, owned_gpus: int, hours: Mapping[str, float]) -> Estimate:
        """``hours`` by layer: those of ``owned`` count as whole GPUs."""
        rented = sum(value for name, value in hours.items() if name != "owned")
        return self.making_kg_per_gpu.scaled(owned_gpus + rented / self.used_hours)


def footprint_of(cluster: Cluster, grid: Grid | None) -> Footprint:
    """Footprint of one kind of system on a grid (None: unnamed)."""
    facts = operations()
    one = Cluster(cluster.system, cluster.system.count)
    life_hours = facts["lifetime_years"].expected * MONTHS_PER_YEAR * HOURS_PER_MONTH
    return Footprint(
        None if grid is None else grid.kg_co2e_per_kwh,
        "" if grid is None else grid.name,
        making_kg(one).scaled(1.0 / cluster.system.count),
        life_hours * facts["lifetime_use"].expected,
    )


def spread(values: Array) -> Estimate:
    """Mean and central 80 % of values by scenario; wide enough to have the mean, which few scenarios may make large."""
    low, _, high = (float(v) for v in np.quantile(values, BAND))
    mean = float(np.mean(values, dtype=np.float64))
    return Estimate(min(low, mean), mean, max(high, mean), "derived")
