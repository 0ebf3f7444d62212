"""Fits what a step of vLLM's costs, without simulated queues.

How many sequences decode at a published rate is known by Little's law: ``n = rate (o - 1) tpot``. The time of their token is then
linear in an engine's costs,

    tpot = s K + c C + l L + e L_experts + i + q n + r n V + sampler(n V) + rate tpot P

with the kernels ``K`` and collectives ``C`` of a step, ``r`` of a logit where vLLM 0.14 to 0.16 sort them (other samplers' are
known), and ``P`` that one prompt adds to one under the known costs (times to the first token tell those). A queue that is there
in one of two worlds is in none of it. Attention is one kernel among the others: it was measured as they were. Loads in which
prompts take more than ``MOST_PROMPTS`` of a token are left out: several share a step, which the line does not know.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.serving.engine_loads import PUBLISHED_WAVES
from gpuwise.calibrate.serving.load import LoadRun
from gpuwise.calibrate.serving.load_score import COLD, SINCE, since_index
from gpuwise.errors import GpuwiseError
from gpuwise.serve.engines.costs import EngineCosts
from gpuwise.serve.engines.engine import EngineConfig, version_number
from gpuwise.serve.engines.settings import FILTERED, GREEDY, SAMPLED_ON
from gpuwise.serve.simulate import Server
from gpuwise.serve.simulate.front import Front, front_of
from studies.optimizers import least_squares

F64 = NDArray[np.float64]
SHARED = ("kernel_slowdown", "communication_slowdown", "layer_s", "experts_layer_s")
EACH = ("iteration_s", "sequence_s")
START = (0.97, 1.0, 5e-6, 5e-6, *((3e-4, 3e-6) * len(SINCE)), 2e-10)
LOW = (0.7, 0.3, 0.0, 0.0, *((0.0, 0.0) * len(SINCE)), 0.0)
HIGH = (1.3, 3.0, 1e-4, 1e-4, *((5e-3, 5e-5) * len(SINCE)), 1e-9)
UNIT = np.array([1.0, 1.0, 1e-5, 1e-5, *((1e-3, 1e-5) * len(SINCE)), 1e-10])
"""Of each cost in the fit."""
OF_MANY = {"0.8": (6.6e-4, 1.47e-5, 0.06)}
"""``iteration_s``, ``sequence_s`` and the width of steps of versions whose only loads at a rate are of one model, with at most 90
sequences. Solved with four models that ML.ENERGY published, both sources weighing alike, and with what vLLM's sort of the logits
takes (benchmarks/serving/token_times.py); compared with other models (benchmarks/records/serving/capacity_2026-11-27g.md)."""
SORTED = ("0.14", "0.17")
"""Versions with the costs of the last of ``SINCE`` that sort the logits they draw from (vllm.toml)."""
MOST_PROMPTS = 0.2
_FULL = 0.9
"""Share of an engine's sequences beyond which requests wait for a place."""
_AROUND = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)
"""Standard deviations of a Poisson count at which a step is looked at."""
_PULL = 0.02


@dataclass(frozen=True, slots=True)
class Stage:
    """Part of a run of which both the rate and the time of a token are published. ``parts`` [costs] are seconds of a token at a
    cost of 1, ``beside_s`` what sampling and prompts take of it."""

    run: LoadRun
    tpot_s: float
    parts: F64
    beside_s: float


def stages_of(run: LoadRun) -> Iterator[Stage]:
    """Those of a run that no request waits long in."""
    assert run.requests is not None
    requests = run.requests
    figures: dict[tuple[int, int | None], dict[str, float]] = {}
    for f in run.figures:
        figures.setdefault((f.first, f.last), {})[f.metric] = f.measured
    for (first, last), of in figures.items():
        cold = last == COLD and len(requests) > COLD
        pooled = first == 0 and last == len(requests) and any(other > 0 for other, _ in figures)
        if cold or pooled or "ttft_mean" not in of or not {"tpot_mean", "e2e_mean"} & set(of):
            continue
        part = slice(first, last)
        output = float(requests.output_tokens[part].mean())
        if run.closed is not None:
            e2e_s = of["ttft_mean"] + of["tpot_mean"] * (output - 1.0)
            rate = run.closed.users / e2e_s
        elif "e2e_mean" in of:
            arrival = requests.arrival_s[part]
            e2e_s, rate = of["e2e_mean"], (len(arrival) - 1) / float(arrival[-1] - arrival[0])
        else:
            continue
        tpot_s = (e2e_s - of["ttft_mean"]) / (output - 1.0)
        try:
            stage = _stage(run, rate, tpot_s, float(requests.prompt_tokens[part].mean()), output)
        except GpuwiseError:
            continue
        if stage is not None:
            yield stage


def _server(run: LoadRun, front: Front) -> Server:
    assert run.architecture is not None and run.system is not None and run.config is not None
    return Server(run.architecture, run.system, run.config, replace(run.settings, sampling=GREEDY), front)


