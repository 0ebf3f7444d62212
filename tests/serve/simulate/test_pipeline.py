"""Batches in flight on pipeline stages: against one budget, against sums, and against what a pipeline cannot beat."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.load.requests import Requests
from gpuwise.serve.memory import layers_of_stages
from gpuwise.serve.simulate import Server
from gpuwise.serve.simulate.core import Limits
from gpuwise.serve.simulate.pipeline import PipelineEngine, Stages
from gpuwise.serve.simulate.texts import runs_of
from gpuwise.serve.steady import largest

sys.path.insert(0, str(Path(__file__).parent))
from reference_engine import PlainEngine
from test_budget import check, linear_time, loads, play

ONE = Stages((1.0,), (1.0,))


def stages(count, hop=0.0, **more):
    share = (1.0 / count,) * count
    return Stages(share, share, (1, 1000), ((hop, hop),) * (count - 1), **more)


def run(requests, limits, time, layout, **more):
    runs = runs_of(requests, limits.block_tokens)
    engine = PipelineEngine(requests.prompt_tokens.tolist(), requests.output_tokens.tolist(), runs, limits, time, layout, **more)
    for i, arrival in enumerate(requests.arrival_s.tolist()):
        engine.run_until(arrival)
        engine.offer(i, arrival)
    engine.run_until(float("inf"))
    return engine


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(requests=loads(), size=st.sampled_from([1, 4, 16]), spare=st.integers(0, 300), sequences=st.integers(1, 8))
def test_one_stage_is_the_plain_engine(requests, size, spare, sequences):
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    limits = Limits(64, sequences, -(-longest // size) + spare, size)
    engine = partial(PipelineEngine, stages=ONE, sums_rounds=False)
    check(*play(PlainEngine, engine, requests, limits, linear_time(sequences)), limits)


@settings(max_examples=4 * settings().max_examples, deadline=None)
@given(
    requests=loads(),
    size=st.sampled_from([1, 4, 16]),
    spare=st.integers(0, 300),
    sequences=st.integers(1, 8),
    tokens=st.sampled_from([8, 16, 64, 200]),
    cache=st.booleans(),
    count=st.integers(2, 5),
    hidden=st.booleans(),
)
def test_nothing_is_lost_on_stages(requests, size, spare, sequences, tokens, cache, count, hidden):
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    limits = Limits(tokens, sequences, -(-longest // size) + spare, size, prefix_cache=cache)
    engine = run(requests, limits, linear_time(sequences, 0.001), stages(count, 1e-4, hides_host=hidden))
    trace = engine.trace
    assert np.isfinite(trace.first_s).all() and np.isfinite(trace.finish_s).all()
    assert all(f <= e for f, e in zip(trace.first_s, trace.finish_s, strict=True))
    assert engine.pool.free == limits.n_blocks
    assert engine.idle and not engine.running
    written = sum(k * n for k, n in zip(trace.column("n_steps"), trace.column("decoding"), strict=True))
    restarts = len(requests) + sum(trace.gap_tokens) - sum(trace.column("stalled"))
    assert written + restarts == int(requests.output_tokens.sum())


def many(n, gap_s, prompt=200, output=60):
    rng = np.random.default_rng(3)
    arrival = np.cumsum(rng.exponential(gap_s, n))
    return Requests(arrival, rng.integers(1, 2 * prompt, n), rng.integers(1, 2 * output, n))


@pytest.mark.parametrize("gap_s", [0.4, 0.05, 0.02])
@pytest.mark.parametrize("count", [2, 4])
def test_summed_rounds_are_the_single_ones(gap_s, count):
    requests, time = many(300, gap_s), linear_time(64, 0.001)
    limits = Limits(512, 64, 4000, 16)
    summed, single = (run(requests, limits, time, stages(count, 2e-4), sums_rounds=s) for s in (True, False))
    for name in ("first_s", "finish_s"):  # which batch one just meets is chance; how long one waits is not
        took = [np.array(getattr(e.trace, name)) - requests.arrival_s for e in (summed, single)]
        for q in (50, 95):
            assert np.percentile(took[0], q) == pytest.approx(np.percentile(took[1], q), rel=0.04)
        assert took[0].mean() == pytest.approx(took[1].mean(), rel=0.02)
    assert len(summed.trace.column("n_steps")) < len(single.trace.column("n_steps"))


def test_chunks_of_a_prompt_follow_each_other_over_the_stages():
    alone = Requests(np.zeros(1), np.array([4000]), np.array([1]))
    time, limits = linear_time(4), Limits(500, 4, 1000, 16)
    whole = run(alone, limits, time, ONE).trace.first_s[0]
    split = run(alone, limits, time, stages(4)).trace.first_s[0]
    last = time.mixed(0, 0, [(500, 3500)])
    assert split == pytest.approx(whole / 4 + last * 3 / 4, rel=0.02)


def test_full_stages_carry_as_many_times_more():
    requests, time = many(400, 0.0005, prompt=20, output=100), linear_time(256)
    limits = Limits(256, 256, 100_000, 16)
    times = {count: max(run(requests, limits, time, stages(count) if count > 1 else ONE).trace.finish_s) for count in (1, 2, 4)}
    assert times[1] > times[2] > times[4]
    assert times[4] > 0.2 * times[1]


def test_layers_are_shared_out_as_vllm_does():
    assert layers_of_stages(32, 4) == (8, 8, 8, 8)
    assert layers_of_stages(61, 4) == (15, 15, 16, 15)
    assert layers_of_stages(62, 4) == (15, 16, 16, 15)
    assert layers_of_stages(63, 4) == (16, 16, 16, 15)


LOGGED = {2: 1_075_312, 4: 2_257_264}
"""Tokens of cache that vLLM 0.19.0 logged for Llama-3.1-8B on H100 at 0.95, by stages (llm-d-incubation/llm-d-planner@d3121e0,
accuracy/results/v0.19.0/results_raw.csv)."""


@pytest.mark.parametrize("count", [2, 4])
def test_the_cache_of_stages_is_what_vllm_logged(count):
    config = EngineConfig("vllm", pp=count, version="0.19.0")
    server = Server(find_model("llama-3.1-8b"), find_cluster("8xH100-SXM").system, config, Settings(memory_share=0.95))
    assert server.memory.tokens == pytest.approx(LOGGED[count], rel=0.005)


def test_two_hosts_hold_what_one_does_not_and_links_decide():
    arch, four = find_model("llama-3.1-405b"), EngineConfig("vllm", tp=8, pp=2)
    fast = Server(arch, find_cluster("16xH100-SXM").system, four, Settings(max_model_len=8192))
    with pytest.raises(InputError, match="does not fit"):
        _ = replace(fast, config=replace(four, pp=1)).memory
    requests = many(120, 1.0, prompt=800, output=150)
    run_ = fast.run(requests)
    assert run_.busy_s["pipeline"] > 0
    assert largest(fast, 800, 150).requests_per_s > 0
    slow = replace(fast, system=replace(fast.system, network_bytes_per_s=fast.system.network_bytes_per_s / 100))
    assert slow.run(requests).percentile("tpot", 50) > run_.percentile("tpot", 50)


def test_what_is_not_simulated_over_stages_is_refused():
    with pytest.raises(InputError, match="sglang"):
        EngineConfig("sglang", pp=2)
    server = Server(
        find_model("llama-3.1-8b"),
        find_cluster("8xH100-SXM").system,
        EngineConfig("vllm", pp=2, version="0.6.6"),
        Settings(max_model_len=8192),
    )
    with pytest.raises(InputError, match=r"from 0\.8"):
        server.run(many(30, 1.0))
