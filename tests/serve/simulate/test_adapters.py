"""Low-rank adapters: the scheduler's rule against the plain engine, and what they cost."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import Adapters, Settings
from gpuwise.serve.simulate import Requests, Server
from gpuwise.serve.simulate.adapters import adapter_bytes
from gpuwise.serve.simulate.budget import BudgetEngine
from gpuwise.serve.simulate.core import Limits

sys.path.insert(0, str(Path(__file__).parent))
from reference_engine import PlainEngine
from test_budget import check, linear_time, loads, play

ARCH = find_model("llama-3.1-8b")
SYSTEM = find_cluster("1xH100-SXM").system
CONFIG = EngineConfig("vllm", version="0.19.0")


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(
    requests=loads(),
    data=st.data(),
    at_once=st.integers(1, 3),
    size=st.sampled_from([4, 16]),
    spare=st.integers(0, 300),
    sequences=st.integers(1, 8),
    tokens=st.sampled_from([16, 64, 200]),
    cache=st.booleans(),
    ahead=st.booleans(),
)
def test_requests_with_adapters_equal_the_plain_engine(requests, data, at_once, size, spare, sequences, tokens, cache, ahead):
    n = len(requests)
    adapter = np.array(data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)), np.int64)
    requests = replace(requests, adapter=adapter)
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    blocks = -(-(longest + spare) // size) + 1
    limits = Limits(max(tokens, sequences), sequences, blocks, size, True, cache, ahead=ahead, adapters=at_once)
    plain, engine = play(PlainEngine, BudgetEngine, requests, limits, linear_time(sequences))
    check(plain, engine, limits)


def test_weights_of_an_adapter_are_those_peft_counts():
    # Llama-3.1-8B, rank 16, all linear layers: 41,943,040 parameters (peft print_trainable_parameters), in 16 bits
    assert adapter_bytes(ARCH, 16, 1) == 2 * 41_943_040


def load(n: int = 160, adapters: int | None = None) -> Requests:
    kinds = None if adapters is None else (np.arange(n) % adapters).astype(np.int64)
    return Requests(np.arange(n) * 0.05, np.full(n, 300, np.int64), np.full(n, 60, np.int64), adapter=kinds)


def test_adapters_cost_time_and_cache_and_more_of_them_more():
    plain = Server(ARCH, SYSTEM, CONFIG)
    few = replace(plain, settings=Settings(adapters=Adapters(2, 16)))
    many = replace(plain, settings=Settings(adapters=Adapters(64, 64, 32)))
    times = [plain.run(load()).mean("tpot"), few.run(load(adapters=2)).mean("tpot"), many.run(load(adapters=64)).mean("tpot")]
    assert times == sorted(times)
    assert 1.02 < times[1] / times[0] < 1.6
    assert plain.memory.tokens > few.memory.tokens > many.memory.tokens


def test_too_few_adapters_at_once_make_others_wait():
    def ttft(resident: int) -> float:
        server = Server(ARCH, SYSTEM, CONFIG, Settings(adapters=Adapters(16, 16, resident)))
        return server.run(load(adapters=16)).percentile("ttft", 95)

    assert ttft(1) > 3 * ttft(16)


@pytest.mark.parametrize("numbers", [(0,), (4, 17), (4, 16, 5)])
def test_adapters_nobody_has(numbers):
    with pytest.raises(InputError):
        Adapters(*numbers)


def test_adapters_need_an_engine_started_with_them():
    with pytest.raises(InputError, match="the engine has no adapters"):
        Server(ARCH, SYSTEM, CONFIG).run(load(adapters=2))
    old = EngineConfig("vllm", version="0.6.6")
    with pytest.raises(InputError, match="not simulated under"):
        Server(ARCH, SYSTEM, old, Settings(adapters=Adapters(2), max_model_len=8192)).run(load(adapters=2))


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_other_engines_pass_over_who_would_be_one_too_many(engine):
    def served(resident):
        server = Server(ARCH, SYSTEM, EngineConfig(engine), Settings(adapters=Adapters(16, 16, resident)))
        return server.run(load(adapters=16))

    one, all_of_them = served(1), served(16)
    plain = Server(ARCH, SYSTEM, EngineConfig(engine)).run(load())
    assert np.isfinite(one.e2e_s).all()
    assert one.percentile("ttft", 95) > 2 * all_of_them.percentile("ttft", 95)
    assert all_of_them.mean("tpot") > plain.mean("tpot")
