"""Kernels as people write them for numba, with their module around them: values, what is found wrong, what is slow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuwise.errors import FieldError, InputError
from gpuwise.lab.kernel import run_kernel
from gpuwise.lab.random_states import random_states
from gpuwise.lab.source import kernel_source, read_kernel
from gpuwise.lab.stream import Run

F32 = np.float32
HEAD = "import math\nimport numpy as np\nimport numba as nb\nfrom numba import cuda, float32, int32\n"


def launch(text: str, arguments: dict[str, Any], grid: tuple[int, ...], block: tuple[int, ...], name: str | None = None) -> Run:
    return run_kernel(read_kernel(kernel_source(HEAD + text, name)), arguments, grid=grid, block=block)


HISTOGRAM = """
BINS = 16

@cuda.jit
def histogram(data, hist):
    local = cuda.shared.array(shape=BINS, dtype=int32)
    tid = cuda.threadIdx.x
    if tid < BINS:
        local[tid] = 0
    {first}
    for i in range(cuda.grid(1), data.shape[0], cuda.gridsize(1)):
        cuda.atomic.add(local, int(data[i] * BINS), 1)
    {second}
    if tid < BINS:
        cuda.atomic.add(hist, tid, local[tid])
"""


@pytest.mark.parametrize("missing", [None, "first", "second"])
def test_a_histogram_in_shared_memory_and_its_two_barriers(missing: str | None) -> None:
    data = np.random.default_rng(1).random(1000, dtype=F32)
    hist = np.zeros(16, np.int32)
    lines = {n: "pass" if n == missing else "cuda.syncthreads()" for n in ("first", "second")}
    made = launch(HISTOGRAM.format(**lines), {"data": data, "hist": hist}, (2,), (64,))
    np.testing.assert_array_equal(hist, np.bincount((data * 16).astype(int), minlength=16))
    assert [f.kind for f in made.findings] == ([] if missing is None else ["race"])
    assert any(e.op == "shared_atomic" for e in made.events)
    if missing is not None:
        assert "local[" in made.findings[0].text and "cuda.syncthreads()" in made.findings[0].text


MANDEL = """
@cuda.jit(device=True)
def escape(x, y, most=20):
    c = complex(x, y)
    z = 0.0j
    for i in range(most):
        z = z * z + c
        if z.real * z.real + z.imag * z.imag >= 4:
            return i
    return most

@cuda.jit
def picture(image):
    row, column = cuda.grid(2)
    height, width = image.shape
    if row < height and column < width:
        image[row][column] = escape(-2.0 + column * 0.1, -1.0 + row * 0.1)
"""


def test_device_functions_end_lane_by_lane() -> None:
    image = np.zeros((20, 30), np.int32)
    made = launch(MANDEL, {"image": image}, (3, 4), (8, 8))

    def plain(row: int, column: int) -> int:
        z, c = 0j, complex(-2.0 + column * 0.1, -1.0 + row * 0.1)
        for i in range(20):
            z = z * z + c
            if abs(z) ** 2 >= 4:
                return i
        return 20

    np.testing.assert_array_equal(image, [[plain(r, c) for c in range(30)] for r in range(20)])
    assert made.findings == []


def test_conditions_are_settled_from_left_to_right() -> None:
    x, out = np.arange(40, dtype=F32), np.zeros(40, F32)
    text = "def k(x, out):\n    i = cuda.grid(1)\n    if i < x.size and x[i] > 3.0 or i == 0:\n        out[i] = 1\n"
    assert launch(text, {"x": x, "out": out}, (2,), (32,)).findings == []
    np.testing.assert_array_equal(out, (x > 3) | (x == 0))


def test_each_lane_gets_its_own_place_from_an_atomic() -> None:
    x, out, count = np.arange(64, dtype=F32), np.zeros(64, F32), np.zeros(1, np.int32)
    text = """
def k(x, out, count):
    i = cuda.grid(1)
    if x[i] % 2.0 == 0.0:
        out[cuda.atomic.add(count, 0, 1)] = x[i]
        cuda.atomic.max(count, 0, 3)
