"""Kernels as people write them for numba-CUDA, at sizes that a GPU is bought for: what the lab times before a card does.

Each has the text of its module, its launch, its arguments and what numpy says must come out. Written anew after what tutorials
and courses teach; none of them was timed on a card when the lab was made.
"""

# ruff: noqa: E501 - kernels in their text
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.lab.program_values import (
    F32,
    I32,
    PICTURE,
    M,
    Values,
    bitonic,
    calls,
    layer_norm,
    life,
    mandelbrot,
    nearest,
    normal,
    options,
    picture,
    pulls,
    rng,
    rotated,
    sobel,
    softmax,
    sparse,
    sparse_product,
    thrown,
)
from numpy.typing import NDArray

HEAD = "import math\nimport numpy as np\nfrom numba import cuda, float32, float64, int32, int64, uint8\n\n"


@dataclass(frozen=True)
class Program:
    """``text`` holds one kernel ``k``; ``expected`` gives the arrays that it leaves, from its arguments before."""

    name: str
    text: str
    arguments: Callable[[], dict[str, Any]]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    expected: Callable[[Values], Mapping[str, NDArray[Any]]]
    tolerance: float = 1e-4
    in_any_order: bool = False
    """Whether the values are sorted before they are compared; what lies behind them belongs to further launches."""


def kernel(body: str, before: str = "") -> str:
    return f"{HEAD}{before}\n@cuda.jit\n{body.strip()}\n"


BLACK = """
@cuda.jit(device=True)
def cnd(d):
    k = ONE / (ONE + F(0.2316419) * abs(d))
    v = F(0.3989422804014327) * math.exp(F(-0.5) * d * d) * (k * (F(0.31938153) + k * (F(-0.356563782) + k * (F(1.781477937) + k * (F(-1.821255978) + k * F(1.330274429))))))
    if d > 0:
        v = ONE - v
    return v
"""
BLACK_KERNEL = """
def k(call, price, strike, years):
    i = cuda.grid(1)
    if i >= price.shape[0]:
        return
    root = math.sqrt(years[i])
    d1 = (math.log(price[i] / strike[i]) + F(0.065) * years[i]) / (F(0.3) * root)
    d2 = d1 - F(0.3) * root
    call[i] = price[i] * cnd(d1) - strike[i] * math.exp(F(-0.02) * years[i]) * cnd(d2)
"""


def black_scholes(kind: str) -> str:
    text = kernel(BLACK_KERNEL, BLACK).replace("ONE", f"{kind}(1.0)").replace("F(", f"{kind}(")
    return text


