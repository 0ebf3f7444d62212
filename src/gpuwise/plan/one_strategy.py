"""Plans for fully specified layouts: in milliseconds, the same result as :func:`plan_on` after a search."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from gpuwise.errors import InputError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.money.cost import Price, price_of, variant_price
from gpuwise.plan.answer import Plan, SearchStats
from gpuwise.plan.goal import Goal, Wishes, make_goal
from gpuwise.plan.planner import Pricing, options, warnings
from gpuwise.plan.space.rules import check_strategy
from gpuwise.plan.space.search import estimate_all, setting_of
from gpuwise.predict.practice import practice_of
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.workload.strategy import Strategy


@dataclass(frozen=True, slots=True)
class FixedGoal:
    """A goal, and the one strategy that its wishes leave."""

    goal: Goal
    strategy: Strategy


def fixed_goal(arch: Architecture, cluster: Cluster, wishes: Wishes) -> FixedGoal:
    """The one strategy of ``wishes.fixed``, checked, even if it does not fit.

    Fields that are not fixed have the values of :class:`Strategy`; accumulation follows from the batch. Raises LayoutError and
    what :func:`make_goal` raises.
    """
    goal = make_goal(arch, cluster, wishes)
    base = goal.bases[0]
    strategy = replace(base, **wishes.fixed)
    if "accumulation" not in wishes.fixed:
        ranks = strategy.dp * strategy.micro_batch
        if goal.global_batch % ranks:
            raise InputError(
                f"{goal.global_batch:,} sequences a step are not a whole number of micro-batches of {strategy.micro_batch} "
                f"on {strategy.dp} data-parallel ranks",
                hint="choose a micro-batch that divides them",
            )
        strategy = replace(strategy, accumulation=goal.global_batch // ranks)
    if strategy.n_accelerators != cluster.n_accelerators:
        raise InputError(
            f"the layout is for {strategy.n_accelerators} accelerators, and there are {cluster.n_accelerators}",
            hint="dp x tp x pp x cp must be their number",
        )
    check_strategy(setting_of(goal, base), strategy)
    return FixedGoal(goal, strategy)


def plans_of(layouts: Sequence[FixedGoal], pricing: Pricing) -> list[Plan[TrainingEstimate]]:
    """A plan for each, in order; those of the same model, accelerators and sequence are estimated in one pass, which takes
    little longer than one of them alone."""
    alike: dict[Hashable, list[int]] = {}
    for i, one in enumerate(layouts):
        goal = one.goal
        alike.setdefault((goal.arch, goal.cluster, goal.seq_len, goal.wishes.packed_document_len), []).append(i)
    plans: dict[int, Plan[TrainingEstimate]] = {}
    for members in alike.values():
        found = estimate_all(layouts[members[0]].goal, [layouts[i].strategy for i in members])
        cluster = layouts[members[0]].goal.cluster
        price = price_of(cluster, pricing.today, usd_per_hour=pricing.usd_per_hour, provider=pricing.provider)
        price = price or variant_price(cluster, pricing.today)
        for i, estimate in zip(members, found, strict=True):
            plans[i] = _plan(layouts[i].goal, estimate, price, pricing.provider)
    return [plans[i] for i in range(len(layouts))]


def _plan(goal: Goal, found: TrainingEstimate, price: Price | None, provider: str | None) -> Plan[TrainingEstimate]:
    (best,) = options(goal, [found], practice_of(goal.arch, found.strategy, goal.cluster), price, provider)
    stats = SearchStats(1, int(found.fits), 0.0)
    return Plan(goal, goal.cluster, best, (), warnings=tuple(warnings(goal, best)), smallest=found, search=stats)
