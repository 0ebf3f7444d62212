"""The whole answer: which strategy on which cluster, how long, how much, and why.

The clock and the prices are the caller's; nothing here reads a file or prints.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.money.cost import Price, price_of, rent, variant_price
from gpuwise.money.energy import energy, energy_of_run
from gpuwise.money.run.cost import run_usd
from gpuwise.money.run.goodput import operate
from gpuwise.plan.answer import Option, Plan, SearchStats, tokens_of
from gpuwise.plan.changes.neighbours import neighbours
from gpuwise.plan.explain import layout, reasons
from gpuwise.plan.goal import Goal, Wishes, make_goal
from gpuwise.plan.space.search import SearchResult, find_fastest, find_strategies
from gpuwise.plan.space.sweep import TIGHT
from gpuwise.plan.unused import batch_note, faster_formats, left_out, of_stack, published, step_note, unused
from gpuwise.plan.whole_run import run_of
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.practice import Practice, practice_of
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.units import SMALL, format_bytes, format_duration, format_usd, percent, probability

ROOMY, WORTH_IT = 0.08, 0.05
"""Beside a tight plan, show a strategy that leaves the first share of the device free if its time is at most the second times
longer."""

FACT_WORDS = {
    "count": "number of GPUs",
    "domain_size": "GPUs that are linked",
    "host_memory_gib": "host memory",
    "link_gb_s": "rate of the link",
    "max_power_w": "most power",
    "ports": "network ports",
}
"""Names of the columns of ``systems.toml`` that can be assumed."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """Source of the price: one given by hand, one provider, or (neither) the median, as of ``today``."""

    today: datetime.date
    usd_per_hour: float | None = None
    provider: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterSearch:
    """Search result of one cluster, with its best strategy priced; the rest of the plan is derived from it."""

    goal: Goal
    found: SearchResult
    price: Price | None
    provider: str | None
    level: Practice | None = None
    best: Option[TrainingEstimate] | None = None

    @property
    def stats(self) -> SearchStats:
        return SearchStats(self.found.n_strategies, self.found.n_fit, self.found.seconds)


def plan_on(arch: Architecture, cluster: Cluster, wishes: Wishes, pricing: Pricing) -> Plan[TrainingEstimate]:
    """The plan for one cluster. Raises LayoutError, InputError and UnpredictableError."""
    return plan_of(search_on(arch, cluster, wishes, pricing))


def search_on(
    arch: Architecture, cluster: Cluster, wishes: Wishes, pricing: Pricing, *, only_best: bool = False
) -> ClusterSearch:
    """The fastest strategy for one cluster, its time and cost; with ``only_best`` too little for a whole plan.

    Raises LayoutError, InputError and UnpredictableError.
    """
    goal = make_goal(arch, cluster, wishes)
    result = find_strategies(goal, only_best=only_best)
    if result.goal.bases[0].stack != goal.bases[0].stack:
        goal = replace(result.goal, wishes=wishes)
    price = price_of(cluster, pricing.today, usd_per_hour=pricing.usd_per_hour, provider=pricing.provider)
    price = price or variant_price(cluster, pricing.today)
    if not result.ranked:
        return ClusterSearch(goal, result, price, pricing.provider)
    level = practice_of(arch, result.ranked[0].strategy, cluster)
    (best,) = options(goal, result.ranked[:1], level, price, pricing.provider)
    return ClusterSearch(goal, result, price, pricing.provider, level, best)


def plan_of(searched: ClusterSearch) -> Plan[TrainingEstimate]:
    """The whole plan: best strategy, neighbours, alternatives, reasons and warnings."""
    goal, result, level, best = searched.goal, searched.found, searched.level, searched.best
    cluster, price, provider, stats = goal.cluster, searched.price, searched.provider, searched.stats
    if level is None or best is None:
        return Plan(goal, cluster, None, (), warnings=result.notes, smallest=result.smallest, search=stats)
    near = neighbours(goal, best.level)
    runner_up = result.ranked[1] if len(result.ranked) > 1 else None
    return Plan(
        goal,
        cluster,
        best,
        tuple(replace(n, estimate=level.of(n.estimate)) for n in near),
        alternatives=tuple(options(goal, result.ranked[1:], level, price, provider)),
        front=tuple(options(goal, result.front, level, price, provider)),
        reasons=(*reasons(best.level, near, runner_up, best.estimate.bottleneck()), *faster_formats(goal, best.level)),
        warnings=(
            *result.notes,
            *unused(goal, best.estimate.strategy),
            *of_stack(best.estimate.strategy),
            *left_out(goal),
            *batch_note(goal),
            *step_note(goal),
            *warnings(goal, best),
            *safer(best, result),
        ),
        smallest=result.smallest,
        search=stats,
        published=tuple(published(goal, best, lambda year: of_year(searched, year))),
    )


def of_year(searched: ClusterSearch, year: int) -> Option[TrainingEstimate] | None:
    """The best plan with the software of ``year``; None where that has none for what was asked."""
    goal = searched.goal
    try:
        older = make_goal(goal.arch, goal.cluster, replace(goal.wishes, year=year))
        fastest = find_fastest(older)
    except (InputError, UnpredictableError):
        return None
    if fastest is None or fastest.estimate is None:
        return None
    level = practice_of(goal.arch, fastest.estimate.strategy, goal.cluster)
    return options(older, [fastest.estimate], level, searched.price, searched.provider)[0]


def options(
    goal: Goal, estimates: Sequence[TrainingEstimate], level: Practice, price: Price | None, provider: str | None = None
) -> list[Option[TrainingEstimate]]:
    """Tuned estimates at ``level``, with their time, cost and energy for the goal's tokens."""
    tokens, cluster = tokens_of(goal.wishes), goal.cluster
    choices: list[Option[TrainingEstimate]] = []
    for tuned in estimates:
        e = level.of(tuned)
        run = run_of(goal.arch, cluster, e, tokens, price, provider)
        try:
            done = operate(run)
        except UnpredictableError:
            time_s = run.time_s
            cost = None if price is None else rent(time_s, cluster.n_accelerators, price)
            choices.append(Option(cluster, e, time_s, price, cost, energy(time_s, cluster, site=run.site), tuned, run))
            continue
        cost = None if price is None else run_usd(run, done)
        choices.append(Option(cluster, e, done.wall_s, price, cost, energy_of_run(done), tuned, run, done))
    return choices


