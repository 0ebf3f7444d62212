"""Tasks of the lab: a kernel in the form of :mod:`gpuwise.lab.kernel`, its launch, and the reference result from numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError, UnknownNameError

F32 = np.float32
Arrays = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Launch:
    """A task of one size: arguments, shape of the launch, the arrays that must come out, and the work in it."""

    arguments: Arrays
    grid: tuple[int, ...]
    block: tuple[int, ...]
    expected: Callable[[], Mapping[str, NDArray[Any]]]
    flop: float
    copied_bytes: float
    """In and out of the GPU, where the data lives on the CPU."""
    tolerance: float = 1e-4


@dataclass(frozen=True, slots=True)
class Task:
    """One task; ``source`` is its kernel and ``launch`` makes it for a size."""

    name: str
    text: str
    source: str
    usual: int
    """Size where none is given."""
    small: int
    """Size at which every block is run and checked."""
    most: int
    launch: Callable[[int], Launch]
    regs: int = 32
    """Registers a thread, for the occupancy: what compilers give such a kernel (a judgement; nvcc gives 10 to 40)."""
    item: str = "elements"
    """One unit of the work, in the plural."""
    power: int = 1
    """Of the size, for the number of units: 2 for a square matrix."""
    multiple: int = 1
    """What a size must be a multiple of."""

    def sizes(self, among: int) -> list[int]:
        """Sizes up to the default, each of about four times the elements of the one before, and ``among``."""
        step, size, made = 4 ** (1 / self.power), float(self.usual), {among}
        while size >= max(SMALLEST, self.multiple):
            made.add(int(size) // self.multiple * self.multiple)
            size /= step
        return sorted(made)


SMALLEST = 16
"""Of the sizes that are proposed."""


def _data(*shape: int, seed: int = 1) -> NDArray[Any]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=F32)


def _blocks(n: int, per: int) -> int:
    return -(-n // per)


def _vector_add(n: int) -> Launch:
    x, y = _data(n), _data(n, seed=2)
    out = np.zeros(n, F32)
    return Launch({"x": x, "y": y, "out": out, "n": n}, (_blocks(n, 256),), (256,), lambda: {"out": x + y}, n, 12.0 * n)


def _product(n: int) -> Launch:
    a, b = _data(n, n), _data(n, n, seed=2)
    arguments = {"a": a, "b": b, "c": np.zeros((n, n), F32), "n": n}
    grid = (_blocks(n, 16),) * 2
    return Launch(arguments, grid, (16, 16), lambda: {"c": a @ b}, 2.0 * n**3, 12.0 * n * n, 1e-3)


def _reduction(n: int) -> Launch:
    x = np.abs(_data(n))
    out = np.zeros(1, F32)
    return Launch(
        {"x": x, "out": out, "n": n}, (_blocks(n, 512),), (256,), lambda: {"out": x.sum(keepdims=True)}, n, 4.0 * n, 1e-3
    )


def _transpose(n: int) -> Launch:
    a = _data(n, n)
    arguments = {"a": a, "out": np.zeros((n, n), F32), "n": n}
    return Launch(arguments, (_blocks(n, 32),) * 2, (32, 8), lambda: {"out": a.T}, 0.0, 8.0 * n * n)


def _elementwise(n: int) -> Launch:
    x = _data(n)
    side = np.arange(n) % 2 == 0

    def expected() -> Mapping[str, NDArray[Any]]:
        even, odd = x.copy(), x.copy()
        for _ in range(16):
            even, odd = even * F32(0.5) + F32(1.0), odd * F32(0.25) - F32(1.0)
        return {"out": np.where(side, even, odd)}

    return Launch({"x": x, "out": np.zeros(n, F32), "n": n}, (_blocks(n, 256),), (256,), expected, 32.0 * n, 8.0 * n)


def _chain(n: int) -> Launch:
    x = _data(1)

    def expected() -> Mapping[str, NDArray[Any]]:
        value = x[0]
        for _ in range(n):
            value = value * F32(0.5) + F32(1.0)
        return {"out": np.array([value], F32)}

    return Launch({"x": x, "out": np.zeros(1, F32), "n": n}, (1,), (1,), expected, 2.0 * n, 8.0)


def _gather(n: int) -> Launch:
    x = _data(n)
    index = np.random.default_rng(3).permutation(n).astype(np.int32)
    arguments = {"x": x, "index": index, "out": np.zeros(n, F32), "n": n}
    return Launch(arguments, (_blocks(n, 256),), (256,), lambda: {"out": x[index]}, 0.0, 12.0 * n)


def _softmax(rows: int) -> Launch:
    x = _data(rows, 512)

    def expected() -> Mapping[str, NDArray[Any]]:
        e = np.exp(x - x.max(1, keepdims=True))
        return {"out": e / e.sum(1, keepdims=True)}

    return Launch({"x": x, "out": np.zeros_like(x), "rows": rows}, (rows,), (128,), expected, 5.0 * x.size, 8.0 * x.size)


HEAD = 32


def _attention(n: int) -> Launch:
    q, k, v = (_data(n, HEAD, seed=s) for s in (1, 2, 3))

    def expected() -> Mapping[str, NDArray[Any]]:
        s = q @ k.T / math.sqrt(HEAD)
        e = np.exp(s - s.max(1, keepdims=True))
        return {"out": (e / e.sum(1, keepdims=True)) @ v}

    arguments = {"q": q, "k": k, "v": v, "out": np.zeros_like(q), "n": n}
    return Launch(arguments, (_blocks(n, 64),), (64,), expected, 4.0 * n * n * HEAD, 16.0 * n * HEAD, 1e-3)


def _attention_scores(n: int) -> Launch:
    made = _attention(n)
    arguments = made.arguments | {"scores": np.zeros((n, n), F32)}
    return Launch(arguments, made.grid, made.block, made.expected, made.flop, made.copied_bytes, made.tolerance)


def _convolution(n: int) -> Launch:
    x, w = _data(n, n), _data(3, 3, seed=2)

    def expected() -> Mapping[str, NDArray[Any]]:
        padded = np.pad(x, 1)
        return {"out": sum((w[i, j] * padded[i : i + n, j : j + n] for i in range(3) for j in range(3)), np.zeros((n, n), F32))}

    arguments = {"x": x, "w": w, "out": np.zeros((n, n), F32), "n": n}
    return Launch(arguments, (_blocks(n, 32), _blocks(n, 8)), (32, 8), expected, 18.0 * n * n, 8.0 * n * n, 1e-3)


_ADD = """
def vector_add(x, y, out, n):
    i = cuda.grid(1)
    if i < n:
        out[i] = x[i] + y[i]
