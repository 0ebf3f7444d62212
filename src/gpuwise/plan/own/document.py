"""Answers about the user's own step as values for :func:`gpuwise.plan.document.answer_document`."""

from __future__ import annotations

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.plan.answer import CapturedStep, Fit, Option, OtherHardware, Plan
from gpuwise.plan.changes.batch_search import BatchSearch
from gpuwise.plan.changes.trial import StepRemedy
from gpuwise.plan.cluster_document import cluster_document
from gpuwise.plan.step.estimates import StepEstimate
from gpuwise.plan.step.time_parts import by_module, is_host_bound, mfu
from gpuwise.predict.memory.capture import CapturedMemory, Place, place_of
from gpuwise.predict.memory.timeline import CATEGORY_WORDS, MemoryTimeline, memory_timeline, thin
from gpuwise.predict.step.capture_time import CapturedTime
from gpuwise.workload.capture.captured import Capture

MOST_MODULES = 50
TIMELINE_POINTS = 120
"""Number of points of the timeline in a document: each is the fullest moment of a stretch of the step."""


def step_fit(fit: Fit[StepEstimate]) -> dict[str, object]:
    """The whole fit, estimates as they are."""
    step, estimate = fit.step, fit.estimate
    return {
        **_head(step),
        "cluster": cluster_document(fit.cluster),
        "fits": fit.fits,
        "fits_easily": estimate.fits_easily,
        "fit_probability": estimate.fit_probability,
        "headroom_bytes": estimate.headroom_bytes,
        "memory": memory_document(estimate.memory),
        "step_time_s": estimate.step_time_s,
        "at_bound": None if fit.at_bound is None else bound_document(fit.at_bound),
        "batches": None if step.batches is None else search_document(step.batches),
        "remedies": None if fit.remedies is None else [remedy_document(r) for r in fit.remedies],
        "combinations": [remedy_document(r) for r in fit.combinations],
        "not_possible": dict(fit.failed),
        "bigger": [card_document(c) for c in fit.bigger],
        "captures": step.captures,
    }


def bound_document(estimate: StepEstimate) -> dict[str, object]:
    """The same step with every size that depends on values the most it can be."""
    return {"fits": estimate.fits, "memory_bytes": estimate.memory_bytes, "step_time_s": estimate.step_time_s}


def step_plan(plan: Plan[StepEstimate]) -> dict[str, object]:
    """The whole plan, with unrounded estimates; without a number of samples it has no run time or cost."""
    step, best = plan.step, plan.best
    assert best is not None, "own code always has an option: the step on the cluster"
    time, has_samples = best.estimate.time, plan.samples is not None
    return {
        **_head(step),
        "cluster": cluster_document(plan.cluster),
        "fits": best.estimate.fits,
        "memory": memory_document(best.estimate.memory),
        "step_time_s": plan.step_time_s,
        "samples_per_s": plan.samples_per_s,
        "time": None if time is None else time_document(step.capture, time, plan.cluster.accelerator),
        "batches": None if step.batches is None else search_document(step.batches),
        "scaling": plan.scaling,
        "samples": plan.samples,
        "run_time_s": best.time_s if has_samples else None,
        "cost_usd": best.cost_usd if has_samples else None,
        "price": best.price,
        "energy": best.energy if has_samples else None,
        "cards": [card_document(c) for c in plan.hardware],
        "speedups": None if plan.changes is None else [remedy_document(r) for r in plan.changes],
        "captures": step.captures,
    }


def _head(step: CapturedStep) -> dict[str, object]:
    capture = step.capture
    return {
        "target": step.name,
        "batch": step.batch,
        "seq_len": step.seq_len,
        "precision": step.precision,
        "parameters": capture.parameter_count,
        "trainable_parameters": capture.trainable_count,
        "operations": capture.steady.end_op - capture.steady.first_op,
        "flop": capture.flop(),
        "settings": capture.settings,
        "findings": capture.findings,
        **({"assumed": list(step.notes)} if step.notes else {}),
        "parameter_bytes_by_module": dict(
            sorted(capture.parameter_bytes_by_module.items(), key=lambda item: -item[1])[:MOST_MODULES]
        ),
    }


