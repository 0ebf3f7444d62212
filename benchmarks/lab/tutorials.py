"""Kernels as tutorials teach them, each with numpy's values, and the same kernels with a fault: what the lab makes of them.

    python -m benchmarks.lab.tutorials

Written anew after public material: GPU Puzzles (pooling, convolution, sums of rows), numba's manual (heat, clicks of sessions),
CUDA's samples (Black-Scholes, n-body), and what courses ask for (compaction by ballots, shortest paths, a picture resized). The
faults are a barrier left out, a guard left out and an index off by one; each must be found, and nothing in the right kernels.
"""

# ruff: noqa: E501 - kernels in their text
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.lab.simulation import simulate_kernel
from gpuwise.lab.source import kernel_source

Values = Mapping[str, NDArray[Any]]
F32, I32 = np.float32, np.int32
HEAD = "import math\nimport numpy as np\nfrom numba import cuda, float32, int32, uint8\n"


@dataclass(frozen=True)
class Lesson:
    """A kernel, its launch and the arrays that must come out; ``fault`` is a text of it, what stands there instead and what must
    be found then."""

    name: str
    text: str
    arguments: dict[str, Any]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    expected: Callable[[Values], Values]
    fault: tuple[str, str, str]
    kernel: str | None = None


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


POOLING = """
TPB = 32
@cuda.jit
def pooling(out, a, size):
    shared = cuda.shared.array(TPB, float32)
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    local_i = cuda.threadIdx.x
    if i < size:
        shared[local_i] = a[i]
        cuda.syncthreads()
        if i == 0:
            out[i] = shared[local_i]
        elif i == 1:
            out[i] = shared[local_i] + shared[local_i - 1]
        else:
            out[i] = shared[local_i] + shared[local_i - 1] + shared[local_i - 2]
"""
CONVOLUTION = """
MAX_CONV = 5
TPB = 64
TPB_MAX_CONV = TPB + MAX_CONV
@cuda.jit
def conv(out, a, b, a_size, b_size):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    local_i = cuda.threadIdx.x
    shared_a = cuda.shared.array(TPB_MAX_CONV, float32)
    shared_b = cuda.shared.array(MAX_CONV, float32)
    shared_a[local_i] = a[i] if i < a_size else 0
    if local_i < b_size:
        shared_b[local_i] = b[local_i]
        j = i + TPB
        shared_a[local_i + TPB] = a[j] if j < a_size else 0.0
    cuda.syncthreads()
    if i < a_size:
        acc = float32(0.0)
        for k in range(b_size):
            acc += shared_a[local_i + k] * shared_b[k]
        out[i] = acc
"""
ROWS = """
TPB = 128
@cuda.jit
def axis_sum(out, a, size):
    cache = cuda.shared.array(TPB, float32)
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    local_i = cuda.threadIdx.x
    batch = cuda.blockIdx.y
    cache[local_i] = 0.0
    if i < size:
        cache[local_i] = a[batch, i]
    cuda.syncthreads()
    p = 2
    while p <= TPB:
        if local_i % p == 0:
            cache[local_i] = cache[local_i] + cache[local_i + p // 2]
        cuda.syncthreads()
        p *= 2
    if local_i == 0:
        out[batch, cuda.blockIdx.x] = cache[0]
"""
BLACK_SCHOLES = """
A1, A2, A3, A4, A5 = 0.31938153, -0.356563782, 1.781477937, -1.821255978, 1.330274429
RSQRT2PI = 0.39894228040143267793994605993438

@cuda.jit(device=True)
def cnd(d):
    k = 1.0 / (1.0 + 0.2316419 * math.fabs(d))
    value = RSQRT2PI * math.exp(-0.5 * d * d) * (k * (A1 + k * (A2 + k * (A3 + k * (A4 + k * A5)))))
    if d > 0:
        value = 1.0 - value
    return value

@cuda.jit
def black_scholes(call, put, price, strike, years, riskfree, volatility):
    i = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    if i >= price.shape[0]:
        return
    root = math.sqrt(years[i])
    d1 = (math.log(price[i] / strike[i]) + (riskfree + 0.5 * volatility * volatility) * years[i]) / (volatility * root)
    d2 = d1 - volatility * root
    up, down = cnd(d1), cnd(d2)
    discount = math.exp(-riskfree * years[i])
    call[i] = price[i] * up - strike[i] * discount * down
    put[i] = strike[i] * discount * (1.0 - down) - price[i] * (1.0 - up)
"""
NBODY = """
TILE = 64
SOFTENING = 0.01
@cuda.jit
def forces(bodies, pull):
    tile = cuda.shared.array((TILE, 4), dtype=float32)
    i = cuda.grid(1)
    n = bodies.shape[0]
    ax, ay, az = float32(0), float32(0), float32(0)
    for first in range(0, n, TILE):
        for c in range(4):
            tile[cuda.threadIdx.x, c] = bodies[first + cuda.threadIdx.x, c]
        cuda.syncthreads()
        for j in range(TILE):
            dx = tile[j, 0] - bodies[i, 0]
            dy = tile[j, 1] - bodies[i, 1]
            dz = tile[j, 2] - bodies[i, 2]
            r2 = dx * dx + dy * dy + dz * dz + float32(SOFTENING)
            inverse = float32(1.0) / math.sqrt(r2)
            weight = tile[j, 3] * inverse * inverse * inverse
            ax += dx * weight
            ay += dy * weight
            az += dz * weight
        cuda.syncthreads()
    pull[i, 0] = ax
    pull[i, 1] = ay
    pull[i, 2] = az
"""
COMPACTION = """
@cuda.jit
def compact(data, out, count, least):
    i = cuda.grid(1)
    keep = i < data.size and data[i] >= least
    votes = cuda.ballot_sync(0xffffffff, keep)
    lane = cuda.laneid
    before = cuda.popc(votes & ((1 << lane) - 1))
    place = 0
    if lane == 0:
        place = cuda.atomic.add(count, 0, cuda.popc(votes))
    place = cuda.shfl_sync(0xffffffff, place, 0)
    if keep:
        out[place + before] = data[i]
"""
PATHS = """
@cuda.jit
def relax(distance, new, k):
    x, y = cuda.grid(2)
    if x < distance.shape[0] and y < distance.shape[1]:
        through = distance[x, k] + distance[k, y]
        new[x, y] = min(distance[x, y], through)
"""
RESIZE = """
@cuda.jit
def resize(picture, out):
    column, row, colour = cuda.grid(3)
    height, width, colours = out.shape
    if row >= height or column >= width or colour >= colours:
        return
    y = (row + 0.5) * picture.shape[0] / height - 0.5
    x = (column + 0.5) * picture.shape[1] / width - 0.5
    y0, x0 = int(math.floor(y)), int(math.floor(x))
    fy, fx = y - y0, x - x0
    y1, x1 = min(y0 + 1, picture.shape[0] - 1), min(x0 + 1, picture.shape[1] - 1)
    y0, x0 = max(y0, 0), max(x0, 0)
    top = picture[y0, x0, colour] * (1 - fx) + picture[y0, x1, colour] * fx
    bottom = picture[y1, x0, colour] * (1 - fx) + picture[y1, x1, colour] * fx
    out[row, column, colour] = uint8(round(top * (1 - fy) + bottom * fy))
"""
HEAT = """
@cuda.jit
def heat(now, new, alpha):
    start = cuda.grid(1)
    stride = cuda.gridsize(1)
    for i in range(start, len(now), stride):
        left = now[i - 1] if i > 0 else now[i]
        right = now[i + 1] if i < len(now) - 1 else now[i]
        new[i] = now[i] + alpha * (left - 2.0 * now[i] + right)
"""
SESSIONS = """
@cuda.jit
def sessionise(user, timestamp, session, most):
    i = cuda.grid(1)
    if i >= len(user):
        return
    boundary = i == 0 or user[i] != user[i - 1] or timestamp[i] - timestamp[i - 1] > most
    if boundary:
        session[i] = i
        look = i + 1
        while look < len(user) and user[look] == user[i] and timestamp[look] - timestamp[look - 1] <= most:
            session[look] = i
            look += 1
"""


