"""One change at a time: what each strategy one notch away would do. It is how a plan explains itself."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.errors import LayoutError, UnpredictableError
from gpuwise.plan.changes.remedy import Remedy, remedy_of, strategy_label
from gpuwise.plan.goal import Goal
from gpuwise.plan.space.rules import check_strategy
from gpuwise.plan.space.search import estimate_all, setting_of
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.workload.changes.change import Change
from gpuwise.workload.changes.registry import CHANGES, on_strategy
from gpuwise.workload.changes.strategy import StrategyEffect
from gpuwise.workload.strategy import Strategy

Neighbour = Remedy[TrainingEstimate]
"""A strategy one change away: ``slower`` is its step time over the plan's, minus one; negative: faster."""


def neighbours(goal: Goal, best: TrainingEstimate) -> tuple[Neighbour, ...]:
    """Every allowed strategy one change away from ``best``, whether it fits or not."""
    legal: list[tuple[Change, Strategy]] = []
    for change in near_changes(best.strategy):
        strategy = on_strategy(change, best.strategy)
        try:
            check_strategy(setting_of(goal, strategy), strategy)
        except LayoutError:
            continue
        legal.append((change, strategy))
    try:
        estimates = estimate_all(goal, [s for _, s in legal])
    except UnpredictableError:
        return ()
    return tuple(
        remedy_of((change,), best, e, name=strategy_label((change,), best.strategy, e.strategy))
        for (change, _), e in zip(legal, estimates, strict=True)
    )


def near_changes(s: Strategy) -> Iterator[Change]:
    """The changes of one notch, up and down; degrees trade against data parallelism so that the count stays."""
    for kind in CHANGES:
        if isinstance(kind.strategy, StrategyEffect):
            yield from (Change(kind.name, argument) for argument in kind.strategy.near(s))
