"""The order in which a compiler has a kernel's instructions."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.lab.compiler import LOADS, NUMBA, NVCC, WRITES, scheduled
from gpuwise.lab.kernel import run_kernel
from gpuwise.lab.source import read_kernel
from gpuwise.lab.stream import Event
from gpuwise.lab.tasks import TASKS, launch_of

HEAD = "def k(x, y, out):\n    i = cuda.grid(1)\n    s = cuda.shared.array(32, float32)\n"


def events(body: str) -> list[Event]:
    x, y, out = (np.ones(64, np.float32) for _ in range(3))
    source = HEAD + "".join(f"    {line}\n" for line in body.split("\n"))
    return run_kernel(read_kernel(source), {"x": x, "y": y, "out": out}, grid=(1,), block=(32,)).events


def ops(body: str, registers: int = 16) -> list[str]:
    """Without the arithmetic of indices and addresses."""
    return [e.op for e in scheduled(events(body), registers) if e.op != "int"]


def test_loads_come_before_the_arithmetic_that_does_not_need_them() -> None:
    body = "a = x[i]\na = a * a\nb = y[i]\nout[i] = a * b"
    assert [e.op for e in events(body) if e.op != "int"] == ["load", "fp32", "load", "fp32", "store"]
    assert ops(body) == ["load", "load", "fp32", "fp32", "store"]
    assert ops(body, 1) == ["load", "fp32", "load", "fp32", "store"]


def test_a_load_stays_behind_what_may_write_where_it_reads() -> None:
    mixed = ops("out[i] = x[i]\nout[i] += y[i]")
    assert mixed == ["load", "store", "load", "load", "fp32", "store"]
    shared = ops("s[i] = 1.0\nout[i] = x[i] + s[i]")
    assert shared.index("load") < shared.index("shared_store") < shared.index("shared_load")
    apart = ops("a = x[i] + x[i] * 2.0\ncuda.syncthreads()\nout[i] = a + y[i]")
    assert apart.index("barrier") < apart.index("load", apart.index("barrier"))


@pytest.mark.parametrize("name", TASKS)
def test_no_instruction_comes_before_what_it_needs(name: str) -> None:
    launch = launch_of(TASKS[name], 32 if name.startswith("attention") else 64)
    run = run_kernel(read_kernel(TASKS[name].source), launch.arguments, grid=launch.grid, block=launch.block, blocks=[0])
    before, after = run.events, scheduled(run.events, 12)
    assert sorted((e.op, e.line, e.array) for e in before) == sorted((e.op, e.line, e.array) for e in after)
    assert all(source < number for number, e in enumerate(after) for source in e.waits_for)
    fences = [e.op for e in before if e.op in ("branch", "barrier")]
    assert [e.op for e in after if e.op in ("branch", "barrier")] == fences
    for array in {e.array for e in before if e.op in WRITES}:
        writes = [(e.op in LOADS) for e in before if e.array == array]
        assert writes == [(e.op in LOADS) for e in after if e.array == array], array


def test_a_short_condition_jumps_nowhere() -> None:
    assert "branch" not in ops("if i < 7:\n    out[i] = x[i]")
    assert ops("if i < 7:\n    out[i] = x[i]\nelse:\n    out[i] = y[i]").count("branch") == 1
    long = "\n".join(f"    out[i] = out[i] + x[i] * {n}.0" for n in range(4))
    assert "branch" in ops(f"if i < 7:\n{long}")


def test_the_instructions_around_an_access_are_those_of_the_compiler() -> None:
    """Of numba: 8 of a thread, 5 of the index and 4 of the address of each array, once; CUDA C has one for an address."""
    source = HEAD + "    out[i] = x[i] + y[i]\n    x[i] = 1.0\n"
    counts: list[int] = []
    for compiler in (NUMBA, NVCC):
        arguments = {name: np.ones(64, np.float32) for name in ("x", "y", "out")}
        made = run_kernel(read_kernel(source), arguments, grid=(1,), block=(32,), compiler=compiler).events
        counts.append(sum(e.times for e in made if e.op == "int"))
    index = counts[1] - NVCC.entry - 3
    assert index >= 1 and counts[0] == NUMBA.entry + index + 3 * (NUMBA.part + NUMBA.address)


def test_a_function_is_as_many_instructions_as_ptxas_makes_of_it() -> None:
    made = events("out[i] = math.sqrt(x[i])\nout[i] = x[i] / y[i]")
    assert sum(e.times for e in made if e.op == "sfu") == 1 + 2
    assert sum(e.times for e in made if e.op == "fp32") == 4 + 5
