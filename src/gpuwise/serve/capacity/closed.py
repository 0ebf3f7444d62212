"""Closed loops: a number of requests in flight, or users who wait longer for their answers than they think.

A request is sent when an answer has come, so queues are bounded and a rate is a result (the response-time law):

    requests/s = requests in flight / (think time + mean time of an answer)

Such a load is simulated as it is: an open rate with the same mean has longer queues near saturation, and none beyond it.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpuwise.errors import GpuwiseError, InputError, UnpredictableError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.money.cost import Price, price_of
from gpuwise.predict.estimate import Estimate
from gpuwise.serve.capacity.configurations import Configuration, Requirements, layouts
from gpuwise.serve.capacity.fleet import Demand, copies_on
from gpuwise.serve.capacity.rate import Limit, Point, full_rate, operate
from gpuwise.serve.capacity.search import with_slots
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.requests import ClosedLoop
from gpuwise.serve.load.targets import Target

ROUNDS = 6
"""Requests of each user that are simulated."""
LEAST_REQUESTS = 200
"""Simulated at least: percentiles of fewer are chance."""
MOST_IN_FLIGHT = 4096
"""Requests in flight on one replica that are simulated: engines run at most 1,024 at once by default, the others wait."""
FINE = 1.1
"""Ratio of the two numbers in flight at which the search for the largest within the targets stops."""


@dataclass(frozen=True)
class InFlight:
    """``total`` requests in flight, spread over ``copies`` replicas of ``configuration``; ``point`` is one replica."""

    configuration: Configuration
    copies: int
    total: int
    point: Point

    @property
    def output_tokens_per_s(self) -> Estimate:
        """Tokens written per second by all replicas."""
        return Estimate.from_log_sigma(self.copies * self.point.output_tokens_per_s, self.point.run.log_sigma, "derived")

    @property
    def requests_per_s(self) -> float:
        """Answers per second of all replicas."""
        return self.copies * self.point.rate_per_s


@dataclass(frozen=True)
class Closed:
    """What ``cluster`` does with a fixed number of requests in flight. ``most`` is the largest number within the targets, None
    without targets or where one request alone misses them."""

    arch: Architecture
    cluster: Cluster
    load: Load
    targets: tuple[Target, ...]
    best: InFlight
    curve: tuple[InFlight, ...]
    most: int | None
    price: Price | None
    considered: tuple[tuple[Configuration, str], ...]
    """Other layouts, and why not."""

    @property
    def usd_per_hour(self) -> float | None:
        """US dollars an hour of the accelerators; None without a price."""
        return None if self.price is None else self.price.expected * self.cluster.n_accelerators


def is_crowded(demand: Demand, limit: Limit) -> bool:
    """Whether users wait longer for an answer than they think: they then wait for each other, and are not a rate."""
    return demand.users is not None and limit.best is not None and demand.think_s < limit.best.run.mean("e2e")


def in_loop(
    configuration: Configuration, load: Load, closed: ClosedLoop, targets: Sequence[Target], full_per_s: float, n: int = 0
) -> Point:
    """``configuration`` with the users of ``closed``, who begin at ``full_per_s``, the rate of a server that is never idle, or
    more slowly. Raises as :func:`~gpuwise.serve.capacity.rate.operate`."""
    count = max(n, LEAST_REQUESTS, ROUNDS * closed.users)
    point = operate(configuration, load, full_per_s, targets, count, closed=closed)
    return replace(point, rate_per_s=closed.users / (closed.think_s + point.run.mean("e2e")))


def copies_in_loop(limit: Limit, load: Load, targets: Sequence[Target], demand: Demand) -> int:
    """The fewest replicas of ``limit``'s configuration that keep ``targets`` with the users of ``demand`` at their peak."""
    assert demand.users is not None
    users = math.ceil(demand.users * demand.peak_over_mean - 1e-9)

    def keeps(copies: int) -> bool:
        closed = ClosedLoop(-(-users // copies), demand.think_s)
        return in_loop(limit.configuration, load, closed, targets, limit.full_per_s).met

    least = -(-users // MOST_IN_FLIGHT)
    missed, kept = least - 1, least
    while kept < users and not keeps(kept):
        missed, kept = kept, min(2 * kept, users)
    while kept - missed > 1:
        middle = (missed + kept) // 2
        missed, kept = (missed, middle) if keeps(middle) else (middle, kept)
    return kept


def closed_on(
    arch: Architecture,
    cluster: Cluster,
    load: Load,
    targets: tuple[Target, ...],
    in_flight: int,
    wanted: Requirements,
    today: datetime.date,
    *,
    usd_per_hour: float | None = None,
    provider: str | None = None,
    progress: Callable[[str], None] = lambda words: None,
) -> Closed:
    """The layout that writes most with ``in_flight`` requests in flight on ``cluster``, at best within ``targets``. Raises
    InputError and UnpredictableError where no layout can be simulated, of these NoRoomError where more accelerators would do."""
    load, wanted = with_slots(load, wanted)
    found: list[InFlight] = []
    considered: list[tuple[Configuration, str]] = []
    errors: list[GpuwiseError] = []
    for configuration in layouts(arch, cluster.system, cluster.n_accelerators, wanted):
        progress(configuration.words)
        try:
            found.append(_at(configuration, cluster, load, targets, in_flight))
        except (InputError, UnpredictableError) as error:
            considered.append((configuration, error.message))
            errors.append(error)
    if not found:
        raise errors[0] if errors else InputError(f"no replica fits {cluster.label}", hint="name more GPUs, or leave --tp out")
    best = max(found, key=lambda x: (x.point.met, x.output_tokens_per_s.expected))
    considered += [(x.configuration, f"{x.output_tokens_per_s.expected:,.0f} tokens/s") for x in found if x is not best]
    price = price_of(cluster, today, usd_per_hour=usd_per_hour, provider=provider)
    progress("fewer and more in flight")

    def at(total: int) -> InFlight:
        return best if total == in_flight else _at(best.configuration, cluster, load, targets, total)

    most = best.copies * MOST_IN_FLIGHT
    totals = sorted({1, -(-in_flight // 4), -(-in_flight // 2), in_flight, min(2 * in_flight, most)})
    curve = tuple(at(total) for total in totals)
    within = _most(curve, at, most) if targets else None
    return Closed(arch, cluster, load, targets, best, curve, within, price, tuple(considered))


def _at(configuration: Configuration, cluster: Cluster, load: Load, targets: Sequence[Target], total: int) -> InFlight:
    """``total`` in flight on as many replicas as there is room for, and requests."""
    copies = min(max(copies_on(cluster, configuration.ranks), 1), total)
    each = -(-total // copies)
    if each > MOST_IN_FLIGHT:
        most = copies * MOST_IN_FLIGHT
        raise InputError(f"{total:,} requests in flight on {copies} replicas are too many", hint=f"--concurrency {most}, or less")
    point = in_loop(configuration, load, ClosedLoop(each, 0.0), targets, full_rate(configuration, load, LEAST_REQUESTS))
    return InFlight(configuration, copies, total, point)


def _most(curve: Sequence[InFlight], at: Callable[[int], InFlight], end: int) -> int | None:
    """The largest number within the targets, within :data:`FINE`; at most ``end``. None where one alone misses them."""
    kept = max((x.total for x in curve if x.point.met), default=None)
    if kept is None:
        return None
    missed = min((x.total for x in curve if x.total > kept), default=None)
    while missed is None and kept < end:
        more = min(2 * kept, end)
        kept, missed = (more, None) if at(more).point.met else (kept, more)
    while missed is not None and missed > FINE * kept and missed - kept > 1:
        middle = max(round(math.sqrt(kept * missed)), kept + 1)
        kept, missed = (middle, missed) if at(middle).point.met else (kept, middle)
    return kept
