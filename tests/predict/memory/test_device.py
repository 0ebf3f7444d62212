"""What lies outside tensors, and files that must be whole."""

from dataclasses import replace

import pytest

from gpuwise.errors import DataError, UnknownNameError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.columns import Columns
from gpuwise.predict.memory.context import communicator_bytes, context_bytes
from gpuwise.predict.memory.device import METRICS, stack_memory, usable_bytes
from gpuwise.predict.memory.library_workspaces import library_workspace_bytes
from gpuwise.predict.memory.saved import saved_of_points
from gpuwise.predict.memory.strategies import memory_columns
from gpuwise.predict.step.evaluate import points_of
from gpuwise.units import GIB, MIB
from gpuwise.workload.stacks.memory import MemoryRules
from gpuwise.workload.stacks.stack import find_stack
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
    accelerator = replace(find_cluster(f"1x{name}").accelerator, memory_visible_bytes=None)
    assert usable_bytes(accelerator) / GIB == pytest.approx(torch_total_gib, rel=0.006)


def test_a_published_total_is_taken_as_it_is() -> None:
    h100 = find_cluster("1xH100-SXM").accelerator
    assert usable_bytes(h100) == h100.memory_visible_bytes
    assert usable_bytes(h100) / GIB == pytest.approx(79.19, abs=0.01)  # vLLM's "total" at its start


def test_workspaces_and_contexts() -> None:
    h100, a100 = (find_cluster(f"1x{n}").accelerator for n in ("H100-SXM", "A100-SXM4-80GB"))
    assert library_workspace_bytes(h100) == 32 * MIB
    assert library_workspace_bytes(a100) == 8.125 * MIB
    assert context_bytes(a100, "eager") > 2 * context_bytes(a100, "lazy")
    small = find_cluster("1xA100-SXM4-40GB").accelerator
    assert context_bytes(a100) == context_bytes(small)  # one die


def test_a_communicator_for_each_kind_of_group() -> None:
    system, arch = find_cluster("8xA100-SXM4-80GB").system, find_model("gpt2")

    def outside(**degrees: int) -> float:
        columns = Columns.from_strategies([Strategy(**degrees)])
        points, index = points_of(columns, 512)
        return memory_columns(arch, system, saved_of_points(arch, points), columns, index).parts(0)["context"].expected

    bare = outside()
    assert outside(dp=8) - bare == pytest.approx(float(communicator_bytes(8)))
    assert outside(tp=2, pp=2, dp=2) - bare == pytest.approx(3 * float(communicator_bytes(2)))
    assert float(communicator_bytes(1)) == 0.0 < float(communicator_bytes(2)) <= float(communicator_bytes(4))
    assert float(communicator_bytes(2, "eager")) > float(communicator_bytes(2))


def test_every_stack_has_constants_and_an_unknown_one_extrapolates() -> None:
    for stack in STACKS:
        constants = stack_memory(stack)
        assert 0 <= constants.least_slack <= constants.slack < 1
        assert set(constants.log_sigma) == set(METRICS)
        assert all(0 < s < 0.5 for s in constants.log_sigma.values())
    assert stack_memory("something else").basis == "derived"


def test_rules_are_strict() -> None:
    with pytest.raises(UnknownNameError, match="megatron"):
        find_stack("megatron-cor")
    rules = find_stack("eager").memory
    fields = {f: getattr(rules, f) for f in MemoryRules.__slots__}
    with pytest.raises(DataError, match="gradients must be one of"):
        MemoryRules(**{**fields, "gradients": "sometimes"})
