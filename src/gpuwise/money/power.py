"""What a cluster draws from the wall, item by item: accelerators, the rest of their hosts, network, cooling.

An accelerator at work draws a share of its design power that was measured by workload; processors, memory,
fans and network cards of a host a share of what the host may draw beyond its accelerators; switches and
optics a share of both; and the site its power usage effectiveness less one of all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import median

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster, systems
from gpuwise.facts.operations import Quantity, Site, operations, power_share, sites
from gpuwise.money.combine import exactly, product, sum_independent
from gpuwise.predict.estimate import Basis, Estimate

WHOLE_DEVICES = ("SoC", "APU")
"""Forms whose design power is that of processor and memory too."""
PERSONAL_SYSTEMS = ("consumer-box", "single-device")
"""Systems that stand at home or in an office rather than in a data centre."""
MOST_PUE = 4.0


@dataclass(frozen=True, slots=True)
class PowerBudget:
    """Mean watts of a whole cluster at work. ``total_w`` expects the sum of the four items; its interval is
    narrower than theirs together, because they are independent."""

    accelerators_w: Estimate
    host_w: Estimate
    """Processors, memory, fans, network cards and losses of the hosts."""
    network_w: Estimate
    """Switches and optics between hosts; nothing within one."""
    cooling_w: Estimate
    """Cooling and power distribution of the site."""
    total_w: Estimate
    pue: Estimate
    design_w: float
    """The accelerators' design power together."""
    most_w: float | None
    """The most the hosts draw by their maker's figure; None when unpublished."""
    site: str

    @property
    def computers_w(self) -> float:
        """Power of computers and network, without the site."""
        return self.accelerators_w.expected + self.host_w.expected + self.network_w.expected

    @property
    def host_factor(self) -> float:
        """Computers and network over the accelerators alone."""
        return self.computers_w / self.accelerators_w.expected

    def items(self) -> Mapping[str, Estimate]:
        """The parts by name, in the order power flows."""
        return {
            "accelerators": self.accelerators_w,
            "hosts": self.host_w,
            "network": self.network_w,
            "cooling and distribution": self.cooling_w,
        }

    def as_dict(self) -> dict[str, object]:
        """The budget as JSON values, watts."""
        return {
            "accelerators_w": self.accelerators_w.as_dict(),
            "host_w": self.host_w.as_dict(),
            "network_w": self.network_w.as_dict(),
            "cooling_w": self.cooling_w.as_dict(),
            "total_w": self.total_w.as_dict(),
            "pue": self.pue.as_dict(),
            "design_w": self.design_w,
            "most_w": self.most_w,
            "site": self.site,
        }


@lru_cache(256)
def cluster_power(
    cluster: Cluster,
    *,
    workload: str = "training",
    site: Site | None = None,
    pue: float | None = None,
    accelerator_w: Estimate | None = None,
) -> PowerBudget | None:
    """Mean power of ``cluster`` at ``workload`` (training, serving, diffusion or idle), at ``site`` (default: a data centre, or
    home for personal machines) or with the user's own ``pue``. ``accelerator_w``: power of one accelerator if known for the work;
    default: typical for the workload.

    None when the accelerator's design power is not published. Raises InputError on a ``pue`` below 1 and
    UnknownNameError on a workload.
    """
    each = accelerator_w or accelerator_power_w(cluster.accelerator, workload)
    if each is None or cluster.accelerator.tdp_w is None:
        return None
    place = site or default_site(cluster)
    effectiveness = user_pue(pue) if pue is not None else of_quantity(place.pue)
    accelerators = each.scaled(float(cluster.n_accelerators))
    hosts = host_power_w(cluster)
    computers = sum_independent([accelerators, hosts])
    network = exactly(0.0, "derived")
    if cluster.n_systems > 1:
        network = product([computers, of_quantity(operations()["network_share"])])
        computers = sum_independent([accelerators, hosts, network])
    e = effectiveness
    beyond = Estimate(e.low - 1.0, e.expected - 1.0, e.high - 1.0, e.basis)
    most = cluster.system.max_power_w
    return PowerBudget(
        accelerators,
        hosts,
        network,
        product([computers, beyond]),
        product([computers, effectiveness]),
        effectiveness,
        cluster.n_accelerators * cluster.accelerator.tdp_w,
        None if most is None else most * cluster.n_accelerators / cluster.system.count,
        "given" if pue is not None else place.key,
    )


def accelerator_power_w(accelerator: Accelerator, workload: str = "training") -> Estimate | None:
    """Mean watts of one accelerator at ``workload``; None when its design power is not published."""
    share = power_share(workload, accelerator.family)
    return None if accelerator.tdp_w is None else of_quantity(share).scaled(accelerator.tdp_w)


def host_power_w(cluster: Cluster) -> Estimate:
    """Watts of the hosts beyond their accelerators. Part of a server counts as its part; a personal computer
    counts whole; a chip that is the whole computer has no host."""
    system, tdp = cluster.system, cluster.accelerator.tdp_w or 0.0
    if cluster.accelerator.form in WHOLE_DEVICES:
        return exactly(0.0, "derived")
    if is_personal(cluster):
        return of_quantity(operations()["consumer_host_w"]).scaled(float(cluster.n_systems))
    spare = None if system.max_power_w is None else system.max_power_w / system.count - tdp
    if spare is None or spare <= 0:
        spare = tdp * _usual_spare()
    return of_quantity(operations()["host_share"]).scaled(spare * cluster.n_accelerators)


def is_personal(cluster: Cluster) -> bool:
    """Whether the cluster is a personal computer rather than a server."""
    return cluster.system.id in PERSONAL_SYSTEMS or cluster.accelerator.form in (*WHOLE_DEVICES, "Laptop")


def default_site(cluster: Cluster) -> Site:
    """The usual site of such a cluster."""
    return sites()["home" if is_personal(cluster) else "data-centre"]


def user_pue(pue: float) -> Estimate:
    """A power usage effectiveness given by the user. Raises InputError outside 1 to 4."""
    if not (math.isfinite(pue) and 1.0 <= pue <= MOST_PUE):
        raise InputError(
            f"the power usage effectiveness cannot be {pue:g}",
            hint="it is all power over the computers' power: 1.1 for a large cloud, 1.6 for a server room",
        )
    return exactly(pue)


def of_quantity(quantity: Quantity, basis: Basis = "derived") -> Estimate:
    """A sourced range as an estimate."""
    return Estimate(quantity.low, quantity.expected, quantity.high, basis)


@cache
def _usual_spare() -> float:
    """Host power beyond the accelerators, relative to their design power: the median of the systems whose manufacturers
    publish both."""
    spares = [
        s.max_power_w / (s.count * s.accelerator.tdp_w) - 1.0
        for s in systems().values()
        if s.max_power_w is not None
        and s.accelerator.tdp_w is not None
        and "max_power_w" not in s.assumed
        and s.accelerator.form not in WHOLE_DEVICES
    ]
    return median(spares)
