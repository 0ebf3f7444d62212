"""The best configuration on given accelerators: first the split and the formats, then the engine's options.

The best serves a demand on the fewest accelerators, in whole replicas. Ties, and questions without a demand, are decided by
the most requests within the targets on all accelerators together: ``copies x rate``. A change of options must gain two per
cent, and narrower weights must serve more than wider ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuwise.errors import GpuwiseError, InputError, NoRoomError, UnpredictableError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.serve.capacity.configurations import (
    SLOW_LINKS,
    Configuration,
    Requirements,
    device_refusal,
    holds,
    layouts,
    other_steps,
    read_apart,
    refined,
)
from gpuwise.serve.capacity.fleet import Demand, accelerators_of, copies_for, copies_on
from gpuwise.serve.capacity.rate import (
    RESOLUTION,
    SEARCH_REQUESTS,
    SLACK,
    Limit,
    Point,
    alone,
    full_rate,
    keeps,
    largest_rate,
    mean_lengths,
)
from gpuwise.serve.capacity.saturation import FULL_SHARE, kv_fill
from gpuwise.serve.engines.engine import DEFAULT_ENGINE
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.targets import Target
from gpuwise.serve.steady import first_token_time, mean_context

BETTER = 1.02
"""Minimum relative gain of the rate for a change to be worth a flag."""
DRAWN, SLOT_STEP = 2400, 1024
"""Requests that the longest is looked for among, and what a slot's context is a multiple of."""
LEAST_LEFT = 0.01
"""Least share of a target that counts as left, so that layouts too slow for it are tried in order of their rates."""
PROMISES = 1.1
"""Minimum relative gain of the promised rate for other tokens in a step to be tried first."""
REFINED = 2
"""Layouts whose options are searched."""
ANY = Demand()


@dataclass(frozen=True)
class Assessment:
    """One configuration that was looked at: its limit, or why it has none."""

    configuration: Configuration
    limit: Limit | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """A tensor group that is not the best layout: an upper bound of its requests per second, and half of the rate it needed."""

    configuration: Configuration
    bound_per_s: float
    half_per_s: float

    def points(self, load: Load, targets: Sequence[Target], n: int = SEARCH_REQUESTS) -> list[tuple[Configuration, Point]]:
        """Its values for one user, and at that rate if it meets the targets."""
        found: list[tuple[Configuration, Point]] = []
        try:
            nobody = alone(self.configuration, load, targets, n, self.bound_per_s / SLACK)
            found.append((self.configuration, one_user(nobody)))
            point = keeps(self.configuration, load, self.half_per_s, targets, n)
        except (InputError, UnpredictableError):
            return found
        return found if point is None else [*found, (self.configuration, point)]


@dataclass(frozen=True)
class Search:
    """``considered`` in order of evaluation; ``best`` is None if no configuration meets the targets."""

    considered: tuple[Assessment, ...]
    best: Limit | None
    copies: int
    error: GpuwiseError | None
    """Why nothing could be simulated at all; None when something was."""
    behind: tuple[RunnerUp, ...] = ()
    most_each_per_s: float = math.inf
    """Upper bound of requests per second and accelerator for all layouts, regardless of latency."""

    @property
    def limits(self) -> tuple[Limit, ...]:
        """Limits of the simulated configurations."""
        return tuple(c.limit for c in self.considered if c.limit is not None)

    @property
    def nearest(self) -> Limit | None:
        """If no configuration meets the targets, the one that misses by least when requests are alone."""
        known = [x for x in self.limits if x.alone.worst is not None]
        return min(known, key=lambda x: (x.alone.worst.ratio or 0.0) if x.alone.worst else 0.0, default=None)


def with_slots(load: Load, wanted: Requirements) -> tuple[Load, Requirements]:
    """For an engine with a separate context per slot and no requested size: room for the longest drawn request plus a quarter."""
    if not wanted.program.in_turn or wanted.context is not None:
        return load, wanted
    requests = load.at(1.0, DRAWN)
    longest = 1.25 * int((requests.prompt_tokens + requests.output_tokens).max())
    context = min(math.ceil(longest / SLOT_STEP) * SLOT_STEP, load.context)
    return replace(load, context=context), replace(wanted, context=context)


