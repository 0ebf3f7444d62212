"""Fits what the steps of vLLM's first engine and of TensorRT-LLM before 1.0 cost, on the runs of the fit split."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.serving.engine_loads import engine_figure, engine_labels, read_engine_runs
from gpuwise.calibrate.serving.load import LoadRun, load_check, predicted, replay
from gpuwise.calibrate.serving.recipes import PYTORCH
from gpuwise.calibrate.serving.static_batches import LABELS, read_static_batches
from gpuwise.errors import GpuwiseError
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.engines.costs import EngineCosts
from gpuwise.serve.engines.engine import EngineConfig, version_number
from gpuwise.serve.simulate.front import Front, front_of
from studies.coefficient_files import write
from studies.optimizers import least_squares
from studies.spreads import log_sigma_of

F64 = NDArray[np.float64]
NAMES = ("iteration_s", "sequence_s", "layer_s", "prefill_slowdown", "communication_slowdown", "request_s")
START = (2e-3, 3e-5, 2e-5, 1.1, 1.0, 1e-2)
LOW = (1e-5, 1e-7, 1e-7, 0.7, 0.3, 1e-3)
HIGH = (2e-2, 2e-4, 1e-4, 2.5, 4.0, 5e-2)
ENGINES = (("vLLM V0", "vllm", "0.6"), ("trtllm", "trtllm", "0.10"))
"""Runs by their source, and the engine and the first version whose costs they give. Those of vLLM V0 are of six runs of each
configuration (benchmarks/records/serving/served_2026-11-30.md, tried)."""
NEWER = (("trtllm", "0.19"),)
"""Versions of these engines whose iterations were fitted by themselves (``inference.json``); a request's way is the older
one's."""
_LARGE = 0.3


def fit_engine_runs(folder: Path) -> dict[str, float]:
    """Adds the engines to ``coefficients/serving/load.json``; the errors of the check split."""
    document: dict[str, Any] = load_json("load")
    errors: dict[str, float] = {}
    entries: list[dict[str, Any]] = [e for e in document["engines"] if (e["engine"], e["since"]) not in _ours()]
    runs = [r for r in read_engine_runs(folder) if not r.reason]
    for source, engine, since in ENGINES:
        vllm = next(e for e in document["engines"] if e["engine"] == "vllm" and e["since"] == "0.14")
        base = (vllm["costs"]["kernel_slowdown"], vllm["front"]["attention_slowdown"]) if engine == "vllm" else (1.0, 1.0)
        mine = [r for r in runs if r.source == source and _runs(r)]
        best = _fit([r for r in mine if not load_check(r)], base)
        front = _front(best, base)
        ratios = _errors([r for r in mine if load_check(r)], front)
        for metric, ratio in ratios.items():
            errors[f"{source} {metric} check median ({len(ratio)} rows)"] = round(float(np.median(np.abs(ratio - 1.0))), 4)
        # runs of one configuration alone say too little of others
        sigma = max(document["spread"]["tpot"], round(log_sigma_of(np.ones(len(ratios["tpot"])), ratios["tpot"]), 3))
        costs = {n: float(f"{getattr(front.costs, n):.4g}") for n in EngineCosts.__dataclass_fields__ if n != "log_sigma"}
        rest = {"request_s": float(f"{front.request_s:.4g}"), "attention_slowdown": base[1]}
        entries.append({"engine": engine, "since": since, "costs": costs, "front": rest, "log_sigma": sigma})
        for name, newer in NEWER:
            if name == engine:
                row = next(e for e in load_json("inference")["engines"] if e["engine"] == name)
                entries.append({**entries[-1], "since": newer, "costs": row["costs"], "log_sigma": row["log_sigma"]})
    document = {**document, "engines": entries}
    document["provenance"]["errors"] |= errors
    write("load", document)
    return errors


def _ours() -> set[tuple[str, str]]:
    return {(engine, since) for _, engine, since in ENGINES} | set(NEWER)


def _runs(run: LoadRun) -> bool:
    try:
        replay(run, None)
    except GpuwiseError:
        return False
    return True


def _front(x: F64, base: tuple[float, float]) -> Front:
    values = dict(zip(NAMES, (float(v) for v in np.exp(x)), strict=True))
    request_s = values.pop("request_s")
    return Front(EngineCosts(kernel_slowdown=base[0], **values), request_s=request_s, attention_slowdown=base[1])


def _fit(runs: list[LoadRun], base: tuple[float, float]) -> F64:
    """Logarithms of the costs of ``NAMES``; every configuration weighs alike."""
    count = Counter(run.name for run in runs)
    start, low, high = (np.log(t) for t in (START, LOW, HIGH))

    def residual(x: F64) -> F64:
        out: list[float] = []
        for run in runs:
            result = replay(run, _front(x, base))
            for f in run.figures:
                error = math.log(engine_figure(run, result, f) / f.measured) / count[run.name] ** 0.5
                out.append(_LARGE * math.tanh(error / _LARGE))
        return np.concatenate([np.array(out), 0.02 * (x - start)])

    best = least_squares(residual, start, bounds=(low, high), loss="soft_l1", f_scale=0.05, diff_step=0.02, max_nfev=9)
    return np.asarray(best.x, np.float64)


