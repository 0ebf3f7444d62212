"""Carbon of a run: emissions of its electricity on the grid, and its share of manufacturing the machines.

Operational carbon is location-based (GHG Protocol Scope 2): energy at the meter times the grid's yearly average emissions per
kilowatt-hour. Embodied carbon is that of making accelerators and hosts, spread over the hours of use in their life (Luccioni
et al., arXiv 2211.02001). The two are separate, since certificates can cover the first alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.facts.grid import Grid
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.operations import embodied_kgco2e, operations
from gpuwise.money.combine import product, sum_independent
from gpuwise.money.power import WHOLE_DEVICES, is_personal, of_quantity
from gpuwise.predict.estimate import Estimate

YEAR_S = 365.25 * 86400.0


@dataclass(frozen=True, slots=True)
class Carbon:
    """Kilograms of CO2 equivalent."""

    operational_kg: Estimate | None
    """None without a grid, or when the power is unknown."""
    embodied_kg: Estimate
    kg_co2e_per_kwh: float | None
    grid: str
    """The grid's key; empty when none was named."""

    @property
    def total_kg(self) -> Estimate | None:
        """Both; None when the operational part is unknown."""
        return None if self.operational_kg is None else sum_independent([self.operational_kg, self.embodied_kg])

    def as_dict(self) -> dict[str, object]:
        """The masses in kg of CO2 equivalent for a document; None for an unknown grid."""
        total = self.total_kg
        return {
            "operational_kg": None if self.operational_kg is None else self.operational_kg.as_dict(),
            "embodied_kg": self.embodied_kg.as_dict(),
            "total_kg": None if total is None else total.as_dict(),
            "kg_co2e_per_kwh": self.kg_co2e_per_kwh,
            "grid": self.grid,
        }


def carbon(kwh: Estimate | None, time_s: Estimate, cluster: Cluster, grid: Grid | None) -> Carbon:
    """Carbon of ``kwh`` at the meter and of ``time_s`` of the whole cluster's life."""
    operational = None if kwh is None or grid is None else kwh.scaled(grid.kg_co2e_per_kwh)
    return Carbon(
        operational,
        embodied_kg(time_s, cluster),
        None if grid is None else grid.kg_co2e_per_kwh,
        "" if grid is None else grid.key,
    )


def embodied_kg(time_s: Estimate, cluster: Cluster) -> Estimate:
    """Share of manufacturing ``cluster`` for ``time_s`` of use."""
    facts = operations()
    life_s = of_quantity(facts["lifetime_years"]).scaled(YEAR_S)
    use = of_quantity(facts["home_use" if is_personal(cluster) else "lifetime_use"])
    return product([time_s, making_kg(cluster), life_s.inverse(), use.inverse()])


def making_kg(cluster: Cluster) -> Estimate:
    """Kilograms of CO2 equivalent of making the accelerators and their hosts. Part of a server counts as its
    part; a personal computer counts whole."""
    devices = of_quantity(embodied_kgco2e(cluster.accelerator)).scaled(float(cluster.n_accelerators))
    if is_personal(cluster):
        hosts = of_quantity(operations()["consumer_host_kgco2e"]).scaled(float(cluster.n_systems))
        return devices if cluster.accelerator.form in WHOLE_DEVICES else sum_independent([devices, hosts])
    share = cluster.n_accelerators / cluster.system.count
    return sum_independent([devices, of_quantity(operations()["host_kgco2e"]).scaled(share)])
