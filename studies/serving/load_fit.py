"""Fits what an engine's steps and its front cost under load."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.serving.engine_loads import engine_figure, read_engine_runs
from gpuwise.calibrate.serving.load import DISTINCT_PROMPTS, Figure, LoadRun, load_check, predicted, read_load_runs, replay
from gpuwise.calibrate.serving.load_score import COLD, SINCE, metric_of, score_load, since_index
from gpuwise.calibrate.serving.rows import read_rows
from gpuwise.calibrate.serving.static_batches import read_static_batches
from gpuwise.errors import GpuwiseError
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.engines.costs import EngineCosts
from gpuwise.serve.simulate.front import BIAS, Front, kind_of
from studies.coefficient_files import RECORDS, document_text, write
from studies.optimizers import least_squares
from studies.serving.step_fit import OF_MANY, fit_steps
from studies.spreads import log_sigma_of

F64 = NDArray[np.float64]
REQUEST_S = (1e-3, 5e-2)
"""Bounds of what stands before an engine."""
_FITTED = ("ttft_mean", "ttft_p50")
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


def fit_load(folder: Path) -> None:
    """Fit vLLM's costs on the runs of the fit split and write ``coefficients/serving/load.json``; :func:`fit_widths` tells the
    errors."""
    runs = [r for r in read_load_runs(folder) if not r.reason and not load_check(r)]
    closed = [r for r in read_engine_runs(folder) if r.source == "InferenceX vllm" and not r.reason and not load_check(r)]
    together = [r for r in closed if r.config is not None and r.config.attention_dp == 1]  # ranks apart wait for each other
    fronts, sorted_logit_s = fit_steps([r for r in runs if r.behind_http], together)
    parts = parts_of(runs)
    document: dict[str, Any] = load_json("load")
    for i, since in enumerate(SINCE):
        fronts[i] = _with_request(fronts[i], [p for p in parts if since_index(p.run) == i])
        known: dict[str, Any] | None = next(
            (e for e in document["engines"] if (e["engine"], e["since"]) == ("vllm", since)), None
        )
        entry = known or {"engine": "vllm", "since": since, "front": {}, "log_sigma": 0.1}
        costs = fronts[i].costs
        entry["costs"] = {n: float(f"{getattr(costs, n):.4g}") for n in EngineCosts.__dataclass_fields__ if n != "log_sigma"}
        entry["front"] |= {"request_s": float(f"{fronts[i].request_s:.4g}"), "attention_slowdown": 1.0}
        document["engines"] += [] if known else [entry]
    document["provenance"] |= {
        "source": "vLLM 0.11 to 0.23 under load: inference-perf kubecon (Apache-2.0); BLIS training and validation runs (as "
        "figures only); closed loops of InferenceX (Apache-2.0); vLLM 0.6: APEX+ (MIT), dstack (Apache-2.0); TensorRT-LLM 0.14: "
        "its performance overview (Apache-2.0)",
        "split": "a third of the configurations (model, device, split) kept for checking, by hash",
        "sorted_logit_s": f"{sorted_logit_s:.3g} of vLLM 0.14 to 0.16 on an H100, as stands in vllm.toml",
        "date": "2026-11-27",
    }
    write("load", document)


def _with_request(front: Front, parts: Sequence[Part]) -> Front:
    """``front`` with the seconds before an engine that the runs' times to the first token tell."""

    def residual(x: F64) -> F64:
        one = replace(front, request_s=float(np.exp(x[0])))
        errors = [
            _bounded(math.log(predicted(result, f) / f.measured)) * part.weight
            for part in parts
            for result in [replay(part.run, one)]
            for f in part.figures
        ]
        return np.array(errors)

    low, high = (np.array([math.log(s)]) for s in REQUEST_S)
    best = least_squares(residual, (low + high) / 2, bounds=(low, high), loss="soft_l1", f_scale=0.05, diff_step=0.02, max_nfev=8)
    return replace(front, request_s=float(np.exp(best.x[0])))


