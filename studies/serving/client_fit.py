"""Fits what a client sees beside an engine's steps: the way of a request, the reading of its prompt, and how much longer
prompts take than their kernels.

Closed loops of InferenceX, their times to the first token and between tokens together; of vLLM its loads at a rate besides.
Groups that attend apart are left out: their ranks wait for each other, which is not simulated.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.serving.engine_loads import engine_figure, read_engine_runs
from gpuwise.calibrate.serving.load import Figure, LoadRun, load_check, predicted, read_load_runs, replay
from gpuwise.calibrate.serving.load_score import SINCE
from gpuwise.errors import GpuwiseError
from gpuwise.interval import Z80
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.engines.costs import EngineCosts, engine_costs
from gpuwise.serve.engines.engine import EngineConfig, version_number
from gpuwise.serve.simulate import Run
from gpuwise.serve.simulate.front import Front, front_of
from studies.coefficient_files import write
from studies.optimizers import least_squares, minimize_scalar
from studies.serving.load_fit import parts_of
from studies.spreads import weighted_quantile

F64 = NDArray[np.float64]
CLIENTS = (
    ("vllm", SINCE[1], ("request_s", "prompt_token_s", "prefill_slowdown")),
    ("sglang", "0.5", ("request_s", "eager_latent_layer_s")),
    (
        "trtllm",
        "0.19",
        ("request_s", "prompt_token_s", "prefill_slowdown", "eager_layer_s", "eager_experts_layer_s", "eager_latent_layer_s"),
    ),
)
"""Engine, the first version, and what is fitted of it; the rest is as it was."""
EAGER = {"eager_layer_s": False, "eager_experts_layer_s": True}
"""Of vLLM's first of these versions: what the host takes to launch a layer, of networks without and with experts."""
EAGER_S, EAGER_WITHIN_S = (4e-4, 2e-3), 1e-4
"""Seconds of a layer that are tried, and how near."""
STARTS = (3e-3, 3e-2)
"""Of ``request_s``: whether time is a request's or its tokens' has more than one valley."""
START = {
    "prompt_token_s": 5e-6,
    "prefill_slowdown": 1.1,
    "eager_layer_s": 7e-4,
    "eager_experts_layer_s": 1.6e-3,
    "eager_latent_layer_s": 2.5e-3,
}
LOW = {
    "request_s": 1e-3,
    "prompt_token_s": 1e-8,
    "prefill_slowdown": 0.7,
    "eager_layer_s": 1e-4,
    "eager_experts_layer_s": 5e-4,
    "eager_latent_layer_s": 5e-4,
}
HIGH = {
    "request_s": 0.04,
    "prompt_token_s": 3e-5,
    "prefill_slowdown": 2.5,
    "eager_layer_s": 2e-3,
    "eager_experts_layer_s": 6e-3,
    "eager_latent_layer_s": 6e-3,
}
OF_OTHERS = {"prefill_slowdown": 1.3, "eager_layer_s": 7e-4, "eager_experts_layer_s": 1.6e-3}
"""Of SGLang, of whose first tokens DeepSeek's on H200 alone are published: the host's time of a layer as vLLM's and
TensorRT-LLM's fits have it, both PyTorch that launches one kernel after the other; and what an H100 80GB took over its kernels
for prompts one after the other, at the clock that 700 W leave (benchmarks/records/gpu/serving_2026-11-26.md, 1.29 to 1.32)."""
_COSTS = tuple(n for n in EngineCosts.__dataclass_fields__ if n != "log_sigma")
_FEW = 10
"""Runs of a configuration that the fit replays."""
_LARGE = 0.3
_SMALL = 0.1
_LOADS_TTFT = ("ttft_mean", "ttft_p50")


