"""Published runs of other engines than vLLM's second, as loads to replay: SGLang, TensorRT-LLM and vLLM's first engine.

A table without prompt lengths used ShareGPT with vLLM's benchmark filter; other tables of the same client print its means.
Runs whose engine, model or load is not simulated have a reason.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.scores import Scores
from gpuwise.calibrate.serving.load import COLUMNS, Figure, LoadRun, load_check, poisson, predicted, records, replay
from gpuwise.calibrate.serving.recipes import PYTORCH, REQUESTS, USUAL_REQUESTS, recipe, throughput_test
from gpuwise.calibrate.serving.rows import HYBRID, ServingRow, inferencex_rows, model_of, system_of
from gpuwise.calibrate.serving.static_batches import read_static_batches
from gpuwise.calibrate.tables import each
from gpuwise.errors import GpuwiseError
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.engines.engine import EngineConfig, version_number
from gpuwise.serve.engines.settings import GREEDY, Settings
from gpuwise.serve.load.requests import ClosedLoop, Requests
from gpuwise.serve.simulate import Run
from gpuwise.serve.simulate.front import front_of
from gpuwise.units import MILLI

SHAREGPT_PROMPT, SHAREGPT_OUTPUT = 215.0, 194.0
"""Mean lengths (dstack's table of the same client; the offline rows of SGLang's)."""
_SPREAD = 1.0
"""Standard deviation of the logarithm of those lengths: half of them are below six tenths of the mean."""
WAVES, PUBLISHED_WAVES = 4, 10
"""Requests per user of a closed loop, here and in InferenceX: the first ones, which all arrive at once, have less weight in a
figure."""
SHORTEST = 0.8
"""Shortest share of the nominal length: InferenceX's client draws prompts and answers between it and the full length
(``--random-range-ratio 0.8``)."""
_TEXT = ("source", "engine", "engine_version", "model", "gpu", "dtype", "arrival", "chunked", "saturated", "spec_decode", "notes")
_TABLES = (
    "apex_plus_h100.csv",
    "sglang_small_tables.csv",
    "dstack_405b_and_pd.csv",
    "rtx3090_x4_curves.csv",
    "systalyze_capacity.csv",
)
_METRICS = ("ttft_mean", "ttft_p50", "tpot_mean", "tpot_p50", "e2e_mean", "e2e_p50")
_NUMBERS = (*COLUMNS, *(f"{m}_s" for m in _METRICS))


def read_engine_runs(folder: Path) -> list[LoadRun]:
    """Every run of these engines under ``folder/serving``; those of vLLM's second engine are :func:`read_load_runs`'s."""
    here = folder / "serving/load"
    runs = [each(records(here / name, _TEXT, _NUMBERS), _run, name) for name in _TABLES if (here / name).is_file()]
    return [*chain(*runs), *_sweeps(folder), *_first_tokens(folder)]


def _run(r: dict[str, Any]) -> LoadRun:
    engine = r["engine"]
    version = r["engine_version"].split()[0] if r["engine_version"][:1].isdigit() else None
    label = "vLLM V0" if engine == "vllm" and version is not None and version.startswith("0.6") else engine
    name = f"{r['model'].split('/')[-1]} {r['gpu']} tp{r['tp']:g}"
    figures = tuple(Figure(m, r[f"{m}_s"]) for m in _METRICS if math.isfinite(r[f"{m}_s"]))
    if r["saturated"] == "True" or not math.isfinite(r["request_rate"]):
        figures = (Figure("req_s", 1.0 / r["req_s"]),) if r["req_s"] > 0 else figures
    run = LoadRun(label, name, r["gpu"], figures or (Figure("req_s", math.nan),))
    why = _why_not(r) or ("" if figures else "no figure of it is published")
    if why:
        return replace(run, reason=why)
    settings = Settings(
        max_num_batched_tokens=_whole(r["max_num_batched_tokens"]),
        max_num_seqs=_whole(r["max_num_seqs"]),
        memory_share=r["gpu_mem_util"] if math.isfinite(r["gpu_mem_util"]) else None,
        chunked_prefill=True if r["chunked"] == "True" else None,
        prefix_caching=False,
        max_model_len=4096,
    )
    weights = {"fp8": "fp8", "fp16": "fp16", "bf16": "bf16"}.get(r["dtype"].split()[0], "")
    return _filled(replace(run, settings=settings, requests=_requests(r)), engine, r["model"], int(r["tp"]), weights, version)


def _why_not(r: dict[str, Any]) -> str:
    """Reason why a run is not replayed; empty if it is."""
    if r["engine"] not in ("vllm", "sglang"):
        return f"{r['engine']} is not simulated"
    if r["spec_decode"] and r["spec_decode"] != "none":
        return "drafts and how many of them are accepted are not published"
    if "power limit" in r["notes"]:
        return "cards held to less than their power"
    if "PD ratio" in r["source"]:
        return "separate prefill and decode fleets"
    steps = re.search(r"num-scheduler-steps (\d+)", r["notes"] + " " + r["engine_version"])
    if steps is not None and int(steps[1]) > 1:
        return "several decode steps at a time (num-scheduler-steps) are not simulated"
    if not math.isfinite(r["tp"]):
        return "split over devices not stated"
    if r["arrival"].startswith("fixed rates"):
        return "rates of several runs pooled"
    if not math.isfinite(r["n_requests"]) and not math.isfinite(r["concurrency"]):
        return "load not stated"
    return ""


def _requests(r: dict[str, Any]) -> Requests:
    n = int(r["n_requests"]) if math.isfinite(r["n_requests"]) else int(r["concurrency"]) * WAVES
    rate = r["request_rate"]
    at = poisson(n, rate, 0) if math.isfinite(rate) else np.zeros(n)
    prompt, output = r["input_len_mean"], r["output_len_mean"]
    drawn = not (math.isfinite(prompt) and math.isfinite(output)) or "dstackai" in r["source"]
    prompt = prompt if prompt > 1 else SHAREGPT_PROMPT
    output = output if math.isfinite(output) else SHAREGPT_OUTPUT
    return Requests(at, _lengths(prompt, n, 1, drawn), _lengths(output, n, 2, drawn))


def _lengths(mean: float, n: int, seed: int, drawn: bool) -> NDArray[np.int64]:
    """All alike, or drawn about the mean."""
    if not drawn:
        return np.full(n, max(round(mean), 1), np.int64)
    values = np.clip(np.random.default_rng(seed).lognormal(0.0, _SPREAD, n), 0.02, 8.0)
    return np.maximum(np.rint(values * (mean / values.mean())), 1).astype(np.int64)


def _whole(value: float) -> int | None:
    return int(value) if math.isfinite(value) else None


def _filled(run: LoadRun, engine: str, model: str, tp: int, weights: str, version: str | None) -> LoadRun:
    try:
        arch = model_of(model)
        if arch is None:
            return replace(run, reason=HYBRID)
        if not weights:
            return replace(run, reason="weights in a format that no engine here runs")
        system = system_of(run.gpu, tp)
        config = EngineConfig(engine, weights, tp=tp, moe_tp=tp if arch.moe is not None else 1, version=version)
    except GpuwiseError as error:
        return replace(run, reason=error.message.split("\n")[0][:80])
    return replace(run, architecture=arch, system=system, config=config)


# --- TensorRT-LLM's own tables
# ----------------------------------------------------------------------------------------------


def _sweeps(folder: Path) -> list[LoadRun]:
    """Throughput without a rate, and at rates behind Triton."""
    text = ("kind", "engine_version", "model", "gpu", "parallel", "precision", "load", "notes")
    numbers = ("n_gpu", "tp", "pp", "isl", "osl", "qps", "output_tok_s", "ttft_ms", "itl_ms")
    rows = records(folder / "serving/measured.csv", text, numbers)
    swept = [r for r in rows if r["kind"] in ("offline_max_throughput", "online_qps_sweep")]
    return each(swept, _sweep, "measured.csv")


def _sweep(r: dict[str, Any]) -> LoadRun:
    offline = r["kind"] == "offline_max_throughput"
    n_gpu = int(r["n_gpu"])
    name = f"{r['model']} {r['gpu']} {r['parallel']}"
    all_at_once = offline or not r["qps"] > 0
    if all_at_once:
        figures = (Figure("token", 1.0 / r["output_tok_s"]),)
    else:
        figures = (Figure("ttft_mean", r["ttft_ms"] * MILLI), Figure("tpot_mean", r["itl_ms"] * MILLI))
    run = LoadRun("trtllm throughput" if all_at_once else "trtllm", name, r["gpu"], figures)
    if r["pp"] > 1:
        return replace(run, reason="pipeline stages are not simulated")
    shape = int(r["isl"]), int(r["osl"])
    n = REQUESTS.get(shape, USUAL_REQUESTS) if all_at_once else 500
    arrival = np.zeros(n) if all_at_once else poisson(n, r["qps"], 0)
    prompt, output = (np.full(n, tokens, np.int64) for tokens in shape)
    # built for the shapes of the test: chunks allowed, no prefix that comes again
    settings = Settings(chunked_prefill=True, prefix_caching=False, max_model_len=sum(shape))
    weights, experts = _formats(r["precision"], r["model"])
    version = r["engine_version"].lstrip("~")
    run = replace(run, settings=settings, requests=Requests(arrival, prompt, output))
    run = _filled(run, "trtllm", r["model"], n_gpu, weights, version)
    if run.config is None or run.architecture is None or run.system is None:
        return run
    wide_cache = weights in ("fp16", "bf16") and (experts is None or run.system.accelerator.family == "Hopper")
    config = replace(run.config, expert_weights=experts, kv_dtype="bf16" if wide_cache else "fp8")
    apart = run.architecture.moe is not None and version_number(version) >= version_number(PYTORCH)
    if apart:  # the PyTorch backend's tables of experts use enable_attention_dp, regardless of the column's name
        config = replace(config, tp=1, attention_dp=n_gpu, moe_tp=1, moe_ep=n_gpu)
    if offline:
        settings = throughput_test(run.architecture, run.system, config, *shape)
    return replace(run, config=config, settings=settings)


def _formats(precision: str, model: str) -> tuple[str, str | None]:
    """Formats of dense weights and of experts in NVIDIA's checkpoints: gpt-oss has experts in MXFP4 alone, DeepSeek scales
    blocks in 8 bits and has attention in 16 beside experts in 4."""
    if "gpt-oss" in model.lower():
        return "bf16", "mxfp4"
    if "deepseek" in model.lower():
        return ("bf16", "nvfp4") if precision == "FP4" else ("fp8_block", None)
    return {"FP8": "fp8", "FP4": "nvfp4", "FP16": "fp16", "BF16": "bf16"}[precision], None


# --- InferenceX
# ----------------------------------------------------------------------------------------------


def _first_tokens(folder: Path) -> list[LoadRun]:
    """Mean times to the first token of closed loops without think time."""
    rows = inferencex_rows(folder)
    timed = [row for row in rows or () if math.isfinite(row[1])]
    return each(timed, lambda row: _first_token(*row), "inferencex.csv")


def _first_token(row: ServingRow, ttft_s: float) -> LoadRun:
    config = row.config
    figures = (Figure("ttft_mean", ttft_s), Figure("tpot_mean", row.measured_s))
    run = LoadRun(f"InferenceX {config.engine if config else 'other'}", row.model, row.gpu, figures, row.reason)
    if row.reason or config is None or row.architecture is None or row.system is None:
        return replace(run, reason=row.reason or "layout not stated")
    if row.client != "inferencex":  # users in step wait four times as long as users out of step
        return replace(run, reason="how the client spread its users is not published")
    users = row.sequences
    n = users * WAVES
    requests = Requests(np.zeros(n), _between(row.prompt, n, 1), _between(row.output, n, 2))
    settings = recipe(row.model, row.gpu, config, users, int(row.prompt), int(row.output), row.date)
    settings = replace(
        settings,
        sampling=GREEDY,  # its client sends a temperature of 0 (bench_serving/backend_request_func.py)
        prefix_caching=False,
        max_model_len=int(row.prompt + row.output) + 256,
        chunked_prefill=settings.chunked_prefill is not False,
    )
    return replace(
        run,
        name=f"{row.model} {row.gpu} {config.ranks}",
        architecture=row.architecture,
        system=row.system,
        config=config,
        settings=settings,
        requests=requests,
        closed=ClosedLoop(users, 0.0),
    )


def _between(most: float, n: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(max(int(SHORTEST * most), 1), int(most) + 1, n)


def _waves_mean(run: LoadRun, seconds: NDArray[np.float64]) -> float:
    """Mean over ``PUBLISHED_WAVES`` waves, with equal later ones: prompts of the first wait for one another, its answers for
    no other prompts."""
    assert run.closed is not None
    first, later = seconds[: run.closed.users], seconds[run.closed.users :]
    return float(first.mean() + (PUBLISHED_WAVES - 1) * later.mean()) / PUBLISHED_WAVES


def engine_figure(run: LoadRun, result: Run, figure: Figure) -> float:
    """The figure of a simulated run, in seconds."""
    if run.closed is not None and figure.metric in ("ttft_mean", "tpot_mean"):
        return _waves_mean(run, result.ttft_s if figure.metric == "ttft_mean" else result.tpot_s)
    return predicted(result, figure)


def engine_labels(run: LoadRun) -> list[str]:
    """``sglang under load ttft mean``, ``trtllm throughput``, ``InferenceX vllm ttft mean``."""
    labels: list[str] = []
    for f in run.figures:
        if f.metric in ("req_s", "token"):
            labels.append(run.source if "throughput" in run.source else f"{run.source} throughput")
        else:
            between = "" if run.source.startswith("InferenceX") else " under load"
            labels.append(f"{run.source}{between} {f.metric.replace('_', ' ')}")
    return labels


def _width(run: LoadRun, result: Run, figure: Figure) -> float:
    """Log standard deviation of a figure: first tokens of closed loops and throughput without a rate have their own."""
    assert run.config is not None
    spread: dict[str, float] = load_json("load")["spread"]
    front = front_of(run.config, in_process=run.settings.in_process)
    if figure.metric == "token" and front.throughput_log_sigma is not None:
        return math.hypot(front.throughput_log_sigma, math.sqrt(max(result.log_sigma**2 - front.costs.log_sigma**2, 0.0)))
    first = figure.metric.startswith("ttft")
    if first and run.closed is not None and front.ttft_log_sigma is not None:
        return max(front.ttft_log_sigma, result.log_sigma)
    return max(spread["ttft" if first else "tpot"], result.log_sigma)


def score_engine_runs(folder: Path, all_check: bool) -> Scores | None:
    """Every figure of these runs by the shipped costs."""
    runs = [*read_engine_runs(folder), *read_static_batches(folder)]
    if not runs:
        return None
    source: list[str] = []
    gpu: list[str] = []
    split: list[str] = []
    reason: list[str] = []
    columns: list[tuple[float, float, float]] = []
    for run in runs:
        why, result = run.reason, None
        if not why:
            try:
                result = replay(run, None)
            except GpuwiseError as error:
                why = error.message.split("\n")[0][:80]
        for figure, label in zip(run.figures, engine_labels(run), strict=True):
            source.append(label)
            gpu.append(run.gpu)
            split.append("check" if all_check or load_check(run) else "fit")
            reason.append(why)
            value = math.nan if result is None else engine_figure(run, result, figure)
            sigma = math.nan if result is None else _width(run, result, figure)
            columns.append((figure.measured, value, sigma))
    measured, value, sigma = (np.array(c) for c in zip(*columns, strict=True))
    return Scores(source, gpu, split, measured, value, sigma, np.full(len(value), math.nan), reason)
