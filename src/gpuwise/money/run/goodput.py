"""The hours of a whole training run: training and losses.

With T the time of the training itself, e the share of evaluation, o the overhead of checkpoints and stops and i the share of paid
but idle hours, the machines are occupied for::

    wall = T (1 + e) (1 + o) + T i

``plan`` reports this time and ``cost`` bills it; both use :func:`operate`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gpuwise.errors import InputError
from gpuwise.facts.grid import Grid
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.offers.storage import StoragePrice
from gpuwise.facts.operations import Site, operations, sites
from gpuwise.money.combine import exactly, product, sum_independent, sum_together
from gpuwise.money.cost import Price
from gpuwise.money.power import PowerBudget, cluster_power, of_quantity
from gpuwise.money.run.interruptions import Interruptions, causes, interruptions
from gpuwise.predict.estimate import Estimate
from gpuwise.units import J_PER_KWH

IDLE_WORK = ("writing checkpoints", "restarts", "debugging and idle")
"""Items in which the accelerators draw idle power."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run: work, place and prices. None: the default."""

    time_s: Estimate
    """Uninterrupted training time."""
    cluster: Cluster
    price: Price | None
    """Rent per accelerator; None on the user's own machine, which pays for electricity instead."""
    state_bytes: float
    """A full checkpoint."""
    weight_bytes: float
    """Bytes of the weights alone, as stored and downloaded."""
    data_bytes: float
    """Training data at rest."""
    storage: StoragePrice
    grid: Grid | None = None
    site: Site | None = None
    pue: float | None = None
    spot_usd_per_hour: float | None = None
    """Spot price per accelerator, used instead of ``price`` while spot is available."""
    evaluation_share: float | None = None
    egress_gb: float | None = None
    write: Estimate | None = None
    """Measured write rate of the storage, B/s."""
    background: bool = False
    """Checkpoints are written in the background; training waits only for a copy into host memory."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A run from its first paid hour to its last. ``shares`` are of the training time, by item, ``training`` itself 1."""

    shares: Mapping[str, Estimate]
    wall_s: Estimate
    stops: Interruptions
    power: PowerBudget | None
    """While training; None when the accelerator's design power is not published."""
    kwh: Estimate | None
    kwh_parts: Mapping[str, float]
    """Expected, by item of the power budget; they sum to ``kwh.expected``."""

    @property
    def goodput(self) -> float:
        """Share of the whole time that is training."""
        return 1.0 / sum(s.expected for s in self.shares.values())


def operate(run: Run) -> Operation:
    """The hours and the energy of ``run``. Raises InputError on figures that cannot be meant, and UnpredictableError when the
    run would not end."""
    check_run(run)
    t = run.time_s
    evaluation = _share(run.evaluation_share)
    idle = of_quantity(operations()["idle_share" if run.cluster.n_systems > 1 else "idle_share_one_host"])
    work_s = t.expected * (1.0 + evaluation.expected)
    spot = run.spot_usd_per_hour is not None
    why = causes(run.cluster, run.state_bytes, spot=spot, write=run.write, background=run.background)
    stops = interruptions(work_s, why)
    more = Estimate(1.0 + evaluation.low, 1.0 + evaluation.expected, 1.0 + evaluation.high, "derived")
    lost = [product([more, x]) for x in (stops.saving, stops.rework, stops.restarting)]
    shares = {
        "training": exactly(1.0, "derived"),
        "evaluation": evaluation,
        "writing checkpoints": lost[0],
        "lost work": lost[1],
        "restarts": lost[2],
        "debugging and idle": idle,
    }
    wall = product([t, sum_independent(list(shares.values()))])
    return Operation(shares, wall, stops, *_energy(run, shares))


def _energy(run: Run, shares: Mapping[str, Estimate]) -> tuple[PowerBudget | None, Estimate | None, Mapping[str, float]]:
    """Work and rework at training power; writing, restarts and debugging at idle power."""
    site = run.site or (sites()["data-centre"] if run.price is not None else None)
    busy = cluster_power(run.cluster, site=site, pue=run.pue)
    idle = cluster_power(run.cluster, workload="idle", site=site, pue=run.pue)
    if busy is None or idle is None:
        return None, None, {}
    kwh: list[Estimate] = []
    parts = dict.fromkeys(busy.items(), 0.0)
    for group, budget in ((False, busy), (True, idle)):
        share = sum_independent([s for name, s in shares.items() if (name in IDLE_WORK) is group])
        kwh.append(product([run.time_s, share, budget.total_w.scaled(1 / J_PER_KWH)]))
        for name, watts in budget.items().items():
            parts[name] += run.time_s.expected * share.expected * watts.expected / J_PER_KWH
    return busy, sum_together(kwh), parts


def _share(share: float | None) -> Estimate:
    """Share of the training time spent on evaluation."""
    return of_quantity(operations()["evaluation_share"]) if share is None else exactly(share)


def check_run(run: Run) -> None:
    """Raises InputError on a figure that cannot be meant."""
    if not (math.isfinite(run.time_s.expected) and run.time_s.expected > 0 and run.time_s.low > 0):
        raise InputError(f"a run of {run.time_s.expected:g} seconds", hint="the time must be positive")
    for name, value in (("weights", run.weight_bytes), ("data", run.data_bytes)):
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} of {value:g} bytes", hint="give a number of bytes of at least 0")
    if run.evaluation_share is not None and not 0 <= run.evaluation_share <= 10:
        raise InputError(
            f"evaluation cannot take {run.evaluation_share:g} of the training time",
            hint="0.02 is two hours of evaluation for a hundred of training",
        )
    if run.egress_gb is not None and not (math.isfinite(run.egress_gb) and run.egress_gb >= 0):
        raise InputError(f"{run.egress_gb:g} GB cannot be taken away", hint="give a number of at least 0")
    spot = run.spot_usd_per_hour
    if spot is not None and (run.price is None or not (math.isfinite(spot) and spot > 0)):
        raise InputError("a spot price must be positive and needs a price on demand beside it", hint="give both")
