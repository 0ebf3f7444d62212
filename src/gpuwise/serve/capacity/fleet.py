"""A fleet for a load: replicas on average and at the peak, cost and power.

    replicas    = ceil(rate / largest rate of a replica)
    $/M tokens  = accelerators x $/h / (tokens/s x 3600) x 10^6
    Wh/M tokens = watts / (tokens/s x 3600) x 10^6

Accelerators are sized for the peak and tokens arrive at the mean rate, unless the fleet follows the load.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass

from gpuwise.errors import InputError
from gpuwise.facts.hardware.systems import Cluster, System
from gpuwise.money.cost import Price, price_of
from gpuwise.money.power import cluster_power
from gpuwise.predict.estimate import Estimate
from gpuwise.serve.capacity.rate import Limit
from gpuwise.serve.load.arrivals import day_shape
from gpuwise.serve.load.workloads import THINK_S
from gpuwise.units import HOUR_S, LARGEST_COUNT, LONGEST_S, MEGA

HOURS = 24
SIGMA_RATE = 0.25
"""Logarithm by which a rate of so few requests may be wrong."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The load to serve. ``rate_per_s`` None: the maximum of the accelerators."""

    rate_per_s: float | None = None
    users: int | None = None
    think_s: float = THINK_S
    peak_over_mean: float = 1.0

    def __post_init__(self) -> None:
        """Raises InputError for an impossible rate, and for a rate beside users."""
        if self.rate_per_s is not None and self.users is not None:
            raise InputError("a rate and users are two loads", hint="give one of them")
        for name, value in (("a rate", self.rate_per_s), ("users", self.users)):
            if value is not None and not 0.0 < value <= LARGEST_COUNT:
                raise InputError(f"{name} of {value} cannot be sent", hint="give a number above zero")
        if not 0.0 <= self.think_s <= LONGEST_S:
            raise InputError(f"a think time of {self.think_s} s is out of range", hint="give seconds, from 0 on")

    def rate_for(self, e2e_s: float) -> float | None:
        """Requests a second: of users, one each time they have read the answer and thought (the response-time law)."""
        if self.users is not None:
            return self.users / (self.think_s + e2e_s)
        return self.rate_per_s

    @property
    def most_per_s(self) -> float | None:
        """Requests per second if answers took no time; None without a requested load, or without think time."""
        return self.rate_for(0.0) if self.users is None or self.think_s else None


@dataclass(frozen=True, slots=True)
class Fleet:
    """``rate_per_s`` is the requested rate, or the maximum of ``cluster``; ``cluster`` contains the replicas for the peak."""

    rate_per_s: float
    peak_per_s: float
    each: Estimate
    """Requests a second of a replica."""
    copies_now: int
    copies_peak: int
    cluster: Cluster
    price: Price | None
    usd_per_hour: float | None
    usd_per_million: Estimate | None
    """Tokens written; the interval is the rate's."""
    usd_per_million_all: float | None
    """Tokens read and written."""
    usd_per_million_following: float | None
    """Tokens written, by a fleet that follows a day with that peak hour by hour."""
    wh_per_million: float | None
    power_w: float | None
    mean_accelerators: float
    """Mean accelerators of a fleet that follows a day with that peak hour by hour."""
    users: int | None = None
    """People whose requests are that rate; None where a load was given."""

    @property
    def accelerators_now(self) -> int:
        """Accelerators of the replicas that the mean rate needs."""
        return self.copies_now * self.cluster.n_accelerators // max(self.copies_peak, 1)


