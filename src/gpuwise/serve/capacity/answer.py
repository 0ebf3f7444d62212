"""The whole answer: which settings, how many requests a second within the targets, on what, at what price, and why not more.

Without a cluster see :mod:`gpuwise.pick.capacity`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gpuwise.errors import InputError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.estimate import Estimate
from gpuwise.serve.capacity.changes import Change, changes
from gpuwise.serve.capacity.closed import copies_in_loop, in_loop, is_crowded
from gpuwise.serve.capacity.commands import Command, load_tests, start_commands
from gpuwise.serve.capacity.configurations import Configuration, Requirements
from gpuwise.serve.capacity.fleet import Demand, Fleet, about, fleet_for
from gpuwise.serve.capacity.rate import (
    FINAL_REQUESTS,
    RESOLUTION,
    Limit,
    Point,
    curve,
    knee_rate,
    largest_rate,
    operate,
    rate_estimate,
    with_missed,
)
from gpuwise.serve.capacity.reliable import (
    FURTHER,
    STEEP_WORDS,
    WIDER,
    ZERO_WORDS,
    is_steep,
    nearby,
    reaches_zero,
    surely_carries,
    wider_by,
)
from gpuwise.serve.capacity.saturation import Saturation, saturation_of, why_missed
from gpuwise.serve.capacity.search import Assessment, Search, frontier, search, with_slots
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.requests import ClosedLoop
from gpuwise.serve.load.targets import READING_S, Target, as_option
from gpuwise.serve.load.workloads import Workload
from gpuwise.serve.simulate.front import known_error
from gpuwise.shown import Shown
from gpuwise.units import format_number, format_usd

CURVE_POINTS = 9
ROUGH_REQUESTS, ROUGH_RESOLUTION = 300, 1.08
"""Number of requests and resolution of a search that only ranks (pick/capacity.py)."""
TURNS, SETTLED, CURVE_ROUNDS = 6, 0.01, 12
"""Most runs until the rate of many users changes by no more than the second; times that it is worked out on the curve before."""
MANY_USERS = 30
"""Users of one replica above which they count as independent."""
ANYTHING = Requirements()
CUT_SHARE = 0.001
"""Share of a workload's requests cut by the context above which the answer mentions it."""


@dataclass(frozen=True)
class Recommendation:
    """A recommendation that meets the targets. ``point`` is one replica at its share of the load, ``knee_per_s`` the rate of a
    replica above which queues grow, regardless of latency."""

    limit: Limit
    each: Estimate
    copies: int
    """On the accelerators that were asked about."""
    point: Point
    knee_per_s: float
    saturation: Saturation
    curve: tuple[Point, ...]
    fleet: Fleet
    starts: tuple[Command, ...]
    """Start of one replica: a command for each host, or for each part."""
    tests: tuple[Command, ...]

    @property
    def configuration(self) -> Configuration:
        """Configuration with the highest throughput within the targets."""
        return self.limit.configuration


@dataclass(frozen=True)
class Feasible:
    """Targets near the requested ones that replicas of ``limit`` meet reliably, and the fleet of them; a search of all options
    may find a smaller one. ``asked`` if there is a demand that it serves."""

    targets: tuple[Target, ...]
    limit: Limit
    fleet: Fleet
    asked: bool


@dataclass(frozen=True)
class Miss:
    """The nearest result if no configuration meets the targets reliably."""

    limit: Limit
    why: str
    feasible: Feasible | None = None
    """Near targets that are met; None without any."""

    @property
    def feasible_words(self) -> str:
        """Near targets that are met reliably and the fleet for them, as a sentence; empty without any."""
        near = self.feasible
        if near is None:
            return ""
        within = " and ".join(t.words for t in near.targets)
        if near.asked:
            takes = f"at most {near.fleet.cluster.n_accelerators:,} {near.fleet.cluster.accelerator.name}"
            takes += f", {format_usd(near.fleet.usd_per_hour)}/h" if near.fleet.usd_per_hour is not None else ""
        else:
            each = format_number(near.limit.rate_per_s)
            takes = f"a replica of {near.limit.configuration.words} serves at least {each} requests/s"
        return f"Reliably met: {within} (--slo {as_option(near.targets)}): {takes}."


