"""Experts over several hosts: what operators publish, and what cannot be split so."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.capacity.commands import start_commands
from gpuwise.serve.capacity.configurations import Requirements, layouts
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.simulate import Server

DEEPSEEK, HOSTS = find_model("deepseek-v3"), find_cluster("12xdgx-h100")
CONTEXT = 2050


def server(ranks: int, version: str = "0.4.6") -> Server:
    config = EngineConfig("sglang", "fp8_block", attention_dp=ranks, moe_ep=ranks, version=version)
    settings = Settings(max_model_len=8192, max_num_seqs=256, max_num_batched_tokens=16384, memory_share=0.88)
    return Server(DEEPSEEK, HOSTS.system, config, settings)


def test_deepseek_over_hosts_writes_and_reads_what_sglang_published() -> None:
    """SGLang 0.4.6 on 12 hosts of 8 H100, prompts of 2,000 tokens: 22,282 tokens/s a host written over 72 GPUs with 256 sequences
    each, 52,337 read over 32 (lmsys.org/blog/2025-05-05-large-scale-ep)."""
    writes = server(64).steps(CONTEXT)
    step_s = writes.fixed[256] + writes.slope[256] * 256 * CONTEXT
    assert 8 * 256 / step_s == pytest.approx(22_282, rel=0.15)
    reads_s = server(32).steps(2000).mixed(0, 0, [(2000, 0)] * 8)
    assert 8 * 16_000 / reads_s == pytest.approx(52_337, rel=0.15)


def test_more_ranks_hold_more_and_never_read_slower() -> None:
    cache, read_s = zip(
        *((s.memory.tokens, s.steps(2000).mixed(0, 0, [(2000, 0)])) for s in map(server, (16, 32, 64))), strict=True
    )
    assert np.all(np.diff(cache) > 0) and np.all(np.diff(read_s) < 0)


def test_experts_over_hosts_are_asked_for_by_their_ranks() -> None:
    wanted = Requirements("sglang", ep=32)
    found = list(layouts(DEEPSEEK, HOSTS.system, HOSTS.n_accelerators, wanted))
    assert {(c.config.attention_dp, c.config.moe_ep, c.config.tp) for c in found} == {(32, 32, 1)}
    commands = start_commands(found[0])
    assert len(commands) == 4 and all("--moe-a2a-backend deepep" in c.line and "--ep-size 32" in c.line for c in commands)


@pytest.mark.parametrize(("model", "ep", "words"), [("llama-3-70b", 8, "no experts"), ("deepseek-v3", 12, "hosts of 8")])
def test_what_cannot_be_shared_is_refused(model: str, ep: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        list(layouts(find_model(model), HOSTS.system, HOSTS.n_accelerators, Requirements("sglang", ep=ep)))
