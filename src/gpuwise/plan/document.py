"""Plans and fits as plain documents for ``--json``: SI units, every estimate as ``{low, expected, high, basis}``."""

from __future__ import annotations

from typing import Any, cast

from gpuwise.export.job import Job
from gpuwise.plan.answer import CapturedStep, Fit, Option, OtherHardware, Plan
from gpuwise.plan.changes.remedy import Remedy
from gpuwise.plan.cluster_document import PLAN_VERSION, cluster_document, own_hardware
from gpuwise.plan.job import is_catalogues, job_of
from gpuwise.plan.promise import rule_s
from gpuwise.predict.estimate import to_document
from gpuwise.predict.practice import RULE_MFU
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.workload.changes.registry import kind_of
from gpuwise.workload.transformer.parameters import count_parameters

Document = dict[str, Any]


def answer_document(answer: Plan[Any] | Fit[Any]) -> Document:
    """The whole answer, whichever front end wrote the step."""
    if isinstance(answer.subject, CapturedStep):
        from gpuwise.plan.own.document import step_fit, step_plan  # a model of the catalogue needs nothing of a capture

        document = step_plan(answer) if isinstance(answer, Plan) else step_fit(answer)
    else:
        document = _plan(answer) if isinstance(answer, Plan) else _fit(answer)
    return cast(Document, to_document(document))


def _plan(plan: Plan[TrainingEstimate]) -> Document:
    goal = plan.goal
    count = count_parameters(goal.arch)
    best = plan.best
    return {
        "plan_version": PLAN_VERSION,
        "model": {
            "id": goal.arch.id,
            "name": goal.arch.name,
            "parameters": count.total,
            "active_parameters": count.active,
            **({} if is_catalogues(goal.arch) else {"architecture": goal.arch}),
        },
        "cluster": {**cluster_document(goal.cluster), **own_hardware(goal.cluster)},
        "goal": {
            "task": goal.task.name,
            "tokens": goal.wishes.tokens,
            "deadline_s": goal.wishes.deadline_s,
            "budget_usd": goal.wishes.budget_usd,
            "seq_len": goal.seq_len,
            "global_batch": goal.global_batch,
            "assumed": goal.assumed,
            **({} if goal.wishes.packed_document_len is None else {"packed": goal.wishes.packed_document_len}),
        },
        "search": plan.search,
        "best": None if best is None else {**_option(best), **_run(job_of(plan))},
        "on_time": plan.on_time,
        "in_budget": plan.in_budget,
        "alternatives": [_option(o) for o in plan.alternatives],
        "pareto": [_option(o) for o in plan.front],
        "hardware": [{"cluster": o.cluster.label, **_option(o)} for o in plan.hardware],
        "neighbours": [_neighbour(n) for n in plan.changes or ()],
        "reasons": plan.reasons,
        "warnings": plan.warnings,
        "published": plan.published,
        "smallest": None if plan.smallest is None else estimate_document(plan.smallest),
    }


def _run(job: Job) -> Document:
    """The command of the stack's own tool, which tool that is, and what of the layout it has no setting for."""
    from gpuwise.export.targets import able_stack, command, gaps_of, tool_of  # loads every tool; a fit needs none of them

    tool = tool_of(job.strategy.stack, adapters=job.strategy.lora_rank > 0)
    lacks = [] if tool is None else gaps_of(job, tool)
    instead = able_stack(job) if lacks else None
    return {
        "flags": command(job),
        "tool": None if tool is None else tool.version,
        "tool_lacks": lacks,
        **({} if instead is None else {"stack_instead": instead}),
    }