def clicks() -> NDArray[np.int64]:
    """Seconds, in order within each of twelve users."""
    counts = np.bincount(np.sort(rng().integers(0, 12, 200)), minlength=12)
    return np.concatenate([np.sort(rng().integers(0, 9000, n)) for n in counts]).astype(np.int64)


def options() -> dict[str, Any]:
    r, n = rng(), 1000
    price, strike = r.uniform(5, 30, n).astype(F32), r.uniform(1, 100, n).astype(F32)
    years = r.uniform(0.25, 10, n).astype(F32)
    return {"call": np.zeros(n, F32), "put": np.zeros(n, F32), "price": price, "strike": strike, "years": years}


def normal(x: NDArray[Any]) -> NDArray[Any]:
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x])


def black_scholes(a: Values) -> Values:
    price, strike, years = (a[n].astype(float) for n in ("price", "strike", "years"))
    d1 = (np.log(price / strike) + (0.02 + 0.5 * 0.3**2) * years) / (0.3 * np.sqrt(years))
    d2, discount = d1 - 0.3 * np.sqrt(years), np.exp(-0.02 * years)
    return {
        "call": price * normal(d1) - strike * discount * normal(d2),
        "put": strike * discount * normal(-d2) - price * normal(-d1),
    }


def pulls(a: Values) -> Values:
    b = a["bodies"].astype(float)
    apart = b[None, :, :3] - b[:, None, :3]
    weight = b[None, :, 3] * ((apart**2).sum(2) + 0.01) ** -1.5
    return {"pull": (apart * weight[:, :, None]).sum(1)}