def memory_document(m: CapturedMemory) -> dict[str, object]:
    """Allocated, reserved and process memory, the peak, and where it runs out."""
    return {
        "allocated_bytes": m.allocated,
        "reserved_bytes": m.reserved,
        "process_bytes": m.process,
        "context_bytes": m.context,
        "communicators_bytes": m.communicators,
        "capacity_bytes": m.capacity_bytes,
        "fit_probability": m.fit_probability,
        "retries": m.retries,
        "verdict": m.verdict,
        "failures": [{"at": _place(place_of(m.capture, f.op)), "reason": f.reason} for f in m.failures],
        "first_step": m.first,
        "steady_step": m.steady,
        "peak": _place(m.peak),
        "peak_bytes_by_category": {c.name.lower(): n for c, n in m.by_category.items()},
        "largest": [
            {"bytes": h.size_bytes, "category": h.category.name.lower(), "dtype": h.dtype, "made_by": _place(h.made_by)}
            for h in m.largest
        ],
        "timeline": timeline_document(memory_timeline(m.capture)),
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


def timeline_document(timeline: MemoryTimeline) -> dict[str, object]:
    """Memory over the steady step by what fills it, from below, at events that are counted from its beginning."""
    events, values, reserved = thin(timeline, TIMELINE_POINTS)
    fields = {words: category.name.lower() for category, words in CATEGORY_WORDS.items()}
    return {
        "events": timeline.n_rows - 1,
        "event": events.tolist(),
        "bytes_by_category": dict(zip((fields[c] for c in timeline.categories), values.tolist(), strict=True)),
        "reserved_bytes": None if reserved is None else reserved.tolist(),
        "phases": [{"name": p.name, "first_event": p.first} for p in timeline.phases],
        "peak_event": timeline.peak.row,
    }


def time_document(capture: Capture, time: CapturedTime, accelerator: Accelerator) -> dict[str, object]:
    """Time of a step by part."""
    share, dtype = mfu(capture, time, accelerator)
    return {
        "phases_s": dict(time.phase_s),
        "families_s": dict(time.family_s),
        "bounds_s": dict(time.bound_s),
        "modules_s": by_module(time, MOST_MODULES),
        "device_s": time.device_total_s,
        "host_s": time.host_total_s,
        "power_w": time.power_w,
        "gpu_busy_share": time.gpu_busy_share,
        "launch_bound_share": time.launch_bound_share,
        "host_bound": is_host_bound(time),
        "waits_s": dict(time.waited_s),
        "kernels": time.kernels,
        "mfu": share,
        "mfu_dtype": dtype,
        "costliest": time.top,
    }


def search_document(search: BatchSearch[StepEstimate]) -> dict[str, object]:
    """The batches a search tried, as a JSON document."""
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
                "process_bytes": p.estimate.memory_bytes,
                "step_time_s": p.estimate.step_time_s,
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
        "process_bytes": r.estimate.memory_bytes,
        "step_time_s": r.estimate.step_time_s,
        "micro_batches": r.estimate.micro_batches,
        "lines": list(r.lines),
    }


def card_document(c: Option[StepEstimate] | OtherHardware[StepEstimate]) -> dict[str, object]:
    """The step on another card."""
    return {
        "cluster": cluster_document(c.cluster),
        "fits": c.estimate.fits,
        "process_bytes": c.estimate.memory_bytes,
        "headroom_bytes": c.estimate.headroom_bytes,
        "step_time_s": c.estimate.step_time_s,
        "price": c.price,
    }


def _place(p: Place) -> dict[str, object]:
    return {"operation": p.name, "phase": p.phase, "module": p.module, "line": p.line}