def _errors(runs: list[LoadRun], front: Front) -> dict[str, F64]:
    """Predicted over measured of every row, by metric."""
    by_metric: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        result = replay(run, front)
        for f, label in zip(run.figures, engine_labels(run), strict=True):
            metric = "throughput" if "throughput" in label else label.split()[-2]
            by_metric[metric].append(engine_figure(run, result, f) / f.measured)
    return {metric: np.array(ratio) for metric, ratio in by_metric.items()}


# --- throughput without a rate
# ----------------------------------------------------------------------------------------------

TENSORRT = "0.17"
"""The last tables of compiled engines; what is in a step of the PyTorch backend is :data:`NEWER`'s."""
STEP = ("kernel_slowdown", "prefill_slowdown", "communication_slowdown", "iteration_s", "sequence_s", "layer_s")
STEP_START = (1.0, 1.0, 1.0, 1e-3, 1e-6, 1e-5)
STEP_LOW = (0.8, 0.6, 0.3, 1e-5, 1e-8, 1e-7)
STEP_HIGH = (1.4, 2.0, 2.5, 2e-2, 1e-4, 1e-3)


@dataclass(frozen=True, slots=True)
class Throughput:
    """A run whose requests all come at once: which of them are in which step is settled by the scheduler alone, so that its
    seconds are linear in an engine's costs. ``parts`` [6] in the order of :data:`STEP`, each at a cost of 1."""

    run: LoadRun
    parts: F64
    measured_s: float


def throughput(run: LoadRun) -> Throughput:
    """The run under kernels alone, without prompts' and without collectives. Raises as ``replay``."""
    assert run.architecture is not None and run.config is not None and run.requests is not None
    whole = replay(run, Front(EngineCosts(1.0, 1.0, 1.0, 0.0, 0.0, 0.0)))
    without = [replay(run, Front(EngineCosts(1.0, *one, 0.0, 0.0, 0.0))).duration_s for one in ((1e-9, 1.0), (1.0, 1e-9))]
    prompts, between = (whole.duration_s - one for one in without)
    groups = run.config.attention_dp
    steps = float(whole.stretches.n_steps.sum()) / groups
    sequences = float((whole.stretches.n_steps * whole.stretches.decoding).sum()) / groups
    parts = (whole.duration_s - prompts - between, prompts, between, steps, sequences, steps * run.architecture.n_layers)
    return Throughput(run, np.array(parts), run.figures[0].measured * float(run.requests.output_tokens.sum()))


def fit_throughput(folder: Path) -> dict[str, float]:
    """Adds the costs of compiled engines of 0.17, what steps of the PyTorch backend cost in ``trtllm-bench``, which calls it
    without a server (0.14's so fitted contradict its static batches: a sequence costs it what it costs 0.17, since neither
    streams its tokens, bench/benchmark/throughput.py), and how much longer that backend's exchange between
    attention groups and experts takes than its collectives by themselves, to the coefficient files; the errors of the check
    split."""
    runs = [r for r in read_engine_runs(folder) if r.source == "trtllm throughput" and not r.reason and _runs(r)]
    every = [throughput(r) for r in runs]
    versions = [version_number(r.config.version or PYTORCH) if r.config is not None else () for r in runs]
    compiled = [t for t, v in zip(every, versions, strict=True) if v == version_number(TENSORRT)]
    first = [t for t, v in zip(every, versions, strict=True) if v < version_number(TENSORRT)]
    backend = [t for t, v in zip(every, versions, strict=True) if v >= version_number(PYTORCH)]
    apart = [t for t in every if t.run.config is not None and t.run.config.attention_dp > 1]
    document: dict[str, Any] = load_json("load")
    inference: dict[str, Any] = load_json("inference")
    older, newer = (next(e for e in document["engines"] if (e["engine"], e["since"]) == ("trtllm", v)) for v in ("0.10", "0.19"))
    fitted = _solve([t for t in compiled if not load_check(t.run)], np.log(STEP_START), np.log(STEP_LOW), np.log(STEP_HIGH))
    costs = {n: float(f"{v:.4g}") for n, v in zip(STEP, fitted, strict=True)}
    pinned = np.log([newer["costs"][n] for n in STEP])
    free = np.array([n == "communication_slowdown" for n in STEP])
    room = np.where(free, 2.0, 1e-6)
    exchange = _solve([t for t in apart if not load_check(t.run)], pinned, pinned - room, pinned + room)[2]
    for e in (newer, *(e for e in inference["engines"] if e["engine"] == "trtllm")):
        e["exchange_slowdown"] = float(f"{exchange:.4g}")
    errors: dict[str, float] = {}
    unstreamed = {**older["costs"], "sequence_s": costs["sequence_s"]}
    older["throughput_log_sigma"] = _width(first, np.array([unstreamed[n] for n in STEP]))
    older["in_process"] = _in_process(unstreamed, older["throughput_log_sigma"])
    called = _solve([t for t in backend if not load_check(t.run)], np.log(STEP_START), np.log(STEP_LOW), np.log(STEP_HIGH))
    named = {n: float(f"{v:.4g}") for n, v in zip(STEP, called, strict=True)}
    newer["in_process"] = _in_process(named, _width(backend, called)) | {"exchange_slowdown": named["communication_slowdown"]}
    ratio = _throughput_ratio([t for t in backend if load_check(t.run)], called)
    errors[f"trtllm-bench {PYTORCH} check median ({len(ratio)} rows)"] = round(float(np.median(np.abs(ratio - 1.0))), 4)
    width = _width(compiled, fitted)
    entry = {**older, "since": TENSORRT, "costs": costs, "log_sigma": width, "throughput_log_sigma": width}
    del entry["in_process"]
    document["engines"] = [e for e in document["engines"] if (e["engine"], e["since"]) != ("trtllm", TENSORRT)] + [entry]
    with_exchange = np.exp(np.where(free, math.log(exchange), pinned))
    for name, part, solution in (("0.17", compiled, fitted), ("attention apart", apart, with_exchange)):
        ratio = _throughput_ratio([t for t in part if load_check(t.run)], solution)
        errors[f"trtllm throughput {name} check median ({len(ratio)} rows)"] = round(float(np.median(np.abs(ratio - 1.0))), 4)
    document["provenance"]["errors"] |= errors
    write("load", document)
    write("inference", inference)
    return errors