def _stage(run: LoadRun, rate: float, tpot_s: float, prompt: float, output: float) -> Stage | None:
    assert run.requests is not None and run.architecture is not None and run.system is not None
    whole = _server(run, front_of(EngineConfig("vllm")))
    limits, context = whole.limits, int(prompt + output / 2)
    decoding = rate * tpot_s * (output - 1.0)
    if run.closed is None and decoding > _FULL * limits.sequences:
        return None
    around = _AROUND if run.closed is None else (0.0,)
    counts = [min(max(round(decoding + z * math.sqrt(decoding)), 1), limits.sequences) for z in around]

    def seconds(kernels: float, collectives: float) -> float:
        steps = _server(run, Front(EngineCosts(kernels, 0.0, collectives, 0.0, 0.0, 0.0))).steps(context)
        return float(np.mean([steps.fixed[n] + steps.slope[n] * n * context for n in counts]))

    steps, n = whole.steps(context), max(round(decoding), 1)
    alone = steps.fixed[n] + steps.slope[n] * n * context
    size = limits.block_tokens
    cached = int((prompt - 1) // size * size) if run.requests.text is not None and limits.prefix_cache else 0
    n_left, done, more = int(prompt) - cached, cached, 0.0
    if n + n_left <= (whole.options.graph_most or 0) < n + 2 * n_left:  # two share no graph
        return None
    while n_left > 0:
        chunk = min(n_left, max(limits.tokens - n, size))
        more += steps.mixed(n, n * context, [(chunk, done)]) - alone
        n_left, done = n_left - chunk, done + chunk
    others = 1.0 if run.closed is None else (1.0 - 1.0 / run.closed.users) * (1.0 - 1.0 / PUBLISHED_WAVES)
    prompts_s = others * rate * tpot_s * more
    if prompts_s > MOST_PROMPTS * tpot_s:
        return None
    layers, experts = float(run.architecture.n_layers), run.architecture.moe is not None
    shared = [seconds(1.0, 0.0), seconds(0.0, 1.0), layers, layers * experts]
    columns = [value * (since_index(run) == i) for i in range(len(SINCE)) for value in (1.0, decoding)]
    logits = np.array([decoding * run.architecture.vocab])
    memory = run.system.accelerator.memory_bandwidth_bytes_per_s
    rules, on_h100 = whole.rules, float(logits[0]) * SAMPLED_ON / memory
    first, after = (version_number(v) for v in SORTED)
    version = run.config.version if run.config is not None and run.settings.sampling == FILTERED else None
    sorts = version is not None and first <= version_number(version) < after
    sampling = rules.filtered[0] if sorts else float(rules.sampling_s(run.settings.sampling, logits, memory)[0])
    return Stage(run, tpot_s, np.array([*shared, *columns, on_h100 * sorts]), sampling + prompts_s)


def fit_steps(loads: Sequence[LoadRun], closed: Sequence[LoadRun]) -> tuple[list[Front], float]:
    """Fronts of the versions ``SINCE`` without what is before and after an engine, and the seconds of a sorted logit on an H100,
    from runs of the fit split: those at a rate and closed loops weigh alike, and so do the configurations of each."""
    stages = [[s for run in runs for s in stages_of(run)] for runs in (loads, closed)]
    weights: list[F64] = []
    for part in stages:
        count = Counter(s.run.name for s in part)
        weight = np.array([count[s.run.name] ** -0.5 for s in part])
        weights.append(weight / max(math.sqrt(len(count)), 1.0))
    scale = math.sqrt(len({s.run.name for s in stages[0]}))
    every, weight = [*stages[0], *stages[1]], scale * np.concatenate(weights)
    parts = np.array([s.parts for s in every]) * UNIT
    tpot, beside = (np.array([getattr(s, name) for s in every]) for name in ("tpot_s", "beside_s"))

    def residual(x: F64) -> F64:
        return np.concatenate([weight * ((parts @ x + beside) / tpot - 1.0), _PULL * (x[:2] - 1.0)])

    start, low, high = (np.array(t) / UNIT for t in (START, LOW, HIGH))
    best = least_squares(residual, start, bounds=(low, high), loss="soft_l1", f_scale=0.05)
    costs: F64 = np.asarray(best.x, np.float64) * UNIT
    return [_front(costs, i) for i in range(len(SINCE))], float(costs[-1])


def _front(x: F64, version: int) -> Front:
    shared = dict(zip(SHARED, (float(v) for v in x), strict=False))
    own = OF_MANY.get(SINCE[version], x[len(SHARED) + version * len(EACH) :])
    values = dict(zip(EACH, (float(v) for v in own), strict=False))
    front = front_of(EngineConfig("vllm"))
    costs = EngineCosts(prefill_slowdown=front.costs.prefill_slowdown, **shared, **values)
    return Front(costs, eager_layer_s=front.eager_layer_s, eager_experts_layer_s=front.eager_experts_layer_s)
