"""Fits what programs that write speech down cost beside their kernels.

``benchmarks/serving/speech_runs.csv`` holds one published transcription a line: the program, how many windows it batches and how
many hypotheses it follows, the length of a recording, and how much faster than real time it was. ``patched``: Transformers
without the look-up of special tokens in every word (huggingface/transformers pull request 35218). ``french``: the documentary of
faster-whisper's benchmark, whose tokens a second are fitted. A group is one machine, of the machine with the most rows one model:
its rows are predicted with costs that were fitted on the others.
"""

from __future__ import annotations

import csv
import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import with_count
from gpuwise.facts.models.catalogue import find_model
from gpuwise.facts.software.speech_programs import SpeechProgram, speech_programs
from gpuwise.interval import Z80
from gpuwise.serve.engines.costs import engine_costs
from gpuwise.serve.engines.engine import ENGINES, EngineConfig
from gpuwise.serve.passes.speech import HOST_YEAR, TOKENS_PER_WINDOW, WINDOW_S, SpeechCosts, SpeechWork, speech_work
from studies.coefficient_files import write
from studies.optimizers import least_squares

F64 = NDArray[np.float64]
TABLE = Path(__file__).parents[2] / "benchmarks" / "serving" / "speech_runs.csv"
BY_MODEL = "a100-80gb"
"""The machine whose rows are left out by model."""
EAGER = ("kernel_slowdown", "eager_step_s", "eager_layer_s", "window_s")
FITTED: dict[str, tuple[str, ...]] = {
    "transformers": (*EAGER, "special_s"),
    "ctranslate2": (*EAGER, "search_s"),
    "openai": EAGER,
    "ggml": EAGER,
    **dict.fromkeys(("vllm", "sglang", "trtllm"), ("window_s",)),
}
START: dict[str, tuple[float, float]] = {
    "kernel_slowdown": (1.3, 0.4),
    "window_s": (8e-3, 1.0),
    "special_s": (8e-3, 1.0),
    "search_s": (5e-3, 1.0),
    "eager_step_s": (2e-3, 1.0),
    "eager_layer_s": (5e-4, 1.0),
    "longest_spread": (0.1, 1.0),
    "pace": (0.1, 0.3),
    "french": (1.3, 0.15),
}
"""Where a cost begins, and how far it may go from there (the standard deviation of its logarithm)."""
PULL = 0.15
"""Weight of that beside a row."""


@dataclass(frozen=True, slots=True)
class Run:
    """One line of the table."""

    program: SpeechProgram
    work: SpeechWork
    measured_s: float
    patched: bool
    french: bool
    year: int
    group: str
    label: str


def read_runs(path: Path = TABLE) -> list[Run]:
    """The rows, with their kernels."""
    runs: list[Run] = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            program, batch, recording = speech_programs()[row["program"]], int(row["batch"]), float(row["recording_s"])
            system, window = with_count(find_cluster(row["gpu"]).system, 1), min(recording, WINDOW_S)
            sound = batch * (min(recording, program.advance_s) if recording > WINDOW_S else window)
            tokens = round(TOKENS_PER_WINDOW * window / WINDOW_S)
            work = speech_work(find_model(row["model"]), system, program, batch, tokens, sound, int(row["beams"]))
            group = f"{row['gpu']} {row['model']}" if row["gpu"] == BY_MODEL else row["gpu"]
            label = f"{row['program']:15s}{row['gpu']:16s}{row['model']:24s}{batch:4d} x {window:g} s"
            year, seconds = system.accelerator.year, sound / float(row["realtime"])
            runs.append(Run(program, work, seconds, bool(row["patched"]), bool(row["french"]), year, group, label))
    return runs


def seconds_of(run: Run, values: dict[str, float]) -> tuple[float, float]:
    """Seconds of a run's batch, and the host's."""
    work = replace(run.work, tokens=run.work.tokens * values["french"]) if run.french else run.work
    return work.seconds(costs_of(run, values).on_host(math.exp(-values["pace"] * (run.year - HOST_YEAR))))


