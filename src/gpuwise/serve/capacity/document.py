"""An answer as one JSON document: everything the view shows, and every configuration that was looked at."""

from __future__ import annotations

import math
from typing import cast

from gpuwise.predict.estimate import Estimate, to_document
from gpuwise.serve.capacity.answer import Capacity, Miss, Recommendation
from gpuwise.serve.capacity.changes import Change
from gpuwise.serve.capacity.closed import Closed
from gpuwise.serve.capacity.commands import Command, closed_test, start_commands
from gpuwise.serve.capacity.configurations import Configuration
from gpuwise.serve.capacity.fleet import Fleet
from gpuwise.serve.capacity.rate import PERCENTILES, Point
from gpuwise.serve.capacity.saturation import kv_fill
from gpuwise.serve.capacity.search import Assessment, throughput
from gpuwise.serve.load.workloads import Workload
from gpuwise.serve.simulate.run import METRICS, Metric
from gpuwise.units import HOUR_S, MEGA

TIMELINE_S, TIMELINE_POINTS = 60.0, 120


def capacity_document(answer: Capacity) -> dict[str, object]:
    """``served`` is null where nothing keeps the targets; ``nearest_miss`` is null where something does."""
    miss = answer.miss
    document = {
        "model": answer.arch.id,
        "on": answer.cluster.label,
        "system": answer.cluster.system.id,
        "accelerators": answer.cluster.n_accelerators,
        "workload": _load(answer),
        "targets": [{"target": t.key, "limit_s": t.limit_s} for t in answer.targets],
        "demand": {
            "requests_per_s": answer.demand.rate_per_s,
            "users": answer.demand.users,
            "think_s": answer.demand.think_s if answer.demand.rate_per_s is None else None,
            "peak_over_mean": answer.demand.peak_over_mean,
        },
        "served": None if answer.served is None else _served(answer.served),
        "nearest_miss": None
        if miss is None
        else {
            "configuration": miss.limit.configuration.document(),
            "words": miss.limit.configuration.words,
            "alone": point_document(miss.limit.configuration, miss.limit.alone),
            "memory": _memory(miss.limit.configuration),
            "why": miss.why,
            "feasible": _feasible(miss),
        },
        "changes": None if answer.changes is None else [_change(c) for c in answer.changes],
        "pareto": None
        if answer.pareto is None
        else [point_document(c, p) | {"configuration": c.words} for c, p in answer.pareto],
        "considered": [_considered(c) for c in answer.considered],
        "notes": list(answer.notes),
        "as_of": answer.today,
    }
    return cast("dict[str, object]", to_document(document))