def resized(a: Values) -> Values:
    picture, (height, width, _) = a["picture"].astype(float), a["out"].shape
    y = (np.arange(height) + 0.5) * picture.shape[0] / height - 0.5
    x = (np.arange(width) + 0.5) * picture.shape[1] / width - 0.5
    y0, x0 = np.floor(y).astype(int), np.floor(x).astype(int)
    fy, fx = (y - y0)[:, None, None], (x - x0)[None, :, None]
    y1, x1 = np.minimum(y0 + 1, picture.shape[0] - 1), np.minimum(x0 + 1, picture.shape[1] - 1)
    y0, x0 = np.maximum(y0, 0), np.maximum(x0, 0)
    top = picture[y0][:, x0] * (1 - fx) + picture[y0][:, x1] * fx
    bottom = picture[y1][:, x0] * (1 - fx) + picture[y1][:, x1] * fx
    return {"out": np.rint(top * (1 - fy) + bottom * fy)}


def diffused(a: Values) -> Values:
    now = a["now"].astype(float)
    padded = np.pad(now, 1, mode="edge")
    return {"new": now + 0.25 * (padded[:-2] - 2 * now + padded[2:])}


def sessions(a: Values) -> Values:
    user, stamp = a["user"], a["timestamp"]
    begins = np.ones(len(user), bool)
    begins[1:] = (user[1:] != user[:-1]) | (np.diff(stamp) > 600)
    return {"session": np.maximum.accumulate(np.where(begins, np.arange(len(user)), 0))}


def pooled(a: Values) -> Values:
    padded = np.concatenate([np.zeros(2), a["a"]])
    return {"out": padded[2:] + padded[1:-1] + padded[:-2]}


def convolved(a: Values) -> Values:
    return {"out": np.correlate(np.concatenate([a["a"], np.zeros(4)]), a["b"], "valid")}


def compacted(a: Values) -> Values:
    kept = a["data"][a["data"] >= 0.5]  # sorted before it is compared
    return {"out": np.concatenate([kept, np.zeros(len(a["data"]) - len(kept))]), "count": np.array([len(kept)])}


LESSONS = (
    Lesson(
        "pooling in shared memory",
        POOLING,
        {"out": np.zeros(32, F32), "a": rng().random(32, F32), "size": 32},
        (1,),
        (32,),
        pooled,
        ("        cuda.syncthreads()\n", "", "race"),
    ),
    Lesson(
        "convolution with a halo",
        CONVOLUTION,
        {"out": np.zeros(300, F32), "a": rng().random(300, F32), "b": rng().random(5, F32), "a_size": 300, "b_size": 5},
        (5,),
        (64,),
        convolved,
        ("TPB_MAX_CONV = TPB + MAX_CONV", "TPB_MAX_CONV = TPB + MAX_CONV - 1", "out of bounds"),
    ),
    Lesson(
        "sums of rows",
        ROWS,
        {"out": np.zeros((6, 1), F32), "a": rng().random((6, 100), F32), "size": 100},
        (1, 6),
        (128,),
        lambda a: {"out": a["a"].astype(float).sum(1, keepdims=True)},
        ("        cuda.syncthreads()\n        p *= 2", "        p *= 2", "race"),
    ),
    Lesson(
        "Black-Scholes",
        BLACK_SCHOLES,
        options() | {"riskfree": 0.02, "volatility": 0.3},
        (8,),
        (128,),
        black_scholes,
        ("    if i >= price.shape[0]:\n        return\n", "", "out of bounds"),
        "black_scholes",
    ),
    Lesson(
        "n-body in tiles",
        NBODY,
        {"bodies": rng().random((256, 4), F32), "pull": np.zeros((256, 3), F32)},
        (4,),
        (64,),
        pulls,
        ("        cuda.syncthreads()\n    pull", "    pull", "race"),
    ),
    Lesson(
        "compaction by ballots",
        COMPACTION,
        {"data": rng().random(500), "out": np.zeros(500), "count": np.zeros(1, I32), "least": 0.5},
        (4,),
        (128,),
        compacted,
        ("i < data.size and data[i] >= least", "data[i] >= least", "out of bounds"),
    ),
    Lesson(
        "shortest paths, one relaxation",
        PATHS,
        {"distance": rng().random((50, 50), F32), "new": np.zeros((50, 50), F32), "k": 3},
        (4, 4),
        (16, 16),
        lambda a: {"new": np.minimum(a["distance"], a["distance"][:, 3:4] + a["distance"][3:4])},
        ("new[x, y] = min(distance[x, y], through)", "distance[x, y] = min(distance[x, y], through)", "race"),
    ),
    Lesson(
        "a picture resized",
        RESIZE,
        {"picture": rng().integers(0, 256, (20, 30, 3), np.uint8), "out": np.zeros((33, 47, 3), np.uint8)},
        (3, 3, 3),
        (16, 16, 1),
        resized,
        ("min(y0 + 1, picture.shape[0] - 1), min", "y0 + 1, min", "out of bounds"),
    ),
    Lesson(
        "heat along a rod",
        HEAT,
        {"now": rng().random(1000), "new": np.zeros(1000), "alpha": 0.25},
        (3,),
        (64,),
        diffused,
        ("new[i] = now[i] +", "now[i] = now[i] +", "race"),
    ),
    Lesson(
        "clicks of sessions",
        SESSIONS,
        {
            "user": np.sort(rng().integers(0, 12, 200)).astype(I32),
            "timestamp": clicks(),
            "session": np.zeros(200, np.int64),
            "most": 600,
        },
        (2,),
        (128,),
        sessions,
        ("look < len(user) and ", "", "out of bounds"),
    ),
)  # fmt: skip


