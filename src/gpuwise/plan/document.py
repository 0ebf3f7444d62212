"""Plans as plain documents for ``--json``: SI units, every estimate as ``{low, expected, high, basis}``."""

from __future__ import annotations

from dataclasses import asdict

from gpuwise.plan.changes.neighbours import Neighbour
from gpuwise.plan.flags import flags
from gpuwise.plan.planner import Option, Plan
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.workload.changes.registry import kind_of
from gpuwise.workload.transformer.parameters import count_parameters


def plan_document(plan: Plan) -> dict[str, object]:
    """The whole plan."""
    goal = plan.goal
    count = count_parameters(goal.arch)
    return {
        "model": {
            "id": goal.arch.id,
            "name": goal.arch.name,
            "parameters": count.total,
            "active_parameters": count.active,
        },
        "cluster": cluster_document(goal.cluster),
        "goal": {
            "tokens": goal.wishes.tokens,
            "deadline_s": goal.wishes.deadline_s,
            "budget_usd": goal.wishes.budget_usd,
            "seq_len": goal.seq_len,
            "global_batch": goal.global_batch,
            "assumed": list(goal.assumed),
        },
        "search": {
            "strategies": plan.search.strategies,
            "fitting": plan.search.fitting,
            "seconds": plan.search.seconds,
        },
        "best": None if plan.best is None else option_document(plan.best, goal.seq_len, plan),
        "on_time": plan.on_time,
        "in_budget": plan.in_budget,
        "alternatives": [option_document(o, goal.seq_len) for o in plan.alternatives],
        "pareto": [option_document(o, goal.seq_len) for o in plan.front],
        "hardware": [{"cluster": o.cluster.label, **option_document(o, goal.seq_len)} for o in plan.hardware],
        "neighbours": [neighbour_document(n) for n in plan.neighbours],
        "reasons": list(plan.reasons),
        "warnings": list(plan.warnings),
        "smallest": estimate_document(plan.smallest),
    }


def cluster_document(cluster: object) -> dict[str, object]:
    from gpuwise.facts.hardware.systems import Cluster

    assert isinstance(cluster, Cluster)
    return {
        "label": cluster.label,
        "accelerator": cluster.accelerator.id,
        "system": cluster.system.id,
        "accelerators": cluster.n_accelerators,
        "systems": cluster.n_systems,
        "device_bytes": cluster.accelerator.memory_bytes,
    }


def option_document(option: Option, seq_len: int, plan: Plan | None = None) -> dict[str, object]:
    """One option; with ``plan``, its launch flags as well."""
    out = estimate_document(option.estimate)
    out |= {
        "time_s": option.time_s.as_dict(),
        "cost_usd": _maybe(option.cost_usd),
        "price": None if option.price is None else option.price.as_dict(),
        "energy": None if option.energy is None else option.energy.as_dict(),
        "headroom_bytes": option.headroom_bytes,
    }
    if plan is not None:
        out["flags"] = flags(plan.goal.arch, option.cluster, option.estimate.strategy, seq_len)
    return out


def estimate_document(e: TrainingEstimate) -> dict[str, object]:
    """One strategy's estimate."""
    name, share = e.bottleneck()
    return {
        "strategy": {**asdict(e.strategy), "global_batch": e.strategy.global_batch},
        "step_time_s": e.step_time_s.as_dict(),
        "memory_bytes": e.memory_bytes.as_dict(),
        "tokens_per_s": e.tokens_per_s.as_dict(),
        "tokens_per_s_per_gpu": e.tokens_per_s_per_gpu.as_dict(),
        "mfu": e.mfu.as_dict(),
        "hfu": e.hfu.as_dict(),
        "fits": e.fits,
        "breakdown_s": dict(e.breakdown_s),
        "memory_parts_bytes": dict(e.memory_parts),
        "bottleneck": {"part": name, "share": share},
    }


def neighbour_document(n: Neighbour) -> dict[str, object]:
    return {
        "lever": kind_of(n.changes[0]).title,
        "change": n.name,
        "slower": n.slower,
        "fits": n.fits,
        "step_time_s": n.estimate.step_time_s.as_dict(),
        "memory_bytes": n.estimate.memory_bytes.as_dict(),
    }


def _maybe(value: Estimate | None) -> dict[str, float | str] | None:
    return None if value is None else value.as_dict()