@dataclass(frozen=True, repr=False)
class Capacity(Shown):
    """``served`` is None if no configuration meets the targets; then ``miss`` has the nearest result. Both: ``targets`` are wider
    than the typical ones, which ``miss`` is of."""

    arch: Architecture
    cluster: Cluster
    load: Load
    targets: tuple[Target, ...]
    demand: Demand
    today: datetime.date
    served: Recommendation | None
    miss: Miss | None
    considered: tuple[Assessment, ...]
    pareto: tuple[tuple[Configuration, Point], ...] | None
    """None, as ``changes``: left for who asks for them."""
    changes: tuple[Change, ...] | None
    notes: tuple[str, ...]

    @property
    def label(self) -> str:
        """Accelerators of the answer: the fleet's for a requested load, else those of the question."""
        asked = self.demand.rate_per_s is not None or self.demand.users is not None
        return self.served.fleet.cluster.label if asked and self.served is not None else self.cluster.label


def usual_targets(load: Load) -> tuple[Target, ...]:
    """Default targets: a time to first token typical for the workload, then reading speed."""
    ttft = load.source.ttft_s if isinstance(load.source, Workload) else 1.0
    return (Target("ttft", 95.0, ttft), Target("tpot", 95.0, READING_S))


@dataclass(frozen=True)
class Question:
    """The question: capacity of ``cluster`` for ``load`` with ``arch`` within ``targets``, and the fleet for ``demand``.
    ``usd_per_hour`` per accelerator; default ``provider``'s, else the market's; ``n`` requests are simulated for each rate."""

    arch: Architecture
    cluster: Cluster
    load: Load
    targets: tuple[Target, ...]
    demand: Demand
    today: datetime.date
    wanted: Requirements = ANYTHING
    usd_per_hour: float | None = None
    provider: str | None = None
    n: int = FINAL_REQUESTS
    typical: bool = False
    """Whether ``targets`` are the workload's default ones: wider where not even a request alone keeps them."""


@dataclass(frozen=True)
class Draft:
    """An answer with known configuration, largest rate and price: ``limit`` is None if no configuration meets the targets
    reliably."""

    question: Question
    found: Search
    limit: Limit | None
    miss: Miss | None = None
    """Result that meets the targets by chance only; with a limit, that of narrower typical targets."""

    def fleet(self, each: Estimate | None = None, e2e_s: tuple[float, float] | None = None) -> Fleet:
        """The fleet for the demand, of replicas of ``each`` (None: the limit, in any weight format)."""
        assert self.limit is not None
        q = self.question
        return fleet_for(
            self.limit,
            each or about(self.limit),
            q.cluster,
            q.demand,
            today=q.today,
            usd_per_hour=q.usd_per_hour,
            provider=q.provider,
            e2e_s=e2e_s,
            copies=self._in_loop,
        )

    @cached_property
    def _in_loop(self) -> int | None:
        """Replicas for users who wait for each other; None where the load is a rate."""
        q, limit = self.question, self.limit
        assert limit is not None
        return copies_in_loop(limit, q.load, q.targets, q.demand) if is_crowded(q.demand, limit) else None

    def completed(self, *, suggest: bool = True, compare: bool = True) -> Capacity:
        """The answer without the effects of single changes; with ``suggest``, including that for near targets if these are not
        met reliably, and with ``compare`` other layouts at other latencies."""
        q, found = self.question, self.found
        served = None if self.limit is None else _served(self, self.limit)
        miss = self.miss
        if served is not None and reaches_zero(served.each):
            served, miss = None, Miss(served.limit, ZERO_WORDS)
        if served is None and miss is None and found.nearest is not None:
            miss = Miss(found.nearest, why_missed(found.nearest.alone))
        if suggest and served is None and miss is not None:
            miss = replace(miss, feasible=_feasible(q, miss.limit))
        points = self._frontier(served) if compare else None
        notes = _notes(q, served)
        asked = (q.arch, q.cluster, q.load, q.targets, q.demand, q.today)
        return Capacity(*asked, served, miss, found.considered, points, (), notes)

    def _frontier(self, served: Recommendation | None) -> tuple[tuple[Configuration, Point], ...]:
        """What each layout brings to a user and to a GPU, those that none beats in both."""
        q, found = self.question, self.found
        own = [] if served is None else [(served.configuration, p) for p in served.curve]
        others = [point for layout in found.behind for point in layout.points(q.load, q.targets)]
        return frontier(found.limits, [*others, *own])


