"""Disaggregated prefill and decode: nothing is lost, and it helps where prompts disturb answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.memory.kv_cache import kv_cache_bytes
from gpuwise.serve.disaggregated import LATENCY_S, DecodeEngine, Disaggregation
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.load.requests import Requests
from gpuwise.serve.simulate import ClosedLoop, Server
from gpuwise.serve.simulate.core import Limits
from gpuwise.serve.simulate.texts import runs_of

ARCH = find_model("llama-3.1-8b")
SYSTEM = find_cluster("8xH100-SXM").system
ONE = Server(ARCH, SYSTEM, EngineConfig("vllm", "bf16"))
PAIR = Disaggregation(ONE, ONE)


def load(n: int, rate: float, prompt: int, output: int) -> Requests:
    arrival = np.cumsum(np.random.default_rng(0).exponential(1 / rate, n))
    return Requests(arrival, np.full(n, prompt, np.int64), np.full(n, output, np.int64))


class Linear:
    fixed = [0.004] * 10
    slope = [2e-7] * 10
    host = [0.0] * 10

    def mixed(self, n, cached, chunks):
        return 0.004 + 2e-7 * cached + sum(3e-5 * q + 1e-8 * q * c for q, c in chunks)


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 40), st.sampled_from([0.0, 0.003, 0.3])), min_size=1, max_size=12
    ),
    spare=st.integers(0, 60),
    ahead=st.booleans(),
)
def test_tokens_in_are_tokens_out_and_blocks_come_back(sizes, spare, ahead):
    prompt, output, gaps = zip(*sizes, strict=True)
    requests = Requests(np.cumsum(gaps), np.array(prompt, np.int64), np.array(output, np.int64))
    longest = max(p + o for p, o in zip(prompt, output, strict=True))
    limits = Limits(64, 6, -(-(longest + spare) // 16) + 1, 16, ahead=ahead)
    engine = DecodeEngine(list(prompt), list(output), runs_of(requests, 16), limits, Linear())  # type: ignore[arg-type]
    for i, arrival in enumerate(requests.arrival_s.tolist()):
        engine.run_until(arrival)
        engine.offer(i, arrival)
    engine.run_until(float("inf"))
    assert engine.pool.free == limits.n_blocks
    written = sum(k * n for k, n in zip(engine.trace.column("n_steps"), engine.trace.column("decoding"), strict=True))
    restarts = len(sizes) + sum(engine.trace.gap_tokens) - sum(engine.trace.column("stalled"))
    assert written + restarts == sum(output)
    if not engine.trace.preemptions:  # one token of each prompt, whatever its length
        assert sum(engine.trace.column("prompt_tokens")) == len(sizes)
    assert all(f >= a for f, a in zip(engine.trace.first_s, requests.arrival_s, strict=True))


def test_a_request_alone_is_read_sent_and_written():
    run = PAIR.run(load(1, 1.0, 2000, 50))
    alone = ONE.run(load(1, 1.0, 2000, 50))
    sent = PAIR.transfer_s(2000)
    assert sent == pytest.approx(LATENCY_S + kv_cache_bytes(ARCH, 2000) / SYSTEM.link_bytes_per_s, rel=0.02)
    step = alone.mean("tpot")
    assert run.ttft_s[0] == pytest.approx(alone.ttft_s[0] + sent + step, rel=0.05)
    assert run.mean("tpot") == pytest.approx(step, rel=0.02)


def test_prompts_do_not_disturb_answers():
    heavy = load(300, 8.0, 6000, 100)
    together = ONE.run(replace(heavy, arrival_s=heavy.arrival_s * 2), replicas=1)
    apart = PAIR.run(heavy)  # twice the devices, twice the rate
    assert apart.percentile("itl", 99) < 0.5 * together.percentile("itl", 99)


def test_one_reader_for_many_writers_is_the_bottleneck():
    wide = Disaggregation(ONE, ONE, 1, 3)
    assert wide.run(load(300, 14.0, 6000, 20)).saturated
    assert not Disaggregation(ONE, ONE, 3, 1).run(load(300, 14.0, 6000, 20)).saturated


def test_over_a_network_the_transfer_is_slower():
    far = Disaggregation(ONE, ONE, 8, 8)
    assert far.bandwidth_bytes_per_s == SYSTEM.network_bytes_per_s < PAIR.bandwidth_bytes_per_s


def test_what_cannot_be_read_apart_is_refused():
    with pytest.raises(InputError, match="another model or format"):
        Disaggregation(ONE, replace(ONE, config=EngineConfig("vllm", kv_dtype="fp8")))
    with pytest.raises(InputError, match="disaggregated"):
        Disaggregation(*[replace(ONE, config=EngineConfig("trtllm"))] * 2)
    with pytest.raises(InputError, match="who wait"):
        PAIR.run(load(10, 1.0, 100, 10), closed=ClosedLoop(2, 1.0))
    with pytest.raises(InputError):
        Disaggregation(ONE, replace(ONE, settings=Settings(max_model_len=64))).run(load(10, 1.0, 100, 10))
