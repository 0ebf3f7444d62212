"""The lab's simulator beside the card: its tasks, a load by stride, and occupancy by the driver.

The tasks are written here in CUDA C with the access pattern of ``gpuwise.lab.tasks`` and compiled by NVRTC (cupy); the lab's own
source, which is in numba's form, is compiled by numba-cuda for the usual size of each, where that is there.
"""

from __future__ import annotations

import random
from typing import Any

from card_rows import GPU, Rows, spread

SIZES: dict[str, tuple[int, ...]] = {
    "vector-add": (1 << 20, 1 << 22, 1 << 24),
    "matmul-naive": (256, 512, 1024),
    "matmul-tiled": (256, 512, 1024),
    "reduction": (1 << 20, 1 << 22, 1 << 24),
    "transpose": (1024, 2048, 4096),
    "transpose-padded": (1024, 2048, 4096),
    "divergence": (1 << 19, 1 << 21, 1 << 23),
    "gather": (1 << 19, 1 << 21, 1 << 23),
    "softmax": (1024, 8192, 32768),
    "attention-scores": (64, 256),
    "attention-fused": (64, 256, 512),
    "convolution": (512, 1024, 4096),
}
STRIDES = (1, 2, 3, 4, 8, 16, 32)
STRIDED = 1 << 20
"""Elements that are read."""
STRIDED_SOURCE = """
def strided(x, out, n, stride):
    i = cuda.grid(1)
    if i < n:
        out[i] = x[i * stride]
"""
REPEATS, CLEAN_REPEATS, IN_A_ROW, SPIN_CYCLES = 11, 7, 10, 3_000_000

