"""Electric energy of a run at the meter: mean power of the whole cluster over its time."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.operations import Site
from gpuwise.money.combine import product
from gpuwise.money.power import PowerBudget, cluster_power
from gpuwise.money.run.goodput import Operation
from gpuwise.predict.estimate import Estimate
from gpuwise.units import J_PER_KWH


@dataclass(frozen=True, slots=True)
class Energy:
    """``kwh`` at the meter and the mean ``power_w`` of the whole cluster, cooling included."""

    kwh: Estimate
    power_w: float
    pue: float
    """Power usage effectiveness of the site: cooling and distribution."""
    host_factor: float
    """Hosts and network over the accelerators alone."""

    def as_dict(self) -> dict[str, object]:
        """The energy as JSON values."""
        return {
            "kwh": self.kwh.as_dict(),
            "power_w": self.power_w,
            "pue": self.pue,
            "host_factor": self.host_factor,
        }


def energy(
    time_s: Estimate,
    cluster: Cluster,
    *,
    workload: str = "training",
    site: Site | None = None,
    accelerator_w: Estimate | None = None,
) -> Energy | None:
    """Energy of ``time_s`` on ``cluster``; ``accelerator_w`` is the power per accelerator if known for the work. None when the
    accelerator's design power is not published."""
    budget = cluster_power(cluster, workload=workload, site=site, accelerator_w=accelerator_w)
    return None if budget is None else energy_of(time_s, budget)


def energy_of_run(done: Operation) -> Energy | None:
    """Energy of a whole run, its idle hours at idle power; ``power_w`` is drawn while it trains. None when the accelerator's
    design power is not published."""
    if done.power is None or done.kwh is None:
        return None
    return Energy(done.kwh, done.power.total_w.expected, done.power.pue.expected, done.power.host_factor)


def energy_of(time_s: Estimate, budget: PowerBudget) -> Energy:
    """Energy of a power budget over ``time_s``; time and power are independent."""
    kwh = product([time_s, budget.total_w.scaled(1.0 / J_PER_KWH)])
    return Energy(kwh, budget.total_w.expected, budget.pue.expected, budget.host_factor)