def fleet_for(
    limit: Limit,
    each: Estimate,
    cluster: Cluster,
    demand: Demand,
    *,
    today: datetime.date,
    usd_per_hour: float | None = None,
    provider: str | None = None,
    e2e_s: tuple[float, float] | None = None,
    copies: int | None = None,
) -> Fleet:
    """Replicas of ``limit``'s configuration for ``demand``, rounded up to whole systems; without a demand, the maximum of
    ``cluster``. Users send the next request after answers of ``e2e_s``, on average and at the peak; None: the time at the
    limit. ``copies`` are the replicas for the peak, where they are known. Raises UnknownNameError for a provider that does not
    rent it."""
    assert limit.best is not None
    run, ranks = limit.best.run, limit.configuration.ranks
    rate = demand.rate_for(run.mean("e2e"))
    peak_per_s = None if rate is None else rate * demand.peak_over_mean
    users = None
    if rate is None or peak_per_s is None:
        copies = max(copies_on(cluster, ranks), 1)
        rate = copies * each.expected / demand.peak_over_mean
        now, peak, peak_per_s = max(math.ceil(copies / demand.peak_over_mean - 1e-9), 1), copies, copies * each.expected
        users = math.floor(rate * (demand.think_s + run.mean("e2e")))
    else:
        peak = copies or copies_for(peak_per_s, each.expected)
        if e2e_s is not None:
            on_average, at_peak = (demand.rate_for(seconds) or rate for seconds in e2e_s)
            rate, peak_per_s = on_average, at_peak * demand.peak_over_mean
        now = min(copies_for(rate, each.expected), peak)
    whole = Cluster(limit.configuration.system, accelerators_of(limit.configuration.system, ranks, peak))
    price = price_of(whole, today, usd_per_hour=usd_per_hour, provider=provider)
    per_hour = None if price is None else price.expected * whole.n_accelerators
    written, read = float(run.output_tokens.mean()), float(run.prompt_tokens.mean())
    following = ranks * _following(rate, each.expected, demand)
    million_h = rate * written * HOUR_S / MEGA
    power = cluster_power(whole, workload="serving")
    watts = None if power is None else power.total_w.expected
    return Fleet(
        rate,
        peak_per_s,
        each,
        now,
        peak,
        whole,
        price,
        per_hour,
        None if per_hour is None else _scaled(per_hour / million_h, each),
        None if per_hour is None else per_hour / million_h * written / (written + read),
        None if price is None else price.expected * following / million_h,
        None if watts is None else watts / million_h,
        watts,
        following,
        users,
    )


def copies_on(cluster: Cluster, ranks: int) -> int:
    """Replicas of a model on a cluster: within a system each, or over whole systems where none holds one."""
    each = min(cluster.system.count, cluster.n_accelerators)
    if ranks > each:
        return max(cluster.n_accelerators // each, 1) // -(-ranks // each)
    return max(cluster.n_accelerators // each, 1) * (each // ranks)


def accelerators_of(system: System, ranks: int, copies: int) -> int:
    """Accelerators of that many replicas, rounded up to whole systems if a system's are not all used."""
    inside = system.count // ranks
    if copies <= 1 or not inside or system.count % ranks == 0:
        return copies * ranks
    return -(-copies // inside) * system.count


def about(limit: Limit) -> Estimate:
    """The rate of a limit with the width that any has before its interval is looked for."""
    return Estimate.from_log_sigma(limit.rate_per_s, SIGMA_RATE, "derived")


def copies_for(rate_per_s: float, each_per_s: float) -> int:
    """Replicas of ``each_per_s`` needed for a rate."""
    return max(math.ceil(rate_per_s / each_per_s - 1e-9), 1)


def _following(rate_per_s: float, each_per_s: float, demand: Demand) -> float:
    """Mean replicas of a fleet that has every hour what that hour needs."""
    return sum(copies_for(rate_per_s * float(share), each_per_s) for share in day_shape(demand.peak_over_mean, HOURS)) / HOURS


def _scaled(value: float, each: Estimate) -> Estimate:
    """Money per token goes against the rate of a replica."""
    most = value * each.expected / each.low if each.low > 0 else math.inf
    return Estimate(value * each.expected / each.high, value, min(most, 1e3 * value), each.basis)