"""
_NAIVE = """
def matmul_naive(a, b, c, n):
    column, row = cuda.grid(2)
    if row < n and column < n:
        total = float32(0.0)
        for k in range(n):
            total += a[row, k] * b[k, column]
        c[row, column] = total
"""
_TILED = """
def matmul_tiled(a, b, c, n):
    tile_a = cuda.shared.array((16, 16), float32)
    tile_b = cuda.shared.array((16, 16), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    total = float32(0.0)
    for t in range(0, n, 16):
        tile_a[y, x] = a[row, t + x] if row < n and t + x < n else float32(0.0)
        tile_b[y, x] = b[t + y, column] if t + y < n and column < n else float32(0.0)
        cuda.syncthreads()
        for k in range(16):
            total += tile_a[y, k] * tile_b[k, x]
        cuda.syncthreads()
    if row < n and column < n:
        c[row, column] = total
"""
_SUM = """
def reduction(x, out, n):
    sums = cuda.shared.array(8, float32)
    thread = cuda.threadIdx.x
    i = cuda.blockIdx.x * 512 + thread
    value = float32(0.0)
    if i < n:
        value = x[i]
    if i + 256 < n:
        value += x[i + 256]
    for step in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(0xffffffff, value, step)
    if thread % 32 == 0:
        sums[thread // 32] = value
    cuda.syncthreads()
    if thread < 8:
        value = sums[thread]
        for step in (4, 2, 1):
            value += cuda.shfl_down_sync(0xff, value, step)
        if thread == 0:
            cuda.atomic.add(out, 0, value)
"""
_TRANSPOSE = """
def transpose{name}(a, out, n):
    tile = cuda.shared.array((32, {width}), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    column = cuda.blockIdx.x * 32 + x
    row = cuda.blockIdx.y * 32 + y
    for j in range(0, 32, 8):
        if row + j < n and column < n:
            tile[y + j, x] = a[row + j, column]
    cuda.syncthreads()
    column = cuda.blockIdx.y * 32 + x
    row = cuda.blockIdx.x * 32 + y
    for j in range(0, 32, 8):
        if row + j < n and column < n:
            out[row + j, column] = tile[x, y + j]
"""
_DIVERGENCE = """
def divergence(x, out, n):
    i = cuda.grid(1)
    if i < n:
        value = x[i]
        if i % 2 == 0:
            for k in range(16):
                value = value * float32(0.5) + float32(1.0)
        else:
            for k in range(16):
                value = value * float32(0.25) - float32(1.0)
        out[i] = value
"""
_CHAIN = """
def chain(x, out, n):
    value = x[0]
    for k in range(n):
        value = value * float32(0.5) + float32(1.0)
    out[0] = value
"""
_GATHER = """
def gather(x, index, out, n):
    i = cuda.grid(1)
    if i < n:
        out[i] = x[index[i]]
"""
_SOFTMAX = """
def softmax(x, out, rows):
    parts = cuda.shared.array(4, float32)
    thread, row = cuda.threadIdx.x, cuda.blockIdx.x
    most = float32(-1e30)
    for j in range(0, 512, 128):
        most = max(most, x[row, j + thread])
    for step in (16, 8, 4, 2, 1):
        most = max(most, cuda.shfl_xor_sync(0xffffffff, most, step))
    if thread % 32 == 0:
        parts[thread // 32] = most
    cuda.syncthreads()
    most = max(max(parts[0], parts[1]), max(parts[2], parts[3]))
    cuda.syncthreads()
    total = float32(0.0)
    for j in range(0, 512, 128):
        total += math.exp(x[row, j + thread] - most)
    for step in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xffffffff, total, step)
    if thread % 32 == 0:
        parts[thread // 32] = total
    cuda.syncthreads()
    total = (parts[0] + parts[1]) + (parts[2] + parts[3])
    for j in range(0, 512, 128):
        out[row, j + thread] = math.exp(x[row, j + thread] - most) / total
"""
_FUSED = """
def attention_fused(q, k, v, out, n):
    keys = cuda.shared.array((32, 32), float32)
    values = cuda.shared.array((32, 32), float32)
    thread = cuda.threadIdx.x
    row = cuda.grid(1)
    most, total = float32(-1e30), float32(0.0)
    query, result = cuda.local.array(32, float32), cuda.local.array(32, float32)
    if row < n:
        for d in range(32):
            query[d] = q[row, d]
            result[d] = float32(0.0)
    for first in range(0, n, 32):
        for j in range(0, 32, 2):
            keys[j + thread // 32, thread % 32] = k[first + j + thread // 32, thread % 32]
            values[j + thread // 32, thread % 32] = v[first + j + thread // 32, thread % 32]
        cuda.syncthreads()
        for j in range(32):
            score = float32(0.0)
            for d in range(32):
                score += query[d] * keys[j, d]
            score = score * float32(0.17677669)
            new = max(most, score)
            old_share, share = math.exp(most - new), math.exp(score - new)
            total = total * old_share + share
            for d in range(32):
                result[d] = result[d] * old_share + share * values[j, d]
            most = new
        cuda.syncthreads()
    if row < n:
        for d in range(32):
            out[row, d] = result[d] / total
"""
_SCORES = """
def attention_scores(q, k, v, out, scores, n):
    row = cuda.grid(1)
    if row < n:
        most, total = float32(-1e30), float32(0.0)
        for j in range(n):
            score = float32(0.0)
            for d in range(32):
                score += q[row, d] * k[j, d]
            score = score * float32(0.17677669)
            scores[row, j] = score
            most = max(most, score)
        for j in range(n):
            total += math.exp(scores[row, j] - most)
        for d in range(32):
            result = float32(0.0)
            for j in range(n):
                result += math.exp(scores[row, j] - most) * v[j, d]
            out[row, d] = result / total
"""
_CONVOLUTION = """
def convolution(x, w, out, n):
    column, row = cuda.grid(2)
    if row < n and column < n:
        total = float32(0.0)
        for i in range(3):
            for j in range(3):
                y, z = row + i - 1, column + j - 1
                if y >= 0 and y < n and z >= 0 and z < n:
                    total += w[i, j] * x[y, z]
        out[row, column] = total
"""

_MANY, _WIDE = 1 << 26, 16384
TASKS: Mapping[str, Task] = {
    t.name: t
    for t in (
        Task("vector-add", "out = x + y", _ADD, 1 << 22, 100_000, _MANY, _vector_add, 16, "sums"),
        Task(
            "matmul-naive",
            "C = A B, each thread one element from memory",
            _NAIVE,
            512,
            64,
            4096,
            _product,
            32,
            power=2,
        ),
        Task(
            "matmul-tiled",
            "C = A B by tiles of 16 x 16 in shared memory",
            _TILED,
            512,
            64,
            4096,
            _product,
            38,
            power=2,
        ),
        Task(
            "reduction",
            "the sum of x: shuffles, shared memory, one atomic a block",
            _SUM,
            1 << 22,
            50_000,
            _MANY,
            _reduction,
            16,
        ),
        Task(
            "transpose",
            "A^T through a tile of 32 x 32",
            _TRANSPOSE.format(name="", width=32),
            2048,
            100,
            _WIDE,
            _transpose,
            24,
            power=2,
        ),
        Task(
            "transpose-padded",
            "the same with a tile of 32 x 33",
            _TRANSPOSE.format(name="_padded", width=33),
            2048,
            100,
            _WIDE,
            _transpose,
            24,
            power=2,
        ),
        Task("divergence", "even and odd lanes go different ways", _DIVERGENCE, 1 << 21, 10_000, _MANY, _elementwise, 16),
        Task("chain", "one long chain: each step needs the one before", _CHAIN, 4096, 64, 32768, _chain, 16, "steps"),
        Task("gather", "out = x[index], at random", _GATHER, 1 << 21, 20_000, _MANY, _gather, 16),
        Task("softmax", "rows of 512, one block each", _SOFTMAX, 8192, 40, 1 << 17, _softmax, 24, "rows"),
        Task(
            "attention-scores",
            "one head of 32: scores written to memory and read back",
            _SCORES,
            64,
            64,
            320,
            _attention_scores,
            40,
            "tokens",
        ),
        Task(
            "attention-fused",
            "the same, scores kept in registers (online softmax)",
            _FUSED,
            64,
            64,
            576,
            _attention,
            96,
            "tokens",
            multiple=32,
        ),
        Task("convolution", "3 x 3 over an image, zeros around", _CONVOLUTION, 1024, 70, _WIDE, _convolution, 32, "pixels", 2),
    )
}
"""Every task by name."""


def find_task(name: str) -> Task:
    """Raises UnknownNameError with the nearest."""
    found = TASKS.get(name.strip().lower().replace("_", "-"))
    if found is None:
        raise UnknownNameError("task", name[:100], TASKS, hint="it is one of " + ", ".join(TASKS))
    return found


def launch_of(task: Task, size: int | None) -> Launch:
    """The task of ``size``. Raises InputError for one that does not fit in this machine's memory."""
    n = task.usual if size is None else size
    if not 1 <= n <= task.most:
        raise InputError(f"{task.name} of size {n:,}", hint=f"a size is from 1 to {task.most:,}")
    if n % (step := task.multiple):
        raise InputError(f"{task.name} of {n:,} rows", hint=f"its tiles hold {step} rows: give a multiple of {step}")
    return task.launch(n)