@dataclass(frozen=True, slots=True)
class _Rank:
    """Ranking key of limits: the accelerators of ``best``'s replicas for ``demand`` (1 without one), and the rate of the whole
    cluster."""

    cluster: Cluster
    demand: Demand
    fewer: bool = False
    """Among layouts that serve ``demand`` on equally many accelerators, do not search for a higher rate."""
    best: Limit | None = None

    def carried(self, limit: Limit) -> float:
        return limit.rate_per_s * copies_on(self.cluster, limit.configuration.ranks)

    def accelerators(self, limit: Limit) -> int:
        peak = self.peak_per_s(limit)
        if peak is None:
            return 1
        return accelerators_of(self.cluster.system, limit.configuration.ranks, copies_for(peak, limit.rate_per_s))

    def peak_per_s(self, limit: Limit) -> float | None:
        assert limit.best is not None
        rate = self.demand.rate_for(limit.best.run.mean("e2e"))
        return None if rate is None else rate * self.demand.peak_over_mean

    @property
    def ranks(self) -> int:
        """Accelerators of a replica of the best."""
        assert self.best is not None
        return self.best.configuration.ranks

    def more(self, configuration: Configuration) -> float:
        """Required gain over the best; for wider weights, the allowed loss."""
        assert self.best is not None
        return 1.0 / BETTER if configuration.weight_bytes > self.best.configuration.weight_bytes else BETTER

    def takes(self, limit: Limit) -> bool:
        """Whether ``limit`` is better than the best."""
        if limit.best is None or self.best is None:
            return limit.best is not None
        fewer = self.accelerators(limit) - self.accelerators(self.best)
        return fewer < 0 or (fewer == 0 and self.carried(limit) > self.carried(self.best) * self.more(limit.configuration))

    def at_best(self, way: Way, peak_per_s: float | None) -> tuple[float, float]:
        """Evaluation order: the comparison of :meth:`takes` for the fewest accelerators of ``way`` and the rate it promises."""
        bound, ranks = way.bound_per_s, way.configuration.ranks
        if bound == math.inf:
            return math.inf, 0.0
        few = 1 if peak_per_s is None else accelerators_of(self.cluster.system, ranks, copies_for(peak_per_s, bound))
        return few, -way.promise_per_s * copies_on(self.cluster, ranks)

    def needed_per_s(self, configuration: Configuration) -> float:
        """Requests per second that a replica must reach to beat the best."""
        if self.best is None:
            return 0.0
        ranks = configuration.ranks
        more = self.more(configuration) * self.carried(self.best) / copies_on(self.cluster, ranks)
        peak = self.peak_per_s(self.best)
        if peak is None:
            return more
        copies, spare = divmod(self.accelerators(self.best), ranks)
        if spare or not copies:
            return peak / copies if copies else math.inf
        if self.fewer:
            return peak / (copies - 1) if copies > 1 else math.inf
        return min(max(more, peak / copies), peak / (copies - 1) if copies > 1 else math.inf)