PROGRAMS: tuple[Program, ...] = (
    Program(
        "saxpy in a grid's stride",
        kernel("""
def k(y, x, a):
    start = cuda.grid(1)
    stride = cuda.gridsize(1)
    for i in range(start, x.size, stride):
        y[i] = a * x[i] + y[i]
"""),
        lambda: {"y": normal(16 * M), "x": normal(16 * M, seed=2), "a": F32(2.0)},
        (1056,), (256,),
        lambda a: {"y": a["a"] * a["x"] + a["y"]},
    ),
    Program(
        "a tree in shared memory",
        kernel("""
def k(out, x):
    s = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i] if i < x.size else float32(0.0)
    cuda.syncthreads()
    step = 128
    while step > 0:
        if t < step:
            s[t] += s[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]
"""),
        lambda: {"out": np.zeros(4 * M // 256, F32), "x": rng().random(4 * M, F32)},
        (4 * M // 256,), (256,),
        lambda a: {"out": a["x"].astype(float).reshape(-1, 256).sum(1)},
    ),
    Program(
        "histogram by global atomics",
        kernel("""
def k(bins, x):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(bins, x[i], 1)
"""),
        lambda: {"bins": np.zeros(256, I32), "x": rng().integers(0, 256, M, np.uint8)},
        (M // 256,), (256,),
        lambda a: {"bins": np.bincount(a["x"], minlength=256)},
    ),
    Program(
        "histogram in shared memory",
        kernel("""
def k(bins, x):
    s = cuda.shared.array(256, int32)
    t = cuda.threadIdx.x
    s[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(s, x[i], 1)
    cuda.syncthreads()
    cuda.atomic.add(bins, t, s[t])
"""),
        lambda: {"bins": np.zeros(256, I32), "x": rng().integers(0, 256, 4 * M, np.uint8)},
        (1056,), (256,),
        lambda a: {"bins": np.bincount(a["x"], minlength=256)},
    ),
    Program(
        "Mandelbrot",
        kernel("""
def k(out, dx, dy):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        x0 = float32(-2.0) + float32(col) * dx
        y0 = float32(-1.5) + float32(row) * dy
        x = float32(0.0)
        y = float32(0.0)
        n = 0
        while n < 64 and x * x + y * y <= float32(4.0):
            new = x * x - y * y + x0
            y = float32(2.0) * x * y + y0
            x = new
            n += 1
        out[row, col] = n
"""),
        lambda: {"out": np.zeros((1024, 1024), I32), "dx": F32(3.0 / 1024), "dy": F32(3.0 / 1024)},
        (64, 64), (16, 16),
        mandelbrot,
        0.5,
    ),
    Program(
        "Jacobi on a plane",
        kernel("""
def k(new, old):
    j, i = cuda.grid(2)
    if 0 < i < old.shape[0] - 1 and 0 < j < old.shape[1] - 1:
        new[i, j] = float32(0.25) * (old[i - 1, j] + old[i + 1, j] + old[i, j - 1] + old[i, j + 1])
"""),
        lambda: {"new": np.zeros((4096, 4096), F32), "old": normal(4096, 4096)},
        (128, 512), (32, 8),
        lambda a: {"new": np.pad(0.25 * (a["old"][:-2, 1:-1] + a["old"][2:, 1:-1] + a["old"][1:-1, :-2] + a["old"][1:-1, 2:]), 1)},
    ),
    Program(
        "Sobel of a picture",
        kernel("""
def k(out, picture):
    x, y = cuda.grid(2)
    if 0 < y < picture.shape[0] - 1 and 0 < x < picture.shape[1] - 1:
        gx = int32(0)
        gy = int32(0)
        for d in range(-1, 2):
            w = 2 - abs(d)
            gx += w * (int32(picture[y + d, x + 1]) - int32(picture[y + d, x - 1]))
            gy += w * (int32(picture[y + 1, x + d]) - int32(picture[y - 1, x + d]))
        out[y, x] = abs(gx) + abs(gy)
"""),
        lambda: {"out": np.zeros((PICTURE, PICTURE), I32), "picture": picture()},
        (PICTURE // 16, PICTURE // 16), (16, 16),
        sobel,
    ),
    Program(
        "rows times a vector, a thread a row",
        kernel("""
def k(out, a, x):
    row = cuda.grid(1)
    if row < a.shape[0]:
        total = float32(0.0)
        for j in range(a.shape[1]):
            total += a[row, j] * x[j]
        out[row] = total
"""),
        lambda: {"out": np.zeros(16384, F32), "a": normal(16384, 512), "x": normal(512, seed=2)},
        (128,), (128,),
        lambda a: {"out": a["a"].astype(float) @ a["x"].astype(float)},
    ),
    Program(
        "rows times a vector, a warp a row",
        kernel("""
def k(out, a, x):
    lane = cuda.threadIdx.x % 32
    row = cuda.grid(1) // 32
    if row < a.shape[0]:
        total = float32(0.0)
        for j in range(lane, a.shape[1], 32):
            total += a[row, j] * x[j]
        step = 16
        while step > 0:
            total += cuda.shfl_down_sync(0xffffffff, total, step)
            step //= 2
        if lane == 0:
            out[row] = total
"""),
        lambda: {"out": np.zeros(16384, F32), "a": normal(16384, 1024), "x": normal(1024, seed=2)},
        (2048,), (256,),
        lambda a: {"out": a["a"].astype(float) @ a["x"].astype(float)},
    ),
    Program(
        "sparse rows, a thread a row",
        kernel("""
def k(out, start, column, value, x):
    row = cuda.grid(1)
    if row < out.size:
        total = float32(0.0)
        for j in range(start[row], start[row + 1]):
            total += value[j] * x[column[j]]
        out[row] = total
"""),
        lambda: sparse(1 << 17, 32),
        (512,), (256,),
        sparse_product,
    ),
    Program(
        "sparse rows, a warp a row",
        kernel("""
def k(out, start, column, value, x):
    row = cuda.grid(1) // 32
    lane = cuda.laneid
    if row < out.size:
        total = float32(0.0)
        for j in range(start[row] + lane, start[row + 1], 32):
            total += value[j] * x[column[j]]
        step = 16
        while step > 0:
            total += cuda.shfl_down_sync(0xffffffff, total, step)
            step //= 2
        if lane == 0:
            out[row] = total
"""),
        lambda: sparse(1 << 15, 256),
        (4096,), (256,),
        sparse_product,
    ),
    Program(
        "layer norm, a block a row",
        kernel("""
def k(out, x, gain, bias):
    s = cuda.shared.array(8, float32)
    q = cuda.shared.array(8, float32)
    t = cuda.threadIdx.x
    row = cuda.blockIdx.x
    total = float32(0.0)
    squares = float32(0.0)
    for j in range(t, x.shape[1], 256):
        v = x[row, j]
        total += v
        squares += v * v
    step = 16
    while step > 0:
        total += cuda.shfl_xor_sync(0xffffffff, total, step)
        squares += cuda.shfl_xor_sync(0xffffffff, squares, step)
        step //= 2
    if t % 32 == 0:
        s[t // 32] = total
        q[t // 32] = squares
    cuda.syncthreads()
    total = float32(0.0)
    squares = float32(0.0)
    for w in range(8):
        total += s[w]
        squares += q[w]
    mean = total / float32(x.shape[1])
    scale = float32(1.0) / math.sqrt(squares / float32(x.shape[1]) - mean * mean + float32(1e-5))
    for j in range(t, x.shape[1], 256):
        out[row, j] = (x[row, j] - mean) * scale * gain[j] + bias[j]
"""),
        lambda: {"out": np.zeros((8192, 1024), F32), "x": normal(8192, 1024), "gain": normal(1024, seed=2), "bias": normal(1024, seed=3)},
        (8192,), (256,),
        layer_norm,
    ),
    Program(
        "n-body in tiles of 128",
        kernel("""
def k(bodies, pull):
    tile = cuda.shared.array((128, 4), dtype=float32)
    i = cuda.grid(1)
    x = bodies[i, 0]
    y = bodies[i, 1]
    z = bodies[i, 2]
    ax, ay, az = float32(0), float32(0), float32(0)
    for first in range(0, bodies.shape[0], 128):
        for c in range(4):
            tile[cuda.threadIdx.x, c] = bodies[first + cuda.threadIdx.x, c]
        cuda.syncthreads()
        for j in range(128):
            dx = tile[j, 0] - x
            dy = tile[j, 1] - y
            dz = tile[j, 2] - z
            r2 = dx * dx + dy * dy + dz * dz + float32(0.01)
            inverse = float32(1.0) / math.sqrt(r2)
            weight = tile[j, 3] * inverse * inverse * inverse
            ax += dx * weight
            ay += dy * weight
            az += dz * weight
        cuda.syncthreads()
    pull[i, 0] = ax
    pull[i, 1] = ay
    pull[i, 2] = az
"""),
        lambda: {"bodies": rng().random((4096, 4), F32), "pull": np.zeros((4096, 3), F32)},
        (32,), (128,),
        pulls,
        1e-3,
    ),
    Program("Black-Scholes in float32", black_scholes("float32"), lambda: options(4 * M), (4 * M // 256,), (256,), calls, 1e-3),
    Program("Black-Scholes in float64", black_scholes("float64"), lambda: options(M), (M // 256,), (256,), calls, 1e-3),
    Program(
        "a step of a bitonic sort",
        kernel("""
def k(x, j, k):
    i = cuda.grid(1)
    other = i ^ j
    if other > i:
        a = x[i]
        b = x[other]
        if (i & k) == 0:
            if a > b:
                x[i] = b
                x[other] = a
        else:
            if a < b:
                x[i] = b
                x[other] = a
"""),
        lambda: {"x": normal(4 * M), "j": 32, "k": 1024},
        (4 * M // 256,), (256,),
        bitonic,
    ),
    Program(
        "running sums of a block, Hillis and Steele",
        kernel("""
def k(out, x):
    s = cuda.shared.array((2, 512), float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    now = 0
    s[0, t] = x[i]
    cuda.syncthreads()
    step = 1
    while step < 512:
        new = 1 - now
        if t >= step:
            s[new, t] = s[now, t] + s[now, t - step]
        else:
            s[new, t] = s[now, t]
        cuda.syncthreads()
        now = new
        step *= 2
    out[i] = s[now, t]
"""),
        lambda: {"out": np.zeros(2 * M, F32), "x": rng().random(2 * M, F32)},
        (2 * M // 512,), (512,),
        lambda a: {"out": np.cumsum(a["x"].astype(float).reshape(-1, 512), 1).ravel()},
    ),
    Program(
        "compaction by ballots",
        kernel("""
def k(out, count, x):
    i = cuda.grid(1)
    keep = i < x.size and x[i] >= float32(0.5)
    votes = cuda.ballot_sync(0xffffffff, keep)
    lane = cuda.laneid
    before = cuda.popc(votes & ((1 << lane) - 1))
    place = 0
    if lane == 0:
        place = cuda.atomic.add(count, 0, cuda.popc(votes))
    place = cuda.shfl_sync(0xffffffff, place, 0)
    if keep:
        out[place + before] = x[i]
"""),
        lambda: {"out": np.zeros(40 * M, F32), "count": np.zeros(1, I32), "x": rng().random(M, F32)},
        (M // 256,), (256,),
        lambda a: {"out": np.sort(np.where(a["x"] >= 0.5, a["x"], 0)), "count": np.array([(a["x"] >= 0.5).sum()])},
        1e-4,
        True,
    ),
    Program(
        "the game of life, wrapped",
        kernel("""
def k(out, cells):
    x, y = cuda.grid(2)
    h, w = cells.shape
    if x >= w or y >= h:
        return
    n = 0
    for dy in range(-1, 2):
        for dx in range(-1, 2):
            if dx != 0 or dy != 0:
                n += cells[(y + dy) % h, (x + dx) % w]
    out[y, x] = 1 if n == 3 or (cells[y, x] == 1 and n == 2) else 0
"""),
        lambda: {"out": np.zeros((1024, 1024), I32), "cells": rng().integers(0, 2, (1024, 1024)).astype(I32)},
        (64, 64), (16, 16),
        life,
    ),
    Program(
        "shortest paths, one relaxation",
        kernel("""
def k(d, middle):
    j, i = cuda.grid(2)
    if i < d.shape[0] and j < d.shape[1]:
        through = d[i, middle] + d[middle, j]
        if through < d[i, j]:
            d[i, j] = through
"""),
        lambda: {"d": rng().random((2048, 2048), F32), "middle": 7},
        (128, 128), (16, 16),
        lambda a: {"d": np.minimum(a["d"], a["d"][:, 7:8] + a["d"][7:8])},
    ),
    Program(
        "a product by tiles of 32",
        kernel("""
def k(c, a, b):
    sa = cuda.shared.array((32, 32), float32)
    sb = cuda.shared.array((32, 32), float32)
    x, y = cuda.grid(2)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    total = float32(0.0)
    for i in range(a.shape[1] // 32):
        sa[ty, tx] = a[y, tx + i * 32]
        sb[ty, tx] = b[ty + i * 32, x]
        cuda.syncthreads()
        for j in range(32):
            total += sa[ty, j] * sb[j, tx]
        cuda.syncthreads()
    c[y, x] = total
"""),
        lambda: {"c": np.zeros((1024, 1024), F32), "a": normal(1024, 1024), "b": normal(1024, 1024, seed=2)},
        (32, 32), (32, 32),
        lambda a: {"c": a["a"].astype(float) @ a["b"].astype(float)},
        1e-3,
    ),
    Program(
        "a product, four results a thread",
        kernel("""
def k(c, a, b):
    sa = cuda.shared.array((32, 32), float32)
    sb = cuda.shared.array((32, 32), float32)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    x = cuda.blockIdx.x * 32 + tx
    first = cuda.blockIdx.y * 32 + ty
    r0, r1, r2, r3 = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
    for i in range(0, a.shape[1], 32):
        for r in range(0, 32, 8):
            sa[ty + r, tx] = a[first + r, i + tx]
            sb[ty + r, tx] = b[i + ty + r, x]
        cuda.syncthreads()
        for j in range(32):
            v = sb[j, tx]
            r0 += sa[ty, j] * v
            r1 += sa[ty + 8, j] * v
            r2 += sa[ty + 16, j] * v
            r3 += sa[ty + 24, j] * v
        cuda.syncthreads()
    c[first, x] = r0
    c[first + 8, x] = r1
    c[first + 16, x] = r2
    c[first + 24, x] = r3
"""),
        lambda: {"c": np.zeros((1024, 1024), F32), "a": normal(1024, 1024), "b": normal(1024, 1024, seed=2)},
        (32, 32), (32, 8),
        lambda a: {"c": a["a"].astype(float) @ a["b"].astype(float)},
        1e-3,
    ),
    Program(
        "particles as records of four",
        kernel("""
def k(p, dt):
    i = cuda.grid(1)
    if i < p.shape[0]:
        p[i, 0] += p[i, 2] * dt
        p[i, 1] += p[i, 3] * dt
"""),
        lambda: {"p": normal(2 * M, 4), "dt": F32(0.01)},
        (2 * M // 256,), (256,),
        lambda a: {"p": np.concatenate([a["p"][:, :2] + a["p"][:, 2:] * F32(0.01), a["p"][:, 2:]], 1)},
    ),
    Program(
        "particles as four arrays",
        kernel("""
def k(p, dt):
    i = cuda.grid(1)
    if i < p.shape[1]:
        p[0, i] += p[2, i] * dt
        p[1, i] += p[3, i] * dt
"""),
        lambda: {"p": normal(4, 2 * M), "dt": F32(0.01)},
        (2 * M // 256,), (256,),
        lambda a: {"p": np.concatenate([a["p"][:2] + a["p"][2:] * F32(0.01), a["p"][2:]], 0)},
    ),
    Program(
        "a matrix turned without shared memory",
        kernel("""
def k(out, a):
    x, y = cuda.grid(2)
    if y < a.shape[0] and x < a.shape[1]:
        out[x, y] = a[y, x]
"""),
        lambda: {"out": np.zeros((2048, 2048), F32), "a": normal(2048, 2048)},
        (64, 256), (32, 8),
        lambda a: {"out": a["a"].T},
    ),
    Program(
        "colours to grey",
        kernel("""
def k(grey, colour):
    i = cuda.grid(1)
    if i < colour.shape[0]:
        grey[i] = uint8(float32(0.299) * colour[i, 0] + float32(0.587) * colour[i, 1] + float32(0.114) * colour[i, 2])
"""),
        lambda: {"grey": np.zeros(4 * M, np.uint8), "colour": rng().integers(0, 256, (4 * M, 3), np.uint8)},
        (4 * M // 256,), (256,),
        lambda a: {"grey": np.floor(a["colour"].astype(float) @ np.array([0.299, 0.587, 0.114]))},
        0.01,
    ),
    Program(
        "rows of a table by number",
        kernel("""
def k(out, table, token):
    row = cuda.blockIdx.x
    t = cuda.threadIdx.x
    source = token[row]
    for j in range(t, table.shape[1], cuda.blockDim.x):
        out[row, j] = table[source, j]
"""),
        lambda: {"out": np.zeros((16384, 512), F32), "table": normal(32000, 512), "token": rng().integers(0, 32000, 16384).astype(I32)},
        (16384,), (128,),
        lambda a: {"out": a["table"][a["token"]]},
    ),
    Program(
        "rotary positions",
        kernel("""
def k(x, half):
    pair = cuda.grid(1)
    row = pair // half
    j = pair % half
    if row < x.shape[0]:
        angle = float32(row % 1024) * math.exp(float32(j) * float32(-0.14391156831))
        c = math.cos(angle)
        s = math.sin(angle)
        a = x[row, j]
        b = x[row, j + half]
        x[row, j] = a * c - b * s
        x[row, j + half] = a * s + b * c
"""),
        lambda: {"x": normal(32768, 128), "half": 64},
        (32768 * 64 // 256,), (256,),
        lambda a: rotated(a),
        1e-3,
    ),
    Program(
        "binary search in a sorted table",
        kernel("""
def k(out, table, x):
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
        low = 0
        high = table.size
        while low < high:
            middle = (low + high) >> 1
            if table[middle] < v:
                low = middle + 1
            else:
                high = middle
        out[i] = low
"""),
        lambda: {"out": np.zeros(M, I32), "table": np.sort(normal(1 << 16)), "x": normal(M, seed=2)},
        (M // 256,), (256,),
        lambda a: {"out": np.searchsorted(a["table"], a["x"])},
    ),
    Program(
        "nearest of sixteen centres",
        kernel("""
def k(out, points, centres):
    i = cuda.grid(1)
    if i < points.shape[0]:
        best = float32(1e30)
        which = 0
        for c in range(centres.shape[0]):
            d = float32(0.0)
            for a in range(4):
                apart = points[i, a] - centres[c, a]
                d += apart * apart
            if d < best:
                best = d
                which = c
        out[i] = which
"""),
        lambda: {"out": np.zeros(M, I32), "points": normal(M, 4), "centres": normal(16, 4, seed=2)},
        (M // 256,), (256,),
        lambda a: {"out": nearest(a)},
        0.5,
    ),
    Program(
        "convolution with a halo in shared memory",
        kernel("""
def k(out, x, w):
    s = cuda.shared.array(136, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i]
    if t < 8:
        s[t + 128] = x[i + 128] if i + 128 < x.size else float32(0.0)
    cuda.syncthreads()
    total = float32(0.0)
    for j in range(9):
        total += s[t + j] * w[j]
    out[i] = total
"""),
        lambda: {"out": np.zeros(4 * M, F32), "x": normal(4 * M), "w": normal(9, seed=2)},
        (4 * M // 128,), (128,),
        lambda a: {"out": np.correlate(np.concatenate([a["x"], np.zeros(8, F32)]).astype(float), a["w"].astype(float), "valid")},
    ),
    Program(
        "softmax, a warp a row of 256",
        kernel("""
def k(out, x):
    row = cuda.blockIdx.x * 8 + cuda.threadIdx.y
    lane = cuda.threadIdx.x
    v = cuda.local.array(8, float32)
    most = float32(-1e30)
    for j in range(8):
        v[j] = x[row, lane + 32 * j]
        most = max(most, v[j])
    step = 16
    while step > 0:
        most = max(most, cuda.shfl_xor_sync(0xffffffff, most, step))
        step //= 2
    total = float32(0.0)
    for j in range(8):
        v[j] = math.exp(v[j] - most)
        total += v[j]
    step = 16
    while step > 0:
        total += cuda.shfl_xor_sync(0xffffffff, total, step)
        step //= 2
    for j in range(8):
        out[row, lane + 32 * j] = v[j] / total
"""),
        lambda: {"out": np.zeros((32768, 256), F32), "x": normal(32768, 256)},
        (4096,), (32, 8),
        softmax,
    ),
    Program(
        "counts in a local array",
        kernel("""
def k(out, x):
    i = cuda.grid(1)
    bins = cuda.local.array(16, int32)
    for b in range(16):
        bins[b] = 0
    for j in range(x.shape[0]):
        bins[x[j, i]] += 1
    for b in range(16):
        out[b, i] = bins[b]
"""),
        lambda: {"out": np.zeros((16, 1 << 16), I32), "x": rng().integers(0, 16, (64, 1 << 16), np.uint8)},
        (256,), (256,),
        lambda a: {"out": np.stack([(a["x"] == b).sum(0) for b in range(16)])},
    ),
    Program(
        "daxpy",
        kernel("""
def k(y, x, a):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = a * x[i] + y[i]
"""),
        lambda: {"y": rng().random(4 * M), "x": rng(2).random(4 * M), "a": 2.0},
        (4 * M // 256,), (256,),
        lambda a: {"y": a["a"] * a["x"] + a["y"]},
    ),
    Program(
        "largest of each square of four",
        kernel("""
def k(out, x):
    j, i = cuda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        most = x[2 * i, 2 * j]
        most = max(most, x[2 * i, 2 * j + 1])
        most = max(most, x[2 * i + 1, 2 * j])
        most = max(most, x[2 * i + 1, 2 * j + 1])
        out[i, j] = most
"""),
        lambda: {"out": np.zeros((2048, 2048), F32), "x": normal(4096, 4096)},
        (64, 256), (32, 8),
        lambda a: {"out": a["x"].reshape(2048, 2, 2048, 2).max((1, 3))},
    ),
    Program(
        "pi by throwing, numbers of its own",
        kernel("""
def k(hits, rounds):
    i = cuda.grid(1)
    state = (i * 747796405 + 2891336453) & 0xffffffff
    n = 0
    for r in range(rounds):
        state = (state * 1664525 + 1013904223) & 0xffffffff
        x = float32(state >> 8) * float32(5.9604645e-08)
        state = (state * 1664525 + 1013904223) & 0xffffffff
        y = float32(state >> 8) * float32(5.9604645e-08)
        if x * x + y * y < float32(1.0):
            n += 1
    hits[i] = n
"""),
        lambda: {"hits": np.zeros(1 << 17, I32), "rounds": 32},
        (512,), (256,),
        lambda a: {"hits": thrown(a)},
    ),
)  # fmt: skip
FITTED = frozenset(p.name for p in PROGRAMS[::2])
"""Those that may be looked at for what is wrong; the others check it."""


def worst(program: Program, before: Values, after: Values) -> float:
    """Largest difference over the largest value, of all arrays that must come out."""
    most = 0.0
    for name, right in program.expected(before).items():
        got, want = np.asarray(after[name]).astype(float), np.asarray(right).astype(float)
        if program.in_any_order:
            got = got.ravel()[: want.size]
            got, want = np.sort(got, axis=None), np.sort(want, axis=None)
        scale = float(np.abs(want).max()) or 1.0
        apart = np.abs(got - want) / scale
        off = float((apart > 1e-3).mean()) if program.tolerance >= 0.5 else float(apart.max())
        most = max(most, off * (1.0 if program.tolerance < 0.5 else 50.0))
    return most if math.isfinite(most) else math.inf
