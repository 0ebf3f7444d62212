"""Kernels of textbooks as a learner types them for numba, each with numpy's values: what the lab makes of them.

    python -m benchmarks.lab.textbooks

Written anew after the chapters of *Programming Massively Parallel Processors* (blur, stencil, histogram, segmented sums, scan,
merge, radix sort, sparse rows, frontiers, potentials), *CUDA by Example* (Julia set, spheres) and numba's manual (records).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.lab.simulation import simulate_kernel
from gpuwise.lab.source import kernel_source

F32, I32 = np.float32, np.int32
dice = np.random.default_rng(11)


@dataclass(frozen=True)
class Chapter:
    """A file with its kernel, its launch, and what must come out by name."""

    name: str
    text: str
    arguments: dict[str, Any]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    expected: Callable[[dict[str, Any]], dict[str, Any]]


BLUR = """
from numba import cuda
BLUR_SIZE = 1

@cuda.jit
def blur(inp, out):
    row, col = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    h, w = inp.shape
    if col < w and row < h:
        pix_val = 0
        pixels = 0
        for blur_row in range(-BLUR_SIZE, BLUR_SIZE + 1):
            for blur_col in range(-BLUR_SIZE, BLUR_SIZE + 1):
                cur_row = row + blur_row
                cur_col = col + blur_col
                if 0 <= cur_row < h and 0 <= cur_col < w:
                    pix_val += inp[cur_row, cur_col]
                    pixels += 1
        out[row, col] = pix_val // pixels
"""

STENCIL = """
from numba import cuda, float32
OUT_TILE_DIM = 6
IN_TILE_DIM = OUT_TILE_DIM + 2
c0, c1 = 0.5, 0.1

@cuda.jit
def stencil(inp, out, N):
    iStart = cuda.blockIdx.z * OUT_TILE_DIM
    j = cuda.blockIdx.y * OUT_TILE_DIM + cuda.threadIdx.y - 1
    k = cuda.blockIdx.x * OUT_TILE_DIM + cuda.threadIdx.x - 1
    inCurr_s = cuda.shared.array((IN_TILE_DIM, IN_TILE_DIM), dtype=float32)
    ty, tx = cuda.threadIdx.y, cuda.threadIdx.x
    inPrev = float32(0.0)
    inCurr = float32(0.0)
    if iStart - 1 >= 0 and iStart - 1 < N and j >= 0 and j < N and k >= 0 and k < N:
        inPrev = inp[iStart - 1, j, k]
    if iStart >= 0 and iStart < N and j >= 0 and j < N and k >= 0 and k < N:
        inCurr = inp[iStart, j, k]
        inCurr_s[ty, tx] = inCurr
    for i in range(iStart, iStart + OUT_TILE_DIM):
        inNext = float32(0.0)
        if i + 1 >= 0 and i + 1 < N and j >= 0 and j < N and k >= 0 and k < N:
            inNext = inp[i + 1, j, k]
        cuda.syncthreads()
        if i >= 1 and i < N - 1 and j >= 1 and j < N - 1 and k >= 1 and k < N - 1:
            if ty >= 1 and ty < IN_TILE_DIM - 1 and tx >= 1 and tx < IN_TILE_DIM - 1:
                out[i, j, k] = c0 * inCurr + c1 * (inCurr_s[ty, tx - 1] + inCurr_s[ty, tx + 1] + inCurr_s[ty + 1, tx]
                                                   + inCurr_s[ty - 1, tx] + inPrev + inNext)
        cuda.syncthreads()
        inPrev = inCurr
        inCurr = inNext
        inCurr_s[ty, tx] = inNext
"""

LETTERS = """
import numpy as np
from numba import cuda
NUM_BINS = 7

@cuda.jit
def histo_kernel(data, length, histo):
    histo_s = cuda.shared.array(NUM_BINS, dtype=np.uint32)
    for b in range(cuda.threadIdx.x, NUM_BINS, cuda.blockDim.x):
        histo_s[b] = 0
    cuda.syncthreads()
    accumulator = 0
    prev_bin = -1
    tid = cuda.grid(1)
    i = tid
    while i < length:
        alphabet_position = data[i] - ord('a')
        if alphabet_position >= 0 and alphabet_position < 26:
            cur_bin = alphabet_position // 4
            if cur_bin == prev_bin:
                accumulator += 1
            else:
                if accumulator > 0:
                    cuda.atomic.add(histo_s, prev_bin, accumulator)
                accumulator = 1
                prev_bin = cur_bin
        i += cuda.blockDim.x * cuda.gridDim.x
    if accumulator > 0:
        cuda.atomic.add(histo_s, prev_bin, accumulator)
    cuda.syncthreads()
    for b in range(cuda.threadIdx.x, NUM_BINS, cuda.blockDim.x):
        value = histo_s[b]
        if value > 0:
            cuda.atomic.add(histo, b, value)