def draft_on(question: Question, progress: Callable[[str], None] = lambda words: None, *, refine: bool = True) -> Draft:
    """The best way to serve the load within the targets, and the largest rate of it; without ``refine`` the engine's options stay
    as installed, and layouts are compared by fewer requests. Raises as :func:`capacity_on`."""
    check_model(question.arch)
    load, wanted = with_slots(question.load, question.wanted)
    q = replace(question, load=load)

    def looked(targets: Sequence[Target], *, refine: bool) -> Search:
        n, resolution = (q.n, RESOLUTION) if refine else (ROUGH_REQUESTS, ROUGH_RESOLUTION)
        common = (q.arch, q.cluster, load, targets, wanted)
        return search(*common, demand=q.demand, n=n, resolution=resolution, refine=refine, progress=progress)

    found = looked(q.targets, refine=refine)
    if found.error is not None:
        raise found.error
    progress("the best of them")
    limit = found.best
    if q.typical and limit is None and found.nearest is not None:
        near = _feasible(q, found.nearest)
        if near is not None:
            wide = draft_on(replace(q, targets=near.targets, typical=False), progress, refine=refine)
            return replace(wide, miss=wide.miss or Miss(found.nearest, why_missed(found.nearest.alone)))
    if limit is not None and refine:
        limit = with_missed(limit, load, q.targets, q.n)
    elif limit is not None:
        limit = largest_rate(limit.configuration, load, q.targets, n=q.n, guess_per_s=limit.rate_per_s)
    if limit is None or limit.best is None:
        return Draft(q, found, None)

    def wider() -> Limit | None:
        return looked(wider_by(q.targets, WIDER), refine=False).best

    if is_steep(limit, found, q.cluster, q.demand, wider):
        return Draft(q, found, None, Miss(limit, STEEP_WORDS))
    return Draft(q, found, limit)


def _feasible(question: Question, limit: Limit) -> Feasible | None:
    """The nearest tried targets that are met reliably."""
    for further in FURTHER:
        targets = nearby(question.targets, limit, further)
        draft = draft_on(replace(question, targets=targets, typical=False), refine=False)
        if draft.limit is not None and surely_carries(draft.limit, draft.question.load, targets):
            asked = question.demand.rate_per_s is not None or question.demand.users is not None
            return Feasible(targets, draft.limit, draft.fleet(), asked)
    return None


def capacity_on(question: Question, *, explain: bool = True, progress: Callable[[str], None] = lambda words: None) -> Capacity:
    """The answer; ``explain`` adds what single changes would bring. Raises InputError and UnpredictableError where nothing can
    be simulated, of these NoRoomError where more accelerators would do."""
    answer = draft_on(question, progress).completed()
    return explained(answer, progress) if explain else answer


def explained(
    answer: Capacity,
    progress: Callable[[str], None] = lambda words: None,
) -> Capacity:
    """The answer with what single changes would bring."""
    progress("what changes would bring")
    if answer.served is not None:
        each, own = answer.served.each.expected, answer.served.configuration
        searched = next((a.limit for a in answer.considered if a.configuration == own), None)
        return replace(answer, changes=changes(own, answer.load, answer.targets, each, searched=searched))
    if answer.miss is None:
        return answer
    return replace(answer, changes=changes(answer.miss.limit.configuration, answer.load, answer.targets))


def check_model(arch: Architecture) -> None:
    """Raises InputError for a model that writes no text."""
    if arch.kind != "decoder":
        raise InputError(
            f"{arch.name} is not a decoder: only engines that generate text are simulated",
            hint="use --workload embed or rerank for encoders, vision for vision transformers, speech for Whisper",
        )