"""
    made = launch(text, {"x": x, "out": out, "count": count}, (2,), (32,))
    assert made.findings == [] and count[0] == 32
    assert sorted(out[:32].tolist()) == list(range(0, 64, 2))


@pytest.mark.parametrize(("body", "wide"), [("x[i] * 0.5", False), ("x[i] * 0.1", True), ("x[i] * n", True), ("x[i] * a", True)])
def test_float64_comes_in_where_numba_has_it(body: str, wide: bool) -> None:
    x, out = np.ones(32, F32), np.zeros(32, F32)
    text = f"def k(x, out, n, a):\n    i = cuda.grid(1)\n    out[i] = {body}\n"
    made = launch(text, {"x": x, "out": out, "n": 3, "a": 0.5}, (1,), (32,))
    assert any(e.op == "fp64" for e in made.events) is wide
    assert [n.line for n in made.notes] == ([7] if wide else [])


@pytest.mark.parametrize(("first", "wide"), [("0.0", True), ("0", True), ("float32(0)", False), ("nb.float32(0.0)", False)])
def test_a_sum_has_the_type_it_begins_with(first: str, wide: bool) -> None:
    x, out = np.ones((32, 4), F32), np.zeros(32, F32)
    text = (
        f"def k(x, out):\n    i = cuda.grid(1)\n    s = {first}\n    for j in range(4):\n        s += x[i, j]\n    out[i] = s\n"
    )
    made = launch(text, {"x": x, "out": out}, (1,), (32,))
    assert any(e.op == "fp64" for e in made.events) is wide and out.tolist() == [4.0] * 32


def test_local_arrays_leave_the_registers_when_lanes_index_apart() -> None:
    x, out = np.arange(32, dtype=np.int32), np.zeros((32, 3), np.int32)
    text = """
def k(x, out):
    i = cuda.grid(1)
    counts = cuda.local.array(3, nb.int32)
    for j in range(3):
        counts[j] = 0
    for j in [1, 2, 5]:
        counts[(x[i] + j) % 3] += j
    row = out[i]
    for j in range(3):
        row[j] = counts[j]