CUDA = r"""
#define GX (blockIdx.x * blockDim.x + threadIdx.x)
#define GY (blockIdx.y * blockDim.y + threadIdx.y)
#define ALL 0xffffffffu
extern "C" {
__global__ void spin(long long cycles) { long long t = clock64(); while (clock64() - t < cycles); }
__global__ void sweep(const float4* x, float* out, long long n) { float t = 0.f;
  for (long long i = GX; i < n; i += (long long)gridDim.x * blockDim.x) { float4 v = x[i]; t += v.x + v.y + v.z + v.w; }
  if (t == 1.234f) out[0] = t; }
__global__ void vector_add(const float* __restrict__ x, const float* __restrict__ y, float* out, int n) {
  int i = GX; if (i < n) out[i] = x[i] + y[i]; }
__global__ void strided(const float* __restrict__ x, float* out, int n, int stride) {
  int i = GX; if (i < n) out[i] = x[i * stride]; }
__global__ void matmul_naive(const float* __restrict__ a, const float* __restrict__ b, float* c, int n) {
  int col = GX, row = GY;
  if (row < n && col < n) { float t = 0.f;
    for (int k = 0; k < n; ++k) t += a[row * n + k] * b[k * n + col];
    c[row * n + col] = t; } }
__global__ void matmul_tiled(const float* __restrict__ a, const float* __restrict__ b, float* c, int n) {
  __shared__ float ta[16][16], tb[16][16];
  int x = threadIdx.x, y = threadIdx.y, col = GX, row = GY; float total = 0.f;
  for (int t = 0; t < n; t += 16) {
    ta[y][x] = (row < n && t + x < n) ? a[row * n + t + x] : 0.f;
    tb[y][x] = (t + y < n && col < n) ? b[(t + y) * n + col] : 0.f;
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < 16; ++k) total += ta[y][k] * tb[k][x];
    __syncthreads(); }
  if (row < n && col < n) c[row * n + col] = total; }
__global__ void reduction(const float* __restrict__ x, float* out, int n) {
  __shared__ float sums[8];
  int th = threadIdx.x, i = blockIdx.x * 512 + th; float v = 0.f;
  if (i < n) v = x[i];
  if (i + 256 < n) v += x[i + 256];
  for (int s = 16; s; s >>= 1) v += __shfl_down_sync(ALL, v, s);
  if (th % 32 == 0) sums[th / 32] = v;
  __syncthreads();
  if (th < 8) { v = sums[th]; for (int s = 4; s; s >>= 1) v += __shfl_down_sync(0xffu, v, s); if (th == 0) atomicAdd(out, v); } }
#define TRANSPOSE(NAME, WIDTH) \
__global__ void NAME(const float* __restrict__ a, float* out, int n) { \
  __shared__ float tile[32][WIDTH]; \
  int x = threadIdx.x, y = threadIdx.y, col = blockIdx.x * 32 + x, row = blockIdx.y * 32 + y; \
  for (int j = 0; j < 32; j += 8) if (row + j < n && col < n) tile[y + j][x] = a[(row + j) * n + col]; \
  __syncthreads(); \
  col = blockIdx.y * 32 + x; row = blockIdx.x * 32 + y; \
  for (int j = 0; j < 32; j += 8) if (row + j < n && col < n) out[(row + j) * n + col] = tile[x][y + j]; }
TRANSPOSE(transpose, 32)
TRANSPOSE(transpose_padded, 33)
__global__ void divergence(const float* __restrict__ x, float* out, int n) {
  int i = GX;
  if (i < n) { float v = x[i];
    if (i % 2 == 0) { for (int k = 0; k < 16; ++k) v = v * 0.5f + 1.f; }
    else { for (int k = 0; k < 16; ++k) v = v * 0.25f - 1.f; }
    out[i] = v; } }
__global__ void gather(const float* __restrict__ x, const int* __restrict__ index, float* out, int n) {
  int i = GX; if (i < n) out[i] = x[index[i]]; }
__global__ void softmax(const float* x, float* out, int rows) {
  __shared__ float parts[4];
  int th = threadIdx.x; const float* r = x + (size_t)blockIdx.x * 512; float most = -1e30f, total = 0.f;
  for (int j = 0; j < 512; j += 128) most = fmaxf(most, r[j + th]);
  for (int s = 16; s; s >>= 1) most = fmaxf(most, __shfl_xor_sync(ALL, most, s));
  if (th % 32 == 0) parts[th / 32] = most;
  __syncthreads();
  most = fmaxf(fmaxf(parts[0], parts[1]), fmaxf(parts[2], parts[3]));
  __syncthreads();
  for (int j = 0; j < 512; j += 128) total += expf(r[j + th] - most);
  for (int s = 16; s; s >>= 1) total += __shfl_xor_sync(ALL, total, s);
  if (th % 32 == 0) parts[th / 32] = total;
  __syncthreads();
  total = (parts[0] + parts[1]) + (parts[2] + parts[3]);
  for (int j = 0; j < 512; j += 128) out[(size_t)blockIdx.x * 512 + j + th] = expf(r[j + th] - most) / total; }
__global__ void attention_scores(const float* q, const float* k, const float* v, float* out, float* scores, int n) {
  int row = GX; if (row >= n) return;
  float most = -1e30f, total = 0.f;
  for (int j = 0; j < n; ++j) { float s = 0.f;
    #pragma unroll
    for (int d = 0; d < 32; ++d) s += q[row * 32 + d] * k[j * 32 + d];
    s *= 0.17677669f; scores[row * n + j] = s; most = fmaxf(most, s); }
  for (int j = 0; j < n; ++j) total += expf(scores[row * n + j] - most);
  for (int d = 0; d < 32; ++d) { float r = 0.f;
    for (int j = 0; j < n; ++j) r += expf(scores[row * n + j] - most) * v[j * 32 + d];
    out[row * 32 + d] = r / total; } }
__global__ void attention_fused(const float* q, const float* k, const float* v, float* out, int n) {
  __shared__ float keys[32][32], values[32][32];
  int th = threadIdx.x, row = GX; float most = -1e30f, total = 0.f, query[32], result[32];
  if (row < n) {
    #pragma unroll
    for (int d = 0; d < 32; ++d) { query[d] = q[row * 32 + d]; result[d] = 0.f; } }
  for (int first = 0; first < n; first += 32) {
    for (int j = 0; j < 32; j += 2) {
      keys[j + th / 32][th % 32] = k[(first + j + th / 32) * 32 + th % 32];
      values[j + th / 32][th % 32] = v[(first + j + th / 32) * 32 + th % 32]; }
    __syncthreads();
    for (int j = 0; j < 32; ++j) { float s = 0.f;
      #pragma unroll
      for (int d = 0; d < 32; ++d) s += query[d] * keys[j][d];
      s *= 0.17677669f;
      float now = fmaxf(most, s), old = expf(most - now), share = expf(s - now);
      total = total * old + share;
      #pragma unroll
      for (int d = 0; d < 32; ++d) result[d] = result[d] * old + share * values[j][d];
      most = now; }
    __syncthreads(); }
  if (row < n) {
    #pragma unroll
    for (int d = 0; d < 32; ++d) out[row * 32 + d] = result[d] / total; } }
__global__ void convolution(const float* __restrict__ x, const float* __restrict__ w, float* out, int n) {
  int col = GX, row = GY;
  if (row < n && col < n) { float t = 0.f;
    for (int i = 0; i < 3; ++i) for (int j = 0; j < 3; ++j) { int y = row + i - 1, z = col + j - 1;
      if (y >= 0 && y < n && z >= 0 && z < n) t += w[i * 3 + j] * x[y * n + z]; }
    out[row * n + col] = t; } }
}
"""
"""Whole numbers are 32 bits wide, as a person writes them in CUDA C."""