def costs_of(run: Run, values: dict[str, float]) -> SpeechCosts:
    """Costs of a run from values by ``runtime.name``."""
    runtime, program = run.program.runtime, run.program
    own = {name: values[f"{runtime}.{name}"] for name in FITTED[runtime]}
    window = own["window_s"] + (0.0 if run.patched else own.get("special_s", 0.0))
    searches = program.searches and run.work.windows > 1
    waits = program.waits and run.work.sound_s / run.work.windows >= program.advance_s
    spread = values["longest_spread"] if waits else 0.0  # short recordings of these tables are sorted by length
    if runtime in ENGINES:
        of = engine_costs(EngineConfig(runtime))
        return SpeechCosts(of.kernel_slowdown, window, iteration_s=of.iteration_s, layer_s=of.layer_s, sequence_s=of.sequence_s)
    return SpeechCosts(
        own["kernel_slowdown"],
        window,
        own.get("search_s", 0.0) if searches else 0.0,
        own["eager_step_s"],
        own["eager_layer_s"],
        longest_spread=spread,
    )


def fitted(runs: Sequence[Run]) -> dict[str, float]:
    """Values by ``runtime.name``."""
    keys = [f"{runtime}.{name}" for runtime, names in FITTED.items() for name in names] + ["longest_spread", "pace", "french"]
    start, reach = (np.array([START[key.rpartition(".")[2]][i] for key in keys]) for i in (0, 1))

    def residual(x: F64) -> F64:
        values = dict(zip(keys, start * np.exp(x), strict=True))
        rows = [math.log(seconds_of(run, values)[0] / run.measured_s) for run in runs]
        return np.array([*rows, *(PULL * x / reach)])

    best = least_squares(residual, np.zeros(len(keys)), loss="soft_l1", f_scale=0.15)
    return dict(zip(keys, (start * np.exp(best.x)).tolist(), strict=True))


def left_out(runs: Sequence[Run]) -> tuple[F64, F64]:
    """Ratio of predicted to measured seconds of every run by the costs of the other groups, and the host's share of it."""
    ratio, share = np.empty(len(runs)), np.empty(len(runs))
    for group in sorted({run.group for run in runs}):
        values = fitted([run for run in runs if run.group != group])
        for i, run in enumerate(runs):
            if run.group == group:
                seconds, host = seconds_of(run, values)
                ratio[i], share[i] = seconds / run.measured_s, host / seconds
    return ratio, share


def sigmas(ratio: F64, share: F64, known: F64) -> tuple[float, float]:
    """Widths of the kernels' and of the host's part with which 80 % of the runs are inside."""
    off = np.abs(np.log(ratio))
    host_bound = share > 0.5

    def inside(kernels: float, host: float, rows: NDArray[np.bool_]) -> float:
        wide = np.hypot((1 - share) * np.maximum(kernels, known), share * host)[rows]
        return abs(float(np.mean(off[rows] <= Z80 * wide)) - 0.8)

    grid = np.arange(0.05, 0.8, 0.01)
    _, kernels, host = min((inside(k, h, host_bound) + inside(k, h, ~host_bound), k, h) for k in grid for h in grid if h >= k)
    return round(float(kernels), 2), round(float(host), 2)


def fit_speech() -> dict[str, float]:
    """Refit ``coefficients/serving/speech.json``; returns its errors, of rows that were left out."""
    runs = read_runs()
    ratio, share = left_out(runs)
    kernels, host = sigmas(ratio, share, np.array([run.work.log_sigma for run in runs]))
    values, off = fitted(runs), np.abs(ratio - 1)
    costs: dict[str, dict[str, float]] = {}
    for runtime, names in FITTED.items():
        own = {name: values[f"{runtime}.{name}"] for name in names}
        own["window_s"] += own.pop("special_s", 0.0)
        costs[runtime] = {k: float(f"{v:.3g}") for k, v in {"kernel_slowdown": 1.0, **own}.items()}
    by = {p: [i for i, run in enumerate(runs) if run.program.id == p] for p in speech_programs()}
    errors = {"median": round(float(np.median(off)), 3), "mean": round(float(off.mean()), 3)}
    errors |= {f"{p} median ({len(rows)} rows)": round(float(np.median(off[rows])), 3) for p, rows in by.items() if rows}
    document = {
        "costs": costs,
        "longest_spread": round(values["longest_spread"], 3),
        "host_pace_per_year": round(values["pace"], 3),
        "log_sigma": {"kernels": kernels, "host": host},
        "provenance": {
            "source": f"benchmarks/serving/speech_runs.csv: {len(runs)} published transcriptions",
            "errors": errors,
            "split": "each machine, and on the A100 each model, predicted by the fit of the others",
            "date": datetime.date.today().isoformat(),
        },
    }
    write("speech", document)
    return errors