def fit_clients(folder: Path) -> dict[str, float]:
    """Adds them to ``coefficients/serving/load.json``; the median errors of the check split, before and after."""
    errors: dict[str, float] = {}
    for engine, since, names in CLIENTS:
        runs = [r for r in read_engine_runs(folder) if r.source == f"InferenceX {engine}" and _of(r, since)]
        loads = [r for r in read_load_runs(folder) if not r.reason and _of(r, since)] if engine == "vllm" else []
        base = front_of(EngineConfig(engine))
        if engine == "sglang":
            base = _with(replace(base, costs=engine_costs(EngineConfig(engine)), prompt_token_s=0.0), OF_OTHERS)
        front = _fit(_few([r for r in runs if not load_check(r)]), [r for r in loads if not load_check(r)], base, names)
        if engine == "vllm":
            front = _eager(runs, front)
        for label, one in (("before", base), ("after", front)):
            ratio = _ratios([r for r in runs if load_check(r)], one)
            for metric, values in ratio.items():
                error = round(float(np.median(np.abs(values - 1.0))), 4)
                errors[f"InferenceX {engine} {metric} check median {label} ({len(values)} rows)"] = error
        offline = [r for r in read_engine_runs(folder) if r.source == f"{engine} throughput" and _of(r, since)]
        widths = _widths([r for r in [*runs, *offline] if not load_check(r)], front)
        _write(engine, since, base, front, widths)
    document: dict[str, Any] = load_json("load")
    document["provenance"]["errors"] |= errors
    document["provenance"]["clients"] = (
        "request_s, prompt_token_s and prefill_slowdown (vLLM 0.14 on, SGLang 0.5, TensorRT-LLM 0.19): closed loops of "
        "InferenceX (SemiAnalysis, Apache-2.0), started by its launch scripts, as aiconfigurator (NVIDIA, Apache-2.0) collected "
        "them"
    )
    write("load", document)
    return errors


def _eager(runs: list[LoadRun], base: Front) -> Front:
    """``base`` with the host's time of a layer that describes the fit rows best, the rest as it was: most steps do not feel it,
    so that no slope leads there."""
    best: dict[str, float] = {}
    for name, experts in EAGER.items():
        fit = [
            r for r in runs if not load_check(r) and (r.architecture is not None and r.architecture.moe is not None) is experts
        ]

        def cost(seconds: float, name: str = name, fit: list[LoadRun] = fit) -> float:
            errors = np.log(_ratios(fit, _with(base, {name: seconds}))["ttft"]) / _SMALL
            return float(np.mean(np.sqrt(1.0 + errors**2)))

        found = minimize_scalar(cost, EAGER_S, EAGER_WITHIN_S)
        best[name] = float(f"{found:.2g}")
    return _with(base, best)


def _of(run: LoadRun, since: str) -> bool:
    """Whether a run is of the engine from that version on, and can be replayed."""
    config = run.config
    if run.reason or config is None or config.attention_dp > 1:
        return False
    if config.version is not None and version_number(config.version) < version_number(since):
        return False
    try:
        replay(run, None)
    except GpuwiseError:
        return False
    return True


