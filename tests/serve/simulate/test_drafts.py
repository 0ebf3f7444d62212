"""Speculative decoding and attention in groups: what they bring, and what they cost."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import Drafts, Settings
from gpuwise.serve.simulate import Requests, Server
from gpuwise.serve.simulate.drafts import DraftSteps, drafter_bytes
from gpuwise.units import GIB

ARCH = find_model("llama-3.1-8b")
SYSTEM = find_cluster("1xH100-SXM5-80GB").system
CONFIG = EngineConfig("vllm", version="0.19.0")


def load(n: int, rate: float, prompt: int = 200, output: int = 64) -> Requests:
    arrival = np.cumsum(np.random.default_rng(0).exponential(1 / rate, n))
    return Requests(arrival, np.full(n, prompt, np.int64), np.full(n, output, np.int64))


def tpot(drafts: Drafts | None, rate: float, n: int = 300) -> float:
    return Server(ARCH, SYSTEM, CONFIG, Settings(drafts=drafts)).run(load(n, rate)).mean("tpot")


def test_guesses_that_are_kept_make_a_lone_answer_faster():
    assert tpot(Drafts(3, 3.0), 0.5, 20) < 0.6 * tpot(None, 0.5, 20)


def test_guesses_that_are_not_kept_lose():
    # EAGLE-3 with four guesses on random text, Llama-3.1-8B on one H100: 10.7 ms a token against 7.1 (inference-perf, kubecon)
    ratio = tpot(Drafts(4, 1.0), 1.0, 60) / tpot(None, 1.0, 60)
    assert 1.1 < ratio < 1.7


def test_at_large_batches_guesses_cost_more_than_alone():
    server = Server(ARCH, SYSTEM, CONFIG)
    plain = server.steps(512)
    drafts = DraftSteps(plain, Drafts(3, 2.0), ARCH)
    gain = [drafts.fixed[n] / plain.fixed[n] for n in (1, 64, 1024)]
    assert gain[0] < 0.8
    assert gain[2] > 1.0


def test_before_spec_v2_sglang_prepares_a_step_after_the_one_before():
    # Qwen3-8B in fp8, EAGLE-3 with two guesses in a chain, four users: 7.62 ms between events (gpustack, qwen3-8b/h100-latency)
    arch, requests = find_model("qwen3-8b"), Requests(np.zeros(4), np.full(4, 233, np.int64), np.full(4, 220, np.int64))
    gap: list[float] = []
    for version in ("0.5.5", "0.5.23"):
        server = Server(arch, SYSTEM, EngineConfig("sglang", "fp8", version=version), Settings(drafts=Drafts(2, 2.0)))
        gap.append(2.0 * server.run(requests).percentile("itl", 50))
    assert gap[0] == pytest.approx(7.62e-3, rel=0.1)
    assert gap[0] - gap[1] == pytest.approx(1.66e-3, rel=0.02)


def test_a_run_with_guesses_spends_its_time_on_the_same_parts():
    run = Server(ARCH, SYSTEM, CONFIG, Settings(drafts=Drafts(3, 2.0))).run(load(100, 20.0))
    assert sum(run.busy_s.values()) == pytest.approx(float(run.stretches.total_s.sum()))
    assert run.mean("itl") == pytest.approx(np.average(run.tpot_s, weights=run.output_tokens - 1))


@pytest.mark.parametrize(("tokens", "kept"), [(0, 1.0), (3, 0.5), (3, 4.5)])
def test_guesses_nobody_can_keep_are_refused(tokens, kept):
    with pytest.raises(InputError):
        Drafts(tokens, kept)


def test_groups_that_attend_apart_share_the_requests():
    arch, system = find_model("deepseek-v3"), find_cluster("8xH200-SXM").system
    config = EngineConfig("sglang", "fp8_block", attention_dp=8, moe_ep=8)
    run = Server(arch, system, config, Settings(max_model_len=4096)).run(load(160, 20.0))
    assert run.replicas == 8
    assert np.isfinite(run.e2e_s).all()


@pytest.mark.parametrize(
    ("drafter", "tokens"), [("eagle", 410_128), ("ngram", 443_600), ("eagle3", 416_000), ("llama-3.2-1b", 340_000)]
)
def test_a_drafter_has_weights_and_a_cache(drafter: str, tokens: int) -> None:
    """vLLM 0.9.1 with EAGLE: 51.63 GiB, 410,128 tokens (vllm issue 19996); the others by their sizes."""
    drafts = Drafts(3, 2.99, drafter=drafter)
    memory = Server(ARCH, SYSTEM, EngineConfig("vllm", version="0.9.1"), Settings(drafts=drafts)).memory
    assert memory.tokens == pytest.approx(tokens, rel=0.003)
    if drafter == "eagle":
        assert memory.pool / GIB == pytest.approx(51.63, rel=0.003)


def test_a_drafter_by_default_is_the_models_own() -> None:
    deepseek, drafts = find_model("deepseek-v3"), Drafts(1, 1.8)
    assert drafts.drafter_of(deepseek) == "mtp" and drafts.drafter_of(ARCH) == "eagle3"
    config = EngineConfig("vllm", "fp8_block", tp=8, moe_tp=8)
    # the checkpoint has 684.5e9 elements with the prediction block and its tables, 671.0e9 without (its scales are 0.04e9)
    assert 8 * drafter_bytes(deepseek, config, drafts)[0] == pytest.approx(11.5e9 + 2 * 2 * 129280 * 7168, rel=0.02)
    with pytest.raises(InputError, match="no multi-token prediction"):
        Drafts(1, 1.8, drafter="mtp").drafter_of(ARCH)


def test_without_graphs_a_step_takes_its_launches() -> None:
    """vLLM 0.9.1 with --enforce-eager, Qwen3-14B in AWQ on an A100: 20.6 ms a token after 16,000 (vllm issue 20469)."""
    arch, system = find_model("qwen3-14b"), find_cluster("A100-80GB").system
    alone = Requests(np.zeros(1), np.full(1, 16000, np.int64), np.full(1, 200, np.int64))
    tpot: list[float] = []
    for eager in (True, False):
        server = Server(arch, system, EngineConfig("vllm", "int4_wo", version="0.9.1"), Settings(eager=eager))
        tpot.append(server.run(alone).mean("tpot"))
    assert tpot[0] == pytest.approx(20.6e-3, rel=0.05) and tpot[1] < 0.65 * tpot[0]
    eager, usual = (Server(ARCH, SYSTEM, EngineConfig("vllm"), Settings(eager=e)).memory for e in (True, False))
    assert usual.parts.graphs > eager.parts.graphs == 0.0 and eager.pool - usual.pool == usual.parts.graphs