def ask(lesson: Lesson, text: str) -> tuple[str, str]:
    """Whether the values are numpy's, and what was found."""
    arguments = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in lesson.arguments.items()}
    right = lesson.expected({n: v for n, v in lesson.arguments.items() if isinstance(v, np.ndarray)})
    try:
        made = simulate_kernel(
            kernel_source(HEAD + text, lesson.kernel),
            arguments,
            grid=lesson.grid,
            block=lesson.block,
            accelerator=find_accelerator("rtx-4090"),
            timed_issues=20_000,
        )
    except GpuwiseError as error:
        return f"refused: {error.message}", ""
    worst = 0.0
    for name, values in right.items():
        got = arguments[name].astype(float)
        if lesson.name.startswith("compaction"):
            got, values = np.sort(got, axis=None), np.sort(values, axis=None)
        worst = max(worst, float(np.abs(got - values).max() / max(np.abs(values).max(), 1e-30)))
    found = ", ".join(sorted({f.kind for f in made.findings}))
    return ("equal" if worst < 2e-5 else f"off by {worst:.2g}"), found


@dataclass(frozen=True)
class Piece:
    """A piece of the language: the text of a kernel ``k`` over ``out`` (and what else it is given), and what must stand in out."""

    name: str
    text: str
    given: dict[str, Any]
    right: Any
    block: tuple[int, ...] = (64,)