def search(
    arch: Architecture,
    cluster: Cluster,
    load: Load,
    targets: Sequence[Target],
    wanted: Requirements,
    *,
    demand: Demand = ANY,
    most_ranks: float = math.inf,
    n: int = SEARCH_REQUESTS,
    refine: bool = True,
    resolution: float = RESOLUTION,
    progress: Callable[[str], None] = lambda words: None,
) -> Search:
    """The best configuration to serve ``load`` with ``arch`` on ``cluster`` within ``targets``, with replicas of up to
    ``most_ranks`` accelerators. Without ``refine``, engines stay plain, layouts that cannot win by their closed form are
    skipped, ties in the number of accelerators take the first, and a replica that serves the whole demand is not searched
    further."""
    most = None if demand.most_per_s is None else demand.most_per_s * demand.peak_over_mean
    enough = math.inf if refine or most is None else most
    considered: list[Assessment] = []
    errors: list[GpuwiseError] = []
    behind: list[RunnerUp] = []
    rank = _Rank(cluster, demand, fewer=not refine)

    def look(configuration: Configuration, count: str = "") -> Limit | None:
        """The configuration's limit; None where it cannot be simulated, or is not better than the best."""
        nonlocal rank
        progress(count + configuration.words)
        to_beat = rank.needed_per_s(configuration)
        try:
            kept = keeps(configuration, load, to_beat, targets, n) if to_beat else None
            if to_beat and kept is None:
                considered.append(Assessment(configuration, None, f"does not keep the targets at {to_beat:.3g} requests/s"))
                return None
            limit = largest_rate(
                configuration,
                load,
                targets,
                n=n,
                resolution=resolution,
                known=kept,
                with_missed=False,
                enough_per_s=enough,
            )
        except (InputError, UnpredictableError) as error:
            considered.append(Assessment(configuration, None, error.message))
            errors.append(error)
            return None
        considered.append(Assessment(configuration, limit))
        rank = replace(rank, best=limit) if rank.takes(limit) else rank
        return limit

    found: list[Limit] = []
    late: list[tuple[float, Configuration]] = []
    able = list(_every(arch, cluster, load, wanted))
    if not able:
        errors.append(_too_few(cluster, wanted))
    every = [c for c in able if c.ranks <= most_ranks]
    plain = (Way(c, most_rate(c, load, n)) for c in _narrow(every))
    ways = list(ways_of(linked(every), load, targets, n) if refine else plain)
    for i, way in enumerate(sorted(ways, key=lambda w: rank.at_best(w, most)), 1):
        limit, bound, configuration = None, way.bound_per_s, way.configuration
        if bound >= rank.needed_per_s(configuration):
            over = 0.0 if refine or bound == math.inf else first_token_ratio(configuration, load, targets, n)
            if over > SLACK:
                late.append((over, configuration))
                continue
            limit = look(configuration, f"[{i}/{len(ways)}] ")
        found += [] if limit is None else [limit]
        if limit is None and refine and bound < math.inf and not configuration.server.staged:
            behind.append(RunnerUp(configuration, bound, min(rank.needed_per_s(configuration), bound) / 2.0))
    if not found and late:  # reports by how much it misses
        limit = look(min(late, key=lambda x: x[0])[1])
        found += [] if limit is None else [limit]
    if rank.best is not None and refine:
        kept = [x for x in found if x.best is not None]
        for start in sorted(kept, key=lambda x: (rank.accelerators(x), -rank.carried(x)))[:REFINED]:
            others = [way_of(c, load, targets, n) for c in refined(start.configuration) if matters(c, start)]
            for way in sorted(others, key=lambda w: -w.promise_per_s):
                if rank.needed_per_s(way.configuration) < math.inf:
                    look(way.configuration)
    copies = 0 if rank.best is None else copies_on(cluster, rank.ranks)
    each = (w.bound_per_s / w.configuration.ranks for w in ways)
    most_each = max((bound for bound in each if bound < math.inf), default=math.inf)
    error = None if found else _nearest(errors, arch, cluster, wanted)
    return Search(tuple(considered), rank.best, copies, error, tuple(behind), most_each)


@dataclass(frozen=True, slots=True)
class Way:
    """A layout to try: an upper bound of its requests per second (infinite where it cannot be simulated, which reports the reason
    itself), and the share of the strictest time to first token that a request without others takes; both by closed form."""

    configuration: Configuration
    bound_per_s: float
    taken: float = 0.0

    @property
    def promise_per_s(self) -> float:
        """The bound times what is left of the target."""
        return self.bound_per_s * max(1.0 - self.taken, LEAST_LEFT)


def ways_of(every: Sequence[Configuration], load: Load, targets: Sequence[Target], n: int) -> Iterator[Way]:
    """``every`` layout, with the tokens in a step that promise most."""
    for configuration in every:
        plain = best = way_of(configuration, load, targets, n)
        if plain.taken:
            others = (way_of(c, load, targets, n) for c in other_steps(configuration))
            best = max(others, key=lambda w: w.promise_per_s, default=plain)
        yield best if best.promise_per_s > PROMISES * plain.promise_per_s else plain


