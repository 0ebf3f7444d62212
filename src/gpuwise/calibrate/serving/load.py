"""Published runs of engines under load, as requests to replay, with their measurements.

Arrivals are the published ones where a table has them, else Poisson at the published rate. Prompts of inference-perf's runs are
one hundred distinct texts sent in turn: from the second round on the prefix cache holds them whole. A row past saturation is
scored by its throughput alone: its first tokens wait on how many requests the client had in flight.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.serving.rows import HYBRID, model_of, system_of
from gpuwise.calibrate.tables import each, read_columns
from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import DRAWN, FILTERED, Settings
from gpuwise.serve.load.requests import ClosedLoop, Requests
from gpuwise.serve.simulate import Run, Server
from gpuwise.serve.simulate.front import Front, front_of
from gpuwise.units import MILLI

F64 = NDArray[np.float64]
DISTINCT_PROMPTS = 100
"""Texts of inference-perf's generator in these runs (10 system prompts with 10 questions each)."""
_GPUS = {"RTX PRO 6000 Blackwell": "rtx-pro-6000-blackwell-workstation", "RTX 4090": "rtx-4090"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One published figure of a run: ``metric`` of requests ``first`` to ``last``, in seconds; ``req_s`` is seconds a request,
    ``token`` seconds a token written."""

    metric: str
    measured: float
    first: int = 0
    last: int | None = None
    peers: dict[str, float] = field(default_factory=dict[str, float])
    """Predictions of other tools, in seconds."""


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A run to replay. ``name`` is that of its configuration, by which fit and check are split."""

    source: str
    name: str
    gpu: str
    figures: tuple[Figure, ...]
    reason: str = ""
    architecture: Architecture | None = None
    system: System | None = None
    config: EngineConfig | None = None
    settings: Settings = field(default_factory=Settings)
    requests: Requests | None = None
    closed: ClosedLoop | None = None
    behind_http: bool = True
    """Clients measured; False: the engine itself did."""


def load_check(run: LoadRun) -> bool:
    """A third of the configurations (model, device, split) is held out of the fit, by hash."""
    return hashlib.sha256(f"load {run.name}".encode()).digest()[0] % 3 == 0


def read_load_runs(folder: Path) -> list[LoadRun]:
    """Every run of the load tables under ``folder/serving``."""
    here = folder / "serving/load"
    return [*_joined(folder), *_residency(here), *_training(here), *_kubecon(here), *_bench(here)]


def replay(run: LoadRun, front: Front | None, slowdown: float = 1.0) -> Run:
    """The run under ``front``, or with the default costs; with a ``slowdown`` its requests arrive that much faster, since its
    time unit is longer. Raises as :meth:`~gpuwise.serve.simulate.server.Server.run`."""
    assert run.architecture is not None and run.system is not None and run.config is not None and run.requests is not None
    if not run.behind_http:
        front = replace(front or front_of(run.config), request_s=0.0, prompt_token_s=0.0, answer_s=0.0, answer_token_s=0.0)
    server = Server(run.architecture, run.system, run.config, run.settings, front)
    requests = run.requests if slowdown == 1.0 else replace(run.requests, arrival_s=run.requests.arrival_s / slowdown)
    return server.run(requests, closed=run.closed)


def predicted(run: Run, figure: Figure) -> float:
    """The figure of a simulated run, in seconds."""
    part = slice(figure.first, figure.last)
    kind, _, which = figure.metric.partition("_")
    if kind == "req":
        return 1.0 / run.requests_per_s
    if kind == "token":
        return 1.0 / run.output_tokens_per_s
    values = {"ttft": run.ttft_s, "e2e": run.e2e_s, "tpot": run.tpot_s, "itl": run.tpot_s}[kind][part]
    values = values[np.isfinite(values)]
    return float(values.mean() if which == "mean" else np.percentile(values, float(which[1:])))


def records(path: Path, text: Sequence[str], numbers: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a table by the columns named; none where there is no table."""
    columns = read_columns(path, {**dict.fromkeys(text, "str"), **dict.fromkeys(numbers, "float")})
    if columns is None:
        return []
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


FILTERED_BY_DEFAULT = ("llama", "qwen")
"""Families whose ``generation_config.json`` sets ``top_p`` or ``top_k``, which vLLM uses as default for requests."""


def sampling_of(model: str) -> str:
    """vLLM's sampling for a client that does not set it."""
    name = model.lower().rsplit("/", 1)[-1]
    return FILTERED if name.startswith(FILTERED_BY_DEFAULT) else DRAWN


def _filled(run: LoadRun, model: str, gpu: str, tp: int, weights: str, version: str) -> LoadRun:
    """The run with what its names mean, or why it cannot be replayed."""
    try:
        arch = model_of(model)
        if arch is None:
            return replace(run, reason=HYBRID)
        system = system_of(_GPUS.get(gpu, gpu), tp)
        experts = tp if arch.moe is not None else 1
        config = EngineConfig("vllm", weights, tp=tp, moe_tp=experts, version=version)
    except GpuwiseError as error:
        return replace(run, reason=error.message.split("\n")[0][:80])
    return replace(
        run, architecture=arch, system=system, config=config, settings=replace(run.settings, sampling=sampling_of(model))
    )


def poisson(n: int, rate: float, seed: int) -> F64:
    """Arrivals at a rate; their mean rate is the rate."""
    gaps = np.random.default_rng(seed).exponential(1.0 / rate, n)
    return np.cumsum(gaps) * (n / rate / float(gaps.sum()))


def _in_turn(n: int) -> NDArray[np.int64]:
    return (np.arange(n) % DISTINCT_PROMPTS).astype(np.int64)


# --- vllm_runs.csv with the load it was published without
# ----------------------------------------------------------------------------------------------

_PEERS = ("pred_blis-trained-physics", "pred_aiconfigurator-estimate", "pred_llmservingsim", "pred_llm-optimizer-estimate")


def _joined(folder: Path) -> list[LoadRun]:
    key = "stage(-1=all)"
    loads = records(
        folder / "serving/load/vllm_runs_load.csv",
        ("experiment", "source", "confidence"),
        (
            key,
            "request_rate",
            "n_requests",
            "input_len_measured_hint",
            "output_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "total_kv_blocks",
        ),
    )
    rows = records(
        folder / "serving/vllm_runs.csv",
        ("experiment", "model", "gpu", "precision", "metric_ms", "source"),
        (key, "tp", "max_num_batched_tokens", "gpu_mem_util", "actual", *_PEERS),
    )
    by_name: dict[str, list[dict[str, Any]]] = {}
    for r in rows:
        by_name.setdefault(r["experiment"], []).append(r)

    def run(name: str) -> LoadRun:
        return _experiment(name, by_name[name], [x for x in loads if x["experiment"] == name])

    return each(by_name, run, "vllm_runs.csv")


def _experiment(name: str, rows: list[dict[str, Any]], loads: list[dict[str, Any]]) -> LoadRun:
    """One experiment: its stages follow one another, Poisson each; figures are of a stage, of all, or of the first 300."""
    stage_of = "stage(-1=all)"
    stages = sorted((x for x in loads if x[stage_of] >= 0), key=lambda x: x[stage_of])
    few = [x for x in loads if x[stage_of] < 0]
    if not stages:
        stages = few[:1]
    counts = [int(x["n_requests"]) for x in stages]
    ends = np.cumsum(counts).tolist()
    arrivals: list[F64] = []
    start = 0.0
    for i, x in enumerate(stages):
        arrivals.append(start + poisson(counts[i], x["request_rate"], i))
        start = float(arrivals[-1][-1])
    n = ends[-1]
    figures: list[Figure] = []
    for r in rows:
        stage, first_300 = int(r[stage_of]), "first 300" in r["source"] or "llmservingsim" in r["source"].split(" (")[0]
        begin, end = (0, 300) if first_300 else (0, n) if stage < 0 else (ends[stage] - counts[stage], ends[stage])
        peers = {p.removeprefix("pred_"): r[p] * MILLI for p in _PEERS if math.isfinite(r[p])}
        figures.append(Figure(r["metric_ms"], r["actual"] * MILLI, begin, min(end, n), peers))
    r, x = rows[0], stages[0]
    prompt, output = int(x["input_len_measured_hint"]), int(x["output_len"])
    prompts: Any = np.full(n, prompt, np.int64)
    outputs: Any = np.full(n, output, np.int64)
    blocks = x["total_kv_blocks"]
    run = LoadRun(
        "vllm load",
        f"{r['model'].split('/')[-1]} {r['gpu']} tp{int(r['tp'])}",
        r["gpu"],
        tuple(figures),
        settings=Settings(
            max_num_batched_tokens=int(r["max_num_batched_tokens"]),
            max_num_seqs=int(x["max_num_seqs"]),
            memory_share=r["gpu_mem_util"] if r["gpu_mem_util"] > 0 else None,
            kv_blocks=int(blocks) if blocks > 0 else None,
        ),
        requests=Requests(np.concatenate(arrivals), prompts, outputs, _in_turn(n)),
        reason="rate not sure" if x["confidence"].startswith("low") else "",
    )
    return run if run.reason else _filled(run, r["model"], r["gpu"], int(r["tp"]), _weights(r["precision"]), "0.15.1")


def _weights(precision: str) -> str:
    return {"FP8": "fp8", "FP16": "fp16"}.get(precision, "bf16")


# --- tables in the common form
# ----------------------------------------------------------------------------------------------

_TEXT = ("url_path", "engine_version", "model", "gpu", "prefix_caching", "chunked", "saturated", "spec_decode", "dtype")
_METRICS = tuple(f"{m}_{s}_s" for m in ("ttft", "tpot", "e2e") for s in ("mean", "p50", "p90", "p99"))
COLUMNS = (
    "tp",
    "request_rate",
    "concurrency",
    "n_requests",
    "input_len_mean",
    "output_len_mean",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_mem_util",
    "req_s",
)
"""Numbers of a run in every table of this form, beside its latencies."""
_NUMBERS = (*COLUMNS, "kv_tokens", "failed", *_METRICS)


def _figures(r: dict[str, Any], first: int = 0, last: int | None = None) -> tuple[Figure, ...]:
    if r["saturated"] == "True":
        return (Figure("req_s", 1.0 / r["req_s"]),)
    run_figures = [Figure(m.removesuffix("_s"), r[m], first, last) for m in _METRICS if math.isfinite(r[m])]
    return tuple(run_figures)


def _base(r: dict[str, Any], source: str, figures: tuple[Figure, ...], requests: Requests | None) -> LoadRun:
    def whole(name: str) -> int | None:
        return int(r[name]) if math.isfinite(r[name]) else None

    tokens = whole("kv_tokens")
    settings = Settings(
        max_num_batched_tokens=whole("max_num_batched_tokens"),
        max_num_seqs=whole("max_num_seqs"),
        memory_share=r["gpu_mem_util"] if math.isfinite(r["gpu_mem_util"]) else None,
        kv_blocks=None if tokens is None else tokens // 16,
        chunked_prefill=r["chunked"] != "False",
        prefix_caching=r["prefix_caching"] != "False",
    )
    name = f"{r['model'].split('/')[-1]} {r['gpu']} tp{int(r['tp'])}"
    run = LoadRun(source, name, r["gpu"], figures, settings=settings, requests=requests)
    if r["spec_decode"]:
        return replace(run, reason="speculative decoding is not simulated")
    version = r["engine_version"].split()[0]
    weights = "fp16" if r["dtype"] == "fp16" else "bf16"
    return _filled(run, r["model"], r["gpu"], int(r["tp"]), weights, version)


def _residency(here: Path) -> list[LoadRun]:
    """vLLM 0.23 with fresh prompts; the client had at most 256 requests in flight."""
    rows = records(here / "blis_residency_vllm.csv", _TEXT, _NUMBERS)
    sent = read_columns(
        here / "blis_residency_requests.parquet",
        {"run": "str", "server_input_tokens": "float", "output_tokens": "float", "arrival_time_us": "float"},
    )
    if sent is None:
        return []

    def run(r: dict[str, Any]) -> LoadRun:
        name = r["url_path"].split(":results/")[1].strip("/")
        mine = sent["run"] == name
        if not mine.any():
            n = int(r["n_requests"])
            requests = Requests(
                poisson(n, r["request_rate"], 0),
                np.full(n, round(r["input_len_mean"]), np.int64),
                np.full(n, int(r["output_len_mean"]), np.int64),
            )
            return _base(r, "residency", _figures(r), requests)
        order = np.argsort(sent["arrival_time_us"][mine], kind="stable")
        arrival = sent["arrival_time_us"][mine][order] * 1e-6
        requests = Requests(
            arrival - arrival.min(),
            sent["server_input_tokens"][mine][order].astype(np.int64),
            sent["output_tokens"][mine][order].astype(np.int64),
        )
        return _base(r, "residency", _figures(r), requests)

    return each(rows, run, "blis_residency_vllm.csv")


def _training(here: Path) -> list[LoadRun]:
    """vLLM 0.15.1 with prompts in turn; runs whose client aborted requests are excluded."""
    rows = records(here / "blis_training_vllm.csv", _TEXT, _NUMBERS)
    sent = read_columns(
        here / "blis_training_requests.parquet",
        {"experiment": "str", "index": "float", "arrival_time_us": "float", "input_tokens": "float", "has_error": "str"},
    )
    if sent is None:
        return []

    def rows_of(name: str) -> list[dict[str, Any]]:
        return [r for r in rows if f"{name}/" in r["url_path"] or name in r["url_path"]]

    def run(name: str) -> LoadRun:
        mine = rows_of(name)
        stages = sorted((r for r in mine if "stage_" in r["url_path"]), key=lambda r: r["url_path"])
        keep = (sent["experiment"] == name) & (sent["has_error"] != "True")
        order = np.argsort(sent["arrival_time_us"][keep], kind="stable")
        arrival = sent["arrival_time_us"][keep][order] * 1e-6
        n = len(arrival)
        figures: list[Figure] = []
        at = 0
        for r in stages:
            count = min(int(r["n_requests"]), n - at)
            figures += _figures(r, at, at + count)
            at += count
        r = mine[0]
        requests = Requests(
            arrival - arrival.min(),
            sent["input_tokens"][keep][order].astype(np.int64),
            np.full(n, int(r["output_len_mean"]), np.int64),
            (sent["index"][keep][order] % DISTINCT_PROMPTS).astype(np.int64),
        )
        made = _base(r, "BLIS training", tuple(figures), requests)
        return replace(made, reason="the client gave requests up") if any(s["failed"] > 0 for s in stages) else made

    names = [name for name in sorted(set(sent["experiment"].tolist())) if rows_of(name)]
    return each(names, run, "blis_training_vllm.csv")


def _kubecon(here: Path) -> list[LoadRun]:
    """vLLM 0.11 at seven rates a setting; prompts in turn, at most 440 in flight."""
    rows = records(here / "inference_perf_kubecon.csv", _TEXT, _NUMBERS)

    def run(r: dict[str, Any]) -> LoadRun:
        n = int(r["n_requests"])
        requests = Requests(
            poisson(n, r["request_rate"], 0),
            np.full(n, round(r["input_len_mean"]), np.int64),
            np.full(n, int(r["output_len_mean"]), np.int64),
            _in_turn(n),
        )
        made = _base(r, "kubecon", _figures(r), requests)
        return replace(made, settings=replace(made.settings, max_model_len=512))

    return each(rows, run, "inference_perf_kubecon.csv")


def _bench(here: Path) -> list[LoadRun]:
    """vLLM 0.19 timed inside, overloaded in a burst: the whole run is replayed, its queue with it."""
    rows = records(here / "llmservingsim_bench_vllm.csv", _TEXT, _NUMBERS)
    sent = records(
        here / "llmservingsim_bench_requests.csv", ("run",), ("input_toks", "output_toks", "arrival_s", "ttft_s", "e2e_s")
    )

    def run(r: dict[str, Any]) -> LoadRun:
        name = r["url_path"].split("bench/examples/")[1].removesuffix("/vllm")
        mine = sorted((s for s in sent if s["run"] == name), key=lambda s: s["arrival_s"])
        if not mine:
            raise KeyError(f"no requests of {name}")
        arrival = np.array([s["arrival_s"] for s in mine])
        requests = Requests(
            arrival - arrival.min(),
            np.array([s["input_toks"] for s in mine], np.int64),
            np.array([s["output_toks"] for s in mine], np.int64),
        )
        tpot = np.mean([(s["e2e_s"] - s["ttft_s"]) / (s["output_toks"] - 1) for s in mine if s["output_toks"] > 1])
        figures = (
            Figure("ttft_mean", float(np.mean([s["ttft_s"] for s in mine]))),
            Figure("tpot_mean", float(tpot)),
            Figure("e2e_mean", float(np.mean([s["e2e_s"] for s in mine]))),
        )
        return replace(_base(r, "LLMServingSim bench", figures, requests), behind_http=False)

    return each(rows, run, "llmservingsim_bench_vllm.csv")
