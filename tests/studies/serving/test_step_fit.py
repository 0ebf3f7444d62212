"""Costs of steps by Little's law."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuwise.calibrate.serving.load import Figure, LoadRun
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engines.costs import EngineCosts
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.load.requests import Requests
from gpuwise.serve.simulate import Server
from gpuwise.serve.simulate.front import Front
from studies.serving.step_fit import fit_steps, stages_of

TRUE = EngineCosts(1.05, 1.1, 0.8, 4e-4, 5e-6, 1.2e-5)


def simulated(model: str, tp: int, rate: float, version: str = "0.15.1") -> LoadRun:
    """A run whose figures are those of an engine with the costs ``TRUE``."""
    n = 1500
    rng = np.random.default_rng(int(rate))
    arrival = np.cumsum(rng.exponential(1.0 / rate, n))
    requests = Requests(arrival, np.full(n, 500, np.int64), np.full(n, 200, np.int64), (np.arange(n) % 100).astype(np.int64))
    arch, system = find_model(model), find_cluster(f"{tp}xh100-sxm").system
    run = LoadRun(
        "vllm load",
        f"{model} {tp}",
        "H100",
        (),
        architecture=arch,
        system=system,
        config=EngineConfig("vllm", "bf16", tp=tp, version=version),
        settings=Settings(max_num_seqs=256),
        requests=requests,
    )
    done = Server(arch, system, run.config or EngineConfig(), run.settings, Front(TRUE, request_s=5e-3)).run(requests)
    figures = tuple(Figure(f"{name}_mean", done.mean(name), 100, n) for name in ("ttft", "e2e"))  # type: ignore[arg-type]
    return replace(run, figures=figures)


@pytest.fixture(scope="module")
def runs() -> list[LoadRun]:
    cases = [("llama-3.1-8b", 1), ("llama-2-7b", 1), ("llama-3.1-8b", 2), ("llama-3.1-70b", 4), ("llama-3.1-70b", 8)]
    return [simulated(model, tp, rate) for model, tp in cases for rate in (4.0, 10.0, 16.0)]


def test_a_stage_is_the_token_its_costs_say(runs: list[LoadRun]) -> None:
    costs = np.array([1.05, 0.8, 1.2e-5, 0.0, 0.0, 0.0, 4e-4, 5e-6, 2.19e-10])
    for run in runs:
        (stage,) = stages_of(run)
        assert stage.parts @ costs + stage.beside_s == pytest.approx(stage.tpot_s, rel=0.03), run.name


def test_the_fit_finds_what_the_engine_took(runs: list[LoadRun]) -> None:
    fronts, _ = fit_steps(runs, [])
    front = fronts[1]
    assert front.costs.kernel_slowdown == pytest.approx(1.05, rel=0.05)
    assert 0.6 < front.costs.communication_slowdown < 1.1  # layers of models that are split stand in for it
    model = find_model("llama-3.1-8b")
    assert front.costs.iteration_s + front.costs.layers_s(model) == pytest.approx(4e-4 + 32 * 1.2e-5, rel=0.3)
