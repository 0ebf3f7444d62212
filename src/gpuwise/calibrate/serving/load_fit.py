"""Fits what an engine's steps and its front cost under load."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.coefficient_files import write
from gpuwise.calibrate.optimizers import least_squares
from gpuwise.calibrate.serving.load import DISTINCT_PROMPTS, Figure, LoadRun, load_check, predicted, read_load_runs
from gpuwise.calibrate.serving.load_replay import replay
from gpuwise.calibrate.serving.load_score import COLD, SINCE, metric_of, score_load, since_index
from gpuwise.calibrate.validation import log_sigma_of
from gpuwise.serve.engine import EngineCosts
from gpuwise.serve.simulate.front import Front

F64 = NDArray[np.float64]
_SHARED = ("kernel_slowdown", "communication_slowdown", "layer_s", "attention_slowdown")
_OWN = ("prefill_slowdown", "iteration_s", "sequence_s", "request_s")
START = {
    "kernel_slowdown": 1.0,
    "prefill_slowdown": 1.1,
    "communication_slowdown": 1.0,
    "layer_s": 1e-5,
    "attention_slowdown": 1.0,
    "iteration_s": 5e-4,
    "sequence_s": 1e-5,
    "request_s": 8e-3,
}
LOW = {
    "kernel_slowdown": 0.8,
    "prefill_slowdown": 0.7,
    "communication_slowdown": 0.3,
    "layer_s": 1e-7,
    "attention_slowdown": 0.6,
    "iteration_s": 1e-6,
    "sequence_s": 1e-7,
    "request_s": 1e-3,
}
HIGH = {
    "kernel_slowdown": 1.5,
    "prefill_slowdown": 2.5,
    "communication_slowdown": 3.0,
    "layer_s": 1e-4,
    "attention_slowdown": 1.6,
    "iteration_s": 1e-2,
    "sequence_s": 2e-4,
    "request_s": 5e-2,
}
_FITTED = ("ttft_mean", "ttft_p50", "tpot_mean", "itl_mean", "e2e_mean", "req_s")
_STAGE = 240
"""Requests of a stage that the fit replays."""
_LARGE = 0.3


@dataclass(frozen=True, slots=True)
class Part:
    """A run cut short for the fit, and its figures."""

    run: LoadRun
    figures: tuple[Figure, ...]
    weight: float


def _bounded(error: float) -> float:
    """An error of a queue that is there in one of two worlds says no more than a large one."""
    return _LARGE * math.tanh(error / _LARGE)


def _fronts(x: F64) -> list[Front]:
    values = [float(v) for v in np.exp(x)]
    shared = dict(zip(_SHARED, values[: len(_SHARED)], strict=True))
    attention = shared.pop("attention_slowdown")
    fronts: list[Front] = []
    for i in range(len(SINCE)):
        at = len(_SHARED) + i * len(_OWN)
        engine_costs = dict(zip(_OWN, values[at : at + len(_OWN)], strict=True))
        request_s = engine_costs.pop("request_s")
        fronts.append(Front(EngineCosts(**shared, **engine_costs), request_s=request_s, attention_slowdown=attention))
    return fronts


def parts_of(runs: Sequence[LoadRun]) -> list[Part]:
    """Short runs: the first requests of each stage, without the round in which prompts are new."""
    count: dict[str, int] = defaultdict(int)
    parts: list[Part] = []
    for run in runs:
        assert run.requests is not None
        starts = sorted({f.first for f in run.figures})
        if len(run.requests) < _STAGE:
            cut, place = np.arange(len(run.requests)), {s: s for s in starts}
            length = None
        else:
            cut = np.concatenate([np.arange(s, min(s + _STAGE, len(run.requests))) for s in starts])
            place = {s: i * _STAGE for i, s in enumerate(starts)}
            length = _STAGE
        part_figures: list[Figure] = []
        for f in run.figures:
            cold = f.last == COLD and len(run.requests) > COLD
            pooled = f.first == 0 and f.last == len(run.requests) and len(starts) > 1
            if f.metric not in _FITTED or cold or pooled:
                continue
            first = place[f.first] + (DISTINCT_PROMPTS if length and f.first == 0 else 0)
            part_figures.append(replace(f, first=first, last=None if length is None else place[f.first] + length))
        requests = run.requests.select(cut.astype(np.int64))
        gaps = np.diff(requests.arrival_s)
        arrival = np.concatenate([[0.0], np.cumsum(np.minimum(gaps, np.median(gaps) * 20))])
        short = replace(run, requests=replace(requests, arrival_s=arrival))
        count[run.name] += len(part_figures)
        parts.append(Part(short, tuple(part_figures), 0.0))
    return [replace(p, weight=max(count[p.run.name], 1) ** -0.5) for p in parts]


def fit_load(folder: Path) -> dict[str, float]:
    """Fit vLLM's costs on the runs of the fit split, write ``coefficients/serving/load.json``, return the errors."""
    runs = [r for r in read_load_runs(folder) if not r.reason]
    parts = parts_of([r for r in runs if not load_check(r)])
    names = [*_SHARED, *(_OWN * len(SINCE))]
    start, low, high = (np.log([table[n] for n in names]) for table in (START, LOW, HIGH))

    def residual(y: F64) -> F64:
        x = y + low - 1.0
        fronts = _fronts(x)
        out: list[float] = []
        for part in parts:
            run = part.run
            result = replay(run, fronts[since_index(run)])
            out += [_bounded(math.log(predicted(result, f) / f.measured)) * part.weight for f in part.figures]
        return np.concatenate([np.array(out), 0.02 * (x - start)])

    # from 1 upwards, so that a step in proportion is a step of a percent or more: schedules are not smooth in the costs
    inside = (np.ones_like(low), high - low + 1.0)
    best = least_squares(residual, start - low + 1.0, bounds=inside, loss="soft_l1", f_scale=0.05, diff_step=0.015, max_nfev=12)
    fronts = _fronts(best.x + low - 1.0)
    document: dict[str, Any] = {"engines": [], "spread": {}, "provenance": {}}
    for since, front in zip(SINCE, fronts, strict=True):
        c = front.costs
        costs = {n: float(f"{getattr(c, n):.4g}") for n in EngineCosts.__dataclass_fields__ if n != "log_sigma"}
        rest = {n: float(f"{getattr(front, n):.4g}") for n in ("request_s", "attention_slowdown")}
        document["engines"].append({"engine": "vllm", "since": since, "costs": costs, "front": rest, "log_sigma": 0.1})
    document["provenance"] = {
        "source": "vLLM 0.11 to 0.23 under load: inference-perf kubecon (Apache-2.0), LLMServingSim bench (MIT); "
        "BLIS training, validation and residency runs (as figures only)",
        "split": "a third of the configurations (model, device, split) kept for checking, by hash",
        "date": "2026-11-23",
        "errors": {},
    }
    return _finish(folder, document, fronts)


def _finish(folder: Path, document: dict[str, Any], fronts: Sequence[Front]) -> dict[str, float]:
    """Widths from the check rows, and the errors, written."""
    scores = score_load(folder, False, fronts)
    assert scores is not None
    errors: dict[str, float] = {}
    ratio = scores.predicted / scores.measured
    for metric in ("ttft", "tpot", "e2e", "capacity"):
        for split in ("fit", "check"):
            mine = np.array(
                [
                    m.startswith("under load") and metric_of(m) == metric and s == split and not r
                    for m, s, r in zip(scores.source, scores.split, scores.reason, strict=True)
                ]
            )
            if mine.any():
                errors[f"{metric} {split} mape ({int(mine.sum())} rows)"] = round(float(np.mean(np.abs(ratio[mine] - 1))), 4)
                if split == "check" or metric not in document["spread"]:
                    document["spread"][metric] = round(log_sigma_of(np.ones(int(mine.sum())), ratio[mine]), 3)
    for entry in document["engines"]:
        entry["log_sigma"] = document["spread"]["tpot"]
    document["provenance"]["errors"] = errors
    write("load", document)
    return errors
