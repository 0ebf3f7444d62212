"""Ten more kernels as a learner types them for numba, of kinds that the other tables have not, each with numpy's values.

python -m benchmarks.lab.algorithms
"""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.lab.textbooks import Chapter, ask

F32, I32 = np.float32, np.int32
dice = np.random.default_rng(29)

FFT = """
import cmath
from numba import cuda, complex64
N, LOG_N = 256, 8

@cuda.jit
def fft(x, out):
    s = cuda.shared.array(N, complex64)
    t = cuda.threadIdx.x
    row = cuda.blockIdx.x
    for i in range(t, N, cuda.blockDim.x):
        rev = 0
        v = i
        for b in range(LOG_N):
            rev = (rev << 1) | (v & 1)
            v >>= 1
        s[rev] = x[row, i]
    cuda.syncthreads()
    half = 1
    while half < N:
        k = t % half
        j = (t // half) * 2 * half + k
        w = cmath.exp(-1j * cmath.pi * k / half)
        a = s[j]
        b = w * s[j + half]
        s[j] = a + b
        s[j + half] = a - b
        half *= 2
        cuda.syncthreads()
    for i in range(t, N, cuda.blockDim.x):
        out[row, i] = s[i]
"""

EDIT = """
from numba import cuda, int32

@cuda.jit
def levenshtein(a, b, table, result):
    i = cuda.threadIdx.x
    m, n = len(a), len(b)
    if i <= m:
        table[i, 0] = i
    if i <= n:
        table[0, i] = i
    cuda.syncthreads()
    for d in range(2, m + n + 1):
        j = d - (i + 1)
        if i < m and 1 <= j <= n:
            cost = 0 if a[i] == b[j - 1] else 1
            table[i + 1, j] = min(table[i, j] + 1, table[i + 1, j - 1] + 1, table[i, j - 1] + cost)
        cuda.syncthreads()
    if i == 0:
        result[0] = table[m, n]
"""

GAUSS = """
from numba import cuda, float32

@cuda.jit
def solve(A, b, x):
    m = cuda.shared.array((16, 17), dtype=float32)
    r, c = cuda.threadIdx.y, cuda.threadIdx.x
    system = cuda.blockIdx.x
    m[r, c] = A[system, r, c] if c < 16 else b[system, r]
    cuda.syncthreads()
    for p in range(16):
        pivot = m[p, p]
        factor = m[r, p] / pivot
        row = m[p, c]
        cuda.syncthreads()
        if r != p:
            m[r, c] -= factor * row
        else:
            m[r, c] = row / pivot
        cuda.syncthreads()
    if c == 16:
        x[system, r] = m[r, 16]
"""

WARP_SCAN = """
from numba import cuda, int32
FULL = 0xffffffff

@cuda.jit(device=True)
def warp_inclusive(value, lane):
    for offset in (1, 2, 4, 8, 16):
        other = cuda.shfl_up_sync(FULL, value, offset)
        if lane >= offset:
            value += other
    return value

@cuda.jit
def scan(data, out):
    sums = cuda.shared.array(32, int32)
    i = cuda.grid(1)
    lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
    value = data[i] if i < data.size else 0
    value = warp_inclusive(value, lane)
    if lane == 31:
        sums[warp] = value
    cuda.syncthreads()
    if warp == 0:
        total = sums[lane] if lane < cuda.blockDim.x // 32 else 0
        sums[lane] = warp_inclusive(total, lane)
    cuda.syncthreads()
    if warp > 0:
        value += sums[warp - 1]
    if i < data.size:
        out[i] = value
"""

BITONIC = """
from numba import cuda, float32

@cuda.jit
def sort_rows(x):
    keys = cuda.shared.array(512, float32)
    tid = cuda.threadIdx.x
    keys[tid] = x[cuda.blockIdx.x, tid]
    keys[tid + 256] = x[cuda.blockIdx.x, tid + 256]
    size = 2
    while size <= 512:
        stride = size // 2
        while stride > 0:
            cuda.syncthreads()
            pos = 2 * tid - (tid & (stride - 1))
            ascending = (tid & (size // 2)) == 0 or size == 512
            a, b = keys[pos], keys[pos + stride]
            if (a > b) == ascending:
                keys[pos], keys[pos + stride] = b, a
            stride >>= 1
        size <<= 1
    cuda.syncthreads()
    x[cuda.blockIdx.x, tid] = keys[tid]
    x[cuda.blockIdx.x, tid + 256] = keys[tid + 256]
"""