def way_of(configuration: Configuration, load: Load, targets: Sequence[Target], n: int) -> Way:
    """``configuration`` with its closed forms."""
    bound = most_rate(configuration, load, n)
    taken = 0.0 if bound == math.inf else first_token_ratio(configuration, load, targets, n)
    return Way(configuration, bound, taken)


def matters(changed: Configuration, limit: Limit) -> bool:
    """Whether an option of ``changed`` may gain where ``limit`` was found without it: a maximum of sequences above all that were
    there at once only captures fewer graphs, and leaves more of a cache that was not full."""
    assert limit.best is not None
    own, options = limit.configuration.server.options, changed.server.options
    if own.max_num_batched_tokens != options.max_num_batched_tokens or kv_fill(limit.best) > FULL_SHARE:
        return True
    there = limit.best.run.stretches.running + limit.best.run.stretches.waiting
    return int(there.max()) >= (options.max_num_seqs or 0)


def _every(arch: Architecture, cluster: Cluster, load: Load, wanted: Requirements) -> Iterable[Configuration]:
    every = layouts(arch, cluster.system, cluster.n_accelerators, wanted)
    return every if wanted.apart is None else read_apart(every, load, cluster, wanted.apart)


def _nearest(errors: Sequence[GpuwiseError], arch: Architecture, cluster: Cluster, wanted: Requirements) -> GpuwiseError | None:
    """What the device refuses in every layout, else the error of the layout that lacks least memory, which names the engine whose
    pipeline stages have room."""
    refusal = device_refusal(arch, cluster.system, wanted) if errors else None
    if refusal is not None:
        return refusal
    error = min(errors, key=lambda e: e.short_bytes if isinstance(e, NoRoomError) else math.inf, default=None)
    if not isinstance(error, NoRoomError) or wanted.program.stages or wanted.program.in_turn:
        return error
    staged = replace(wanted, engine=DEFAULT_ENGINE, version=None, tp=None, ep=None)
    if not any(holds(c) for c in layouts(arch, cluster.system, cluster.n_accelerators, staged)):
        return error
    title, other = wanted.program.title, staged.program.title
    words = f"{error.message} in tensor groups; pipeline stages of {title} are not simulated"
    return NoRoomError(words, hint=f"take --engine {DEFAULT_ENGINE}: stages of {other} hold it", short_bytes=error.short_bytes)


def _too_few(cluster: Cluster, wanted: Requirements) -> NoRoomError:
    """Why there is no layout at all."""
    words = f"TP {wanted.tp or 1}" + (f" in {wanted.pp} stages" if wanted.pp else "")
    return NoRoomError(f"no replica of {words} fits {cluster.label}", hint="more GPUs of one host, or leave --tp and --pp out")


def most_rate(configuration: Configuration, load: Load, n: int) -> float:
    """Upper bound of a replica's requests per second; infinite for one that cannot be simulated, which reports the reason
    itself."""
    try:
        return SLACK * full_rate(configuration, load, n)
    except (InputError, UnpredictableError):
        return math.inf


def contends(
    arch: Architecture,
    cluster: Cluster,
    load: Load,
    targets: Sequence[Target],
    wanted: Requirements,
    rate_per_s: float,
    *,
    most_ranks: float = math.inf,
    n: int = SEARCH_REQUESTS,
) -> bool:
    """Whether a layout of up to ``most_ranks`` accelerators in an unrefined search meets ``targets`` at ``rate_per_s`` per
    accelerator: the largest bounds first, each simulated at that rate only, unless its time to first token is too long even
    for a request without others. True if undecidable: the search then reports the reason."""
    every = _narrow([c for c in _every(arch, cluster, load, wanted) if c.ranks <= most_ranks])
    bounds = [(bound / c.ranks, c) for c in every if (bound := most_rate(c, load, n)) < math.inf]
    if not bounds:
        return True
    for bound, configuration in sorted(bounds, key=lambda b: -b[0]):
        if bound < rate_per_s:
            return False
        if carries(configuration, load, rate_per_s * configuration.ranks, targets, n):
            return True
    return False


