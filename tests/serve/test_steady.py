"""Closed forms of step times beside the tables and the simulation they stand for."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engines.engine import tensor_parallel
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.workloads import find_workload
from gpuwise.serve.simulate import Server
from gpuwise.serve.steady import first_token_time, largest, prompt_time, step_time

EIGHT = find_model("llama-3.1-8b")
SERVER = Server(EIGHT, find_cluster("h100-sxm").system, tensor_parallel(EIGHT, "bf16", 1))


@pytest.mark.parametrize("sequences", [1, 3, 17, 100, 700])
@pytest.mark.parametrize("context", [100, 1024, 5000])
def test_a_step_is_that_of_the_whole_tables(sequences: int, context: int) -> None:
    steps = SERVER.steps(context)
    seconds = max(steps.fixed[sequences] + steps.slope[sequences] * sequences * context, steps.host[sequences])
    assert step_time(SERVER, sequences, context).expected == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("prompt", [1, 100, 3000, 20_000])
def test_a_prompt_is_that_of_the_whole_tables(prompt: int) -> None:
    steps, most = SERVER.steps(prompt), SERVER.limits.tokens
    chunks = [(min(most, prompt - at), at) for at in range(0, prompt, most)]
    assert prompt_time(SERVER, prompt).expected == pytest.approx(sum(steps.mixed(0, 0, [c]) for c in chunks), rel=1e-9)
    front = SERVER.front.request_s + SERVER.front.prompt_token_s * prompt
    assert first_token_time(SERVER, prompt).expected == pytest.approx(prompt_time(SERVER, prompt).expected + front)


@pytest.mark.parametrize(("prompt", "answer"), [(1000, 150), (300, 300), (6000, 100)])
def test_a_full_engine_writes_what_a_simulated_one_does(prompt: int, answer: int) -> None:
    """Within 8 % of the middle of a run that is overloaded from its beginning, lengths being spread."""
    load = Load(find_workload(f"in={prompt},out={answer},in_cv=0.5,out_cv=0.5"), EIGHT.max_seq_len)
    full = largest(SERVER, prompt, answer)
    n = int(6 * full.sequences) + 400
    run = SERVER.run(load.at(2 * full.requests_per_s, n))
    finish = sorted(run.finish_s.tolist())
    first, last = int(0.3 * n), int(0.7 * n)
    assert full.requests_per_s == pytest.approx((last - first) / (finish[last] - finish[first]), rel=0.08)


def test_tokens_that_must_come_sooner_come_to_fewer() -> None:
    rates = [largest(SERVER, 1000, 200, s) for s in (1.0, 0.05, 0.02, 0.01, 1e-4)]
    assert all(a.requests_per_s >= 0.995 * b.requests_per_s for a, b in pairwise(rates))  # prompts alone limit the first two
    assert rates[-1].sequences == 1