XORSHIFT = """
from numba import cuda, uint32, float32

@cuda.jit
def throw(seeds, hits):
    i = cuda.grid(1)
    if i >= seeds.shape[0]:
        return
    state = uint32(seeds[i])
    inside = 0
    for _ in range(50):
        state ^= uint32(state << uint32(13))
        state ^= state >> uint32(17)
        state ^= uint32(state << uint32(5))
        x = float32(state & uint32(0xffff)) / float32(65536.0)
        y = float32(state >> uint32(16)) / float32(65536.0)
        inside += x * x + y * y < 1.0
    seeds[i] = state
    cuda.atomic.add(hits, 0, inside)
"""

QUEENS = """
from numba import cuda, int32
N = 7

@cuda.jit
def queens(solutions):
    first = cuda.threadIdx.x
    if first >= N:
        return
    place = cuda.local.array(N, int32)
    place[0] = first
    row, col = 1, 0
    found = 0
    while row > 0:
        ok = False
        while col < N and not ok:
            ok = True
            for r in range(row):
                d = place[r] - col
                if d == 0 or d == row - r or d == r - row:
                    ok = False
                    break
            if not ok:
                col += 1
        if ok and row == N - 1:
            found += 1
            ok = False
        if ok:
            place[row] = col
            row += 1
            col = 0
        else:
            row -= 1
            col = place[row] + 1
    solutions[first] = found
"""

HASH = """
from numba import cuda
EMPTY = -1

@cuda.jit
def insert(keys, table, counts):
    i = cuda.grid(1)
    if i < keys.size:
        key = keys[i]
        slot = (key * 2654435761) % table.size
        done = False
        while not done:
            old = cuda.atomic.cas(table, slot, EMPTY, key)
            if old == EMPTY or old == key:
                cuda.atomic.add(counts, slot, 1)
                done = True
            else:
                slot = (slot + 1) % table.size
"""

INT8 = """
from numba import cuda, int8, int32
TILE = 16

@cuda.jit
def quantized(a, b, scale_a, scale_b, out):
    sa = cuda.shared.array(shape=(TILE, TILE), dtype=int8)
    sb = cuda.shared.array(shape=(TILE, TILE), dtype=int8)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * TILE + ty, cuda.blockIdx.x * TILE + tx
    acc = int32(0)
    for step in range(a.shape[1] // TILE):
        sa[ty, tx] = a[row, step * TILE + tx]
        sb[ty, tx] = b[step * TILE + ty, col]
        cuda.syncthreads()
        for k in range(TILE):
            acc += int32(sa[ty, k]) * int32(sb[k, tx])
        cuda.syncthreads()
    out[row, col] = acc * scale_a[row] * scale_b[col]
"""

HEAT3D = """
from numba import cuda

@cuda.jit
def heat(u, out, alpha):
    z, y, x = cuda.grid(3)
    nz, ny, nx = u.shape
    if 0 < z < nz - 1 and 0 < y < ny - 1 and 0 < x < nx - 1:
        center = u[z, y, x]
        lap = u[z - 1, y, x] + u[z + 1, y, x] + u[z, y - 1, x] + u[z, y + 1, x] + u[z, y, x - 1] + u[z, y, x + 1] - 6 * center
        out[z, y, x] = center + alpha * lap
    elif z < nz and y < ny and x < nx:
        out[z, y, x] = u[z, y, x]
"""


def edit_distance(g: dict[str, Any]) -> dict[str, Any]:
    a, b = g["a"], g["b"]
    t = np.zeros((len(a) + 1, len(b) + 1), I32)
    t[:, 0], t[0] = np.arange(len(a) + 1), np.arange(len(b) + 1)
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            t[i, j] = min(t[i - 1, j] + 1, t[i, j - 1] + 1, t[i - 1, j - 1] + (a[i - 1] != b[j - 1]))
    return {"table": t, "result": t[-1:, -1].copy()}


def solved(g: dict[str, Any]) -> dict[str, Any]:
    return {"x": np.linalg.solve(g["A"].astype(float), g["b"].astype(float)[..., None])[..., 0]}


def scanned(g: dict[str, Any]) -> dict[str, Any]:
    whole = np.zeros(3 * 256, np.int64)
    whole[: len(g["data"])] = g["data"]
    return {"out": np.cumsum(whole.reshape(-1, 256), 1).reshape(-1)[: len(g["data"])]}


def thrown(g: dict[str, Any]) -> dict[str, Any]:
    state, hits = g["seeds"].astype(np.uint32), 0
    for _ in range(50):
        state ^= state << np.uint32(13)
        state ^= state >> np.uint32(17)
        state ^= state << np.uint32(5)
        x, y = (state & 0xFFFF).astype(F32) / F32(65536), (state >> 16).astype(F32) / F32(65536)
        hits += int((x * x + y * y < 1).sum())
    return {"seeds": state, "hits": np.array([hits], np.int64)}


