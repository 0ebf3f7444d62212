"""Answers about one's own step as plain documents for ``--json``: SI units, estimates as ``{low, expected, high, basis}``."""

from __future__ import annotations

from dataclasses import asdict

from gpuwise.plan.changes.batch_search import BatchSearch
from gpuwise.plan.changes.trial import StepRemedy
from gpuwise.plan.document import cluster_document
from gpuwise.plan.step.estimates import StepEstimate
from gpuwise.plan.step.fit import OtherCard, StepFit
from gpuwise.plan.step.plan import StepPlan
from gpuwise.plan.step.time_parts import by_module, is_host_bound, mfu
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.memory.capture import CapturedMemory, Place
from gpuwise.predict.step.capture_time import CapturedTime
from gpuwise.workload.capture.record.capture import Capture

MOST_MODULES = 50


def fit_document(fit: StepFit) -> dict[str, object]:
    """The whole answer."""
    return {
        **_head(fit.name, fit.batch, fit.seq, fit.precision, fit.capture),
        "cluster": cluster_document(fit.cluster),
        "fits": fit.fits,
        "fits_easily": fit.estimate.fits_easily,
        "headroom_bytes": fit.estimate.headroom_bytes,
        "memory": memory_document(fit.estimate.memory),
        "step_time_s": _maybe(fit.estimate.step_time_s),
        "batches": None if fit.search is None else search_document(fit.search),
        "remedies": None if fit.remedies is None else [remedy_document(r) for r in fit.remedies.singles],
        "combinations": [] if fit.remedies is None else [remedy_document(r) for r in fit.remedies.combinations],
        "not_possible": {} if fit.remedies is None else dict(fit.remedies.failed),
        "bigger": [card_document(c) for c in fit.bigger],
        "captures": fit.captures,
    }


def plan_document(plan: StepPlan) -> dict[str, object]:
    """The whole plan."""
    time = plan.estimate.time
    return {
        **_head(plan.name, plan.batch, plan.seq, plan.precision, plan.capture),
        "cluster": cluster_document(plan.cluster),
        "fits": plan.estimate.fits,
        "memory": memory_document(plan.estimate.memory),
        "step_time_s": plan.step_time_s.as_dict(),
        "samples_per_s": _maybe(plan.samples_per_s),
        "time": None if time is None else time_document(plan, time),
        "batches": None if plan.search is None else search_document(plan.search),
        "scaling": [{**asdict(s), "step_time_s": s.step_time_s.as_dict()} for s in plan.scaling],
        "samples": plan.samples,
        "run_time_s": _maybe(plan.run_time_s),
        "cost_usd": _maybe(plan.cost_usd),
        "price": None if plan.price is None else plan.price.as_dict(),
        "energy": None if plan.energy is None else plan.energy.as_dict(),
        "cards": [card_document(c) for c in plan.cards],
        "speedups": None if plan.speedups is None else [remedy_document(r) for r in plan.speedups],
        "captures": plan.captures,
    }


def _head(name: str, batch: int | None, seq: int | None, precision: str, capture: Capture) -> dict[str, object]:
    return {
        "target": name,
        "batch": batch,
        "seq_len": seq,
        "precision": precision,
        "parameters": capture.parameter_count,
        "trainable_parameters": capture.trainable_count,
        "operations": capture.steady.end_op - capture.steady.first_op,
        "flop": capture.flop(),
        "settings": asdict(capture.settings),
        "findings": [asdict(f) for f in capture.findings],
        "parameter_bytes_by_module": dict(
            sorted(capture.parameter_bytes_by_module.items(), key=lambda item: -item[1])[:MOST_MODULES]
        ),
    }


