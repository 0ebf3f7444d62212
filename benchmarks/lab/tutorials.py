"""Kernels as tutorials teach them, each with numpy's values, and the same kernels with a fault: what the lab makes of them.

    python -m benchmarks.lab.tutorials

Written anew after public material: GPU Puzzles (pooling, convolution, sums of rows), numba's manual (heat, clicks of sessions),
CUDA's samples (Black-Scholes, n-body), and what courses ask for (compaction by ballots, shortest paths, a picture resized). The
faults are a barrier left out, a guard left out and an index off by one; each must be found, and nothing in the right kernels.
"""

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
    kept = a["data"][a["data"] >= 0.5]  # in the order of warps where blocks come one after another; sorted before it is compared
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


def main() -> None:
    print("| kernel | values | found | fault | found then |\n|---|---|---|---|---|")
    for lesson in LESSONS:
        was, becomes, kind = lesson.fault
        assert was in lesson.text, lesson.name
        values, found = ask(lesson, lesson.text)
        _, then = ask(lesson, lesson.text.replace(was, becomes, 1))
        print(f"| {lesson.name} | {values} | {found or 'nothing'} | {kind} | {then or 'nothing'} |")


if __name__ == "__main__":
    main()