def counted(g: dict[str, Any]) -> dict[str, Any]:
    """In one order or another: of each key, how often it stands there."""
    keys, times = np.unique(g["keys"], return_counts=True)
    return {"sum": np.array([len(keys), int((keys * times).sum())])}


def heated(g: dict[str, Any]) -> dict[str, Any]:
    u = g["u"].astype(float)
    out, c = u.copy(), u[1:-1, 1:-1, 1:-1]
    around = (
        u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1] + u[1:-1, 2:, 1:-1] + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:]
    )
    out[1:-1, 1:-1, 1:-1] = c + g["alpha"] * (around - 6 * c)
    return {"out": out}


def bytes_of(text: bytes) -> Any:
    return np.frombuffer(text, np.uint8).copy()


def chapters() -> tuple[Chapter, ...]:
    def f(*shape: int) -> Any:
        return dice.random(shape, dtype=F32)

    wave = (f(3, 256) - 0.5 + 1j * (f(3, 256) - 0.5)).astype(np.complex64)
    a8, b8 = (dice.integers(-127, 128, (48, 48)).astype(np.int8) for _ in range(2))
    return (
        Chapter(
            "Fourier transform, radix 2 in shared memory",
            FFT,
            {"x": wave, "out": np.zeros_like(wave)},
            (3,),
            (128,),
            lambda g: {"out": np.fft.fft(g["x"], axis=1)},
        ),
        Chapter(
            "edit distance by diagonals",
            EDIT,
            {
                "a": bytes_of(b"the lab simulates one multiprocessor"),
                "b": bytes_of(b"a lab imitated the multiprocessors"),
                "table": np.zeros((37, 35), I32),
                "result": np.zeros(1, I32),
            },
            (1,),
            (64,),
            edit_distance,
        ),
        Chapter(
            "Gauss and Jordan in shared memory",
            GAUSS,
            {"A": f(6, 16, 16) + 8 * np.eye(16, dtype=F32), "b": f(6, 16), "x": np.zeros((6, 16), F32)},
            (6,),
            (17, 16),
            solved,
        ),
        Chapter(
            "running sums by shuffles",
            WARP_SCAN,
            {"data": dice.integers(0, 50, 700).astype(I32), "out": np.zeros(700, I32)},
            (3,),
            (256,),
            scanned,
        ),
        Chapter("rows sorted whole, bitonic", BITONIC, {"x": f(5, 512)}, (5,), (256,), lambda g: {"x": np.sort(g["x"], axis=1)}),
        Chapter(
            "numbers of xorshift",
            XORSHIFT,
            {"seeds": dice.integers(1, 2**32, 300).astype(np.uint32), "hits": np.zeros(1, np.int64)},
            (3,),
            (128,),
            thrown,
        ),
        Chapter(
            "queens, depth first",
            QUEENS,
            {"solutions": np.zeros(7, I32)},
            (1,),
            (32,),
            lambda g: {"solutions": np.array([4, 7, 6, 6, 6, 7, 4])},
        ),
        Chapter(
            "a hash table by compare and swap",
            HASH,
            {"keys": dice.integers(0, 200, 500), "table": np.full(512, -1), "counts": np.zeros(512, np.int64)},
            (4,),
            (128,),
            lambda g: {},
        ),
        Chapter(
            "a product of int8 with scales",
            INT8,
            {"a": a8, "b": b8, "scale_a": f(48), "scale_b": f(48), "out": np.zeros((48, 48), F32)},
            (3, 3),
            (16, 16),
            lambda g: {
                "out": (g["a"].astype(float) @ g["b"].astype(float))
                * g["scale_a"][:, None].astype(float)
                * g["scale_b"].astype(float)
            },
        ),
        Chapter(
            "heat in three dimensions",
            HEAT3D,
            {"u": f(12, 20, 18), "out": np.zeros((12, 20, 18), F32), "alpha": 0.125},
            (3, 5, 5),
            (4, 4, 4),
            heated,
        ),
    )


def main() -> None:
    print("| kernel | values | found |\n|---|---|---|")
    for chapter in chapters():
        kept = {n: v.copy() for n, v in chapter.arguments.items() if isinstance(v, np.ndarray)}
        if "keys" not in kept:
            print(f"| {chapter.name} | {ask(chapter)} |")
            continue
        said = ask(
            Chapter(chapter.name, chapter.text, chapter.arguments, chapter.grid, chapter.block, lambda g: {"keys": g["keys"]})
        )
        table, counts = chapter.arguments["table"], chapter.arguments["counts"]
        got = np.array([int((table >= 0).sum()), int((table * counts)[table >= 0].sum())])
        right = counted(kept)["sum"]
        print(f"| {chapter.name} | {said} | {'counts equal' if (got == right).all() else f'{got} for {right}'}")


if __name__ == "__main__":
    main()