def _fit(fit: Fit[TrainingEstimate]) -> Document:
    goal = fit.goal
    return {
        "model": {"id": goal.arch.id, "name": goal.arch.name, "parameters": fit.parameters},
        "cluster": cluster_document(fit.cluster),
        "task": goal.task.name,
        "seq_len": goal.seq_len,
        "global_batch": goal.global_batch,
        "assumed": goal.assumed,
        "risk": goal.wishes.risk,
        "device_bytes": fit.estimate.device_bytes,
        "host_limit_bytes": fit.estimate.host_limit_bytes,
        "headroom_bytes": fit.estimate.headroom_bytes,
        **estimate_document(fit.estimate),
        "largest_micro_batch": fit.micro_batch,
        "longest_seq_len": fit.seq_len,
        "remedies": [_remedy(r) for r in fit.remedies or ()],
        "combinations": [_remedy(r) for r in fit.combinations],
        "bigger": [_other(b) for b in fit.bigger],
        "more": [_other(b) for b in fit.more],
    }


def _option(option: Option[TrainingEstimate]) -> Document:
    return {
        **estimate_document(option.estimate),
        **_levels(option),
        "time_s": option.time_s,
        "cost_usd": option.cost_usd,
        "price": option.price,
        "energy": option.energy,
        "headroom_bytes": option.headroom_bytes,
    }


def _levels(option: Option[TrainingEstimate]) -> Document:
    """Seconds at the tuned level, of the whole run, and by the rule "assume 40 % MFU"."""
    e, tuned, run, operation = option.estimate, option.tuned, option.run, option.operation
    if tuned is None or run is None:
        return {}
    faster = tuned.step_time_s.expected / e.step_time_s.expected
    step = tuned.step_time_s
    scale = run.time_s.expected / e.step_time_s.expected
    return {
        "tuned": {
            "step_time_s": step,
            "tokens_per_s": tuned.tokens_per_s,
            "tokens_per_s_per_gpu": tuned.tokens_per_s_per_gpu,
            "mfu": tuned.mfu,
            "hfu": tuned.hfu,
            "training_s": step.scaled(scale),
        },
        "slowdown_in_practice": 1.0 / faster,
        "goodput": None
        if operation is None
        else {
            "share": operation.goodput,
            "items_s": {name: share.expected * run.time_s.expected for name, share in operation.shares.items()},
            "stops": operation.stops.stops,
            "checkpoint_interval_s": operation.stops.interval_s,
        },
        "rule_of_thumb": {"mfu": RULE_MFU, "training_s": rule_s(option)},
    }


def estimate_document(e: TrainingEstimate) -> Document:
    """One layout: its step, its memory and what fills both."""
    name, share = e.bottleneck()
    rates = {"tokens_per_s": e.tokens_per_s, "tokens_per_s_per_gpu": e.tokens_per_s_per_gpu, "mfu": e.mfu, "hfu": e.hfu}
    return {
        "strategy": {**cast(Document, to_document(e.strategy)), "global_batch": e.strategy.global_batch},
        "step_time_s": e.step_time_s,
        "memory_bytes": e.memory_bytes,
        **{rate: value if e.fits else None for rate, value in rates.items()},  # what does not fit has no throughput
        "fits": e.fits,
        "fit_probability": e.fit_probability,
        "needed_bytes": e.needed_bytes,
        "allocated_bytes": e.allocated_bytes,
        "host_bytes": e.host_bytes,
        "breakdown_s": e.breakdown_s,
        "memory_parts_bytes": e.memory_parts,
        "bottleneck": {"part": name, "share": share},
    }


def _neighbour(n: Remedy[TrainingEstimate]) -> Document:
    return {
        "lever": kind_of(n.changes[0]).title,
        "change": n.name,
        "slower": n.slower,
        "fits": n.fits,
        "fit_probability": n.estimate.fit_probability,
        "step_time_s": n.estimate.step_time_s,
        "memory_bytes": n.estimate.memory_bytes,
    }


def _remedy(r: Remedy[TrainingEstimate]) -> Document:
    return {"name": r.name, "kind": r.kind, "saved_bytes": r.saved_bytes, "slower": r.slower, **estimate_document(r.estimate)}


def _other(other: OtherHardware[TrainingEstimate]) -> Document:
    usd = None if other.price is None else other.price.expected
    return {"cluster": cluster_document(other.cluster), "usd_per_gpu_hour": usd, **estimate_document(other.estimate)}