def memory_document(m: CapturedMemory) -> dict[str, object]:
    """Allocated, reserved and process memory, the peak, and where it runs out."""
    return {
        "allocated_bytes": m.allocated.as_dict(),
        "reserved_bytes": m.reserved.as_dict(),
        "process_bytes": m.process.as_dict(),
        "context_bytes": m.context.as_dict(),
        "communicators_bytes": m.communicators.as_dict(),
        "capacity_bytes": m.capacity_bytes,
        "fit_probability": m.fit_probability,
        "retries": m.retries,
        "first_step": asdict(m.first),
        "steady_step": asdict(m.steady),
        "peak": _place(m.peak),
        "peak_bytes_by_category": {c.name.lower(): n for c, n in m.by_category.items()},
        "largest": [
            {"bytes": h.size_bytes, "category": h.category.name.lower(), "dtype": h.dtype, "made_by": _place(h.made_by)}
            for h in m.largest
        ],
        "out_of_memory": None
        if m.oom is None
        else {
            "at": _place(m.oom.place),
            "step": m.oom.step,
            "requested_bytes": m.oom.requested_bytes,
            "allocated_bytes": m.oom.allocated_bytes,
            "reserved_bytes": m.oom.reserved_bytes,
            "reason": m.oom.reason,
        },
    }


def time_document(plan: StepPlan, time: CapturedTime) -> dict[str, object]:
    """Where the time of a step goes."""
    share, dtype = mfu(plan.capture, time, plan.cluster.accelerator)
    return {
        "phases_s": dict(time.phase_s),
        "families_s": dict(time.family_s),
        "bounds_s": dict(time.bound_s),
        "modules_s": by_module(time, MOST_MODULES),
        "device_s": time.device_total_s,
        "host_s": time.host_total_s,
        "gpu_busy_share": time.gpu_busy_share,
        "launch_bound_share": time.launch_bound_share,
        "host_bound": is_host_bound(time),
        "kernels": time.kernels,
        "mfu": share,
        "mfu_dtype": dtype,
        "costliest": [{**asdict(o), "bound": o.bound.name.lower()} for o in time.top],
    }


def search_document(search: BatchSearch[StepEstimate]) -> dict[str, object]:
    """Batches tried."""
    return {
        "largest": search.largest,
        "fastest": search.fastest,
        "knee": search.knee,
        "verified": search.verified,
        "captures": search.captures,
        "note": search.note,
        "tried": [
            {
                "batch": p.batch,
                "captured": p.captured,
                "fits": p.estimate.fits,
                "fits_easily": p.estimate.fits_easily,
                "process_bytes": p.estimate.memory_bytes.as_dict(),
                "step_time_s": _maybe(p.estimate.step_time_s),
                "samples_per_s": p.samples_per_s,
            }
            for p in search.points
        ],
    }


def remedy_document(r: StepRemedy) -> dict[str, object]:
    """One change with what it saves, what it costs and how to write it."""
    return {
        "name": r.name,
        "kind": r.kind,
        "changes": [{"kind": c.name, "argument": c.argument} for c in r.changes],
        "allocator_conf": r.allocator_conf,
        "fits": r.fits,
        "saved_bytes": r.saved_bytes,
        "slower": r.slower,
        "process_bytes": r.estimate.memory_bytes.as_dict(),
        "step_time_s": _maybe(r.estimate.step_time_s),
        "micro_batches": r.estimate.micro_batches,
        "lines": list(r.lines),
    }


def card_document(c: OtherCard) -> dict[str, object]:
    """The step on another card."""
    return {
        "cluster": cluster_document(c.cluster),
        "fits": c.estimate.fits,
        "process_bytes": c.estimate.memory_bytes.as_dict(),
        "headroom_bytes": c.estimate.headroom_bytes,
        "step_time_s": _maybe(c.estimate.step_time_s),
        "price": None if c.price is None else c.price.as_dict(),
    }


def _place(p: Place) -> dict[str, object]:
    return {"operation": p.name, "phase": p.phase, "module": p.module, "line": p.line}


def _maybe(value: Estimate | None) -> dict[str, float | str] | None:
    return None if value is None else value.as_dict()
