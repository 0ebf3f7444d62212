"""Kernels run for their values: what they give, what is found wrong, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.errors import FieldError, InputError
from gpuwise.lab import stream
from gpuwise.lab.kernel import run_kernel
from gpuwise.lab.source import kernel_source, read_kernel
from gpuwise.lab.stream import Run
from gpuwise.lab.tasks import TASKS, find_task, launch_of

HEAD = "def k(x, out, n):\n    i = cuda.grid(1)\n"


def run(body: str, n: int = 64, *, block: int = 32, out: int | None = None) -> tuple[Run, np.ndarray]:
    x, made = np.arange(n, dtype=np.float32), np.zeros(n if out is None else out, np.float32)
    source = HEAD + "".join(f"    {line}\n" for line in body.split("\n"))
    arguments = {"x": x, "out": made, "n": n}
    return run_kernel(read_kernel(source), arguments, grid=(-(-n // block),), block=(block,)), made


@pytest.mark.parametrize("name", TASKS)
def test_every_task_gives_what_numpy_gives(name: str) -> None:
    task = TASKS[name]
    launch = launch_of(task, 32 if name.startswith("attention") else min(task.small, 5000))
    made = run_kernel(read_kernel(task.source), launch.arguments, grid=launch.grid, block=launch.block)
    assert made.findings == []
    for array, right in launch.expected().items():
        np.testing.assert_allclose(made.arrays[array], right, atol=launch.tolerance * float(np.abs(right).max()))


def test_branches_loops_and_early_ends() -> None:
    body = """total = 0.0
if i % 3 == 0:
    return
for j in range(i):
    if j == 5:
        break
    if j % 2 == 1:
        continue
    total += x[j]"""
    _, made = run(body + "\nwhile total > 4.0:\n    total -= 1.0\nout[i] = total if i % 2 == 0 else -total", 40)

    def plain(i: int) -> float:
        total = float(sum(j for j in range(min(i, 5)) if j % 2 == 0))
        while total > 4:
            total -= 1
        return 0.0 if i % 3 == 0 else total if i % 2 == 0 else -total

    np.testing.assert_array_equal(made, [plain(i) for i in range(40)])


def test_shuffles_atomics_and_local_arrays() -> None:
    body = """v = x[i]
for s in (16, 8, 4, 2, 1):
    v += cuda.shfl_xor_sync(0xffffffff, v, s)
keep = cuda.local.array(2, float32)
keep[0] = v
keep[1] = cuda.shfl_up_sync(0xffffffff, x[i], 1)
cuda.atomic.add(out, 0, 1.0)
if i == 33:
    out[1] = keep[0]
    out[2] = keep[1]"""
    _, made = run(body, out=3)
    assert made.tolist() == [64.0, float(sum(range(32, 64))), 32.0]


def test_a_warp_on_both_sides_of_a_branch_runs_both() -> None:
    together, _ = run("if i < 32:\n    out[i] = x[i] * 2.0\nelse:\n    out[i] = x[i] * 3.0")
    apart, _ = run("if i % 2 == 0:\n    out[i] = x[i] * 2.0\nelse:\n    out[i] = x[i] * 3.0")
    assert apart.warp_instructions > together.warp_instructions + 4


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("out[i] = x[i + 1]", "out of bounds", "x[64]"),
        ("out[i] = x[i - 1]", "out of bounds", "x[-1]"),
        ("out[0] = x[i]", "race", "out[0]"),
        ("s = cuda.shared.array(32, float32)\ns[cuda.threadIdx.x] = x[i]\nout[i] = s[31 - cuda.threadIdx.x]", "race", "s[31]"),
        ("if cuda.threadIdx.x < 7:\n    cuda.syncthreads()", "divergent barrier", "do not reach"),
    ],
)
def test_what_is_wrong_is_found_with_its_line(body: str, kind: str, words: str) -> None:
    made, _ = run(body)
    (found,) = made.findings
    assert found.kind == kind and words in found.text and 3 <= found.line <= 5


def test_a_barrier_orders_what_threads_of_a_block_do() -> None:
    ordered = (
        "s = cuda.shared.array(32, float32)\ns[cuda.threadIdx.x] = x[i]\ncuda.syncthreads()\nout[i] = s[31 - cuda.threadIdx.x]"
    )
    made, out = run(ordered)
    assert made.findings == [] and out[:3].tolist() == [31.0, 30.0, 29.0]


def test_kernels_that_never_end_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_EVENTS", 2000)
    for body in (
        "while 1 < 2:\n    out[i] = 1.0",
        "j = i\nwhile j >= 0:\n    j += 1",
        "for j in range(1000000000):\n    out[i] = 1.0",
    ):
        with pytest.raises(InputError, match="has not ended"):
            run(body)


def test_a_kernel_that_goes_on_is_stopped_before_its_accesses_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_ACCESSES", 50_000)
    with pytest.raises(InputError, match="has not ended"):
        run("while 1 < 2:\n    out[i] = 1.0")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("while True:\n    out[i] += 1", "never ends"),
        ("import os", "import statement"),
        ("out[i] = open('x')", "not of this form"),
        ("out[i] = __import__('os').getpid()", "not of this form"),
        ("out[i] = y[i]", "y is not defined"),
        ("out[i] = x.ctypes", "not of this form"),
        ("out[x[i]] = 1.0", "whole number"),
        ("with cuda:\n    pass", "with statement"),
    ],
)
def test_what_the_form_has_not_is_refused_with_its_line(body: str, words: str) -> None:
    with pytest.raises(FieldError, match=words) as caught:
        run(body)
    assert caught.value.line is not None


def test_launches_and_sources_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="1,024"):
        run("out[i] = 1.0", 4000, block=2000)
    with pytest.raises(InputError, match="takes x"):
        run_kernel(read_kernel("def k(x): pass"), {"y": 1}, grid=(1,), block=(1,))
    with pytest.raises(FieldError, match="not Python"):
        read_kernel("def k(:")
    with pytest.raises(InputError, match="2 functions"):
        read_kernel("def a(): pass\ndef b(): pass")
    with pytest.raises(InputError, match="multiple of 32"):
        launch_of(find_task("attention-fused"), 33)
    assert kernel_source("x = 1\n\ndef k(a):\n    pass\n", "k").count("\n") >= 4


def test_a_python_function_is_read_from_its_source() -> None:
    def twice(x, out):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)  # type: ignore[name-defined]  # noqa: F821
        out[i] = x[i] + x[i]

    x, out = np.ones(32, np.float32), np.zeros(32, np.float32)
    run_kernel(read_kernel(twice), {"x": x, "out": out}, grid=(1,), block=(32,))
    assert out.tolist() == [2.0] * 32


@pytest.mark.parametrize(
    ("between", "races"), [("pass", True), ("cuda.syncthreads()", False), ("cuda.syncwarp()", True), ("w += s[i]", True)]
)
def test_reads_of_shared_memory_are_remembered_until_a_barrier(between: str, races: bool) -> None:
    source = f"""
def turned(x):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    s[i] = x[i]
    cuda.syncthreads()
    w = s[63 - i]
    {between}
    s[i] = w
    x[i] = w
"""
    made = run_kernel(read_kernel(source), {"x": np.ones(64, np.float32)}, grid=(1,), block=(64,))
    assert [f.kind for f in made.findings] == (["race"] if races else [])
    assert not races or made.findings[0].text.startswith("thread 0 of block 0 writes s[0], which ")