"""

SEGMENTS = """
from numba import cuda, float32
BLOCK_DIM = 128
COARSE_FACTOR = 4

@cuda.jit
def coarsened_sum(inp, output):
    input_s = cuda.shared.array(shape=BLOCK_DIM, dtype=float32)
    segment = COARSE_FACTOR * 2 * cuda.blockDim.x * cuda.blockIdx.x
    i = segment + cuda.threadIdx.x
    t = cuda.threadIdx.x
    total = inp[i]
    for tile in range(1, COARSE_FACTOR * 2):
        total += inp[i + tile * BLOCK_DIM]
    input_s[t] = total
    stride = cuda.blockDim.x // 2
    while stride >= 1:
        cuda.syncthreads()
        if t < stride:
            input_s[t] += input_s[t + stride]
        stride //= 2
    if t == 0:
        cuda.atomic.add(output, 0, input_s[0])
"""

BRENT_KUNG = """
from numba import cuda, float32

SECTION_SIZE = 256

@cuda.jit
def brent_kung_scan(X, Y, N):
    XY = cuda.shared.array(SECTION_SIZE, float32)
    i = 2 * cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    tx = cuda.threadIdx.x
    bd = cuda.blockDim.x
    if i < N:
        XY[tx] = X[i]
    else:
        XY[tx] = 0.0
    if i + bd < N:
        XY[tx + bd] = X[i + bd]
    else:
        XY[tx + bd] = 0.0
    stride = 1
    while stride <= bd:
        cuda.syncthreads()
        index = (tx + 1) * 2 * stride - 1
        if index < SECTION_SIZE:
            XY[index] += XY[index - stride]
        stride *= 2
    stride = SECTION_SIZE // 4
    while stride > 0:
        cuda.syncthreads()
        index = (tx + 1) * stride * 2 - 1
        if index + stride < SECTION_SIZE:
            XY[index + stride] += XY[index]
        stride //= 2
    cuda.syncthreads()
    if i < N:
        Y[i] = XY[tx]
    if i + bd < N:
        Y[i + bd] = XY[tx + bd]
"""

MERGE = """
from numba import cuda

@cuda.jit(device=True)
def co_rank(k, A, m, B, n):
    i = min(k, m)
    j = k - i
    i_low = max(0, k - n)
    j_low = max(0, k - m)
    active = True
    while active:
        if i > 0 and j < n and A[i - 1] > B[j]:
            delta = (i - i_low + 1) >> 1
            j_low = j
            j = j + delta
            i = i - delta
        elif j > 0 and i < m and B[j - 1] >= A[i]:
            delta = (j - j_low + 1) >> 1
            i_low = i
            i = i + delta
            j = j - delta
        else:
            active = False
    return i

@cuda.jit(device=True)
def merge_sequential(A, m, B, n, C):
    i = 0
    j = 0
    k = 0
    while i < m and j < n:
        if A[i] <= B[j]:
            C[k] = A[i]
            i += 1
        else:
            C[k] = B[j]
            j += 1
        k += 1
    if i == m:
        while j < n:
            C[k] = B[j]
            k += 1
            j += 1
    else:
        while i < m:
            C[k] = A[i]
            k += 1
            i += 1

@cuda.jit
def merge_basic_kernel(A, m, B, n, C):
    tid = cuda.grid(1)
    elements_per_thread = (m + n + cuda.blockDim.x * cuda.gridDim.x - 1) // (cuda.blockDim.x * cuda.gridDim.x)
    k_curr = min(tid * elements_per_thread, m + n)
    k_next = min((tid + 1) * elements_per_thread, m + n)
    i_curr = co_rank(k_curr, A, m, B, n)
    i_next = co_rank(k_next, A, m, B, n)
    j_curr = k_curr - i_curr
    j_next = k_next - i_next
    merge_sequential(A[i_curr:i_next], i_next - i_curr, B[j_curr:j_next], j_next - j_curr, C[k_curr:k_next])
"""

RADIX = """
import numba
from numba import cuda

