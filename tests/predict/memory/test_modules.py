from __future__ import annotations

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.columns import Columns
from gpuwise.predict.memory import capture
from gpuwise.predict.memory.allocator.simulation import AllocatorRun
from gpuwise.predict.memory.modules import modules_memory
from gpuwise.predict.step.evaluate import points_of
from gpuwise.workload.strategy import Strategy

LORA = Strategy(
    stack="eager", lora_rank=8, master_weights=False, gradient_dtype="bf16", recompute="full", accumulation=2, micro_batch=1
)


def test_accelerators_with_equal_workspaces_share_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search over kinds of GPUs replays a step once for each set of workspaces, not once a kind."""
    runs: list[AllocatorRun] = []
    replay = capture.replay

    def counted(*of: object, **limits: object) -> AllocatorRun:
        runs.append(replay(*of, **limits))  # type: ignore[arg-type]
        return runs[-1]

    monkeypatch.setattr(capture, "replay", counted)
    arch = find_model("llama-3.2-1b")
    (point,), _ = points_of(Columns.from_strategies([LORA]), 1024)
    names = ("RTX 4090", "L40S", "RTX 6000 Ada", "H100-SXM", "H100-NVL")
    cards = [find_cluster(f"1x{name}").system.accelerator for name in names]
    found = [modules_memory(arch, point, LORA, card) for card in cards]
    assert [any(m.run is run for m in found) for run in runs] == [True, True]
    assert all(m.run is found[0].run and m.allocated == found[0].allocated for m in found[:3])
    assert found[3].run is found[4].run is not found[0].run
    assert len({m.capacity_bytes for m in found}) == 5
