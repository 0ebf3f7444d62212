"""GPUs and processors by name."""

from __future__ import annotations

import pytest

from gpuwise.errors import AmbiguousNameError, InputError, UnknownNameError
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.hardware.targets import find_processor, find_target


def test_names_reach_both_catalogues() -> None:
    a100, v100, cpu = (find_target(n) for n in ("a100", "v100", "EPYC 9654"))
    assert isinstance(a100, Cluster) and a100.accelerator.id == "a100-sxm-80gb"
    assert isinstance(v100, Cluster) and v100.accelerator.id == "v100-sxm-32gb"
    assert isinstance(cpu, Cpu)
    with pytest.raises(UnknownNameError) as slip:
        find_target("EPCY 9654")
    assert slip.value.hint and "EPYC 9654" in slip.value.hint
    with pytest.raises(AmbiguousNameError):
        find_target("epyc")
    with pytest.raises(InputError, match="is not a CPU"):
        find_processor("4090")
    with pytest.raises(UnknownNameError):
        find_processor("nobody")


@pytest.mark.parametrize("name", ["RTX 3090 16GB", "3090+3060", "RTX 5070 Ti 12GB"])
def test_wrong_gpu_is_refused_with_the_reason_that_a_plan_gives(name: str) -> None:
    with pytest.raises(UnknownNameError) as here:
        find_target(name)
    with pytest.raises(UnknownNameError) as there:
        find_cluster(name)
    assert here.value.hint == there.value.hint != ""