@cuda.jit
def radix_sort_block(keys, bits):
    tid = cuda.threadIdx.x
    n = cuda.blockDim.x
    scan = cuda.shared.array(128, numba.int32)
    sorted_keys = cuda.shared.array(128, numba.uint32)
    base = cuda.blockIdx.x * n
    key = keys[base + tid]
    for it in range(bits):
        bit = (key >> it) & 1
        scan[tid] = bit
        cuda.syncthreads()
        offset = 1
        while offset < n:
            add = 0
            if tid >= offset:
                add = scan[tid - offset]
            cuda.syncthreads()
            scan[tid] += add
            cuda.syncthreads()
            offset <<= 1
        ones_before = scan[tid] - bit
        ones_total = scan[n - 1]
        dst = tid - ones_before if bit == 0 else n - ones_total + ones_before
        sorted_keys[dst] = key
        cuda.syncthreads()
        key = sorted_keys[tid]
        cuda.syncthreads()
    keys[base + tid] = key
"""

ELL = """
from numba import cuda

@cuda.jit
def spmv_hybrid(ell_values, ell_columns, nnz_per_row, coo_row, coo_col, coo_val, x, y):
    row = cuda.grid(1)
    num_rows = nnz_per_row.shape[0]
    if row < num_rows:
        total = 0.0
        for t in range(nnz_per_row[row]):
            i = t * num_rows + row
            total += x[ell_columns[i]] * ell_values[i]
        cuda.atomic.add(y, row, total)
    if row < len(coo_val):
        cuda.atomic.add(y, coo_row[row], x[coo_col[row]] * coo_val[row])
"""

BFS = """
from numba import cuda, int32
LOCAL_FRONTIER_CAPACITY = 16
UNVISITED = 0xffffffff

@cuda.jit
def bfs_kernel(src_ptrs, dst, level, prev_frontier, curr_frontier, num_prev, num_curr, curr_level):
    curr_frontier_s = cuda.shared.array(LOCAL_FRONTIER_CAPACITY, int32)
    num_curr_s = cuda.shared.array(1, int32)
    start_s = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        num_curr_s[0] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < num_prev:
        vertex = prev_frontier[i]
        for edge in range(src_ptrs[vertex], src_ptrs[vertex + 1]):
            neighbour = dst[edge]
            if cuda.atomic.cas(level, neighbour, UNVISITED, curr_level) == UNVISITED:
                idx = cuda.atomic.add(num_curr_s, 0, 1)
                if idx < LOCAL_FRONTIER_CAPACITY:
                    curr_frontier_s[idx] = neighbour
                else:
                    num_curr_s[0] = LOCAL_FRONTIER_CAPACITY
                    curr_frontier[cuda.atomic.add(num_curr, 0, 1)] = neighbour
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        start_s[0] = cuda.atomic.add(num_curr, 0, min(num_curr_s[0], LOCAL_FRONTIER_CAPACITY))
    cuda.syncthreads()
    for j in range(cuda.threadIdx.x, min(num_curr_s[0], LOCAL_FRONTIER_CAPACITY), cuda.blockDim.x):
        curr_frontier[start_s[0] + j] = curr_frontier_s[j]
"""

CENERGY = """
import math
from numba import cuda
COARSEN_FACTOR = 4

@cuda.jit(fastmath=True)
def cenergy(energygrid, atoms, gridspacing, z, numatoms):
    i = cuda.blockIdx.x * cuda.blockDim.x * COARSEN_FACTOR + cuda.threadIdx.x
    j = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    y = gridspacing * j
    x = gridspacing * i
    energy0 = energy1 = energy2 = energy3 = 0.0
    for n in range(numatoms):
        ax, ay, az, charge = atoms[n, 0], atoms[n, 1], atoms[n, 2], atoms[n, 3]
        dx = x - ax
        dysqdzsq = (y - ay) ** 2 + (z - az) ** 2
        energy0 += charge / math.sqrt(dx * dx + dysqdzsq)
        energy1 += charge / math.sqrt((dx + gridspacing * cuda.blockDim.x) ** 2 + dysqdzsq)
        energy2 += charge / math.sqrt((dx + 2 * gridspacing * cuda.blockDim.x) ** 2 + dysqdzsq)
        energy3 += charge / math.sqrt((dx + 3 * gridspacing * cuda.blockDim.x) ** 2 + dysqdzsq)
    energygrid[j, i] += energy0
    energygrid[j, i + cuda.blockDim.x] += energy1
    energygrid[j, i + 2 * cuda.blockDim.x] += energy2
    energygrid[j, i + 3 * cuda.blockDim.x] += energy3
