"""What a release of an engine changes beside the one before it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.releases import client_sampling, engine_rules, prompt_graph_most, resolved
from gpuwise.serve.engines.settings import DRAWN, FILTERED, GREEDY, SAMPLED_ON, Settings
from gpuwise.serve.simulate import Requests, Server
from gpuwise.serve.steady import first_token_time

H100_SYSTEM = find_cluster("h100-sxm").system
H100 = H100_SYSTEM.accelerator


def test_an_entry_without_a_scheduler_changes_the_one_before_it() -> None:
    before, after = (engine_rules(EngineConfig("vllm", version=v)) for v in ("0.10.1", "0.11.1"))
    assert (after.windows, after.tiers, after.scheduler) == (before.windows, before.tiers, before.scheduler)
    assert engine_rules(EngineConfig("vllm", version="0.19.0")).ahead and not after.ahead
    assert not engine_rules(EngineConfig("vllm", version="0.6.6")).prompt_graphs and before.prompt_graphs


def test_vllm_0_11_0_does_not_sort_its_logits() -> None:
    """FlashInfer was a dependency and the default of that release alone (vllm pull request 26859)."""
    logits = np.array([128 * 128256.0])
    sorts = [
        float(engine_rules(EngineConfig("vllm", version=v)).sampling_s(FILTERED, logits, SAMPLED_ON)[0])
        for v in ("0.10.2", "0.11.0", "0.11.2", "0.21.0")
    ]
    assert sorts[0] == sorts[2] > 10 * sorts[1] and sorts[1] == sorts[3]


def test_the_load_test_of_vllm_is_greedy_before_0_15() -> None:
    """``vllm bench serve`` sent a temperature of 0 until January 2026 (vllm pull request 32723)."""
    asked = [client_sampling(EngineConfig("vllm", version=v)) for v in ("0.6.6", "0.12", "0.14.1", "0.15.0", None)]
    assert asked == [GREEDY, GREEDY, GREEDY, FILTERED, FILTERED]


@pytest.mark.parametrize(("version", "sequences", "graph"), [("0.11.0", 128, 256), ("0.11.0", 512, 512), ("0.8.5", 128, 512)])
def test_graphs_hold_two_tokens_for_each_sequence(version: str, sequences: int, graph: int) -> None:
    """vllm v0.11.0 vllm/config/scheduler.py cuda_graph_sizes."""
    settings = resolved(Settings(max_num_seqs=sequences), EngineConfig("vllm", version=version), H100)
    assert settings.graph_most == graph


@pytest.mark.parametrize(("version", "window"), [("0.17", None), ("1.0", 4096)])
def test_tensorrt_engines_attend_to_all_tokens(version: str, window: object) -> None:
    arch = find_model("mistral-7b")
    assert arch.window == 4096
    server = Server(arch, H100_SYSTEM, EngineConfig("trtllm", "fp8", version=version), Settings(max_model_len=22000))
    assert server.attending.window == window


def test_prompts_of_sglang_have_graphs_since_0_5_10() -> None:
    """Piecewise CUDA graphs by default (release notes of 0.5.10): Kimi K2 read 1,024 tokens in 93 ms on eight GPUs (sglang pull
    request 13466, with the option; the GPU is not named: B200 here)."""
    arch, system = find_model("kimi-k2"), find_cluster("8xb200").system
    before, after = (
        first_token_time(Server(arch, system, EngineConfig("sglang", "fp8_block", tp=8, moe_tp=8, version=v)), 1024).expected
        for v in ("0.5.9", "0.5.10")
    )
    assert after == pytest.approx(0.093, rel=0.15) and before > 2.0 * after
    apart = EngineConfig("sglang", "fp8_block", attention_dp=8, moe_ep=8, version="0.5.10")
    options = Settings(max_num_batched_tokens=8192)
    tensor, exchanged = (
        prompt_graph_most(arch, system.accelerator, c, options) for c in (replace(apart, attention_dp=1, moe_ep=1), apart)
    )
    assert (tensor, exchanged) == (2048, 0)
    assert prompt_graph_most(find_model("qwen3-8b"), H100, EngineConfig("sglang"), options) == 8192


@pytest.mark.parametrize(("rate", "first_s", "token_s"), [(4.0, 0.0539, 0.0250), (8.0, 0.0581, 0.0331)])
def test_the_host_launches_prompts_of_sglang_0_3(rate: float, first_s: float, token_s: float) -> None:
    """Llama 3.1 70B on four H100, ShareGPT at two rates (medians; sglang benchmark/benchmark_vllm_060/README.md): 80 layers take
    the host longer than the device, and each prompt stops all answers. No cost is fitted on these rows (before: 36, 18 ms)."""
    arch, system = find_model("llama-3.1-70b"), find_cluster("4xh100-sxm").system
    config, settings = EngineConfig("sglang", tp=4, version="0.3.0"), Settings(prefix_caching=False, max_model_len=4096)
    draw = np.random.default_rng(0)
    at = np.cumsum(draw.exponential(1.0 / rate, 600))
    prompt, output = (
        np.maximum(draw.lognormal(np.log(mean) - 0.5, 1.0, 600).astype(int), 4).clip(max=2000) for mean in (215, 194)
    )
    run = Server(arch, system, config, settings).run(Requests(at, prompt, output))
    assert float(np.median(run.ttft_s)) == pytest.approx(first_s, rel=0.15)
    assert float(np.nanmedian(run.tpot_s)) == pytest.approx(token_s, rel=0.2)


@pytest.mark.parametrize(("rate", "first_s", "token_s"), [(2.0, 0.062, 0.021), (4.0, 0.068, 0.024)])
def test_prompts_of_compiled_engines_slow_down_the_tokens_of_others(rate: float, first_s: float, token_s: float) -> None:
    """Llama 3.1 70B on four H100 under TensorRT-LLM 0.14 behind Triton, 467 tokens in and 256 out (its performance overview);
    kept from the fit, which has the H200 and 8B."""
    arch, system = find_model("llama-3.1-70b"), find_cluster("4xh100-sxm").system
    settings = Settings(chunked_prefill=True, prefix_caching=False, max_model_len=723)
    server = Server(arch, system, EngineConfig("trtllm", tp=4, version="0.14"), settings)
    at = np.cumsum(np.random.default_rng(0).exponential(1.0 / rate, 500))
    run = server.run(Requests(at, np.full(500, 467), np.full(500, 256)))
    assert float(run.ttft_s.mean()) == pytest.approx(first_s, rel=0.2)
    assert float(run.tpot_s.mean()) == pytest.approx(token_s, rel=0.15)


def tokens_per_s(config: EngineConfig, requests: Requests) -> float:
    """Written tokens a second of ``vllm bench throughput``: all requests at once, tokens drawn without a filter."""
    server = Server(find_model("qwen3-8b"), H100_SYSTEM, config, Settings(sampling=DRAWN, in_process=True))
    run = server.run(requests)
    return float(requests.output_tokens.sum() / (run.arrival_s + run.e2e_s).max())


@pytest.mark.parametrize(
    ("version", "weights", "measured"),
    [("0.8.5", "bf16", 4482), ("0.10.2", "bf16", 5409), ("0.8.5", "fp8_block", 4868), ("0.10.2", "fp8_block", 5304)],
)
def test_releases_differ_by_what_their_host_takes(version: str, weights: str, measured: float) -> None:
    """vllm bench throughput of Qwen3-8B on an H100, 1,000 prompts of 1,024 tokens and answers of 2,048 (vllm issue 25915)."""
    requests = Requests(np.zeros(1000), np.full(1000, 1024, np.int64), np.full(1000, 2048, np.int64))
    assert tokens_per_s(EngineConfig("vllm", weights, version=version), requests) == pytest.approx(measured, rel=0.09)


@pytest.mark.parametrize(("name", "gpus", "gain"), [("llama-3-8b", 1, 2.7), ("llama-3-70b", 4, 1.8)])
def test_the_host_of_the_first_releases_takes_more_than_the_gpu(name: str, gpus: int, gain: float) -> None:
    """0.6.0 hid the host behind ten steps: 2.7 times the throughput of 0.5.3 for 8B on an H100, 1.8 for 70B on four, and 38 % of
    the time of 8B was the GPU's (blog.vllm.ai/2024/09/05/perf-update.html, ShareGPT, 500 prompts)."""
    rng = np.random.default_rng(0)
    prompt, output = (np.clip(rng.lognormal(m, s, 500), 4, 1024).astype(np.int64) for m, s in ((4.6, 1.2), (4.9, 0.95)))
    config = EngineConfig("vllm", version="0.5.3", tp=gpus)
    server = Server(find_model(name), find_cluster(f"{gpus}xH100-SXM").system, config, Settings(max_model_len=4096))
    busy = server.run(Requests(np.zeros(500), prompt, output)).busy_s
    assert sum(busy.values()) / (sum(busy.values()) - busy["host"]) == pytest.approx(gain, rel=0.06)


def test_prompts_are_whole_before_0_5_4_and_an_a100_has_small_steps_since_0_9() -> None:
    a100 = find_cluster("A100-80GB").system.accelerator
    chunked = [resolved(Settings(), EngineConfig("vllm", version=v), H100, 131_072).chunked_prefill for v in ("0.5.3", "0.5.4")]
    assert chunked == [False, True]
    assert [resolved(Settings(), EngineConfig("vllm", version=v), a100).max_num_batched_tokens for v in ("0.8.5", "0.9.0")] == [
        8192,
        2048,
    ]
    with pytest.raises(InputError, match=r"0\.2 is not simulated"):
        engine_rules(EngineConfig("vllm", version="0.2"))