def carries(configuration: Configuration, load: Load, rate_per_s: float, targets: Sequence[Target], n: int) -> bool:
    """Whether a configuration keeps ``targets`` at a rate; simulated only where its closed forms allow it."""
    if not rate_per_s <= most_rate(configuration, load, n) < math.inf:
        return False
    try:
        if first_token_ratio(configuration, load, targets, n) > SLACK:
            return False
        return keeps(configuration, load, rate_per_s, targets, n) is not None
    except InputError:  # the longest of its requests fits no cache
        return False


def first_token_ratio(configuration: Configuration, load: Load, targets: Sequence[Target], n: int) -> float:
    """Lower bound of the time to first token of a request without others, relative to the strictest target, by closed form;
    only the part of its prompt that no earlier request had counts. 0 without such a target. Raises as
    :func:`first_token_time`."""
    requests = load.at(1.0, n)
    had = requests.reused_tokens() if configuration.server.options.prefix_caching else 0
    context = int(mean_context(*mean_lengths(configuration, load, n)))  # as of the rate, which is asked for as well
    ratios = [0.0]
    for t in targets:
        if t.metric == "ttft" and t.percentile:
            fresh = max(int(np.percentile(requests.prompt_tokens - had, t.percentile)), 1)
            first = first_token_time(configuration.server, fresh, min(context, fresh)).expected
            ratios.append(first * configuration.slowdown / t.limit_s)
    return max(ratios)


def least_ranks(arch: Architecture, cluster: Cluster, wanted: Requirements) -> int:
    """Accelerators of the smallest replica that has room for a cache; 1 where none has."""
    every = sorted(layouts(arch, cluster.system, cluster.n_accelerators, wanted), key=lambda c: c.ranks)
    return next((c.ranks for c in every if holds(c)), 1)


def _narrow(every: Sequence[Configuration]) -> Sequence[Configuration]:
    """Layouts in the narrowest format that the device multiplies, and in those it does not: a native one beats a wider one."""
    native = any(c.config.weights.startswith("fp8") and "fp8" in c.system.accelerator.peak_flop_per_s for c in every)
    narrow = [c for c in every if not (native and c.config.weights in ("bf16", "fp16"))]
    return linked(narrow)


def linked(every: Sequence[Configuration]) -> Sequence[Configuration]:
    """Layouts with pipeline stages where links are slow, or where nothing else has room: tensor groups are what fast links are
    for, and what is measured of stages is measured on slow ones."""
    simple = [c for c in every if not c.server.staged or c.system.topology in SLOW_LINKS]
    return simple if any(map(holds, simple)) else every


def frontier(limits: Sequence[Limit], points: Sequence[tuple[Configuration, Point]]) -> tuple[tuple[Configuration, Point], ...]:
    """Pareto of tokens a second and accelerator against tokens a second of a user: those that none beats in both, the fastest
    answer first."""
    every = [(x.configuration, p) for x in limits for p in (one_user(x.alone), x.best) if p is not None and not p.saturated]
    every += [(c, p) for c, p in points if not p.saturated]
    ranked = sorted(every, key=lambda cp: (-cp[1].tokens_per_s_of_user, -throughput(*cp)))
    kept: list[tuple[Configuration, Point]] = []
    most = 0.0
    for configuration, point in ranked:
        if throughput(configuration, point) > most * RESOLUTION and point.tokens_per_s_of_user > 0:
            most = throughput(configuration, point)
            kept.append((configuration, point))
    return tuple(kept)


def one_user(point: Point) -> Point:
    """Requests alone, one after the other."""
    return replace(point, rate_per_s=1.0 / point.run.mean("e2e"))


def throughput(configuration: Configuration, point: Point) -> float:
    """Tokens written a second and accelerator."""
    return point.output_tokens_per_s / configuration.ranks
