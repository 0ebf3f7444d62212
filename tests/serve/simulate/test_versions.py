"""What a release of an engine changes beside the one before it."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.releases import engine_rules, resolved
from gpuwise.serve.engines.settings import FILTERED, SAMPLED_ON, Settings
from gpuwise.serve.simulate import Server

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
