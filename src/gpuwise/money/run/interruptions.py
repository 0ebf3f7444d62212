"""What checkpoints and stops take of a run on a cluster, with the uncertainty of what drives them.

The interval between checkpoints is the best one for the expected figures, and at most the run itself; each
figure is then moved to either end of its range, and the changes of each loss, as factors, add by the squares
of their logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.operations import operations
from gpuwise.money.power import of_quantity
from gpuwise.money.run.checkpointing import Losses, losses, mtbf_s, optimal_checkpoint, write_bytes_per_s
from gpuwise.predict.estimate import Estimate


@dataclass(frozen=True, slots=True)
class Causes:
    """Causes of stops, and the seconds of a stop and a checkpoint."""

    failure_s: Estimate
    """Between failures of the whole cluster."""
    reclaim_s: Estimate | None
    """Between reclaims of spot machines while on spot; None on demand."""
    on_spot: float
    """Expected share of the time on spot machines; 0 on demand."""
    save_s: Estimate
    """One checkpoint, during which nothing else is done."""
    restart_s: Estimate
    """From a stop to work, reading the checkpoint included."""


@dataclass(frozen=True, slots=True)
class Interruptions:
    """Losses of a run as shares of its work, and the counts behind them."""

    interval_s: float
    """Seconds of work between checkpoints."""
    mtbf_s: Estimate
    """Mean time between stops of any kind."""
    save_s: Estimate
    restart_s: Estimate
    stops: Estimate
    """Over the whole expected time."""
    checkpoints: float
    saving: Estimate
    """Shares of the work: writing checkpoints, doing lost work again, restarting."""
    rework: Estimate
    restarting: Estimate

    @property
    def overhead(self) -> float:
        """Expected time lost, as a share of the work."""
        return self.saving.expected + self.rework.expected + self.restarting.expected

    @property
    def effective(self) -> float:
        """Share of the time that is work."""
        return 1.0 / (1.0 + self.overhead)


def causes(
    cluster: Cluster,
    state_bytes: float,
    *,
    spot: bool = False,
    write: Estimate | None = None,
    background: bool = False,
) -> Causes:
    """Interruptions of a run on ``cluster`` that saves ``state_bytes``.

    ``write`` is a measured write rate in B/s instead of the default. ``background``: training waits only for the copy into the
    hosts' memory, over half of each accelerator's PCIe rate. Raises InputError.
    """
    if not (math.isfinite(state_bytes) and state_bytes > 0):
        raise InputError(f"a checkpoint of {state_bytes:g} bytes", hint="give the bytes of weights and states")
    facts, rate = operations(), write or write_bytes_per_s(cluster)
    save = rate.inverse(state_bytes)
    start = of_quantity(facts["restart_s"])
    restart = Estimate(start.low + save.low, start.expected + save.expected, start.high + save.high, "derived")
    pcie = cluster.accelerator.pcie_bytes_per_s
    if background and pcie is not None:
        copy_s = state_bytes / (cluster.n_accelerators * pcie / 2)
        save = Estimate(copy_s / 2, copy_s, copy_s * 2, "derived")
    return Causes(
        mtbf_s(cluster.n_accelerators, cluster.accelerator.family),
        of_quantity(facts["reclaim_s"]) if spot else None,
        facts["spot_available"].expected if spot else 0.0,
        save,
        restart,
    )


def interruptions(work_s: float, why: Causes) -> Interruptions:
    """Losses of ``work_s`` of work. Raises UnpredictableError when it would not end."""
    best = optimal_checkpoint(why.save_s.expected, _restart(why), _mtbf(why)).interval_s
    interval = min(best, work_s)

    def at(changed: Causes) -> Losses:
        return losses(work_s, interval, changed.save_s.expected, _restart(changed), _mtbf(changed))

    middle = at(why)
    if not math.isfinite(middle.restart_s + middle.rework_s):
        raise UnpredictableError("interrupted too often", "the run would not end", hint="use fewer accelerators")
    changes = [at(changed) for changed in _ends(why)]

    def spread(part: Callable[[Losses], float], per: float) -> Estimate:
        expected = part(middle)
        if not expected > 0:
            return Estimate(0.0, 0.0, max(0.0, *(part(c) for c in changes)) / per, "derived")
        ratios = [part(c) / expected for c in changes]
        above = math.exp(math.hypot(*(math.log(r) for r in ratios if r > 1)))
        falls = [math.log(r) if r > 0 else -math.inf for r in ratios if r < 1]
        return Estimate(expected * math.exp(-math.hypot(*falls)) / per, expected / per, expected * above / per, "derived")

    mtbfs = sorted(_mtbf(c) for c in _ends(why))
    return Interruptions(
        interval,
        Estimate(mtbfs[0], _mtbf(why), mtbfs[-1], why.failure_s.basis),
        why.save_s,
        why.restart_s,
        spread(lambda x: x.interruptions, 1.0),
        middle.checkpoints,
        spread(lambda x: x.saving_s, work_s),
        spread(lambda x: x.rework_s, work_s),
        spread(lambda x: x.restart_s, work_s),
    )


def _mtbf(why: Causes) -> float:
    """Rates add: 1/M = 1/M_failure + share on spot / M_reclaim."""
    rate = 1.0 / why.failure_s.expected
    if why.reclaim_s is not None:
        rate += why.on_spot / why.reclaim_s.expected
    return 1.0 / rate


def _restart(why: Causes) -> float:
    """Mean restart: a reclaim restarts twice, on demand at once and on spot again later."""
    if why.reclaim_s is None:
        return why.restart_s.expected
    reclaims = why.on_spot / why.reclaim_s.expected
    return why.restart_s.expected * (1.0 + reclaims * _mtbf(why))


def _ends(why: Causes) -> list[Causes]:
    """The causes with one figure at one end of its range, each in turn."""
    bounds: list[Causes] = []
    for name in ("failure_s", "reclaim_s", "save_s", "restart_s"):
        value: Estimate | None = getattr(why, name)
        if value is not None:
            for end in (value.low, value.high):
                bounds.append(replace(why, **{name: Estimate(end, end, end, value.basis)}))
    return bounds
