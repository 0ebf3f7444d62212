"""The plan of a layout that leaves nothing to search: in milliseconds what :func:`plan_on` says of it after a search."""

from __future__ import annotations

from dataclasses import replace

from gpuwise.errors import InputError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.money.cost import price_of, variant_price
from gpuwise.plan.answer import Plan, SearchStats
from gpuwise.plan.goal import Wishes, make_goal
from gpuwise.plan.planner import Pricing, options, warnings
from gpuwise.plan.space.rules import check_strategy
from gpuwise.plan.space.search import setting_of
from gpuwise.predict.practice import practice_of
from gpuwise.predict.step.training import TrainingEstimate, estimates


def plan_strategy(arch: Architecture, cluster: Cluster, wishes: Wishes, pricing: Pricing) -> Plan[TrainingEstimate]:
    """The one strategy of ``wishes.fixed``, as asked for even where it does not fit; without what a search would compare it with.

    Fields that are not fixed have the values of :class:`Strategy`, the accumulation is what the batch leaves. Raises LayoutError
    and what :func:`make_goal` raises.
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
    (found,) = estimates(arch, cluster, [strategy], goal.seq_len, packed_document_len=wishes.packed_document_len)
    price = price_of(cluster, pricing.today, usd_per_hour=pricing.usd_per_hour, provider=pricing.provider)
    price = price or variant_price(cluster, pricing.today)
    (best,) = options(goal, [found], practice_of(arch, strategy, cluster), price, pricing.provider)
    stats = SearchStats(1, int(found.fits), 0.0)
    return Plan(goal, cluster, best, (), warnings=tuple(warnings(goal, best)), smallest=found, search=stats)