def closed_document(answer: Closed) -> dict[str, object]:
    """What a number of requests in flight get: ``closed`` in place of ``served``."""
    best, configuration = answer.best, answer.best.configuration
    usd = answer.usd_per_hour
    written, starts = best.output_tokens_per_s, [_command(c) for c in start_commands(configuration)]
    price_of_million = None if usd is None else written.inverse(usd / HOUR_S * MEGA)
    engine_most = best.copies * configuration.server.limits.sequences
    document = {
        "model": answer.arch.id,
        "on": answer.cluster.label,
        "system": answer.cluster.system.id,
        "accelerators": answer.cluster.n_accelerators,
        "workload": _load(answer),
        "targets": [{"target": t.key, "limit_s": t.limit_s} for t in answer.targets],
        "closed": {
            "in_flight": best.total,
            "configuration": configuration.document(),
            "words": configuration.words,
            "copies": best.copies,
            "output_tokens_per_s": written,
            "requests_per_s": best.requests_per_s,
            "at_load": point_document(configuration, best.point),
            "met": best.point.met,
            "most_in_flight": answer.most,
            "most_at_once": engine_most,
            "curve": [
                {"in_flight": x.total, "output_tokens_per_s": x.output_tokens_per_s} | point_document(configuration, x.point)
                for x in answer.curve
            ],
            "memory": _memory(configuration),
            "price": answer.price,
            "usd_per_hour": usd,
            "usd_per_million_output_tokens": price_of_million,
            "start": starts[0],
            "start_all": starts,
            "load_tests": [_command(closed_test(configuration, answer.load, -(-best.total // best.copies)))],
        },
        "considered": [{"configuration": c.words, "accelerators": c.ranks, "why_not": why} for c, why in answer.considered],
        "notes": [words for words in (answer.arch.assumption, answer.cluster.assumption) if words],
    }
    return cast("dict[str, object]", to_document(document))


def _feasible(miss: Miss) -> dict[str, object] | None:
    """Near targets that are met reliably."""
    near = miss.feasible
    if near is None:
        return None
    return {
        "targets": [{"target": t.key, "limit_s": t.limit_s} for t in near.targets],
        "requests_per_s_of_a_copy": near.limit.rate_per_s,
        "words": near.limit.configuration.words,
        "fleet": fleet_document(near.fleet),
        "sentence": miss.feasible_words,
    }


def _load(answer: Capacity | Closed) -> dict[str, object]:
    source, requests = answer.load.source, answer.load.at(1.0, 1000)
    served = answer.served.limit.best if isinstance(answer, Capacity) and answer.served is not None else None
    # tokens as the price counts them: an agent's later calls differ from its first
    tokens = requests if served is None else served.run
    return {
        "name": source.name,
        "title": answer.load.title,
        "source": source.source if isinstance(source, Workload) else f"{source.format} trace",
        "prompt_tokens": float(tokens.prompt_tokens.mean()),
        "output_tokens": float(tokens.output_tokens.mean()),
        "reused_share": requests.reused_share,
        "gap_cv": source.gap_cv if isinstance(source, Workload) else None,
        "recorded_requests_per_s": answer.load.recorded_rate_per_s,
        "context": answer.load.context,
    }


def _served(served: Recommendation) -> dict[str, object]:
    configuration = served.configuration
    return {
        "configuration": configuration.document(),
        "words": configuration.words,
        "requests_per_s_of_a_copy": served.each,
        "requests_per_s": _times(served.each, served.copies),
        "copies": served.copies,
        "knee_requests_per_s_of_a_copy": served.knee_per_s,
        "full_requests_per_s_of_a_copy": served.limit.full_per_s,
        "at_limit": None if served.limit.best is None else point_document(configuration, served.limit.best),
        "at_load": point_document(configuration, served.point),
        "saturates_first": {
            "what": served.saturation.first,
            "words": served.saturation.words,
            "target": served.saturation.target or None,
            "kv_fill": served.saturation.kv_fill,
            "busy": served.saturation.busy,
        },
        "memory": _memory(configuration),
        "fleet": fleet_document(served.fleet),
        "curve": [point_document(configuration, p) for p in served.curve],
        "timeline": timeline(served.point),
        "start": _command(served.starts[0]),
        "start_all": [_command(c) for c in served.starts],
        "load_tests": [_command(c) for c in served.tests],
    }


def _memory(configuration: Configuration) -> dict[str, object]:
    """Weights and cache of a GPU, and whether the cache holds the longest request the engine is started for."""
    server = configuration.server
    memory = server.memory
    return {
        "kv_tokens": memory.tokens,
        "kv_bytes": memory.pool,
        "weight_bytes": memory.weights,
        "max_model_len": server.max_model_len,
        "max_model_len_fits": server.max_model_len <= server.longest_request,
        "longest_request": server.longest_request,
    }


def _times(value: Estimate, count: int) -> Estimate:
    return value.scaled(float(count))


def fleet_document(fleet: Fleet) -> dict[str, object]:
    """Replicas, accelerators, money and energy."""
    return {
        "requests_per_s": fleet.rate_per_s,
        "peak_requests_per_s": fleet.peak_per_s,
        "copies_now": fleet.copies_now,
        "copies_peak": fleet.copies_peak,
        "accelerators_now": fleet.accelerators_now,
        "accelerators_peak": fleet.cluster.n_accelerators,
        "systems_peak": fleet.cluster.n_systems,
        "price": fleet.price,
        "usd_per_hour": fleet.usd_per_hour,
        "usd_per_million_output_tokens": fleet.usd_per_million,
        "usd_per_million_tokens": fleet.usd_per_million_all,
        "usd_per_million_output_tokens_following_the_day": fleet.usd_per_million_following,
        "wh_per_million_output_tokens": fleet.wh_per_million,
        "power_w": fleet.power_w,
        "mean_accelerators": fleet.mean_accelerators,
        "users": fleet.users,
    }


def point_document(configuration: Configuration, point: Point) -> dict[str, object]:
    """A configuration under one rate. Past saturation latencies are null."""
    run = point.run
    return {
        "requests_per_s": point.rate_per_s,
        "saturated": point.saturated,
        "output_tokens_per_s_per_accelerator": throughput(configuration, point),
        "output_tokens_per_s_of_a_user": None if point.saturated else _finite(point.tokens_per_s_of_user),
        "latency_s": {metric: _latencies(point, metric) for metric in METRICS},
        "targets": [
            {"target": a.target.key, "value_s": None if point.saturated else a.value_s, "met": a.met and not point.saturated}
            for a in point.attained
        ],
        "kv_fill": kv_fill(point),
        "prefix_hit_share": run.prefix_hit_share,
        "preemptions": run.preemptions,
        "simulated_requests": len(run),
    }


def _latencies(point: Point, metric: Metric) -> dict[str, float | None]:
    """Percentiles and mean of a latency in seconds; null past saturation, or where nothing has it."""
    values = [math.nan] * len(PERCENTILES) if point.saturated else point.run.percentiles(metric, PERCENTILES)
    return {f"p{q:g}": _finite(value) for q, value in zip(PERCENTILES, values, strict=True)} | {
        "mean": point.latency(metric, None)
    }


def _finite(value: float) -> float | None:
    return value if value == value and abs(value) != float("inf") else None


def timeline(point: Point) -> list[dict[str, float]]:
    """A minute of a replica, in its middle: sequences that decode, requests that wait, share of blocks in use."""
    import numpy as np

    at, fill = point.run.kv_fill
    _, running, waiting = point.run.queue
    if not len(at):
        return []
    order = np.argsort(at, kind="stable")
    at, fill, running, waiting = at[order], fill[order], running[order], waiting[order]
    begin = max(float(at[-1] + at[0]) / 2 - TIMELINE_S / 2, float(at[0]))
    times = np.linspace(begin, min(begin + TIMELINE_S, float(at[-1])), TIMELINE_POINTS)
    rows = np.clip(np.searchsorted(at, times, side="right") - 1, 0, len(at) - 1)
    return [
        {"s": float(t - begin), "running": int(running[i]), "waiting": int(waiting[i]), "kv_fill": float(fill[i])}
        for t, i in zip(times, rows, strict=True)
    ]


def _change(change: Change) -> dict[str, object]:
    return {
        "change": change.name,
        "kind": change.kind,
        "requests_per_s": change.rate_per_s,
        "gain": change.gain,
        "ttft_alone_s": change.ttft_s,
        "why_not": change.why or None,
    }


def _considered(one: Assessment) -> dict[str, object]:
    limit = one.limit
    return {
        "configuration": one.configuration.words,
        "accelerators": one.configuration.ranks,
        "requests_per_s_of_a_copy": None if limit is None else limit.rate_per_s,
        "why_not": one.why or None,
    }


def _command(command: Command) -> dict[str, object]:
    file = None if command.file is None else {"name": command.file[0], "text": command.file[1]}
    return {"for": command.name, "command": command.line, "note": command.note or None, "file": file}