"""
    with pytest.raises(FieldError, match="2 dimensions: one element"):
        launch("def k(out):\n    out[0] = 1\n", {"out": out}, (1,), (32,))
    made = launch(text, {"x": x, "out": out}, (1,), (32,))
    right = np.zeros((32, 3), int)
    for j in (1, 2, 5):
        right[np.arange(32), (x + j) % 3] += j
    np.testing.assert_array_equal(out, right)
    assert made.findings == [] and {e.array for e in made.events if e.op == "load"} == {"x", "local memory"}


WARPWISE = """
def k(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    {sync}
    out[t] = s[t ^ 1]
"""


@pytest.mark.parametrize(("sync", "kinds"), [("cuda.syncwarp()", []), ("cuda.syncthreads()", []), ("pass", ["race"])])
def test_a_barrier_of_the_warp_orders_its_lanes(sync: str, kinds: list[str]) -> None:
    x, out = np.arange(64, dtype=F32), np.zeros(64, F32)
    made = launch(WARPWISE.format(sync=sync), {"x": x, "out": out}, (1,), (64,))
    assert [f.kind for f in made.findings] == kinds
    apart = WARPWISE.format(sync="cuda.syncwarp()").replace("t ^ 1", "63 - t")
    assert [f.kind for f in launch(apart, {"x": x, "out": out}, (1,), (64,)).findings] == ["race"]


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("out[i] = s[i]", "unwritten", "s[0], which nothing was written to"),
        ("s[i] = x[i]\n    cuda.syncthreads()\n    s[0] = s[1] + s[31 - i]", "race", "s[0]"),
        ("s[i] = x[i]\n    cuda.syncthreads()\n    y = s[0]\n    s[0] = y", "race", "writes s[0]"),
        ("if i < 8:\n        out[i] = cuda.shfl_down_sync(0xffffffff, x[i], 1)", "shuffle", "thread 8 of block 0"),
        ("cuda.atomic.add(out, 0, x[i])\n    out[0] = 1.0", "race", "adds to"),
    ],
)
def test_what_learners_get_wrong_is_found(body: str, kind: str, words: str) -> None:
    x, out = np.arange(32, dtype=F32), np.zeros(32, F32)
    text = f"def k(x, out):\n    i = cuda.grid(1)\n    s = cuda.shared.array(32, float32)\n    {body}\n"
    made = launch(text, {"x": x, "out": out}, (1,), (32,))
    assert kind in [f.kind for f in made.findings] and any(words in f.text for f in made.findings), made.findings


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("cuda.syncthreads", "without \\(\\) does nothing"),
        ("out[i] = helper(x[i])", "helper"),
        ("return x[i]", "returns nothing"),
        ("s = cuda.shared.array(i, float32)", "a number of the text or of the module"),
        ("s = cuda.shared.array(32)", "a shape and a type"),
        ("out[i] = x", "not a number"),
        ("a, b = 1, 2, 3", "2 names for 3 values"),
        ("y = out[1:9:3]", "without steps"),
        ("out[i] = again(i)", "calls itself"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(body: str, words: str) -> None:
    x, out = np.arange(32, dtype=F32), np.zeros(32, F32)
    again = "@cuda.jit(device=True)\ndef again(i):\n    return again(i)\n"
    text = f"{again}@cuda.jit\ndef k(x, out):\n    i = cuda.grid(1)\n    {body}\n"
    with pytest.raises(FieldError, match=words) as caught:
        launch(text, {"x": x, "out": out}, (1,), (32,))
    assert caught.value.line is not None


def test_which_kernel_of_a_text_is_meant() -> None:
    text = (
        HEAD
        + "@cuda.jit(device=True)\ndef f(x):\n    return x\n\n@cuda.jit\ndef k(x):\n    x[0] = f(x[0])\n\ndef main():\n    pass\n"
    )
    assert read_kernel(text).name == "k" and read_kernel(text, "main").name == "main"
    kept = kernel_source(text)
    assert "def f" in kept and "main" not in kept and kept.splitlines().index("def k(x):") == text.splitlines().index("def k(x):")
    with pytest.raises(InputError, match="2 kernels"):
        read_kernel(text + "@cuda.jit\ndef other(x):\n    pass\n")
    with pytest.raises(InputError, match="no function"):
        read_kernel(text, "nothing")


SCALE = 3


def test_a_python_function_brings_the_numbers_of_its_module() -> None:
    def scaled(x, out):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)  # type: ignore[name-defined]  # noqa: F821
        out[i] = x[i] * SCALE

    x, out = np.ones(32, F32), np.zeros(32, F32)
    run_kernel(read_kernel(scaled), {"x": x, "out": out}, grid=(1,), block=(32,))
    assert out.tolist() == [3.0] * 32


PAIR = np.dtype([("key", np.int32), ("at", F32)])


def test_records_by_field_in_place_and_by_column() -> None:
    pairs, out = np.zeros(64, PAIR), np.zeros(64, F32)
    pairs["key"], pairs["at"] = np.arange(64) % 2, np.arange(64)
    text = """
@cuda.jit(device=True)
def shifted(p, by):
    return p.at + by

@cuda.jit
def k(pairs, out):
    i = cuda.grid(1)
    p = pairs[i]
    if p.key == 1:
        p['at'] *= 2
    out[i] = shifted(pairs[i], 0.5) + pairs['at'][i] + len(pairs)
    cuda.syncthreads()
    cuda.atomic.add(pairs['key'], 0, 1)
"""
    made = launch(text, {"pairs": pairs, "out": out}, (1,), (64,))
    assert [f.text for f in made.findings] == []
    at = np.arange(64) * (1 + np.arange(64) % 2)
    np.testing.assert_array_equal(pairs["at"], at)
    np.testing.assert_array_equal(out, 2 * at + 0.5 + 64)
    assert pairs["key"].tolist() == [64, *(np.arange(1, 64) % 2).tolist()]
    column = next(e for e in made.events if e.op == "load" and e.array == "pairs.at")
    assert column.access is not None and column.access.sectors.max() == 8  # 32 records of 8 bytes


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("out[i] = pairs[i].size", "not of this form"),
        ("out[i] = pairs[i].z", "no field z"),
        ("out[i] = pairs[i]", "not a number"),
        ("pairs[i] = 1", "field by field"),
    ],
)
def test_what_records_have_not_is_refused(body: str, words: str) -> None:
    text = f"def k(pairs, out):\n    i = cuda.grid(1)\n    {body}\n"
    with pytest.raises(FieldError, match=words):
        launch(text, {"pairs": np.zeros(32, PAIR), "out": np.zeros(32, F32)}, (1,), (32,))


def test_slices_of_each_lane_and_letters() -> None:
    x, out = np.arange(64, dtype=F32), np.zeros(32, F32)
    text = """
@cuda.jit(device=True)
def total(part):
    s = float32(0)
    for j in range(part.size):
        s += part[j]
    return s + len(part[1:])

@cuda.jit
def k(x, out):
    i = cuda.grid(1)
    out[i] = total(x[i:i + 1 + i % 3]) + x[-2:][1] + ord('a')
"""
    assert launch(text, {"x": x, "out": out}, (1,), (32,)).findings == []
    np.testing.assert_array_equal(out, [x[i : i + 1 + i % 3].sum() + i % 3 + 63 + 97 for i in range(32)])
    beyond = launch(text.replace("[1]", "[2]"), {"x": x, "out": out}, (1,), (32,))
    assert {f.kind for f in beyond.findings} == {"out of bounds"}


@pytest.mark.parametrize("chosen", ["x[2:4]", "pairs[1]"])
def test_a_part_of_some_lanes_is_refused_for_the_others(chosen: str) -> None:
    read = "p[0]" if chosen.startswith("x") else "p.at"
    first = chosen.replace("2:4", "0:4").replace("[1]", "[0]")
    lines = ("i = cuda.grid(1)", f"p = {first}", "if i % 2:", f"    p = {chosen}", f"out[i] = {read}")
    text = "def k(x, pairs, out):\n" + "".join(f"    {line}\n" for line in lines)
    with pytest.raises(FieldError, match="in some lanes"):
        launch(text, {"x": np.ones(32, F32), "pairs": np.zeros(32, PAIR), "out": np.zeros(32, F32)}, (1,), (32,))


def test_loops_over_values_of_the_text() -> None:
    img, out = np.random.default_rng(2).random((16, 16), dtype=F32), np.zeros((8, 8), F32)
    text = """
ROWS = (0, 1)

def pool(img, out):
    r, c = cuda.grid(2)
    m = img[2 * r, 2 * c]
    for dr, dc in ((0, 1), (1, 0), (1, 1)):
        m = max(m, img[2 * r + dr, 2 * c + dc])
    for row in ROWS:
        m = max(m, img[2 * r + row, 2 * c])
    out[r, c] = m
"""
    assert launch(text, {"img": img, "out": out}, (1,), (8, 8)).findings == []
    np.testing.assert_array_equal(out, img.reshape(8, 2, 8, 2).max((1, 3)))
    with pytest.raises(FieldError, match="the array img"):
        launch(text.replace("in ROWS", "in img"), {"img": img, "out": out}, (1,), (8, 8))


@pytest.mark.parametrize("early", [False, True])
def test_loops_of_a_length_of_each_lane_turn_by_four(early: bool) -> None:
    """Values are those of Python's loops, and four turns share a branch where nothing leaves the loop."""
    start, stop = np.arange(64, dtype=np.int32) % 7, (np.arange(64, dtype=np.int32) * 5) % 41
    leave = "        if j > 11:\n            break\n" if early else "        if j == 11:\n            continue\n"
    text = (
        "def k(start, stop, out):\n    i = cuda.grid(1)\n    total = 0\n    for j in range(start[i], stop[i], 2):\n"
        f"{leave}        total += j\n    out[i] = total\n"
    )
    out = np.zeros(64, np.int64)
    run = launch(text, {"start": start, "stop": stop, "out": out}, (2,), (32,))
    turns = [list(range(a, b, 2)) for a, b in zip(start.tolist(), stop.tolist(), strict=True)]
    taken = [[j for j in row if (j <= 11 if early else j != 11)] for row in turns]
    assert out.tolist() == [sum(row) for row in taken]
    lines = [e.line for e in run.events if e.op == "branch"]
    of_loop = [n for n in lines if n == min(lines)]
    if early:
        assert len(of_loop) >= max(map(len, taken))
    else:
        assert max(map(len, turns)) // 4 <= len(of_loop) <= max(map(len, turns)) // 4 + 3


def test_a_loop_of_each_lane_goes_down_too_and_one_of_step_0_is_refused() -> None:
    out = np.zeros(32, np.int64)
    text = "def k(by, out):\n    i = cuda.grid(1)\n    for j in range(i, -1, by[i]):\n        out[i] += j\n"
    launch(text, {"by": np.full(32, -3), "out": out}, (1,), (32,))
    assert out.tolist() == [sum(range(i, -1, -3)) for i in range(32)]
    with pytest.raises(FieldError, match="does not end"):
        launch(text, {"by": np.zeros(32, np.int64), "out": out}, (1,), (32,))


def test_random_states_are_numbas() -> None:
    states = random_states(64)
    s0, s1 = (states[:, at].astype(object) for at in (0, 1))
    out = np.zeros((64, 3), F32)
    text = """
from numba.cuda.random import xoroshiro128p_uniform_float32

@cuda.jit
def draw(rng, out):
    i = cuda.grid(1)
    for j in range(3):
        out[i, j] = xoroshiro128p_uniform_float32(rng, i)
"""
    records = states.view([("s0", np.uint64), ("s1", np.uint64)]).reshape(64)
    made = launch(text, {"rng": records, "out": out}, (2,), (32,))
    for j in range(3):  # whole numbers without end, cut to 64 bits
        total = (s0 + s1) % 2**64
        np.testing.assert_array_equal(out[:, j], [F32((t >> 11) / 2**53) for t in total])
        s1 = s1 ^ s0
        s0, s1 = ((s0 << 55 | s0 >> 9) ^ s1 ^ s1 << 14) % 2**64, (s1 << 36 | s1 >> 28) % 2**64
    assert not made.findings and {e.line for e in made.events[1:]} == {10, 12}, "instructions are those of the caller's lines"


def test_words_of_64_bits_are_shifted_as_such() -> None:
    words = np.arange(1, 65, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    small, out, top = np.arange(64, dtype=np.int32), np.zeros(64, np.uint64), np.zeros(64, np.int64)
    text = """
@cuda.jit
def mix(words, small, out, top):
    i = cuda.grid(1)
    s = words[i]
    s ^= s >> 12
    s ^= s << 25
    out[i] = s
    top[i] = small[i] << 40
"""
    expected = words ^ words >> np.uint64(12)
    expected ^= expected << np.uint64(25)
    launch(text, {"words": words, "small": small, "out": out, "top": top}, (1,), (64,))
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(top, np.arange(64) << 40)


@pytest.mark.thorough
def test_a_number_counts_an_index_from_the_end_and_a_lock_is_named() -> None:
    a, out = np.arange(32, dtype=F32), np.zeros(32, F32)
    made = launch("@cuda.jit\ndef last(a, out):\n    out[cuda.grid(1)] = a[-1]\n", {"a": a, "out": out}, (1,), (32,))
    assert (out == 31).all() and not made.findings
    lock = "@cuda.jit\ndef k(m, c):\n    while cuda.atomic.cas(m, 0, 0, 1) != 0:\n        pass\n    c[0] += 1\n    m[0] = 0\n"
    with pytest.raises(InputError, match="not ended") as raised:
        launch(lock, {"m": np.zeros(1, np.int32), "c": np.zeros(1, np.int32)}, (1,), (64,))
    assert "lock" in str(raised.value.hint)


TURNED = """def k(x, out):
    s = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = s[cuda.blockDim.x - 1 - t]
"""
BITS = """def k(x, out):
    s = cuda.shared.array(0, float32)
    bits = cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = bits[t] >> 23
"""


def test_shared_memory_that_the_launch_gives() -> None:
    x = np.random.default_rng(1).standard_normal(128, dtype=np.float32)
    out = np.zeros_like(x)
    made = run_kernel(read_kernel(TURNED), {"x": x, "out": out}, grid=(2,), block=(64,), dynamic_smem=256)
    assert not made.findings and np.array_equal(out, x.reshape(2, 64)[:, ::-1].ravel())
    exponents = np.zeros(128, np.int32)  # two arrays of the launch's memory begin at the same byte
    made = run_kernel(read_kernel(BITS), {"x": x, "out": exponents}, grid=(2,), block=(64,), dynamic_smem=256)
    assert not made.findings and np.array_equal(exponents, x.view(np.int32) >> 23)


def test_too_little_shared_memory_of_the_launch() -> None:
    arguments = {"x": np.ones(64, np.float32), "out": np.ones(64, np.float32)}
    made = run_kernel(read_kernel(TURNED), arguments, grid=(1,), block=(64,), dynamic_smem=128)
    assert {f.kind for f in made.findings} == {"out of bounds"}
    with pytest.raises(FieldError, match="it gives none") as refused:
        run_kernel(read_kernel(TURNED), arguments, grid=(1,), block=(64,))
    assert "--dynamic-smem" in str(refused.value.hint)


def test_constants_of_a_module_that_are_assigned_together() -> None:
    out = np.zeros(2, F32)
    launch(
        "A, B = 0.5, -0.25\nC = D = 2\n@cuda.jit\ndef fill(out):\n    out[0] = A * C\n    out[1] = B * D\n",
        {"out": out},
        (1,),
        (1,),
    )
    assert out.tolist() == [1.0, -0.5]


def test_tables_of_the_module_bits_and_what_stands_for_comparisons() -> None:
    text = (
        "T = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)\n@cuda.jit\ndef mixed(out, words):\n    i = cuda.grid(1)\n"
        "    t = cuda.const.array_like(T)\n    q, m = divmod(i - 3, 2)\n    out[i] = t[i % 2, 1] + T[0][0] + 10 * q + 100 * m\n"
        "    if i in (1, 3) or i not in [0, 1, 2, 3, 4, 5, 6]:\n        out[i] = cuda.brev(words[i])\n"
    )
    out, words = np.zeros(8), np.arange(8, dtype=np.uint32)
    made = launch(text, {"out": out, "words": words}, (1,), (8,))
    right = [(2.0, 4.0)[i % 2] + 1 + 10 * ((i - 3) // 2) + 100 * ((i - 3) % 2) for i in range(8)]
    for i in (1, 3, 7):
        right[i] = float(int(f"{i:032b}"[::-1], 2))
    assert out.tolist() == right and made.findings == []


def test_two_values_of_a_function_whose_lanes_return_apart() -> None:
    """The second return was every lane's: an answer that was wrong in silence."""
    text = (
        "from numba.cuda import libdevice\n@cuda.jit(device=True)\ndef ordered(a, b):\n    if a > b:\n        return b, a\n"
        "    return a, b\n\n@cuda.jit\ndef k(out, x):\n    i = cuda.grid(1)\n    low, high = ordered(x[i], x[63 - i])\n"
        "    total = 0.0\n    for j, c in enumerate((1.0, 2.0)):\n        total += j * c\n"
        "    same = cuda.popc(cuda.match_any_sync(0xffffffff, i % 4))\n"
        "    out[i] = 10.0 * high + low + 100.0 * total + 1000.0 * same + libdevice.fabsf(-1.0)\n"
    )
    out, x = np.zeros(64), np.random.default_rng(2).integers(0, 9, 64).astype(np.int32)
    launch(text, {"out": out, "x": x}, (1,), (64,), "k")
    assert out.tolist() == (10.0 * np.maximum(x, x[::-1]) + np.minimum(x, x[::-1]) + 8201.0).tolist()


def test_a_loop_that_lanes_leave_apart_and_values_of_and_and_or() -> None:
    text = (
        "@cuda.jit\ndef k(out, w):\n    i = cuda.grid(1)\n    for j in range(5):\n        if j == i % 7:\n            break\n"
        "    for m in range(w[i]):\n        pass\n    out[i] = j + 10 * (i % 2 and i % 3) + 100 * (i % 2 or 7) + 1000 * m\n"
    )
    out, w = np.zeros(64), np.arange(1, 65, dtype=np.int32)
    launch(text, {"out": out, "w": w}, (1,), (64,))
    right = [min(i % 7, 4) + 10 * ((i % 2) and (i % 3)) + 100 * ((i % 2) or 7) + 1000 * i for i in range(64)]
    assert out.tolist() == right


@pytest.mark.parametrize("choice", ["if i % 2:\n        a = y", "if i < 32:\n        a, b = b, a"])
def test_an_array_of_some_lanes_is_refused_for_the_others(choice: str) -> None:
    """All lanes read the last array, in silence."""
    text = f"@cuda.jit\ndef k(out, x, y):\n    i = cuda.grid(1)\n    a, b = x, y\n    {choice}\n    out[i] = a[i]\n"
    with pytest.raises(FieldError, match="another one in others"):
        launch(text, {"out": np.zeros(64), "x": np.zeros(64), "y": np.ones(64)}, (1,), (64,))
    inside = text.replace("    out[i] = a[i]", "        out[i] = a[i]")
    launch(inside, {"out": np.zeros(64), "x": np.zeros(64), "y": np.ones(64)}, (1,), (64,))


MAKER = """
WIDTH = 4

def make(scale, bias=1.0):
    half = scale / 2

    @cuda.jit(device=True)
    def scaled(v):
        return v * half

    @cuda.jit
    def k(out, x):
        i = cuda.grid(1)
        out[i] = scaled(x[i]) * WIDTH + bias
    return k

three = make(3.0)
"""


def made_by(text: str, name: str | None) -> list[float]:
    out = np.zeros(64)
    launch(text, {"out": out, "x": np.arange(64, dtype=F32)}, (1,), (64,), name)
    return out[:2].tolist()


def test_a_kernel_that_a_function_makes_and_gives_back() -> None:
    for name in (None, "k", "three"):
        assert made_by(MAKER, name) == [1.0, 7.0]
    two = MAKER + "five = make(5.0, bias=2.0)\n"
    assert made_by(two, "five") == [2.0, 12.0] and made_by(two, "three") == [1.0, 7.0]
    with pytest.raises(InputError, match="several kernels") as refused:
        made_by(two, "k")
    assert "three, five" in str(refused.value.hint)
    with pytest.raises(InputError, match="bias is a name of make and of the module"):
        made_by("bias = 5\n" + MAKER, None)


def test_complex_numbers_take_the_units_of_their_parts() -> None:
    source = """import cmath
def turned(x, out):
    i = cuda.grid(1)
    w = cmath.exp(x[i])
    out[i] = w * w / x[i] + abs(w)
"""
    counted = dict[str, dict[str, int]]()
    for kind in ("complex64", "complex128"):
        x, out = np.linspace(1, 2, 64).astype(kind) * (1 + 1j), np.zeros(64, kind)
        run = run_kernel(read_kernel(kernel_source(source, None)), {"x": x, "out": out}, grid=(1,), block=(64,))
        right = np.exp(x) ** 2 / x + np.abs(np.exp(x))
        assert np.abs(out - right).max() < 1e-5 * np.abs(right).max()
        counted[kind] = {op: sum(e.times for e in run.events if e.op == op) for op in ("fp32", "fp64")}
    assert counted["complex64"]["fp64"] == 0 < counted["complex64"]["fp32"]
    assert counted["complex128"]["fp32"] == 0 < counted["complex64"]["fp32"] < counted["complex128"]["fp64"]


SHAPES = """import numpy as np
TILE, SHAPE, SMALL = 8, (4, 8), np.int32(32)
def k(x, n):
    s = cuda.shared.array({}, float32)
    i = cuda.threadIdx.x
    x[i] = s.size
"""


@pytest.mark.parametrize("shape", ["TILE * 4", "SHAPE", "(TILE // 2, TILE)", "SMALL", "(4, 8)"])
def test_shapes_of_the_module_are_taken(shape: str) -> None:
    x = np.zeros(32, np.float32)
    run_kernel(read_kernel(kernel_source(SHAPES.format(shape), None)), {"x": x, "n": 32}, grid=(1,), block=(32,))
    assert (x == 32).all()


@pytest.mark.parametrize("shape", ["n", "cuda.blockDim.x", "x.shape[0]", "(TILE, n)"])
def test_shapes_that_only_the_launch_knows_are_refused(shape: str) -> None:
    with pytest.raises(FieldError, match=r"a number of the text or of the module"):
        run_kernel(
            read_kernel(kernel_source(SHAPES.format(shape), None)),
            {"x": np.zeros(32, np.float32), "n": 32},
            grid=(1,),
            block=(32,),
        )
