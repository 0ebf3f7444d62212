"""Seconds of prompt chunks, one by one and of many prompts at once."""

from __future__ import annotations

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.simulate.kernel_steps import KernelSteps
from gpuwise.serve.simulate.server import Server


@pytest.mark.parametrize("on", ["h100-sxm", "l40s"])
def test_prompts_known_at_once_take_what_each_takes_alone(on: str) -> None:
    server = Server(find_model("llama-3.1-8b"), find_cluster(on).system, EngineConfig(weights="fp8"))
    steps = server.steps(1024)
    assert isinstance(steps, KernelSteps)
    prompts = [1, 2, 7, 8, 9, 100, 511, 512, 513, 1000, 2048, 4095, 20_000, 40_000]
    alone = [steps._chunk_s(p, 0) for p in prompts]  # pyright: ignore[reportPrivateUsage]
    steps.know_prompts(prompts)
    assert [steps._seen[p, 0] for p in prompts] == alone  # pyright: ignore[reportPrivateUsage]