"""

JULIA = """
from numba import cuda, uint8
DIM = 32

@cuda.jit(device=True)
def julia(x, y):
    scale = 1.5
    jx = scale * (DIM / 2 - x) / (DIM / 2)
    jy = scale * (DIM / 2 - y) / (DIM / 2)
    c = complex(-0.8, 0.156)
    a = complex(jx, jy)
    for i in range(50):
        a = a * a + c
        if a.real * a.real + a.imag * a.imag > 1000:
            return 0
    return 1

@cuda.jit
def kernel(image):
    x, y = cuda.blockIdx.x, cuda.blockIdx.y
    offset = x + y * cuda.gridDim.x
    value = julia(x, y)
    image[offset * 4 + 0] = 255 * value
    image[offset * 4 + 1] = 0
    image[offset * 4 + 2] = 0
    image[offset * 4 + 3] = 255
"""

SPHERES = """
import math
from numba import cuda
import numpy as np

INF = 2e10
DIM = 32
SPHERES = 5
sphere = np.dtype([('r', np.float32), ('g', np.float32), ('b', np.float32), ('radius', np.float32),
                   ('x', np.float32), ('y', np.float32), ('z', np.float32)], align=True)

@cuda.jit(device=True)
def hit(s, ox, oy):
    dx = ox - s.x
    dy = oy - s.y
    if dx * dx + dy * dy < s.radius * s.radius:
        dz = math.sqrt(s.radius * s.radius - dx * dx - dy * dy)
        return dz + s.z, dz / math.sqrt(s.radius * s.radius)
    return -INF, 0.0

@cuda.jit
def trace(s, image):
    x, y = cuda.grid(2)
    ox = x - DIM / 2
    oy = y - DIM / 2
    r, g, b = 0.0, 0.0, 0.0
    maxz = -INF
    for i in range(SPHERES):
        t, n = hit(s[i], ox, oy)
        if t > maxz:
            fscale = n
            r = s[i].r * fscale
            g = s[i]['g'] * fscale
            b = s[i].b * fscale
            maxz = t
    image[y, x, 0] = int(r * 255)
    image[y, x, 1] = int(g * 255)
    image[y, x, 2] = int(b * 255)
"""

PARTICLES = """
from numba import cuda

@cuda.jit
def advance(particles, dt):
    i = cuda.grid(1)
    if i < particles.size:
        p = particles[i]
        p.x += p.vx * dt
        p['y'] += p['vy'] * dt
        if particles[i].x > 1.0:
            particles[i].x = 1.0
            particles[i].vx = -p.vx
        particles[i].hits = particles[i].hits + 1