def pieces() -> tuple[Piece, ...]:
    """What people write beside arithmetic, each with the values that numba's semantics give."""
    i, r = np.arange(64), rng()
    x, words = r.normal(size=64).astype(F32), r.integers(0, 2**32, 64, np.uint32)
    table = r.random(16).astype(F32)
    popc = np.array([bin(w).count("1") for w in words.tolist()])
    clz = np.array([32 - w.bit_length() for w in words.tolist()])
    brev = np.array([int(f"{w:032b}"[::-1], 2) for w in words.tolist()], np.int64)
    lcg = words.copy()
    for _ in range(10):
        lcg = lcg * np.uint32(1664525) + np.uint32(1013904223)
    warp_max = x.reshape(2, 32).max(1).repeat(32)
    scan = np.cumsum(x.reshape(2, 32).astype(float), axis=1).ravel()
    horner = 1 + x.astype(float) * (2 + x * (3 + x * 4.0))
    roots = np.array([1.0 if v < 0 else v for v in x.astype(float)])
    for _ in range(20):
        roots = 0.5 * (roots + np.abs(x) / roots)
    gcd = np.array([math.gcd(360, int(v) + 1) for v in i])
    bubble = np.sort(x.reshape(8, 8), axis=1).ravel()
    return (
        Piece(
            "a table in constant memory",
            f"T = np.array({[float(t) for t in table]}, dtype=np.float32)\n@cuda.jit\ndef k(out):\n    t = cuda.const.array_like(T)\n"
            "    i = cuda.grid(1)\n    out[i] = t[i % 16]\n",
            {},
            table[i % 16],
        ),
        Piece(
            "a signature, fastmath and a warp's maximum by exchange",
            "@cuda.jit('void(float64[:], float32[:])', fastmath=True)\ndef k(out, x):\n    i = cuda.grid(1)\n    v = x[i]\n"
            "    for step in (16, 8, 4, 2, 1):\n        v = max(v, cuda.shfl_xor_sync(0xffffffff, v, step))\n    out[i] = v\n",
            {"x": x},
            warp_max,
        ),
        Piece(
            "a scan by shuffles up",
            "@cuda.jit\ndef k(out, x):\n    i = cuda.grid(1)\n    lane = i % 32\n    v = x[i]\n    d = 1\n    while d < 32:\n"
            "        other = cuda.shfl_up_sync(-1, v, d)\n        if lane >= d:\n            v += other\n        d <<= 1\n    out[i] = v\n",
            {"x": x},
            scan,
        ),
        Piece(
            "bits: popc, clz, brev",
            "@cuda.jit\ndef k(out, w):\n    i = cuda.grid(1)\n    out[i] = cuda.popc(w[i]) + 100 * cuda.clz(w[i])"
            " + 10000.0 * cuda.brev(w[i])\n",
            {"w": words},
            popc + 100.0 * clz + 10000.0 * brev,
        ),
        Piece(
            "a generator of numbers that wraps",
            "@cuda.jit\ndef k(out, w):\n    i = cuda.grid(1)\n    s = w[i]\n    for _ in range(10):\n"
            "        s = np.uint32(s * np.uint32(1664525) + np.uint32(1013904223))\n    out[i] = s\n",
            {"w": words},
            lcg.astype(float),
        ),
        Piece(
            "whole numbers: // and % of negative ones, divmod, abs, ** and round",
            "@cuda.jit\ndef k(out):\n    i = cuda.grid(1)\n    n = i - 30\n    q, m = divmod(n, 7)\n"
            "    out[i] = (n // 4) * 1000 + (n % 5) * 100 + q * 10 + m + abs(n) ** 2 + round(n / 3)\n",
            {},
            (i - 30) // 4 * 1000.0
            + (i - 30) % 5 * 100
            + (i - 30) // 7 * 10
            + (i - 30) % 7
            + (i - 30) ** 2
            + np.round((i - 30) / 3),
        ),
        Piece(
            "a local array and a small sort",
            "@cuda.jit\ndef k(out, x):\n    i = cuda.grid(1)\n    if i < 8:\n        mine = cuda.local.array(8, float32)\n"
            "        for j in range(8):\n            mine[j] = x[i * 8 + j]\n        for a in range(8):\n            for b in range(7 - a):\n"
            "                if mine[b] > mine[b + 1]:\n                    mine[b], mine[b + 1] = mine[b + 1], mine[b]\n"
            "        for j in range(8):\n            out[i * 8 + j] = mine[j]\n",
            {"x": x},
            bubble,
        ),
        Piece(
            "a polynomial by fma",
            "@cuda.jit\ndef k(out, x):\n    i = cuda.grid(1)\n    v = float32(4.0)\n    for c in (3.0, 2.0, 1.0):\n"
            "        v = cuda.fma(v, x[i], float32(c))\n    out[i] = v\n",
            {"x": x},
            horner,
        ),
        Piece(
            "a device function that loops until it is near",
            "@cuda.jit(device=True, inline=True)\ndef root(v):\n    g = v if v > 0 else 1.0\n    n = 0\n"
            "    while n < 20:\n        g = 0.5 * (g + abs(v) / g)\n        n += 1\n    return g\n\n"
            "@cuda.jit\ndef k(out, x):\n    i = cuda.grid(1)\n    out[i] = root(x[i])\n",
            {"x": x},
            roots,
        ),
        Piece(
            "Euclid's loop with two names at once",
            "@cuda.jit\ndef k(out):\n    i = cuda.grid(1)\n    a, b = 360, i + 1\n    while b:\n        a, b = b, a % b\n    out[i] = a\n",
            {},
            gcd.astype(float),
        ),
        Piece(
            "atomics: max, min, exch, compare_and_swap, inc",
            "@cuda.jit\ndef k(out, x, seen, n):\n    i = cuda.grid(1)\n    cuda.atomic.max(out, 0, x[i])\n    cuda.atomic.min(out, 1, x[i])\n"
            "    cuda.atomic.compare_and_swap(seen, -1, 7)\n    cuda.atomic.inc(n, 0, 1000)\n    if i == 0:\n        out[2] = 5.0\n",
            {"x": x, "seen": np.array([-1], np.int32), "n": np.zeros(1, np.uint32)},
            np.concatenate([[max(x.max(), 0), min(x.min(), 0), 5.0], np.zeros(61)]),
        ),
        Piece(
            "chained comparisons, not, in, and an assert",
            "@cuda.jit\ndef k(out):\n    i = cuda.grid(1)\n    assert i < 64\n    if 8 <= i < 16 or not i or i in (40, 41):\n        out[i] = 1.0\n",
            {},
            (((i >= 8) & (i < 16)) | (i == 0) | (i == 40) | (i == 41)).astype(float),
        ),
        Piece(
            "complex numbers",
            "@cuda.jit\ndef k(out, x):\n    i = cuda.grid(1)\n    z = complex(x[i], 1.0) * (2.0 - 1.0j)\n    out[i] = abs(z) + z.real - z.imag\n",
            {"x": x},
            np.abs((x + 1j) * (2 - 1j)) + ((x + 1j) * (2 - 1j)).real - ((x + 1j) * (2 - 1j)).imag,
        ),
        Piece(
            "a histogram of bytes in rows of shared memory, rows by a.shape",
            "@cuda.jit\ndef k(out, b):\n    s = cuda.shared.array((2, 32), int32)\n    t = cuda.threadIdx.x\n    row, col = t // 32, t % 32\n"
            "    s[row, col] = 0\n    cuda.syncthreads()\n    cuda.atomic.add(s, (row, b[row, col] % 32), 1)\n    cuda.syncthreads()\n"
            "    out[t] = s[row][col]\n",
            {"b": words.view(np.uint8)[:64].reshape(2, 32)},
            np.concatenate([np.bincount(row % 32, minlength=32) for row in words.view(np.uint8)[:64].reshape(2, 32)]).astype(
                float
            ),
        ),
    )