SHARES = ("active_lanes", "issue_share", "useful_share", "l1_hit_share", "atomic_cycles")
"""Counters that are no sums of the blocks that were timed."""

HUNGRY = r"""
extern "C" __global__ void hungry(float* x, int n) {
  STATIC
  float v[64];
  #pragma unroll
  for (int i = 0; i < 64; ++i) v[i] = x[threadIdx.x + i * n];
  for (int k = 0; k < n; ++k) {
    #pragma unroll
    for (int i = 0; i < 64; ++i) v[i] = v[i] * v[(i * 7 + 3) % 64] + v[(i + 1) % 64]; }
  BARRIER
  #pragma unroll
  for (int i = 0; i < 64; ++i) x[threadIdx.x + i * n] = v[i];
}
"""
"""Sixty-four values that all live at once: the compiler's limit on registers decides how many it gets."""


def items() -> list[tuple[str, int]]:
    return [(task, n) for task, sizes in SIZES.items() for n in sizes]


def predict(task: str, n: int, *, by_numba: bool = False) -> dict[str, Any]:
    """What the simulator says of one task on the card."""
    from gpuwise.facts.hardware.naming import USUAL, find_accelerator
    from gpuwise.lab.compiler import NUMBA, NVCC
    from gpuwise.lab.simulation import simulate_kernel, simulate_task
    from gpuwise.lab.tasks import find_task, launch_of

    card = find_accelerator(GPU, prefer=USUAL)
    if task == "strided":
        import numpy as np

        arguments = {"x": np.ones(STRIDED * n, np.float32), "out": np.zeros(STRIDED, np.float32), "n": STRIDED, "stride": n}
        made = simulate_kernel(
            STRIDED_SOURCE, arguments, grid=(STRIDED // 256,), block=(256,), accelerator=card, regs_per_thread=16, compiler=NVCC
        )
    else:
        found = find_task(task)
        made = simulate_task(found, launch_of(found, n), card, compiler=NUMBA if by_numba else NVCC)
    return predicted_row(made)


def predicted_row(made: Any) -> dict[str, Any]:
    """What a simulation says, with its counters for all blocks."""
    o = made.occupancy
    return {
        "predicted_s": made.time_s,
        "predicted_cycles": made.cycles,
        "bound": made.bound,
        "predicted_blocks": o.active_blocks,
        "predicted_regs": o.regs_per_thread,
        "counters": {k: v * made.blocks / made.blocks_timed for k, v in made.counters.items() if k not in SHARES},
        "shares": {k: made.counters[k] for k in SHARES},
        "stalls": made.stalls,
    }


def parameters_of(function: Any) -> list[str]:
    import inspect

    return list(inspect.signature(function).parameters)


def parameters(source: str) -> list[str]:
    """Names of a kernel's parameters, in their order."""
    from gpuwise.lab.source import read_kernel

    return read_kernel(source).parameters


class Card:
    """cupy's side: kernels, arrays, time between events."""

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy
        self.module = cupy.RawModule(code=CUDA, options=("--std=c++17",))
        self.spin = self.module.get_function("spin")
        self.sweep = self.module.get_function("sweep")
        self.flushed = cupy.zeros(256 << 20, dtype=cupy.int8)

    def seconds(self, launch: Any, times: int, *, cold: bool, clean: bool = False, before: Any = None) -> float:
        """Of one of ``times`` launches. ``cold``: the L2 holds another array, written or (``clean``) only read; ``before`` runs
        first, outside the time."""
        first, last = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        if before is not None:
            before()
        self.spin((1,), (1,), (self.cupy.int64(SPIN_CYCLES),))
        if cold:
            self.flushed.fill(1)
        if clean:
            self.sweep((1056,), (256,), (self.flushed, self.flushed, self.cupy.int64(self.flushed.size // 16)))
        first.record()
        for _ in range(times):
            launch()
        last.record()
        last.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(first, last)) * 1e-3 / times

    def both(self, launch: Any, before: Any = None) -> dict[str, Any]:
        for _ in range(3):
            launch()
        cold = [self.seconds(launch, 1, cold=True, before=before) for _ in range(REPEATS)]
        clean = [self.seconds(launch, 1, cold=True, clean=True, before=before) for _ in range(CLEAN_REPEATS)]
        hot = [self.seconds(launch, IN_A_ROW, cold=False) for _ in range(3)]
        return {"cold": spread(cold), "clean": spread(clean), "hot": spread(hot)}

    def arguments(self, source: str, given: dict[str, Any]) -> dict[str, Any]:
        """On the card, in the order of the kernel's parameters."""
        import numpy as np

        named = {name: given[name] for name in parameters(source)}
        return {k: self.cupy.asarray(v) if isinstance(v, np.ndarray) else np.int32(v) for k, v in named.items()}


def occupancy_of(kernel: Any, threads: int, dynamic: int) -> int:
    """Blocks by the driver, whose context and function cupy made."""
    import ctypes

    blocks = ctypes.c_int(-1)
    pointer = ctypes.c_void_p(kernel.kernel.ptr)
    ask = ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveBlocksPerMultiprocessor
    code = ask(ctypes.byref(blocks), pointer, ctypes.c_int(threads), ctypes.c_size_t(dynamic))
    if code:
        raise RuntimeError(f"cuOccupancyMaxActiveBlocksPerMultiprocessor gives {code}")
    return blocks.value


def _blocks_or_reason(kernel: Any, threads: int) -> int | str:
    try:
        return occupancy_of(kernel, threads, 0)
    except (OSError, RuntimeError) as error:
        return str(error)


def launch_once(card: Card, task: str, n: int) -> None:
    from gpuwise.lab.tasks import find_task, launch_of

    made = launch_of(find_task(task), n)
    given = card.arguments(find_task(task).source, made.arguments)
    card.module.get_function(task.replace("-", "_"))(made.grid, made.block, tuple(given.values()))


def run_task(card: Card, task: str, n: int) -> dict[str, Any]:
    """Measured seconds of one task, its attributes and whether its values are right."""
    import math

    import numpy as np

    from gpuwise.lab.tasks import find_task, launch_of

    found_task = find_task(task)
    made = launch_of(found_task, n)
    given = card.arguments(found_task.source, made.arguments)
    kernel = card.module.get_function(task.replace("-", "_"))

    def launch() -> None:
        kernel(made.grid, made.block, tuple(given.values()))

    expected, error = made.expected(), 0.0
    for name in expected:
        given[name].fill(0)
    launch()
    for name, right in expected.items():
        scale = float(np.abs(right).max()) or 1.0
        error = max(error, float(np.abs(card.cupy.asnumpy(given[name]) - right).max()) / scale)
    found = {"right": error <= made.tolerance, "error": error, **card.both(launch)}
    threads = math.prod(made.block)
    return found | {
        "regs": kernel.num_regs,
        "shared_bytes": kernel.shared_size_bytes,
        "local_bytes": kernel.local_size_bytes,
        "blocks": _blocks_or_reason(kernel, threads),
    }


def run_strided(card: Card, stride: int) -> dict[str, Any]:
    x = card.cupy.ones(STRIDED * stride, dtype=card.cupy.float32)
    out = card.cupy.empty(STRIDED, dtype=card.cupy.float32)
    kernel = card.module.get_function("strided")
    import numpy as np

    found = card.both(lambda: kernel((STRIDED // 256,), (256,), (x, out, np.int32(STRIDED), np.int32(stride))))
    return found | {"useful_bytes_per_s": 8 * STRIDED / float(found["cold"]["median_s"])}


def numba_cuda() -> Any:
    """numba.cuda, where a name that numpy no longer has stands in its way."""
    import numpy as np

    if "row_stack" not in vars(np):
        setattr(np, "row_stack", np.vstack)  # noqa: B010 - a linter would write the name's successor here
    from numba import cuda

    return cuda


def run_numba(card: Card, task: str, n: int) -> dict[str, Any]:
    """The lab's own source, compiled by numba-cuda."""
    import math
    import tempfile
    from pathlib import Path

    from gpuwise.lab.tasks import find_task, launch_of

    cuda, found = numba_cuda(), find_task(task)
    with tempfile.TemporaryDirectory() as folder:  # numba reads a kernel's source from its file
        file = Path(folder) / "kernel.py"
        file.write_text("import math\nfrom numba import cuda, float32\n" + found.source, encoding="utf-8")
        names: dict[str, Any] = {}
        exec(compile(file.read_text("utf-8"), str(file), "exec"), names)
        function = next(v for k, v in names.items() if k == task.replace("-", "_"))
        made = launch_of(found, n)
        ordered = [made.arguments[name] for name in parameters(found.source)]
        arguments = [cuda.to_device(v) if hasattr(v, "dtype") else v for v in ordered]
        dispatcher = cuda.jit(function)
        kernel = dispatcher[made.grid, made.block]
        kernel(*arguments)
        cuda.synchronize()
        result = card.both(lambda: kernel(*arguments))
    regs = next(iter(dispatcher.get_regs_per_thread().values()), None)
    return {**result, "regs": regs, "threads": math.prod(made.block)}


def run_occupancy(card: Card, count: int = 48) -> dict[str, Any]:
    """Blocks of a multiprocessor by the driver and by the lab, at random shapes."""
    from gpuwise.lab import occupancy

    dice, kernels = random.Random(7), list[Any]()
    for limit in (24, 32, 40, 48, 64, 80, 96, 128, 255):
        for static in (0, 12_000):
            text = f"__shared__ float tile[{static // 4}]; tile[threadIdx.x] = x[0]; __syncthreads();" if static else ""
            barrier = "__syncthreads(); v[0] += tile[threadIdx.x ^ 1];" if static else ""
            code = HUNGRY.replace("STATIC", text).replace("BARRIER", barrier)
            kernels.append(card.cupy.RawKernel(code, "hungry", options=(f"--maxrregcount={limit}",)))
    shapes = list[dict[str, Any]]()
    wrong = 0
    for _ in range(count):
        kernel = dice.choice(kernels)
        threads = dice.choice([32, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1000, 1024])
        dynamic = dice.choice([0, 0, 1024, 5000, 16_384, 33_000, 47_000, 60_000, 100_000, 150_000, 200_000])
        static = kernel.shared_size_bytes
        optin = dynamic + static > 48 * 1024
        kernel.max_dynamic_shared_size_bytes = dynamic if optin else 0
        theirs = occupancy_of(kernel, threads, dynamic)
        ours = occupancy(
            "9.0",
            block_threads=threads,
            regs_per_thread=kernel.num_regs,
            static_smem=static,
            dynamic_smem=dynamic,
            optin=optin,
        ).active_blocks
        wrong += ours != theirs
        shapes.append(
            {"threads": threads, "regs": kernel.num_regs, "static": static, "dynamic": dynamic, "ours": ours, "theirs": theirs}
        )
    return {"asked": count, "different": wrong, "shapes": shapes}


def main(rows: Rows, predictions: dict[str, Any]) -> None:
    """Occupancy, strides, tasks by size (the usual ones first), then the lab's own source."""
    made: list[Card] = []

    def start() -> dict[str, Any]:
        made.append(Card())
        x = made[0].cupy.zeros(32, dtype=made[0].cupy.float32)
        out = made[0].cupy.zeros(32, dtype=made[0].cupy.float32)
        add = made[0].module.get_function("vector_add")
        import numpy as np

        return {"floor": made[0].both(lambda: add((1,), (32,), (x, x, out, np.int32(32))))}

    if not rows.run("lab/start", start, 20.0):
        return
    card = made[0]

    def joined(key: str, work: Any) -> dict[str, Any]:
        found = work()
        predicted = predictions.get(key, {})
        if predicted.get("predicted_s"):
            found["over_measured"] = predicted["predicted_s"] / float(found["cold"]["median_s"])
        return {**predicted, **found}

    rows.run("lab/occupancy", lambda: run_occupancy(card), 10.0)
    for stride in STRIDES:
        key = f"lab/strided/{stride}"
        rows.run(key, lambda key=key, s=stride: joined(key, lambda: run_strided(card, s)), 4.0)
    for turn in (1, 2, 0):
        for task, sizes in SIZES.items():
            if turn < len(sizes):
                key, n = f"lab/{task}/{sizes[turn]}", sizes[turn]
                rows.run(key, lambda key=key, task=task, n=n: joined(key, lambda: run_task(card, task, n)), 6.0)
    for task, sizes in SIZES.items():
        n = sizes[min(1, len(sizes) - 1)]
        rows.run(f"lab/numba/{task}/{n}", lambda task=task, n=n: run_numba(card, task, n), 8.0)