def fit_widths(folder: Path) -> dict[str, float]:
    """Widths of figures under load, and the errors, written when all costs are fitted: the wider of the two splits, whose
    configurations are few."""
    document: dict[str, Any] = load_json("load")
    scores = score_load(folder, False)
    assert scores is not None
    errors: dict[str, float] = {}
    ratio = scores.predicted / scores.measured
    for metric in ("ttft", "tpot", "e2e", "capacity"):
        widths: list[float] = []
        for split in ("fit", "check"):
            mine = np.array(
                [
                    m.startswith("under load") and metric_of(m) == metric and s == split and not r
                    for m, s, r in zip(scores.source, scores.split, scores.reason, strict=True)
                ]
            )
            if mine.any():
                errors[f"{metric} {split} mape ({int(mine.sum())} rows)"] = round(float(np.mean(np.abs(ratio[mine] - 1))), 4)
                widths.append(log_sigma_of(np.ones(int(mine.sum())), ratio[mine]))
        document["spread"][metric] = round(max(widths), 3)
    for entry in document["engines"]:
        if entry["engine"] == "vllm" and entry["since"] in OF_MANY:
            entry["log_sigma"] = OF_MANY[entry["since"]][2]
    stale = tuple(f"{metric} {split} mape" for metric in ("ttft", "tpot", "e2e", "capacity") for split in ("fit", "check"))
    known: dict[str, float] = document["provenance"].get("errors", {})
    document["provenance"]["errors"] = {k: v for k, v in known.items() if not k.startswith(stale)} | errors
    write("load", document)
    return errors


PUBLISHED = RECORDS.parent / "serving/blind/ratios.json"
Published = tuple[str, str, Architecture, float]
"""Engine, accelerator, model, and predicted over published time of a run."""


def note_checked(folder: Path, published: Sequence[Published] | None = None) -> None:
    """Writes to ``coefficients/serving/load.json`` of which engines, accelerators and kinds of model there are measured rows and,
    where the median time predicted of a model's or of all their runs is off, its parameters (0: all), name, runs and predicted
    over measured time. ``published`` are runs that no table holds, kept in :data:`PUBLISHED`; None: those kept."""
    document: dict[str, Any] = load_json("load")
    if published is not None:
        rows = [[e, a, kind_of(m), m.published_parameters or 0, m.name, round(ratio, 3)] for e, a, m, ratio in published]
        PUBLISHED.write_text(document_text({"predicted over published time": rows}))
    cells: dict[tuple[str, str, str], dict[tuple[int, str], list[float]]] = {}
    for engine, accelerator, kind, size, name, ratio in json.loads(PUBLISHED.read_text())["predicted over published time"]:
        cells.setdefault((engine, accelerator, kind), {}).setdefault((size, name), []).append(ratio)
    for run in [*(read_rows(folder) or ()), *read_engine_runs(folder), *read_load_runs(folder), *read_static_batches(folder)]:
        if not run.reason and run.config is not None and run.system is not None and run.architecture is not None:
            arch = run.architecture
            models = cells.setdefault((run.config.engine, run.system.accelerator.id, kind_of(arch)), {})
            ratios = _ratio(run) if isinstance(run, LoadRun) else ()
            models.setdefault((arch.published_parameters or 0, arch.name), []).extend(ratios)
    checked: dict[str, dict[str, dict[str, object]]] = {}
    for (engine, accelerator, kind), models in sorted(cells.items()):
        checked.setdefault(engine, {}).setdefault(accelerator, {})[kind] = _biases(models)
    document["checked"] = checked
    write("load", document)


def _ratio(run: LoadRun) -> tuple[float, ...]:
    """Geometric mean over the figures, first tokens left out, of predicted over measured time; none where the run is refused."""
    try:
        result = replay(run, None)
    except GpuwiseError:
        return ()
    ratios = [engine_figure(run, result, f) / f.measured for f in run.figures if not f.metric.startswith("ttft")]
    return (float(np.exp(np.mean(np.log(ratios)))),) if ratios else ()


def _biases(models: dict[tuple[int, str], list[float]]) -> list[tuple[int, str, int, float]]:
    """Parameters, name, runs and median of each model that is off; of all, with 0 for its parameters, where they together are."""
    together = [ratio for ratios in models.values() for ratio in ratios]
    groups = [(0, "other models", together), *((size, name, ratios) for (size, name), ratios in sorted(models.items()) if size)]
    medians = [(size, name, len(of), round(float(np.median(of)), 2)) for size, name, of in groups if of]
    off = [not 1 / BIAS <= ratio <= BIAS for *_, ratio in medians]
    return [row for row, is_off in zip(medians, off, strict=True) if is_off or off[0]]
