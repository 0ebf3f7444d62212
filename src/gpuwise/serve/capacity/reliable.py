"""Whether targets are met reliably or by chance, and which near targets are met.

A replica whose interval reaches zero may serve nothing, so a fleet of them is not a plan. Nor is a fleet that becomes ten
times smaller with slightly wider targets: its size then depends on a few unpredictable milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpuwise.facts.hardware.systems import Cluster
from gpuwise.interval import P80
from gpuwise.predict.estimate import Estimate
from gpuwise.serve.capacity.fleet import Demand, accelerators_of, copies_for
from gpuwise.serve.capacity.rate import SEARCH_REQUESTS, SEEDS, Limit, alone, keeps
from gpuwise.serve.capacity.search import Search
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.targets import Target

NOTHING = 0.02
"""Fraction of the expected rate: an interval that begins below it reaches zero."""
LITTLE = 0.05
"""Fraction of a rate that surely does not reach zero."""
WIDER, STEEP = 1.2, 9.0
"""Factors: with targets wider by the first, the rate must not grow by the second (tenfold, within the tolerance of two
searches)."""
FURTHER = (1.02, 1.2, 1.5, 2.0)
"""Factors on the smallest target that may be met, tried in turn."""
ZERO_WORDS = f"The {P80} interval of a replica's rate reaches 0: the targets are met only by chance."
STEEP_WORDS = "Targets a fifth wider need a tenth of the GPUs: these are met only by chance."


def reaches_zero(each: Estimate) -> bool:
    """Whether a replica with the expected rate ``each`` may serve nothing."""
    return each.low < NOTHING * each.expected


def surely_carries(limit: Limit, load: Load, targets: Sequence[Target]) -> bool:
    """Whether the interval of ``limit`` does not reach zero, without working it out: requests alone keep ``targets`` in every
    draw, and a small part of its rate does at the long end of the times."""
    configuration, longest = limit.configuration, limit.alone.longest
    if not all(alone(configuration, load, targets, SEARCH_REQUESTS, limit.full_per_s, seed=s).surely_met for s in SEEDS):
        return False
    return keeps(configuration, load, LITTLE * limit.rate_per_s, wider_by(targets, 1.0 / longest), SEARCH_REQUESTS) is not None


def wider_by(targets: Sequence[Target], factor: float) -> tuple[Target, ...]:
    """``targets`` with limits longer by that factor."""
    return tuple(replace(t, limit_s=t.limit_s * factor) for t in targets)


def is_steep(limit: Limit, found: Search, cluster: Cluster, demand: Demand, wider: Callable[[], Limit | None]) -> bool:
    """Whether ``wider``, the limit within targets :data:`WIDER` times as wide, needs a tenth of the accelerators of ``limit``.
    Skipped if no layout reaches that rate with any targets, and for a demand that few accelerators serve: a fleet is one of them
    at least."""
    asked = demand.rate_per_s is not None or demand.users is not None
    if found.most_each_per_s < steep_rate(limit) or (asked and _accelerators(limit, cluster, demand) < STEEP):
        return False
    other = wider()
    return (
        other is not None
        and other.best is not None
        and _accelerators(limit, cluster, demand) >= STEEP * _accelerators(other, cluster, demand)
    )


def steep_rate(limit: Limit) -> float:
    """Requests per second and accelerator that ``limit`` is steep only above: half of :data:`STEEP` times its own, as fleets are
    rounded up to whole replicas and systems."""
    return STEEP / 2.0 * limit.rate_per_s / limit.configuration.ranks


def _accelerators(limit: Limit, cluster: Cluster, demand: Demand) -> float:
    """Accelerators for the demand; for one request per second without a demand."""
    assert limit.best is not None
    ranks, rate = limit.configuration.ranks, demand.rate_for(limit.best.run.mean("e2e"))
    if rate is None:
        return ranks / limit.rate_per_s
    return accelerators_of(cluster.system, ranks, copies_for(rate * demand.peak_over_mean, limit.rate_per_s))


def nearby(targets: Sequence[Target], limit: Limit, further: float) -> tuple[Target, ...]:
    """``targets`` that ``limit``'s configuration may keep: those that a request alone does not surely keep are at the long end of
    its interval, ``further`` times; where it keeps all, the one with least to spare is wider. Two digits, rounded up."""
    nobody = limit.alone
    needed = {a.target.key: a.value_s * nobody.longest for a in nobody.attained if a.value_s is not None}
    strained = {t.key: needed[t.key] for t in targets if needed.get(t.key, 0.0) > t.limit_s}
    if not strained:
        beyond = limit.missed if limit.missed is not None and not limit.missed.saturated else nobody
        worst = beyond.worst or nobody.worst
        strained = {} if worst is None else {worst.target.key: WIDER * worst.target.limit_s}
    return tuple(replace(t, limit_s=_round_up(strained[t.key] * further)) if t.key in strained else t for t in targets)


def _round_up(seconds: float) -> float:
    """Two digits, at least as long."""
    digit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return round(math.ceil(seconds / digit - 1e-9) * digit, 12)