def files() -> tuple[Piece, ...]:
    """Whole files as people keep them, with what runs on the host around the kernel; ``out`` is first of what they are given."""
    i, x = np.arange(64), rng().normal(size=64).astype(F32)
    square = rng().random((8, 8)).astype(F32)
    life = rng().integers(0, 2, (8, 8)).astype(I32)
    around = sum(np.roll(np.roll(life, dy, 0), dx, 1) for dy in (-1, 0, 1) for dx in (-1, 0, 1)) - life
    softmax = np.exp(square - square.max(1, keepdims=True).astype(float))
    quarter = (i // 4).astype(float)
    inside = 0.5 * x.astype(float) * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x.astype(float) ** 3)))
    return (
        Piece(
            "numba as nb, a type's alias, a host that launches",
            "import numba as nb\nimport numpy as np\nfrom numba import cuda\n\nT = nb.float32\nN = 64\nTHREADS = N // 2\n\n"
            "@nb.cuda.jit\ndef axpy(out, x, a):\n    tx = cuda.threadIdx.x\n    bx = cuda.blockIdx.x\n    bw = cuda.blockDim.x\n"
            "    pos = tx + bx * bw\n    if pos < out.size:\n        out[pos] = T(a) * x[pos] + out[pos]\n\n\n"
            "if __name__ == '__main__':\n    x = cuda.to_device(np.ones(N, np.float32))\n    axpy[2, THREADS](x, x, 2.0)\n    print(f'{x.copy_to_host()[0]:.1f}')\n",
            {"x": x, "a": 2.0},
            2.0 * x.astype(float),
        ),
        Piece(
            "names imported from numba.cuda",
            "from numba.cuda import jit, grid, gridsize, shared, syncthreads, threadIdx\nfrom numba import float64\n\n"
            "@jit\ndef reverse(out, x):\n    s = shared.array(64, float64)\n    t = threadIdx.x\n    for j in range(grid(1), 64, gridsize(1)):\n"
            "        s[j] = x[j]\n    syncthreads()\n    out[t] = s[63 - t]\n",
            {"x": x},
            x[::-1].astype(float),
        ),
        Piece(
            "two kernels and a device function, docstrings and annotations",
            'from numba import cuda\nimport math\n\n@cuda.jit(device=True)\ndef gelu(v: float) -> float:\n    """Tanh form."""\n'
            "    inner = 0.7978845608 * (v + 0.044715 * v * v * v)\n    return 0.5 * v * (1.0 + math.tanh(inner))\n\n"
            '@cuda.jit\ndef other(a):\n    a[0] = 1\n\n@cuda.jit\ndef k(out: \'array\', x: \'array\') -> None:\n    """Each element."""\n'
            "    i: int = cuda.grid(1)\n    if i >= x.shape[0]:\n        return\n    out[i] = gelu(x[i])\n",
            {"x": x},
            inside,
        ),
        Piece(
            "the game of life, wrapped, two dimensions",
            "from numba import cuda\n\n@cuda.jit\ndef life(out, cells):\n    x, y = cuda.grid(2)\n    h, w = cells.shape\n    if x >= h or y >= w:\n        return\n"
            "    n = 0\n    for dx in (-1, 0, 1):\n        for dy in (-1, 0, 1):\n            if dx == 0 and dy == 0:\n                continue\n"
            "            n += cells[(x + dx) % h, (y + dy) % w]\n    out[x * w + y] = 1 if n == 3 or (cells[x, y] == 1 and n == 2) else 0\n",
            {"cells": life},
            ((around == 3) | ((life == 1) & (around == 2))).astype(float).ravel(),
            (8, 8),
        ),
        Piece(
            "softmax of rows, a row a warp of eight lanes",
            "import math\nfrom numba import cuda, float32\n\nW = 8\nNEG = float32(-1e30)\n\n@cuda.jit\ndef softmax(out, a):\n    i = cuda.grid(1)\n"
            "    row, col = i // W, i % W\n    v = a[row, col]\n    top = NEG\n    for c in range(W):\n        top = max(top, a[row, c])\n"
            "    total = float32(0)\n    for c in range(W):\n        total += math.exp(a[row, c] - top)\n    out[i] = math.exp(v - top) / total\n",
            {"a": square},
            (softmax / softmax.sum(1, keepdims=True)).ravel(),
        ),
        Piece(
            "a product of matrices with shapes from the arrays",
            "from numba import cuda\n\n@cuda.jit\ndef matmul(out, a, b):\n    i = cuda.grid(1)\n    if i < a.shape[0] * b.shape[1]:\n"
            "        row = i // b.shape[1]\n        col = i - row * b.shape[1]\n        tmp = 0.\n        for k in range(a.shape[1]):\n"
            "            tmp += a[row, k] * b[k, col]\n        out[i] = tmp\n",
            {"a": square, "b": square.T.copy()},
            (square.astype(float) @ square.T.astype(float)).ravel(),
        ),
        Piece(
            "counts of warps by match of their first lane",
            "from numba import cuda\n\n@cuda.jit\ndef lanes(out):\n    i = cuda.grid(1)\n    out[i] = cuda.laneid // 4 + 8 * (i // cuda.warpsize)\n",
            {},
            quarter,
        ),
        Piece(
            "a kernel made by a function, with what it closes over",
            "from numba import cuda\n\ndef make(scale):\n    @cuda.jit\n    def k(out, x):\n        i = cuda.grid(1)\n        out[i] = x[i] * 3.0\n    return k\n\nkernel = make(3.0)\n",
            {"x": x},
            3.0 * x.astype(float),
        ),
        Piece(
            "shared memory in two dimensions turned around, bank padding",
            "from numba import cuda, float32\n\nTILE = 8\n\n@cuda.jit\ndef turn(out, a):\n    tile = cuda.shared.array(shape=(TILE, TILE + 1), dtype=float32)\n"
            "    t = cuda.threadIdx.x\n    y, x = t // TILE, t % TILE\n    tile[y, x] = a[y, x]\n    cuda.syncthreads()\n    out[t] = tile[x, y]\n",
            {"a": square},
            square.T.ravel().astype(float),
        ),
        Piece(
            "binary search in a sorted table",
            "from numba import cuda\n\n@cuda.jit\ndef search(out, table, x):\n    i = cuda.grid(1)\n    lo = 0\n    hi = len(table)\n    while lo < hi:\n"
            "        mid = (lo + hi) >> 1\n        if table[mid] < x[i]:\n            lo = mid + 1\n        else:\n            hi = mid\n    out[i] = lo\n",
            {"table": np.sort(x)[::4].copy(), "x": x},
            np.searchsorted(np.sort(x)[::4], x).astype(float),
        ),
    )


