"""Scores every figure of the runs under load, replayed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from gpuwise.calibrate.scores import Scores
from gpuwise.calibrate.serving.load import Figure, LoadRun, load_check, predicted, read_load_runs, replay
from gpuwise.errors import GpuwiseError
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.engines.engine import version_number

SINCE = ("0.8", "0.14")
"""Versions of vLLM with costs of their own: scheduling beside the device came in between."""
_NEAR = 0.7
SLOWER = 1.03
"""Factor on the steps for measuring how much more than proportionally a figure moves: near saturation many times as much."""
COLD = 300
"""Requests from an engine's start that some figures are of: graphs and kernels are loaded in them."""
_IDLE = 0.3
"""Share of the engine's sequences up to which a figure moves in proportion to its steps."""


def since_index(run: LoadRun) -> int:
    """Which of ``SINCE`` a run's engine falls under."""
    version = run.config.version if run.config is not None else None
    return 0 if version is not None and version_number(version) < version_number(SINCE[1]) else 1


def metric_of(source: str) -> str:
    """Which width a row has."""
    if source.endswith("capacity"):
        return "capacity"
    name = source.split()[-2]
    return "tpot" if name == "itl" else name


def score_load(folder: Path, all_check: bool) -> Scores | None:
    """Every figure of the runs under load, by the shipped costs; the baseline is BLIS's own prediction where it was published."""
    runs = read_load_runs(folder)
    if not runs:
        return None
    source: list[str] = []
    gpu: list[str] = []
    split: list[str] = []
    reason: list[str] = []
    columns: list[tuple[float, float, float, float]] = []
    spread: dict[str, float] = load_json("load")["spread"]
    for run in runs:
        why, result, slower = run.reason, None, None
        if not why:
            try:
                result = replay(run, None)
                busy = run.settings.max_num_seqs is None or max(_in_flight(run, f) for f in run.figures) > _IDLE
                slower = replay(run, None, SLOWER) if busy else None
            except GpuwiseError as error:
                why = error.message.split("\n")[0][:80]
        for f in run.figures:
            name = _label(run, f)
            source.append(name)
            gpu.append(run.gpu)
            split.append("check" if all_check or load_check(run) else "fit")
            reason.append(why)
            value = math.nan if result is None else predicted(result, f)
            sigma = spread.get(metric_of(name), math.nan)
            if result is not None and slower is not None:
                moved = abs(math.log(SLOWER * predicted(slower, f) / value) / math.log(SLOWER))
                sigma = math.hypot(sigma, max(moved - 1.0, 0.0) * spread["tpot"])
            columns.append(
                (f.measured, value, math.nan if result is None else sigma, f.peers.get("blis-trained-physics", math.nan))
            )
    measured, value, sigma, baseline = (np.array(c) for c in zip(*columns, strict=True))
    return Scores(source, gpu, split, measured, value, sigma, baseline, reason)


def _label(run: LoadRun, f: Figure) -> str:
    """``under load ttft mean`` and the like: rows of all tables together, by metric. Separate: loads with more than seven
    tenths of the engine's sequences (``near saturation``), where a few percent of speed decide whether a queue grows, and
    figures of an engine's first requests (``cold start``): windows of three hundred, and the worst hundredth and the mean
    first token of a window that begins with an engine of experts, whose Triton kernels are compiled when a step first has so
    many rows (Mixtral's published requests: 155 to 185 ms in the mean of the first 300, 53 to 56 of the next thousands)."""
    if f.metric == "req_s":
        return "under load capacity"
    metric, _, which = f.metric.partition("_")
    kind = "under load"
    if run.requests is not None:
        slow = which == "p99" or f.metric == "ttft_mean"
        compiled = slow and f.first == 0 and run.architecture is not None and run.architecture.moe is not None
        if f.last == COLD and len(run.requests) > COLD:
            kind = "cold start"
        elif _in_flight(run, f) > _NEAR:
            kind = "near saturation"
        elif compiled:
            kind = "cold start"
    return f"{kind} {metric} {which}"


def _in_flight(run: LoadRun, f: Figure) -> float:
    """Share of the engine's sequences in use by the requests of a figure, by Little's law from the measured time of an answer;
    the maximum over stages."""
    requests, limit = run.requests, run.settings.max_num_seqs
    if requests is None or limit is None:
        return 0.0
    end = len(requests) if f.last is None else f.last
    shares = [0.0]
    for g in run.figures:
        last = len(requests) if g.last is None else g.last
        arrival = requests.arrival_s[g.first : last]
        if g.metric == "e2e_mean" and f.first <= g.first and last <= end and len(arrival) > 1:
            shares.append(g.measured * (len(arrival) - 1) / float(arrival[-1] - arrival[0]) / limit)
    return max(shares)