def warnings(goal: Goal, best: Option[TrainingEstimate]) -> list[str]:
    """Warnings, one sentence each."""
    texts: list[str] = []
    e = best.estimate
    limit, wishes = e.device_bytes, goal.wishes
    if e.fit_probability < 1 - wishes.risk:
        texts.append(
            f"memory may not suffice: it does with {probability(e.fit_probability)}, "
            f"and nothing of this kind does with {probability(1 - wishes.risk)}"
        )
    elif not e.fits_at_ease:
        short = e.memory_bytes.expected - limit
        texts.append(
            f"memory is tight: the allocator would take {format_bytes(short)} more than there is, "
            "and gives cached blocks back instead"
        )
    elif best.headroom_bytes < TIGHT * limit:
        texts.append(f"memory is tight: {format_bytes(best.headroom_bytes)} of {format_bytes(limit)} left")
    if e.step_time_s.basis in ("specified", "extrapolated"):
        texts.append(
            f"the time is in part based on {e.step_time_s.basis} numbers: not all its kernels were measured on such a GPU"
        )
    if goal.seq_len > goal.arch.max_seq_len:
        texts.append(f"{goal.seq_len} tokens are beyond the model's {goal.arch.max_seq_len}: positions must be extended")
    if best.operation is None:
        texts.append("it would be stopped too often to end: the time is that of the training alone")
    if wishes.deadline_s is not None:
        texts += _limit("deadline", wishes.deadline_s, best.time_s, format_duration)
    if wishes.budget_usd is not None and best.cost_usd is not None:
        texts += _limit("budget", wishes.budget_usd, best.cost_usd, format_usd)
    if best.price is None:
        texts.append("no rental price is known for this accelerator: give one with --price")
    elif best.price.stale:
        texts.append(f"the price is {best.price.age_days} days old")
    system = goal.cluster.system
    leant_on = [name for name in system.assumed if _leans_on(name, best)]
    if leant_on:
        words = ", ".join(FACT_WORDS.get(name, name) for name in leant_on)
        texts.append(f"not published for {system.name}, assumed: {words}")
    return texts


def _leans_on(name: str, best: Option[TrainingEstimate]) -> bool:
    """Whether a plan's figures depend on the field ``name`` of its system: one system has no network, one GPU has no links,
    and host memory matters only with offload."""
    s, cluster = best.estimate.strategy, best.cluster
    if name == "host_memory_gib":
        return s.offload_optimizer or s.offload_activations
    if name in ("count", "network", "ports"):
        return cluster.n_systems > 1
    return name not in ("domain_size", "link_gb_s") or cluster.n_accelerators > 1


def safer(best: Option[TrainingEstimate], result: SearchResult) -> list[str]:
    """When memory is tight: the fastest strategy that leaves room, and its extra time."""
    if best.estimate.fits_at_ease and best.headroom_bytes >= TIGHT * best.estimate.device_bytes:
        return []
    for e in (*result.ranked, *result.front):
        slower = e.step_time_s.expected / best.level.step_time_s.expected - 1
        free = e.headroom_bytes
        if free >= ROOMY * e.device_bytes and slower <= WORTH_IT:
            more = f"{percent(slower)} more" if slower >= SMALL else "no more"
            return [f"for {more} time, {layout(e.strategy)} leaves {format_bytes(free)} free"]
    return []


def _limit(name: str, limit: float, value: Estimate, words: object) -> list[str]:
    say = words if callable(words) else str
    if value.expected > limit:
        return [f"misses the {name} of {say(limit)}: {say(value.expected)} expected"]
    if value.high > limit:
        return [f"may miss the {name} of {say(limit)}: up to {say(value.high)}"]
    return []