"""


def blurred(a: dict[str, Any]) -> dict[str, Any]:
    padded, ones = np.pad(a["inp"].astype(int), 1), np.pad(np.ones(a["inp"].shape, int), 1)
    h, w = a["inp"].shape
    places = [(y, x) for y in range(3) for x in range(3)]
    total, count = (sum(m[y : y + h, x : x + w] for y, x in places) for m in (padded, ones))
    return {"out": total // count}


def stencilled(a: dict[str, Any]) -> dict[str, Any]:
    v, out = a["inp"].astype(float), np.zeros(a["inp"].shape)
    inner = (slice(1, -1),) * 3
    around = sum(np.roll(v, by, axis)[inner] for axis in range(3) for by in (-1, 1))
    out[inner] = 0.5 * v[inner] + 0.1 * around
    return {"out": out}


def scanned(a: dict[str, Any]) -> dict[str, Any]:
    x = np.pad(a["X"].astype(float), (0, 512 - 500)).reshape(2, 256)
    return {"Y": np.cumsum(x, axis=1).ravel()[:500]}


def multiplied(a: dict[str, Any]) -> dict[str, Any]:
    y = np.zeros(100)
    for row in range(100):
        for t in range(a["nnz_per_row"][row]):
            y[row] += float(a["x"][a["ell_columns"][t * 100 + row]]) * float(a["ell_values"][t * 100 + row])
    np.add.at(y, a["coo_row"], a["x"][a["coo_col"]].astype(float) * a["coo_val"])
    return {"y": y}


def visited(a: dict[str, Any]) -> dict[str, Any]:
    level = a["level"].copy()
    found = set[int]()
    for v in a["prev_frontier"][: a["num_prev"]]:
        for n in a["dst"][a["src_ptrs"][v] : a["src_ptrs"][v + 1]]:
            if level[n] == 0xFFFFFFFF:
                level[n] = a["curr_level"]
                found.add(int(n))
    frontier = np.zeros(200, int)
    frontier[: len(found)] = sorted(found)
    return {"level": level, "num_curr": np.array([len(found)]), "curr_frontier": frontier}


def potentials(a: dict[str, Any]) -> dict[str, Any]:
    atoms, (h, w) = a["atoms"].astype(float), a["energygrid"].shape
    y, x = np.mgrid[:h, :w] * 0.5
    return {
        "energygrid": sum(c / np.sqrt((x - ax) ** 2 + (y - ay) ** 2 + (a["z"] - az) ** 2) for ax, ay, az, c in atoms),
    }


def juliaed(a: dict[str, Any]) -> dict[str, Any]:
    y, x = np.mgrid[:32, :32]
    z = 1.5 * (16 - x) / 16 + 1j * 1.5 * (16 - y) / 16
    inside = np.ones(z.shape, bool)
    for _ in range(50):
        z = np.where(inside, z * z + (-0.8 + 0.156j), z)
        inside &= ~(np.abs(z) ** 2 > 1000)
    image = np.zeros((32, 32, 4), int)
    image[..., 0], image[..., 3] = 255 * inside, 255
    return {"image": image.ravel()}


def traced(a: dict[str, Any]) -> dict[str, Any]:
    image = np.zeros((32, 32, 3), int)
    for y in range(32):
        for x in range(32):
            maxz = -2e10
            for s in a["s"]:
                dx, dy, radius = x - 16.0 - float(s["x"]), y - 16.0 - float(s["y"]), float(s["radius"])
                if dx * dx + dy * dy < radius * radius:
                    dz = (radius * radius - dx * dx - dy * dy) ** 0.5
                    if dz + float(s["z"]) > maxz:
                        maxz = dz + float(s["z"])
                        image[y, x] = [int(float(s[c]) * dz / radius * 255) for c in "rgb"]
    return {"image": image}


def advanced(a: dict[str, Any]) -> dict[str, Any]:
    p = a["particles"].copy()
    p["x"] += p["vx"] * F32(0.5)
    p["y"] += p["vy"] * F32(0.5)
    past = p["x"] > 1
    p["x"][past], p["vx"][past] = 1, -p["vx"][past]
    p["hits"] += 1
    return {"particles": p}


def spheres() -> np.ndarray[Any, Any]:
    kinds = np.dtype([(n, F32) for n in ("r", "g", "b", "radius", "x", "y", "z")], align=True)
    s = np.zeros(5, kinds)
    for n in kinds.names or ():
        s[n] = dice.random(5)
    s["radius"], s["x"], s["y"] = 4 + 6 * s["radius"], 24 * s["x"] - 12, 24 * s["y"] - 12
    return s


def particles() -> np.ndarray[Any, Any]:
    p = np.zeros(100, np.dtype([("x", F32), ("y", F32), ("vx", F32), ("vy", F32), ("hits", I32)]))
    for n in ("x", "y", "vx", "vy"):
        p[n] = dice.random(100)
    return p


def graph() -> tuple[Any, Any]:
    degree = dice.integers(0, 6, 200)
    return np.concatenate([[0], np.cumsum(degree)]).astype(I32), dice.integers(0, 200, int(degree.sum())).astype(I32)


def chapters() -> tuple[Chapter, ...]:
    f = lambda *shape: dice.random(shape).astype(F32)  # noqa: E731
    source, dst = graph()
    level = np.full(200, 0xFFFFFFFF, np.uint32)
    level[:20] = 1
    letters = np.frombuffer(b"programming massively parallel processors 0123" * 20, np.uint8).copy()
    keys = dice.integers(0, 256, 256).astype(np.uint32)
    a, b = np.sort(f(150)), np.sort(f(106))
    nnz = dice.integers(1, 5, 100).astype(I32)
    counted = lambda v: np.bincount(((v - 97) // 4)[(v >= 97) & (v < 123)], minlength=7)  # noqa: E731
    return (
        Chapter(
            "blur",
            BLUR,
            {"inp": dice.integers(0, 256, (30, 45), np.uint8), "out": np.zeros((30, 45), np.uint8)},
            (3, 2),
            (16, 16),
            blurred,
        ),
        Chapter(
            "stencil of seven points in registers",
            STENCIL,
            {"inp": f(20, 20, 20), "out": np.zeros((20, 20, 20), F32), "N": 20},
            (4, 4, 4),
            (8, 8),
            stencilled,
        ),
        Chapter(
            "letters, aggregated",
            LETTERS,
            {"data": letters, "length": len(letters), "histo": np.zeros(7, np.uint32)},
            (2,),
            (64,),
            lambda given: {"histo": counted(given["data"].astype(int))},
        ),
        Chapter(
            "sums of segments",
            SEGMENTS,
            {"inp": f(4096), "output": np.zeros(1, F32)},
            (4,),
            (128,),
            lambda given: {"output": given["inp"].astype(float).sum(keepdims=True)},
        ),
        Chapter("Brent and Kung's scan", BRENT_KUNG, {"X": f(500), "Y": np.zeros(500, F32), "N": 500}, (2,), (128,), scanned),
        Chapter(
            "merge by co-ranks",
            MERGE,
            {"A": a, "m": 150, "B": b, "n": 106, "C": np.zeros(256, F32)},
            (1,),
            (32,),
            lambda given: {"C": np.sort(np.concatenate([given["A"], given["B"]]))},
        ),
        Chapter(
            "radix sort of a block",
            RADIX,
            {"keys": keys, "bits": 8},
            (2,),
            (128,),
            lambda given: {"keys": np.sort(given["keys"].reshape(2, 128), axis=1).ravel()},
        ),
        Chapter(
            "sparse rows, ELL and COO",
            ELL,
            {
                "ell_values": f(400),
                "ell_columns": dice.integers(0, 80, 400).astype(I32),
                "nnz_per_row": nnz,
                "coo_row": dice.integers(0, 100, 30).astype(I32),
                "coo_col": dice.integers(0, 80, 30).astype(I32),
                "coo_val": f(30),
                "x": f(80),
                "y": np.zeros(100),
            },
            (1,),
            (128,),
            multiplied,
        ),
        Chapter(
            "a frontier with a queue of its own",
            BFS,
            {
                "src_ptrs": source,
                "dst": dst,
                "level": level,
                "prev_frontier": np.arange(20, dtype=I32),
                "curr_frontier": np.zeros(200, I32),
                "num_prev": 20,
                "num_curr": np.zeros(1, I32),
                "curr_level": 2,
            },
            (2,),
            (32,),
            visited,
        ),
        Chapter(
            "potentials, four a thread",
            CENERGY,
            {"energygrid": np.zeros((16, 64), F32), "atoms": f(40, 4) * 8, "gridspacing": 0.5, "z": 9.5, "numatoms": 40},
            (2, 2),
            (8, 8),
            potentials,
        ),
        Chapter("Julia set", JULIA, {"image": np.zeros(4096, np.uint8)}, (32, 32), (1,), juliaed),
        Chapter("spheres", SPHERES, {"s": spheres(), "image": np.zeros((32, 32, 3), np.uint8)}, (2, 2), (16, 16), traced),
        Chapter("records of particles", PARTICLES, {"particles": particles(), "dt": 0.5}, (1,), (128,), advanced),
    )


def distance(got: Any, right: Any) -> float:
    if got.dtype.names:
        return max(distance(got[n], right[n]) for n in got.dtype.names)
    got = got.astype(complex if np.iscomplexobj(got) else float)
    return float(np.abs(got - right).max() / max(float(np.abs(right).max()), 1e-30))


def ask(chapter: Chapter) -> str:
    right = chapter.expected({n: v.copy() if isinstance(v, np.ndarray) else v for n, v in chapter.arguments.items()})
    try:
        made = simulate_kernel(
            kernel_source(chapter.text, None),
            chapter.arguments,
            grid=chapter.grid,
            block=chapter.block,
            accelerator=find_accelerator("rtx-4090"),
            timed_issues=20_000,
        )
    except GpuwiseError as error:
        return f"refused: {error.message}; {error.hint}"
    got = chapter.arguments
    if "curr_frontier" in got:
        n = int(got["num_curr"][0])
        got["curr_frontier"][:n].sort()
    worst = max(distance(got[n], v) for n, v in right.items())
    found = "; ".join(f"{f.kind} in line {f.line}: {f.text}" for f in made.findings) or "nothing"
    return f"{'equal' if worst < 2e-5 else f'off by {worst:.2g}'} | {found}"


def main() -> None:
    print("| kernel | values | found |\n|---|---|---|")
    for chapter in chapters():
        print(f"| {chapter.name} | {ask(chapter)} |")


if __name__ == "__main__":
    main()