def more_pieces() -> tuple[Piece, ...]:
    i, x, whole = np.arange(64), rng().normal(size=64).astype(F32), rng().integers(-50, 50, 64).astype(I32)
    points = np.zeros(64, np.dtype([("x", np.float32), ("n", np.int32)]))
    points["x"], points["n"] = x, whole
    square = rng().random((8, 8)).astype(F32)
    keys = whole % 4
    evens = np.array([int((whole[:32] % 2 == 0).sum()), int((whole[32:] % 2 == 0).sum())])
    return (
        Piece(
            "atomics: sub, and, or, xor in whole numbers",
            "@cuda.jit\ndef k(out, n):\n    i = cuda.grid(1)\n    cuda.atomic.sub(n, 0, 2)\n    cuda.atomic.or_(n, 1, 1 << (i % 8))\n    cuda.atomic.and_(n, 2, 254)\n"
            "    cuda.atomic.xor(n, 3, i)\n    out[i] = 1.0\n",
            {"n": np.array([0, 0, 255, 0], np.int32)},
            np.ones(64),
        ),
        Piece(
            "how many threads of a block say yes",
            "@cuda.jit\ndef k(out, w):\n    i = cuda.grid(1)\n    n = cuda.syncthreads_count(w[i] % 2 == 0)\n    out[i] = n\n",
            {"w": whole},
            np.full(64, float(evens.sum())),
        ),
        Piece(
            "lanes with the same key",
            "@cuda.jit\ndef k(out, key):\n    i = cuda.grid(1)\n    same = cuda.match_any_sync(0xffffffff, key[i])\n    out[i] = cuda.popc(same)\n",
            {"key": keys},
            np.array([(keys[a // 32 * 32 : a // 32 * 32 + 32] == keys[a]).sum() for a in i], float),
        ),
        Piece(
            "a row of an array by one index, then its elements",
            "@cuda.jit\ndef k(out, a):\n    i = cuda.grid(1)\n    row = a[i // 8]\n    out[i] = row[i % 8] + row[0]\n",
            {"a": square},
            (square + square[:, :1]).astype(float).ravel(),
        ),
        Piece(
            "an index kept as a tuple",
            "@cuda.jit\ndef k(out, a):\n    i = cuda.grid(1)\n    at = (i % 8, i // 8)\n    out[i] = a[at]\n",
            {"a": square},
            square.T.astype(float).ravel(),
        ),
        Piece(
            "backward loops, nested, with break and continue",
            "@cuda.jit\ndef k(out, w):\n    i = cuda.grid(1)\n    n = 0\n    for a in range(9, -1, -1):\n        if a == i % 10:\n            continue\n"
            "        for b in range(a):\n            if b > w[i] % 7:\n                break\n            n += 1\n    out[i] = n\n",
            {"w": whole},
            np.array([sum(min(a, int(whole[t] % 7) + 1) for a in range(10) if a != t % 10) for t in i], float),
        ),
        Piece(
            "floats: //, %, ** 0.5, pow, ceil, floor, trunc, copysign",
            "@cuda.jit\ndef k(out, x):\n    i = cuda.grid(1)\n    v = float(x[i])\n    out[i] = (v // 0.3) + (v % 0.3) + abs(v) ** 0.5 + pow(v, 2) + math.ceil(v)"
            " + math.floor(v) + math.trunc(v) + math.copysign(2.0, v)\n",
            {"x": x},
            np.floor_divide(x.astype(float), 0.3)
            + np.mod(x.astype(float), 0.3)
            + np.abs(x.astype(float)) ** 0.5
            + x.astype(float) ** 2
            + np.ceil(x)
            + np.floor(x)
            + np.trunc(x)
            + np.copysign(2.0, x),
        ),
        Piece(
            "bits: ~, ^, &, |, <<, >> and flags of the module",
            "FAST = True\nMASK = 0x0F\n@cuda.jit\ndef k(out, w):\n    i = cuda.grid(1)\n    if FAST:\n        out[i] = (~w[i] & MASK) + ((w[i] ^ 5) | 1) + (i << 2) + (w[i] >> 1)\n"
            "    else:\n        out[i] = -1.0\n",
            {"w": whole},
            ((~whole & 15) + ((whole ^ 5) | 1) + (i << 2) + (whole >> 1)).astype(float),
        ),
        Piece(
            "records with fields",
            "@cuda.jit\ndef k(out, p):\n    i = cuda.grid(1)\n    out[i] = p[i].x * 2.0 + p[i]['n']\n",
            {"p": points},
            2.0 * x.astype(float) + whole,
        ),
        Piece(
            "libdevice and a lane's mask",
            "from numba.cuda import libdevice\n@cuda.jit\ndef k(out, x):\n    i = cuda.grid(1)\n    out[i] = libdevice.fabsf(x[i]) + cuda.popc(cuda.lanemask_lt())\n",
            {"x": x},
            np.abs(x).astype(float) + i % 32,
        ),
        Piece(
            "a device function with two values and a default",
            "@cuda.jit(device=True)\ndef both(a, b, scale=2):\n    if a > b:\n        return b * scale, a * scale\n    return a * scale, b * scale\n\n"
            "@cuda.jit\ndef k(out, w):\n    i = cuda.grid(1)\n    low, high = both(w[i], w[63 - i])\n    out[i] = 1000 * high + low\n",
            {"w": whole},
            2000.0 * np.maximum(whole, whole[::-1]) + 2 * np.minimum(whole, whole[::-1]),
        ),
        Piece(
            "small types that wrap as they are stored",
            "@cuda.jit\ndef k(out, b):\n    i = cuda.grid(1)\n    b[i] = b[i] + 200\n    out[i] = b[i]\n",
            {"b": (i * 3).astype(np.uint8)},
            ((i * 3 + 200) % 256).astype(float),
        ),
        Piece(
            "a loop over two ranges at once, enumerate",
            "@cuda.jit\ndef k(out, x):\n    i = cuda.grid(1)\n    total = 0.0\n    for j, c in enumerate((1.0, 2.0, 4.0)):\n        total += c * x[(i + j) % 64]\n    out[i] = total\n",
            {"x": x},
            sum(c * np.roll(x.astype(float), -j) for j, c in enumerate((1.0, 2.0, 4.0))),
        ),
        Piece(
            "a tree in shared memory that a warp ends",
            "@cuda.jit\ndef k(out, x):\n    s = cuda.shared.array(64, float32)\n    t = cuda.threadIdx.x\n    s[t] = x[t]\n    cuda.syncthreads()\n    if t < 32:\n        s[t] += s[t + 32]\n"
            "        cuda.syncwarp()\n        v = s[t]\n        d = 16\n        while d > 0:\n            v += cuda.shfl_down_sync(0xffffffff, v, d)\n            d //= 2\n        if t == 0:\n            s[0] = v\n"
            "    cuda.syncthreads()\n    out[t] = s[0]\n",
            {"x": x},
            np.full(64, x.astype(float).sum()),
        ),
    )


def ask_piece(piece: Piece, head: str = HEAD) -> str:
    out = np.zeros(64)
    try:
        made = simulate_kernel(
            kernel_source(head + piece.text, "k" if "def k(" in piece.text else None),
            {"out": out, **piece.given},
            grid=(1,),
            block=piece.block,
            accelerator=find_accelerator("rtx-4090"),
        )
    except GpuwiseError as error:
        return f"refused: {error.message}"
    worst = float(np.abs(out - piece.right).max() / max(float(np.abs(piece.right).max()), 1e-30))
    return ("equal" if worst < 2e-6 else f"off by {worst:.2g}") + "".join(f", {f.kind}" for f in made.findings)


def main() -> None:
    print("| kernel | values | found | fault | found then |\n|---|---|---|---|---|")
    for lesson in LESSONS:
        was, becomes, kind = lesson.fault
        assert was in lesson.text, lesson.name
        values, found = ask(lesson, lesson.text)
        _, then = ask(lesson, lesson.text.replace(was, becomes, 1))
        print(f"| {lesson.name} | {values} | {found or 'nothing'} | {kind} | {then or 'nothing'} |")
    print("\n| piece | |\n|---|---|")
    for piece in (*pieces(), *more_pieces()):
        print(f"| {piece.name} | {ask_piece(piece)} |")
    print("\n| file | |\n|---|---|")
    for file in files():
        print(f"| {file.name} | {ask_piece(file, head='')} |")


if __name__ == "__main__":
    main()