def _few(runs: list[LoadRun]) -> list[tuple[LoadRun, float]]:
    """Of every configuration a few, short and long prompts, few and many users, with their weight."""
    by_name: dict[str, list[LoadRun]] = defaultdict(list)
    for run in runs:
        by_name[run.name].append(run)
    weighted: list[tuple[LoadRun, float]] = []
    for mine in by_name.values():
        ordered = sorted(mine, key=lambda r: (_prompt(r) > 3000, 0 if r.closed is None else r.closed.users))
        some = ordered[:: max(1, len(ordered) // 8)][:_FEW]
        weighted += [(r, len(some) ** -0.5) for r in some]
    return weighted


def _prompt(run: LoadRun) -> float:
    assert run.requests is not None
    return float(run.requests.prompt_tokens.mean())


def _fit(closed: list[tuple[LoadRun, float]], loads: list[LoadRun], base: Front, names: tuple[str, ...]) -> Front:
    low, high = (np.log([table[n] for n in names]) for table in (LOW, HIGH))
    parts = [(p, tuple(f for f in p.figures if f.metric in _LOADS_TTFT)) for p in parts_of(loads)]
    weights = [sum(w * w * len(r.figures) for r, w in closed), sum(p.weight**2 * len(figures) for p, figures in parts)]
    scale = (weights[0] / weights[1]) ** 0.5 if weights[1] else 1.0  # loads weigh as much as the closed loops

    def residual(x: F64) -> F64:
        front = _with(base, dict(zip(names, (float(v) for v in np.exp(x)), strict=True)))
        out: list[float] = []

        def of_part(_: LoadRun, result: Run, figure: Figure) -> float:
            return predicted(result, figure)

        def add(run: LoadRun, figures: tuple[Figure, ...], weight: float, value: Callable[[LoadRun, Run, Figure], float]) -> None:
            if figures:
                result = replay(run, front)
                out.extend(weight * _LARGE * math.tanh(math.log(value(run, result, f) / f.measured) / _LARGE) for f in figures)

        for run, weight in closed:
            add(run, run.figures, weight, engine_figure)
        for part, figures in parts:
            add(part.run, figures, scale * part.weight, of_part)
        return np.array(out)

    solutions = [
        least_squares(
            residual,
            np.log([{**START, "request_s": one}[n] for n in names]),
            bounds=(low, high),
            loss="soft_l1",
            f_scale=0.05,
            diff_step=0.02,
            max_nfev=8,
        )
        for one in STARTS
    ]
    best = min(solutions, key=lambda f: float(f.cost))
    return _with(base, {n: float(f"{v:.4g}") for n, v in zip(names, np.exp(best.x), strict=True)})


def _with(base: Front, values: dict[str, float]) -> Front:
    costs = {n: v for n, v in values.items() if n in _COSTS}
    return replace(base, costs=replace(base.costs, **costs), **{n: v for n, v in values.items() if n not in _COSTS})


def _ratios(runs: list[LoadRun], front: Front) -> dict[str, F64]:
    """Predicted over measured, by metric."""
    by_metric: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        result = replay(run, front)
        for f in run.figures:
            by_metric[f.metric.split("_")[0]].append(engine_figure(run, result, f) / f.measured)
    return {metric: np.array(values) for metric, values in by_metric.items()}


def _widths(runs: list[LoadRun], front: Front) -> dict[str, float]:
    """Log standard deviation by metric that covers 80 % of the residuals: of all rows, and with every configuration weighing as
    much as another (the next one that is asked for is one that nobody measured); the wider of the two."""
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for run in runs:
        for metric, values in _ratios([run], front).items():
            found[metric] += [(abs(math.log(value)), run.name) for value in values]
    widths: dict[str, float] = {}
    for metric, rows in found.items():
        of = Counter(name for _, name in rows)
        errors, alike = np.array([e for e, _ in rows]), np.array([1.0 / of[name] for _, name in rows])
        widest = max(weighted_quantile(errors, weights, 0.8) for weights in (np.ones_like(alike), alike))
        widths[metric] = round(widest / Z80, 3)
    return widths


def _write(engine: str, since: str, base: Front, front: Front, widths: dict[str, float]) -> None:
    """``widths`` of the fit rows, of which throughput without a rate has its own."""
    document: dict[str, Any] = load_json("load")
    entries: list[dict[str, Any]] = document["engines"]
    mine: dict[str, Any] | None = next((e for e in entries if (e["engine"], e["since"]) == (engine, since)), None)
    if mine is None:
        plain = {"request_s": 0.0, "attention_slowdown": 1.0}
        older: dict[str, Any] = {"engine": engine, "since": "0.3", "costs": _costs(base), "front": plain}
        mine = {"engine": engine, "since": since, "log_sigma": base.costs.log_sigma, "front": dict(plain)}
        entries += [{**older, "log_sigma": base.costs.log_sigma}, mine]
    mine["costs"] = _costs(front)
    front_entry: dict[str, float] = mine["front"]
    front_entry |= {"request_s": front.request_s, "prompt_token_s": front.prompt_token_s}
    front_entry |= {name: value for name in (*EAGER, "eager_latent_layer_s") if (value := getattr(front, name))}
    mine["ttft_log_sigma"] = widths.pop("ttft")
    if "token" in widths:
        mine["throughput_log_sigma"] = widths.pop("token")
    mine["log_sigma"] = max(mine["log_sigma"], *widths.values())
    write("load", document)


def _costs(front: Front) -> dict[str, float]:
    return {n: getattr(front.costs, n) for n in _COSTS}
