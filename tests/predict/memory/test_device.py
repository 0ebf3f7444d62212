"""What lies outside tensors, and files that must be whole."""

import pytest

from gpuwise.errors import DataError, UnknownNameError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.predict.memory.device import (
    METRICS,
    communicator_bytes,
    context_bytes,
    library_workspace_bytes,
    stack_memory,
    usable_bytes,
)
from gpuwise.predict.memory.memory_rules import MemoryRules, find_memory_rules, memory_rules
from gpuwise.predict.step.columns import Columns
from gpuwise.units import GIB, MIB
from gpuwise.workload.strategy import STACKS, Strategy


@pytest.mark.parametrize(
    ("name", "torch_total_gib"),
    [
        # "total capacity" in torch's own out-of-memory messages
        ("A100-SXM4-80GB", 79.25),
        ("A100-SXM4-40GB", 39.50),
        ("RTX 4090", 23.68),
        ("A30", 23.53),
    ],
)
def test_what_a_process_can_have(name: str, torch_total_gib: float) -> None:
    accelerator = find_cluster(f"1x{name}").accelerator
    assert usable_bytes(accelerator) / GIB == pytest.approx(torch_total_gib, rel=0.006)


def test_workspaces_and_contexts() -> None:
    h100, a100 = (find_cluster(f"1x{n}").accelerator for n in ("H100-SXM", "A100-SXM4-80GB"))
    assert library_workspace_bytes(h100) == 32 * MIB
    assert library_workspace_bytes(a100) == 8.125 * MIB
    old, new = find_memory_rules("megatron-deepspeed"), find_memory_rules("megatron-core")
    assert context_bytes(a100, old) > 2 * context_bytes(a100, new)


def test_a_communicator_for_each_kind_of_group() -> None:
    rules = find_memory_rules("megatron-core")
    columns = Columns.from_strategies([Strategy(), Strategy(dp=8), Strategy(tp=2, pp=2, dp=2)])
    none, one, three = communicator_bytes(columns, rules)
    assert none == 0 and three == 3 * one > 0


def test_every_stack_has_constants_and_an_unknown_one_extrapolates() -> None:
    for stack in STACKS:
        constants = stack_memory(stack)
        assert 0 <= constants.least_slack <= constants.slack < 1
        assert set(constants.log_sigma) == set(METRICS)
        assert all(0 < s < 0.5 for s in constants.log_sigma.values())
    assert stack_memory("something else").basis == "derived"


def test_rules_are_strict() -> None:
    with pytest.raises(UnknownNameError, match="megatron"):
        find_memory_rules("megatron-cor")
    rules = memory_rules()["eager"]
    fields = {f: getattr(rules, f) for f in MemoryRules.__slots__}
    with pytest.raises(DataError, match="gradients must be one of"):
        MemoryRules(**{**fields, "gradients": "sometimes"})
