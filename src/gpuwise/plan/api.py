"""The two questions of this room by name: make a plan, check a fit."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import USUAL, find_cluster, is_counted
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.goal import Wishes, task_of, with_adapters_of_task
from gpuwise.units import format_count
from gpuwise.workload.optimizer import weights_on_host
from gpuwise.workload.tasks import find_task
from gpuwise.workload.transformer.parameters import count_parameters

if TYPE_CHECKING:
    from gpuwise.plan.answer import Fit, Plan
    from gpuwise.plan.planner import Pricing
    from gpuwise.predict.step.training import TrainingEstimate


TOKENS_PER_PARAMETER = 20
"""Where no work is named: about the most learnt for a given training compute (Hoffmann et al. 2022, arXiv:2203.15556)."""


def make_plan(
    model: str | Architecture,
    on: str | Cluster | None = None,
    wishes: Wishes | None = None,
    *,
    usd_per_hour: float | None = None,
    provider: str | None = None,
    today: datetime.date | None = None,
) -> Plan[TrainingEstimate]:
    """The fastest strategy to train ``model`` on ``on`` under ``wishes``, with its time, cost and reasons.

    An ambiguous GPU name is read as the most common one. A name without a count means one GPU, or the fewest on which the
    training fits. Without ``on``, rented clusters are compared. Without tokens, a fine-tuning has as many as is usual
    (:func:`with_length`). ``plan.goal.assumed`` lists these assumptions. The price is the given one, a provider's, or the median
    of all offers; its age is counted to ``today`` (default: now). Raises InputError and its subclasses (UnknownNameError,
    AmbiguousNameError, LayoutError), and UnpredictableError.
    """
    from gpuwise.plan.planner import Pricing, plan_on  # with what a run costs, which a fit does not ask

    arch = find_model(model) if isinstance(model, str) else model
    goal_wishes = with_adapters_of_task(arch, wishes or Wishes())
    _check_task(goal_wishes)
    goal_wishes, work = with_length(arch, goal_wishes, rented=on is None)
    if goal_wishes.tokens is None and (goal_wishes.deadline_s is not None or goal_wishes.budget_usd is not None):
        raise InputError("a deadline or a budget needs --tokens", hint="give the number of tokens, for example --tokens 15B")
    pricing = Pricing(today or datetime.date.today(), usd_per_hour, provider)
    if on is None:
        from gpuwise.plan.hardware import compare

        plan = compare(arch, goal_wishes, pricing)
    else:
        plan = plan_on(arch, find_cluster(on, prefer=USUAL) if isinstance(on, str) else on, goal_wishes, pricing)
        open_ = isinstance(on, str) and not is_counted(on)
        if open_ and (plan.best is None or _moved(plan)):
            plan = _on_enough(plan, pricing)
    return replace(plan, subject=replace(plan.goal, assumed=(work, *plan.goal.assumed))) if work else plan


def with_length(arch: Architecture, wishes: Wishes, *, rented: bool = False) -> tuple[Wishes, str]:
    """``wishes`` with the tokens that runs of their task usually have where none are given, and the assumption in words.

    Pre-training has no usual length: times and costs are of a billion tokens, or, where ``rented`` clusters are compared, of 20
    tokens a parameter."""
    if wishes.tokens is not None:
        return wishes, ""
    task, _ = task_of(arch, wishes)
    tokens, why = task.tokens, task.tokens_source
    if tokens is None and rented and wishes.deadline_s is None and wishes.budget_usd is None:
        tokens, why = float(TOKENS_PER_PARAMETER * count_parameters(arch).total), f"{TOKENS_PER_PARAMETER} for each parameter"
    if tokens is None:
        return wishes, ""
    return replace(wishes, tokens=tokens), f"{format_count(tokens)} tokens, {why} (--tokens)"


def _check_task(wishes: Wishes) -> None:
    """Raises InputError for algorithms that learn from several responses to a prompt: :mod:`gpuwise.plan.rl` plans those."""
    if wishes.task is not None and (task := find_task(wishes.task)).prompts:
        raise InputError(f"{task.title} is planned alone", hint=f"gpuwise plan MODEL --on GPUS --for {task.name}")


def _on_enough(plan: Plan[TrainingEstimate], pricing: Pricing) -> Plan[TrainingEstimate]:
    """The plan for the fewest accelerators that hold the training, of twice, four times ... those of ``plan``; ``plan`` itself
    where none of them do."""
    from gpuwise.plan.fit import enough_accelerators
    from gpuwise.plan.planner import plan_on

    goal = plan.goal
    for more in enough_accelerators(goal, pricing.today):
        enough = f"{more.cluster.n_accelerators} GPUs, the fewest of 2, 4, 8 ... that hold it (no number was given)"
        cluster = replace(more.cluster, assumption="; ".join(filter(None, (goal.cluster.assumption, enough))))
        wider = plan_on(goal.arch, cluster, goal.wishes, pricing)
        if wider.best is not None and not _moved(wider):  # this many accelerators need another stack, which may use more memory
            return wider
    return plan


def _moved(plan: Plan[TrainingEstimate]) -> bool:
    """Whether the weights are in host memory without a request for it. If the number of accelerators is open, more of them are
    tried first."""
    if plan.best is None or plan.goal.wishes.offload_parameters:
        return False
    return weights_on_host(plan.best.estimate.strategy)


def make_fit(model: str | Architecture, on: str | Cluster, wishes: Wishes | None = None) -> Fit[TrainingEstimate]:
    """Whether training ``model`` with ``wishes`` fits on ``on``, what fills the memory, and what would
    change that.

    Raises what :func:`make_plan` raises.
    """
    from gpuwise.plan.fit import check_fit
    from gpuwise.plan.unused import of_stack, unused

    arch = find_model(model) if isinstance(model, str) else model
    wishes = with_adapters_of_task(arch, wishes or Wishes())
    _check_task(wishes)
    answer = check_fit(arch, find_cluster(on, prefer=USUAL) if isinstance(on, str) else on, wishes)
    notes = (*answer.goal.assumed, *unused(answer.goal, answer.estimate.strategy), *of_stack(answer.estimate.strategy))
    return replace(answer, subject=replace(answer.goal, assumed=notes))
