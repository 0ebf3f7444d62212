"""The largest size a task names is one that the lab can run."""

from __future__ import annotations

import pytest

from gpuwise.errors import InputError
from gpuwise.lab.compiler import NVCC
from gpuwise.lab.kernel import run_kernel
from gpuwise.lab.source import read_kernel
from gpuwise.lab.stream import MOST_EVENTS
from gpuwise.lab.tasks import find_task, launch_of

STEP = 32


def instructions(name: str, n: int) -> int:
    """Of one warp of the task's first block."""
    task = find_task(name)
    launch = launch_of(task, n)
    kernel, shape = read_kernel(task.source), {"grid": launch.grid, "block": launch.block}
    run = run_kernel(kernel, launch.arguments, **shape, blocks=[0], compiler=NVCC)
    return len(run.events)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["attention-scores", "attention-fused"])
def test_the_largest_size_has_fewer_instructions_than_the_lab_runs(name: str) -> None:
    """Beyond 64 rows each further one adds as many: the count is a line."""
    few, more = instructions(name, 96), instructions(name, 96 + STEP)
    most = find_task(name).most
    assert few + (more - few) * (most - 96) / STEP < MOST_EVENTS
    with pytest.raises(InputError, match="a size is from 1 to"):
        launch_of(find_task(name), most + STEP)
