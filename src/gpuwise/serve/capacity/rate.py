"""The largest rate at which a configuration meets the targets, by simulation.

Every rate has the same requests, only closer together, so a faster rate never has the luckier draw. A rate passes if no queue
grows and every percentile is within its limit; the search bisects in the logarithm between a rate that passes and one that fails,
starting near the closed form of a full server. Where all times are ``f`` times longer, the largest rate for limits ``T`` is

    C(T; f) = C(T / f; 1) / f

which applies the factor learnt from measured loads, and gives the interval's ends from the spread of the step times: ``C`` at
other limits comes from the simulated curve of latencies over rates. Other draws of the requests widen the interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import pairwise
from typing import Any, cast

import numpy as np

from gpuwise.interval import Z80
from gpuwise.predict.estimate import Estimate
from gpuwise.serve.capacity.configurations import Configuration
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.requests import ClosedLoop
from gpuwise.serve.load.targets import Attainment, Target
from gpuwise.serve.load.workloads import Workload
from gpuwise.serve.simulate import Run, Server
from gpuwise.serve.simulate.run import TURNS
from gpuwise.serve.steady import largest

SEARCH_REQUESTS, FINAL_REQUESTS = 600, 2400
"""Simulated for each rate of the search, and for the rates that are answered with: a queue that grows slowly shows late."""
RESOLUTION, KNEE_RESOLUTION = 1.03, 1.06
"""Ratio of the two rates at which a search stops, for the targets and for the start of queueing."""
ALONE = 1e-4
"""Fraction of a full server's rate at which requests are alone."""
ALONE_REQUESTS = 200
"""Number of requests that run alone and share nothing: each is independent, and that many strata cover the percentiles."""
NEAR_FULL, UP, DOWN, LEAST_DOWN = 0.93, 1.15, 0.7, 0.15
"""A search begins near the full rate, rises or falls by these factors, and below the last halves the logarithm."""
GUESS_REQUESTS, GUESS_RESOLUTION = 300, 1.08
"""Simulated for each rate of the search whose result a long one begins near, and where that search stops."""
MOST_STEPS = 40
SLACK = 1.1
"""Tolerance of a simulated rate above its closed form (tests/serve/test_steady.py)."""
NEIGHBOURS = (1, 2, 4, 0)
"""Steps of the search's path from one tried rate near a guess to the next; after that the normal path is used."""
MOST_LONGER = 4
"""Times that a run is lengthened at most until it settles."""
SEEDS = (1, 2)
"""Other draws of the requests that an interval is made with."""
PERCENTILES = (50.0, 90.0, 95.0, 99.0)
METRICS = ("ttft", "tpot", "itl", "e2e")
Met = Callable[[float], bool]
"""Whether a rate keeps the targets."""