def _served(draft: Draft, limit: Limit) -> Recommendation:
    q, configuration = draft.question, limit.configuration
    load, targets, n = q.load, q.targets, q.n
    knee = _knee(limit, load, n)
    points = curve(configuration, load, targets, knee, n // 2, CURVE_POINTS)
    each = rate_estimate(limit, points, load, targets, n // 2)
    fleet = draft.fleet(each)
    share = fleet.peak_per_s / fleet.copies_peak
    closed, seen = _closed(q.demand, q.demand.peak_over_mean, fleet), (limit.alone, *points)
    if closed is None:
        point, simulated = limit.best, 0 if limit.best is None else len(limit.best.run)
        if point is None or point.rate_per_s != share or not FINAL_REQUESTS <= n <= simulated:
            point = operate(configuration, load, share, targets, n, settle=True)
    else:
        crowded = is_crowded(q.demand, limit)
        point = _with_users(configuration, load, closed, seen, targets, n, crowded=crowded)
        usual = _closed(q.demand, 1.0, fleet)
        assert usual is not None
        rate = _loop_rate(usual, seen)
        if crowded:
            rate = in_loop(configuration, load, usual, targets, rate, n).rate_per_s
        at_peak_s = point.run.mean("e2e")
        fleet = draft.fleet(each, (min(usual.users / rate - usual.think_s, at_peak_s), at_peak_s))
        share = point.rate_per_s
    return Recommendation(
        limit,
        each,
        draft.found.copies,
        point,
        knee,
        saturation_of(limit, points),
        points,
        fleet,
        start_commands(configuration),
        load_tests(configuration, load, targets, share),
    )


def _knee(limit: Limit, load: Load, n: int) -> float:
    """The rate from which queues grow: that of the limit, where the first rate above it makes one grow."""
    above = limit.missed
    if above is not None and above.saturated:
        return limit.rate_per_s
    stable = above or limit.best
    assert stable is not None
    kept, nobody = (replace(p, attained=()) for p in (stable, limit.alone))  # regardless of latency
    return max(knee_rate(limit.configuration, load, n, limit.full_per_s, kept, nobody).rate_per_s, limit.rate_per_s)


def _with_users(
    configuration: Configuration,
    load: Load,
    closed: ClosedLoop,
    points: Sequence[Point],
    targets: Sequence[Target],
    n: int,
    *,
    crowded: bool,
) -> Point:
    """A replica with its users, at the rate that results from the answer times on the curve of ``points``. Few users wait for
    each other, and so do ``crowded`` ones; many, with different pauses, act like a rate."""
    rate = _loop_rate(closed, points)
    if configuration.apart is None and (crowded or closed.users < MANY_USERS):
        return in_loop(configuration, load, closed, targets, rate, n)
    point = operate(configuration, load, rate, targets, n)
    for _ in range(TURNS):
        before, rate = rate, closed.users / (closed.think_s + point.run.mean("e2e"))
        if abs(rate / before - 1.0) < SETTLED:
            break
        point = operate(configuration, load, rate, targets, n)
    return point


def _loop_rate(closed: ClosedLoop, points: Sequence[Point]) -> float:
    """Requests per second of the users of ``closed``, from the answer times on the curve of ``points``."""
    open_ones = [p for p in points if not p.saturated]
    rates, e2e_s = [p.rate_per_s for p in open_ones], [p.run.mean("e2e") for p in open_ones]
    rate = closed.users / (closed.think_s + e2e_s[0])
    for _ in range(CURVE_ROUNDS):
        rate = (rate + closed.users / (closed.think_s + float(np.interp(rate, rates, e2e_s)))) / 2.0
    return rate


def _closed(demand: Demand, over_mean: float, fleet: Fleet) -> ClosedLoop | None:
    """The users of one replica at a time with ``over_mean`` times their mean number; None for a rate."""
    if demand.users is None:
        return None
    return ClosedLoop(max(round(demand.users * over_mean / fleet.copies_peak), 1), demand.think_s)


def _notes(question: Question, served: Recommendation | None) -> tuple[str, ...]:
    cluster, load, demand = question.cluster, question.load, question.demand
    said = [words for words in (question.arch.assumption, cluster.assumption) if words]
    if isinstance(load.source, Workload):
        said += [load.source.note] if load.source.note else []
        cut = load.cut_share()
        if cut > CUT_SHARE:
            said.append(f"{cut:.1%} of its requests are longer than {load.context:,} tokens: their prompts are cut to that")
    else:
        said += load.source.notes
    if demand.users is not None:
        said.append(f"a user sends the next request {demand.think_s:g} s after the answer")
    if served is not None and served.fleet.copies_peak > 1:
        said.append("requests go to the replicas in turn, those of one session or document to the same one")
    if served is not None and served.fleet.price is not None and served.fleet.price.stale:
        said.append(f"the price is {served.fleet.price.age_days} days old")
    never = known_error(question.arch, cluster.accelerator, question.wanted.engine)
    return tuple(said) if never is None else (*said, never)
