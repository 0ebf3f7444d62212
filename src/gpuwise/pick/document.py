"""A pick as one JSON document: everything the view shows and what it leaves out."""

from __future__ import annotations

from typing import cast

from gpuwise.pick.api import Pick
from gpuwise.pick.jobs import ModelJob
from gpuwise.pick.limits import Limits
from gpuwise.pick.outcomes import Outcome
from gpuwise.pick.passes import PassJob
from gpuwise.pick.ranking import key_of
from gpuwise.plan.own.named import NamedStep
from gpuwise.predict.estimate import to_document


def pick_document(pick: Pick) -> dict[str, object]:
    """``ranked`` best first; ``left_out`` every way that is not, with its reason; together they are ``considered``."""
    document = {
        "job": job_document(pick.job),
        "limits": limits_document(pick.limits),
        "objective": pick.limits.objective,
        "order": pick.order,
        "verdict": list(pick.verdict),
        "ranked": [outcome_document(o) | rank_document(o, pick.limits) for o in pick.ranked],
        "left_out": pick.ranking.left_out,
        "left_out_groups": [
            {
                "reason": g.code,
                "heading": g.heading,
                "accelerators": g.count,
                "named": [{"name": n, "why": w} for n, w in g.named],
            }
            for g in pick.left_out
        ],
        "considered": pick.ranking.considered,
        "predicted": pick.ranking.predicted,
        "searched_whole": not pick.ranking.capped,
        "assumed": list(pick.assumed),
        "as_of": pick.today,
    }
    return cast("dict[str, object]", to_document(document))


def job_document(job: ModelJob | PassJob) -> dict[str, object]:
    """The job with its gaps filled. Speeds of a job of forward passes (``tokens_per_s``) are in its ``unit`` a second."""
    document: dict[str, object] = {"purpose": job.purpose, "model": job.model_id, "name": job.name, "useful_flop": job.flop}
    if isinstance(job, PassJob):
        document |= {
            "unit": job.unit,
            "items": job.items or None,
            "items_per_s": job.items_per_s,
            "seq_len": job.seq_len or None,
            "hours": job.hours or None,
            "bits": list(job.bits),
        }
        if isinstance(job.model, NamedStep):
            document["method"] = "qlora" if job.model.quantized else job.model.method
    elif job.serving:
        document |= {
            "users": job.load.users or None,
            "requests_per_s": job.load.requests_per_s,
            "prompt_tokens": job.load.prompt_tokens,
            "output_tokens": job.load.output_tokens,
            "context": job.load.context,
            "bits": list(job.bits),
            "hours": job.hours,
            "least_tokens_per_s": job.load.least_tokens_per_s,
        }
    else:
        document |= {"tokens": job.tokens, "seq_len": job.seq_len, "method": job.method, "task": job.task}
        document |= {} if job.phased is None else {"steps": job.phased.steps, "teacher": job.phased.teacher}
    return document


def limits_document(limits: Limits) -> dict[str, object]:
    """The limits of the answer; None without any."""
    have = limits.have
    return {
        "budget_usd": limits.budget_usd,
        "deadline_s": limits.deadline_s,
        "ways": list(limits.ways),
        "vendors": list(limits.vendors),
        "max_watts": limits.max_watts,
        "used": limits.used,
        "country": limits.country,
        "count": limits.count,
        "form": limits.form,
        "have": None
        if have is None
        else {
            "psu_w": have.psu_w,
            "slots": have.slots,
            "length_mm": have.length_mm,
            "memory_bytes": have.memory_bytes,
            "pcie": have.pcie or None,
            "connectors": dict(have.connectors),
        },
    }


def outcome_document(o: Outcome) -> dict[str, object]:
    """One row of the ranking."""
    kwh = None if o.bill.energy is None else o.bill.energy.kwh
    return {
        "accelerator": o.cluster.accelerator.id,
        "name": o.cluster.accelerator.name,
        "count": o.n,
        "way": o.way.how,
        "condition": o.way.condition or None,
        "provider": o.way.label,
        "as_asked": o.tier == 0,
        "time_s": o.time_s,
        "tokens_per_s": o.tokens_per_s,
        "capacity_tokens_per_s": o.capacity_tokens_per_s,
        "cost_usd": o.cost_usd,
        "outlay_usd": o.bill.outlay_usd,
        "electricity_usd": o.bill.power_usd,
        "box_usd": o.bill.box_usd,
        "usd_per_hour_busy": o.bill.usd_per_hour,
        "usd_per_pflop": o.usd_per_pflop,
        "usd_per_gb": o.usd_per_gb,
        "usd_per_gb_per_s": o.usd_per_gb_per_s,
        "price": _price(o),
        "energy_kwh": kwh,
        "board_w": o.board_w,
        "power_w": None if o.bill.energy is None else o.bill.energy.power_w,
        "tokens_per_joule": o.tokens_per_joule,
        "memory_bytes": o.memory_bytes,
        "device_bytes": o.device_bytes,
        "fit_probability": o.fit_probability,
        "changes": list(o.changes),
        "layout": o.layout,
        "software": {"level": o.support.level, "reason": o.support.reason},
        "obtainable": o.obtainable,
        "basis": o.time_s.basis,
        "notes": list(o.notes),
    }


def rank_document(o: Outcome, limits: Limits) -> dict[str, object]:
    """What a row is ranked by: those with a lower ``level`` first, then the lower value of ``counts_as``."""
    tier, value = key_of(o, limits)
    return {"level": tier, "counts_as": value, "behind_for": list(o.behind_for)}


def _price(o: Outcome) -> object:
    way = o.way
    if way.rent is not None:
        return way.rent
    if way.notebook is not None:
        plan = way.notebook
        return {
            "plan": plan.plan,
            "usd_per_month": plan.usd_per_month,
            "hours_per_week": plan.hours_per_week,
            "session_hours": plan.session_hours,
            "as_of": plan.as_of,
        }
    assert way.purchase is not None
    p = way.purchase
    return {
        "usd": {"low": p.low, "median": p.median, "high": p.high},
        "kind": p.kind,
        "as_of": p.as_of,
        "observations": p.observations,
    }