def _in_process(costs: dict[str, float], width: float) -> dict[str, Any]:
    return {"costs": costs, "front": {"attention_slowdown": 1.0}, "log_sigma": width, "throughput_log_sigma": width}


def _throughput_ratio(part: Sequence[Throughput], costs: F64) -> F64:
    return np.array([float(t.parts @ costs) / t.measured_s for t in part])


def _width(part: Sequence[Throughput], costs: F64) -> float:
    """Of the configurations in the fit."""
    ratio = _throughput_ratio([t for t in part if not load_check(t.run)], costs)
    return round(log_sigma_of(np.ones(len(ratio)), ratio), 3)


def _solve(part: Sequence[Throughput], start: F64, low: F64, high: F64) -> F64:
    """Costs in the order of :data:`STEP`; every configuration weighs alike."""
    count = Counter(t.run.name for t in part)
    weight = np.array([count[t.run.name] ** -0.5 for t in part])

    def residual(x: F64) -> F64:
        return np.concatenate([weight * np.log(_throughput_ratio(part, np.exp(x))), 0.02 * (x - start)])

    best = least_squares(residual, np.clip(start, low, high), bounds=(low, high), loss="soft_l1", f_scale=0.05)
    return np.asarray(np.exp(best.x), np.float64)


# --- vLLM's first engine without its server

LEARNT = "Nvidia A100 GPU"
"""What the fit sees; the other devices are kept from it."""
OF_A_CALL, CALL_START = ("iteration_s", "sequence_s"), (2e-3, 5e-5)


def fit_in_process(folder: Path) -> dict[str, float]:
    """Adds what a step and a sequence of it cost vLLM's first engine without its server to ``coefficients/serving/load.json``,
    its prompts as slow as the second engine's; the error of devices kept from the fit, and that under the server's costs."""
    document: dict[str, Any] = load_json("load")
    entry, second = (next(e for e in document["engines"] if e["engine"] == "vllm" and e["since"] == v) for v in ("0.6", "0.8"))
    runs = [r for r in read_static_batches(folder) if r.source == LABELS["vLLM"] and not r.reason]
    served = front_of(EngineConfig("vllm", version="0.6"))
    base = replace(served, request_s=0.0, attention_slowdown=1.0)

    def front(x: F64) -> Front:
        values = dict(zip(OF_A_CALL, np.exp(x).tolist(), strict=True))
        slowdown = {n: second["costs"][n] for n in ("prefill_slowdown", "communication_slowdown")}
        return replace(base, costs=replace(base.costs, layer_s=second["costs"]["layer_s"], **slowdown, **values))

    def ratios(kept: bool, used: Front) -> F64:
        mine = [r for r in runs if (r.gpu != LEARNT or load_check(r)) == kept]
        return np.array([predicted(replay(r, used), r.figures[0]) / r.figures[0].measured for r in mine])

    best = least_squares(
        lambda x: np.log(ratios(False, front(x))), np.log(CALL_START), loss="soft_l1", f_scale=0.1, diff_step=0.1
    )
    found = front(best.x)
    after, before = ratios(True, found), ratios(True, served)
    costs = {n: float(f"{getattr(found.costs, n):.4g}") for n in EngineCosts.__dataclass_fields__ if n != "log_sigma"}
    entry["in_process"] = {
        "costs": costs,
        "front": {"attention_slowdown": 1.0},
        "log_sigma": round(log_sigma_of(np.ones(len(after)), after), 3),
    }
    errors = {
        f"vLLM V0 in process others median ({len(after)} rows)": round(float(np.median(np.abs(after - 1.0))), 4),
        f"vLLM V0 in process others median under its server's costs ({len(after)} rows)": round(
            float(np.median(np.abs(before - 1.0))), 4
        ),
    }
    document["provenance"]["errors"] |= errors
    write("load", document)
    return errors
