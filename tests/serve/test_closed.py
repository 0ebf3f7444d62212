"""Closed loops: a number of requests in flight is simulated as it is, and users who wait for each other size a fleet by it."""

from __future__ import annotations

import datetime
from dataclasses import replace

import numpy as np
import pytest

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.capacity.answer import Capacity, Question, capacity_on
from gpuwise.serve.capacity.closed import FINE, MOST_IN_FLIGHT, Closed, closed_on
from gpuwise.serve.capacity.configurations import USUAL_BITS, Requirements
from gpuwise.serve.capacity.fleet import Demand
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import GREEDY, Settings
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.requests import ClosedLoop, Requests
from gpuwise.serve.load.targets import parse_targets
from gpuwise.serve.load.workloads import find_workload, within
from gpuwise.serve.simulate import Server

TODAY = datetime.date(2026, 11, 1)


def closed(model: str, on: str, workload: str, n: int, slo: str = "", bits: tuple[int, ...] = USUAL_BITS) -> Closed:
    arch = find_model(model)
    load = Load(within(find_workload(workload), arch.max_seq_len), arch.max_seq_len)
    targets = parse_targets(slo) if slo else ()
    return closed_on(arch, find_cluster(on), load, targets, n, Requirements("vllm", None, bits), TODAY)


def fleet(users: int, think_s: float, workload: str, slo: str) -> Capacity:
    arch = find_model("llama-3.1-8b")
    load = Load(within(find_workload(workload), arch.max_seq_len), arch.max_seq_len)
    demand = Demand(None, users, think_s, 1.0)
    asked = Question(
        arch, find_cluster("H100-SXM"), load, parse_targets(slo), demand, TODAY, Requirements("vllm", None, USUAL_BITS)
    )
    return capacity_on(asked, explain=False)


def test_405b_on_one_mi355x_writes_what_was_published() -> None:
    """64 in flight of 1,021 tokens in and 1,024 out: 46 answers a minute, 76 ms a token (vllm-project/vllm#25135)."""
    best = closed("llama-3.1-405b", "1xmi355x", "in=1021,out=1024", 64, bits=(4,)).best
    assert 60.0 * best.requests_per_s == pytest.approx(46.0, rel=0.15)
    assert best.point.run.percentile("tpot", 50) == pytest.approx(0.076, rel=0.25)


@pytest.mark.parametrize("workload", ["chat", "in=1000,out=500"])
def test_throughput_and_token_times_grow_with_requests_in_flight(workload: str) -> None:
    curve = closed("llama-3.1-8b", "H100-SXM", workload, 64).curve
    assert [x.total for x in curve] == [1, 16, 32, 64, 128]
    written = [x.output_tokens_per_s.expected for x in curve]
    gaps = [x.point.run.percentile("tpot", 50) for x in curve]
    assert written == sorted(written) and gaps == sorted(gaps)


def test_requests_in_flight_are_rate_times_time_of_an_answer() -> None:
    x = closed("llama-3.1-8b", "H100-SXM", "in=1000,out=500", 32).best
    assert x.requests_per_s * x.point.run.mean("e2e") == pytest.approx(32, rel=1e-9)
    assert x.output_tokens_per_s.expected == pytest.approx(500 * x.requests_per_s, rel=1e-9)


def test_the_largest_number_within_a_target_is_between_met_and_missed() -> None:
    found = closed("llama-3.1-8b", "H100-SXM", "in=1000,out=500", 64, "tpot_mean=20ms")
    assert found.most is not None and found.best.point.met
    for total, met in ((found.most, True), (round(found.most * FINE) + 1, False)):
        point = closed("llama-3.1-8b", "H100-SXM", "in=1000,out=500", total, "tpot_mean=20ms").best.point
        assert point.met is met
    assert closed("llama-3.1-8b", "H100-SXM", "in=1000,out=500", 8, "tpot_mean=1ms").most is None


def test_too_many_in_flight_are_refused() -> None:
    with pytest.raises(InputError, match="too many"):
        closed("llama-3.1-8b", "H100-SXM", "chat", MOST_IN_FLIGHT + 1)


def test_one_gpu_is_enough_where_answers_may_take_long() -> None:
    """256 users of 3,100-token prompts who send again at once: each is answered in 36 s where 1,000 s are allowed."""
    served = fleet(256, 0.001, "in=3100,out=500", "e2e_p95=1000s").served
    assert served is not None and served.fleet.copies_peak == 1
    assert served.point.run.mean("e2e") < 60.0


@pytest.mark.thorough
@pytest.mark.parametrize("think_s", [0.0, 2.0, 45.0])
def test_more_users_never_need_fewer_gpus(think_s: float) -> None:
    counts: list[int] = []
    for users in (4, 16, 64, 200, 500):
        served = fleet(users, think_s, "in=1000,out=200", "ttft_p95=500ms,tpot_p95=40ms").served
        assert served is not None
        counts.append(served.fleet.cluster.n_accelerators)
    assert counts == sorted(counts)


def test_first_tokens_of_latent_attention_wait_for_the_host_under_tensorrt_llm() -> None:
    """DeepSeek-R1 in 8 bits on eight H200, four users with prompts of about 920 tokens: 243 to 308 ms to the first token
    (InferenceX, trtllm, tensor-parallel experts), of which the kernels take half."""
    config = EngineConfig("trtllm", "fp8_block", kv_dtype="fp8", tp=8, moe_tp=8)
    settings = Settings(1152, chunked_prefill=False, prefix_caching=False, sampling=GREEDY, max_model_len=2304)
    server = Server(find_model("deepseek-v3"), find_cluster("8xH200").system, config, settings)
    requests = Requests(np.zeros(16), np.full(16, 924), np.full(16, 919))
    run = server.run(requests, closed=ClosedLoop(4, 0.0))
    assert 0.2 < float(run.ttft_s[4:].mean()) < 0.35


def test_first_tokens_wait_until_every_attention_group_has_a_prompt() -> None:
    """DeepSeek-R1 on eight H200 whose groups attend apart, 128 users: 3.2 s to the first token (InferenceX, trtllm,
    attention_dp_config with 60 steps); the prompts themselves take less than half a second."""
    config = EngineConfig("trtllm", "fp8_block", kv_dtype="fp8", attention_dp=8, moe_ep=8)
    settings = Settings(1216, chunked_prefill=False, prefix_caching=False, sampling=GREEDY, max_model_len=2304)
    requests = Requests(np.zeros(512), np.full(512, 922), np.linspace(820, 1024, 512).astype(np.int64))
    ttft_s: list[float] = []
    for steps in (0, 60):
        server = Server(
            find_model("deepseek-v3"), find_cluster("8xH200").system, config, replace(settings, balance_timeout_iters=steps)
        )
        ttft_s.append(float(server.run(requests, closed=ClosedLoop(128, 0.0)).ttft_s[128:].mean()))
    assert ttft_s[0] < 0.6
    assert ttft_s[1] == pytest.approx(3.2, rel=0.6)