@dataclass(frozen=True)
class Point:
    """A configuration at one rate. Latencies are None past saturation, where they depend on the length of the run."""

    rate_per_s: float
    run: Run
    attained: tuple[Attainment, ...]
    closed: bool = False
    """Users who wait for their answers: queues are bounded."""
    beyond: bool = False
    """Above a rate at which queues grew in a longer run."""

    @cached_property
    def saturated(self) -> bool:
        """Whether the queue grew without end: an open load above what the server does."""
        return self.beyond or (not self.closed and self.run.saturated)

    @property
    def met(self) -> bool:
        """Whether every target was met and the queue did not grow."""
        return not self.saturated and all(a.met for a in self.attained)

    @property
    def surely_met(self) -> bool:
        """Whether every target was met even with all times at the upper end of their 80 % interval."""
        return self.met and (self.worst is None or (self.worst.ratio or 0.0) * self.longest <= 1.0)

    @property
    def longest(self) -> float:
        """Times that its latencies may take at the long end of their 80 % interval, over what was simulated."""
        return math.exp(Z80 * self.run.log_sigma)

    @property
    def worst(self) -> Attainment | None:
        """The target missed by most, or the one with least to spare."""
        ratios = [a for a in self.attained if a.ratio is not None]
        return max(ratios, key=lambda a: a.ratio or 0.0, default=None)

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens per second of one replica: those its requests need, or past saturation its throughput."""
        tokens = self.rate_per_s * float(self.run.output_tokens.mean())
        return min(tokens, self.run.output_tokens_per_s) if self.saturated else tokens

    @property
    def tokens_per_s_of_user(self) -> float:
        """Written a second in one answer: what the median one sees."""
        tpot = self.run.percentile("tpot", 50)
        return 1.0 / tpot if tpot > 0 else math.nan

    def latency(self, metric: str, percentile: float | None) -> float | None:
        """Seconds of a percentile (None: the mean); None past saturation, or where nothing has it."""
        if self.saturated:
            return None
        return value_of(self.run, metric, percentile)


def value_of(run: Run, metric: str, percentile: float | None) -> float | None:
    """Seconds of a percentile (None: the mean) of a run; None where nothing has the metric."""
    name = cast(Any, metric)
    value = run.mean(name) if percentile is None else run.percentile(name, percentile)
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Limit:
    """``best`` is the point of the largest rate within the targets, None if even requests alone miss them or meet them by
    chance; ``alone`` is the point of requests without others; ``missed`` the first higher rate that fails."""

    configuration: Configuration
    best: Point | None
    alone: Point
    missed: Point | None
    full_per_s: float
    """Requests a second of a server that is never idle."""
    missed_per_s: float | None = None
    """Rate of ``missed``, also where that point was not determined."""
    missed_seen: Point | None = None
    """``missed`` where the search simulated it to the end."""

    @property
    def rate_per_s(self) -> float:
        """Requests a second of one replica within the targets; 0 where not even a request alone surely keeps them."""
        return 0.0 if self.best is None else self.best.rate_per_s


def operate(
    configuration: Configuration,
    load: Load,
    rate_per_s: float,
    targets: Sequence[Target],
    n: int,
    *,
    seed: int = 0,
    closed: ClosedLoop | None = None,
    settle: bool = False,
) -> Point:
    """``configuration`` under ``load`` at a rate, with ``settle`` until a steady state. A target that no request can miss (a
    gap between tokens of one-token answers) is met. Raises InputError for settings that the engine refuses or that cannot be
    simulated."""
    f = configuration.slowdown
    slower = closed if closed is None or f == 1.0 else replace(closed, think_s=closed.think_s / f)

    def run(count: int) -> Run:
        return configuration.served.run(load.at(rate_per_s * f, count, seed=seed), closed=slower)

    found = (_settled(run, n) if settle else None) or run(n)
    return _point(rate_per_s, _by_its_clock(found, f), targets, closed=closed is not None)


def operate_within(
    configuration: Configuration,
    load: Load,
    rate_per_s: float,
    targets: Sequence[Target],
    n: int,
    *,
    seed: int = 0,
    settle: bool = False,
) -> Point | None:
    """:func:`operate`; None where it was seen on the way that ``targets`` are missed."""
    served, f = configuration.served, configuration.slowdown
    if not isinstance(served, Server):
        return operate(configuration, load, rate_per_s, targets, n, seed=seed, settle=settle)
    scaled = [replace(t, limit_s=t.limit_s / f) for t in targets]

    def run_within(count: int) -> Run | None:
        return served.within(load.at(rate_per_s * f, count, seed=seed), scaled)

    run = _settled(run_within, n) if settle else run_within(n)
    return None if run is None else _point(rate_per_s, _by_its_clock(run, f), targets)


def _settled(run: Callable[[int], Run | None], n: int) -> Run | None:
    """``run`` of ``n`` requests, or of more until the number in the system is steady: a queue is judged over time, and with
    long requests ``n`` of them only fill an empty server. None if ``run`` is."""
    found, most = run(n), MOST_LONGER * n
    while found is not None and not found.saturated and len(found) >= n < most and not found.settled:
        short = TURNS * found.stay_s / max(float(np.ptp(found.arrival_s)), 1e-9)
        n = min(max(2 * n, math.ceil(short * n)), most)
        found = run(n)
    return found


def _point(rate_per_s: float, run: Run, targets: Sequence[Target], *, closed: bool = False) -> Point:
    attained = tuple(Attainment(t, _or_zero(value_of(run, t.metric, t.percentile))) for t in targets)
    return Point(rate_per_s, run, attained, closed)


def _by_its_clock(run: Run, f: float) -> Run:
    """If all times are ``f`` times longer than predicted, requests arrive ``f`` times as fast on a clock that runs ``f`` times
    slower."""
    if f == 1.0:
        return run
    s = run.stretches
    return replace(
        run,
        **{name: getattr(run, name) * f for name in ("arrival_s", "ttft_s", "e2e_s", "tpot_s", "preemption_gaps_s")},
        stretches=replace(s, begin_s=s.begin_s * f, each_s=s.each_s * f, growth_s=s.growth_s * f),
        busy_s={name: seconds * f for name, seconds in run.busy_s.items()},
    )


def _or_zero(value: float | None) -> float:
    return 0.0 if value is None else value


def full_rate(configuration: Configuration, load: Load, n: int) -> float:
    """Requests per second of a server that is never idle: the closed form for requests of the load's mean lengths, without the
    parts of prompts that hit the prefix cache. Raises as :func:`operate`."""
    copies = 1 if configuration.apart is None else sum(configuration.apart)
    return copies * largest(configuration.server, *mean_lengths(configuration, load, n)).requests_per_s / configuration.slowdown


def mean_lengths(configuration: Configuration, load: Load, n: int) -> tuple[int, int]:
    """Mean tokens of prompts, without the parts that hit the prefix cache, and of answers."""
    requests = load.at(1.0, n)
    reused = requests.reused_share if configuration.settings.prefix_caching else 0.0
    prompt = max(round(float(requests.prompt_tokens.mean()) * (1.0 - reused)), 1)
    return prompt, max(round(float(requests.output_tokens.mean())), 1)


def alone(
    configuration: Configuration, load: Load, targets: Sequence[Target], n: int, full_per_s: float, *, seed: int = 0
) -> Point:
    """The point of requests without others. Raises as :func:`operate`."""
    few = min(n, ALONE_REQUESTS) if is_alike(load) else n
    return operate(configuration, load, ALONE * full_per_s, targets, few, seed=seed)


def is_alike(load: Load) -> bool:
    """Whether few requests, alone, are as many: they share nothing."""
    return isinstance(load.source, Workload) and load.source.shares_nothing


def keeps(configuration: Configuration, load: Load, rate_per_s: float, targets: Sequence[Target], n: int) -> Point | None:
    """The point at ``rate_per_s`` if it keeps the targets, else None."""
    point = operate_within(configuration, load, rate_per_s, targets, n, settle=n >= FINAL_REQUESTS)
    return None if point is None or not point.met else point


def largest_rate(
    configuration: Configuration,
    load: Load,
    targets: Sequence[Target],
    *,
    n: int = SEARCH_REQUESTS,
    seed: int = 0,
    full_per_s: float | None = None,
    resolution: float = RESOLUTION,
    guess_per_s: float | None = None,
    known: Point | None = None,
    with_missed: bool = True,
    enough_per_s: float = math.inf,
    unloaded: Point | None = None,
) -> Limit:
    """The largest rate within ``targets``, within ``resolution``; without ``with_missed`` the first failing rate is not
    determined. ``known`` is a point with the same requests: where it meets the targets, a lower bound of the limit. A good
    ``guess_per_s`` only reduces the number of simulated rates: rates of the search's path above a failing one, or below a
    passing one, need no simulation. Long runs are not guessed above the full rate; short ones, which exceed it until their queues
    show, are refused. If ``enough_per_s`` passes, it is the limit. ``unloaded`` is the point of requests alone, where that is
    known. Raises as :func:`operate`."""
    full, settle = full_per_s or full_rate(configuration, load, n), n >= FINAL_REQUESTS
    nobody = unloaded or alone(configuration, load, targets, n, full, seed=seed)
    if not nobody.surely_met:
        return Limit(configuration, None, nobody, None, full)
    seen: dict[float, Point | None] = {nobody.rate_per_s: nobody}  # None: missed, as was seen on the way
    if known is not None:
        seen[known.rate_per_s] = known
        guess_per_s = known.rate_per_s if targets else None  # without targets the limit is near the full rate
    if settle and targets and (known is None or known.met):
        few, rough = GUESS_REQUESTS, GUESS_RESOLUTION
        same = nobody if is_alike(load) else None
        rough_limit = partial(largest_rate, configuration, load, targets, seed=seed, full_per_s=full, with_missed=False)
        short = rough_limit(n=few, resolution=rough, unloaded=same)
        guess_per_s = max(short.rate_per_s, guess_per_s or 0.0) or None

    @cache
    def keeps(rate: float) -> bool:
        if rate not in seen:
            seen[rate] = operate_within(configuration, load, rate, targets, n, seed=seed, settle=settle)
        point = seen[rate]
        return point is not None and point.met

    def at(rate: float) -> Point:
        return seen.get(rate) or operate(configuration, load, rate, targets, n, seed=seed, settle=settle)

    def met(rate: float) -> bool:
        if rate in seen:
            return keeps(rate)
        if rate > SLACK * full and not settle and not with_missed:
            return False
        most = max(r for r in seen if keeps(r))
        missed = min((r for r in seen if not keeps(r)), default=math.inf)
        return rate < most or (rate < missed and keeps(rate))

    least = known.rate_per_s if known is not None and known.met else 0.0
    if least >= enough_per_s:
        return Limit(configuration, known, nobody, None, full)
    if enough_per_s < NEAR_FULL * full and met(enough_per_s):
        return Limit(configuration, at(enough_per_s), nobody, None, full)
    path = partial(_path, nobody.rate_per_s, full, resolution=resolution)
    if guess_per_s is not None:
        _look_near(min(guess_per_s, full) if settle else guess_per_s, path, met)
    best, missed = path(met)
    best = max(best, least)
    above = None if missed is None else at(missed) if with_missed else seen.get(missed)
    return Limit(configuration, at(best), nobody, above if with_missed else None, full, missed, above)


def with_missed(limit: Limit, load: Load, targets: Sequence[Target], n: int) -> Limit:
    """``limit`` of ``n`` requests with the point of the first higher rate that fails. Raises as :func:`operate`."""
    if limit.missed_per_s is None:
        return limit
    missed = limit.missed_seen or operate(limit.configuration, load, limit.missed_per_s, targets, n, settle=n >= FINAL_REQUESTS)
    return replace(limit, missed=missed)


def _look_near(guess_per_s: float, path: Callable[[Met], tuple[float, float | None]], met: Met) -> None:
    """Simulate the two rates between which the ``path`` to a guess ends; while both pass or both fail, move on by
    :data:`NEIGHBOURS`."""
    low, high = path(lambda rate: rate <= guess_per_s)
    for steps in NEIGHBOURS:
        if met(low):
            break
        for _ in range(steps):
            low, _ = path(lambda rate, missed=low: rate < missed)
    for steps in NEIGHBOURS:
        if high is None or not met(high):
            break
        for _ in range(steps):
            _, high = path(lambda rate, kept=high or math.inf: rate <= kept)


def _path(alone: float, full: float, met: Met, resolution: float) -> tuple[float, float | None]:
    """The last rate that is ``met`` on the way from near the full rate up or down, then halved, and the first that is not."""
    best, missed = alone, None
    rate = NEAR_FULL * full
    for _ in range(MOST_STEPS):
        best, missed = (rate, missed) if met(rate) else (best, rate)
        if missed is None:
            rate = best * UP
        elif best == alone and missed > LEAST_DOWN * full:
            rate = missed * DOWN
        elif missed / best <= resolution:
            break
        else:
            rate = math.sqrt(missed * best)
    return best, missed


def rate_estimate(limit: Limit, points: Sequence[Point], load: Load, targets: Sequence[Target], n: int) -> Estimate:
    """The largest rate with its 80 % interval, from ``points`` of a :func:`curve` and two other draws of ``n`` requests at the
    limit. Raises as :func:`operate`."""
    assert limit.best is not None
    configuration, expected, sigma = limit.configuration, limit.rate_per_s, limit.best.run.log_sigma
    known = [(p.rate_per_s, _ratio(p)) for p in (limit.alone, *points)]
    own = _rate_within(known, 1.0)

    def moved(longer: float) -> float:
        """The limit if every latency is longer by that factor at the same rate."""
        return expected * _rate_within(known, longer) / own if own else 0.0

    low, high = (moved(factor) / factor for factor in (math.exp(Z80 * sigma), math.exp(-Z80 * sigma)))
    at_limit = _ratio_at(known, expected)
    drawn: list[float] = []
    for seed in SEEDS:
        point = operate(configuration, load, expected, targets, n, seed=seed)
        ratio = _ratio(point)
        if 0.0 < ratio < math.inf and 0.0 < at_limit < math.inf:
            drawn.append(moved(ratio / at_limit))
        else:  # a queue, not a latency, is what a draw decides about
            found = largest_rate(
                configuration,
                load,
                targets,
                n=n,
                seed=seed,
                full_per_s=limit.full_per_s,
                known=point,
                resolution=KNEE_RESOLUTION,
                with_missed=False,
            )
            drawn.append(found.rate_per_s)
    chance = Z80 * float(np.std([math.log(max(r, 1e-9 * expected) / expected) for r in (expected, *drawn)], ddof=1))
    low = expected * math.exp(-math.hypot(math.log(expected / low), chance)) if low > 0 else 0.0
    high = expected * math.exp(math.hypot(math.log(max(high, expected) / expected), chance))
    return Estimate(min(low, expected), expected, high, configuration.server.steps(1024).tables.basis)


def _ratio(point: Point) -> float:
    """Ratio of reached to allowed value of the target missed by most; infinite if queues grow."""
    worst = point.worst
    return math.inf if point.saturated else 0.0 if worst is None or worst.ratio is None else worst.ratio


def _rate_within(known: Sequence[tuple[float, float]], longer: float) -> float:
    """Rate at which the ratio times ``longer`` reaches 1, on lines of its logarithm between ``known`` rates, the slowest first; 0
    where it does at the first, and the last one without queues where it never does."""
    rate, ratio = known[0]
    if ratio * longer > 1.0:
        return 0.0
    for next_rate, following in known[1:]:
        if following == math.inf:
            return rate
        if following * longer > 1.0:
            share = -math.log(ratio * longer) / math.log(following / ratio) if ratio else 1.0
            return rate + share * (next_rate - rate)
        rate, ratio = next_rate, following
    return rate


def _ratio_at(known: Sequence[tuple[float, float]], rate_per_s: float) -> float:
    """The ratio at a rate, on the same lines; infinite beyond the last without queues."""
    for (rate, ratio), (next_rate, following) in pairwise(known):
        if rate <= rate_per_s <= next_rate and ratio and following < math.inf:
            return math.exp(float(np.interp(rate_per_s, [rate, next_rate], [math.log(ratio), math.log(following)])))
    return math.inf


def knee_rate(
    configuration: Configuration,
    load: Load,
    n: int,
    full_per_s: float | None = None,
    kept: Point | None = None,
    unloaded: Point | None = None,
) -> Limit:
    """The largest rate at which no queue grows, regardless of latency; ``kept`` is a point with the same number of requests
    and no growing queue, ``unloaded`` that of requests alone. Raises as :func:`operate`."""
    return largest_rate(
        configuration,
        load,
        (),
        n=n,
        full_per_s=full_per_s,
        known=kept,
        resolution=KNEE_RESOLUTION,
        with_missed=False,
        unloaded=unloaded,
    )


def curve(
    configuration: Configuration, load: Load, targets: Sequence[Target], knee_per_s: float, n: int, points: int = 10
) -> tuple[Point, ...]:
    """Points from a tenth of the knee to a quarter beyond it, where queues grow."""
    rates = [knee_per_s * float(share) for share in np.linspace(0.1, 1.25, points)]
    below = [operate(configuration, load, r, targets, n, settle=True) for r in rates if r <= knee_per_s]
    above = [operate(configuration, load, r, targets, n // 2) for r in rates if r > knee_per_s]
    return (*below, *(replace(p, beyond=True) for p in above))
