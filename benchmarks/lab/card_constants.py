"""Constants that the lab's simulator stands on, measured on a card by kernels of CUDA C: rates, latencies, turns.

Rows ``constants/*``: ``cycles`` of one operation and multiprocessor by its own clock (``warps`` of a multiprocessor, ``chains`` of
each), or ``seconds`` between events. Nothing of a launch is taken off: ``constants/empty`` has it.
"""

# ruff: noqa: E501 - kernels in their text
from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

SOURCE = r"""
#define GX (blockIdx.x * blockDim.x + threadIdx.x)
#define ALL 0xffffffffu
#define LONG 256
extern "C" {
__global__ void spin(long long cycles) { long long t = clock64(); while (clock64() - t < cycles); }
__global__ void empty(float* out) {}
__global__ void copy_one(const float* __restrict__ x, float* out, long long n) { long long i = GX; if (i < n) out[i] = x[i]; }
__global__ void copy_four(const float4* __restrict__ x, float4* out, long long n) { long long i = GX; if (i < n) out[i] = x[i]; }
__global__ void copy_stride(const float* __restrict__ x, float* out, long long n) {
  for (long long i = GX; i < n; i += (long long)gridDim.x * blockDim.x) out[i] = x[i]; }
__global__ void read_one(const float* __restrict__ x, float* out, long long n) { long long i = GX; if (i < n && x[i] == 1.234f) out[0] = 1.f; }
__global__ void write_one(const float* __restrict__ x, float* out, long long n) { long long i = GX; if (i < n) out[i] = 1.f; }
// loads of one sector a lane: place (i * odd) of a power of two of sectors
__global__ void sectors(const float* __restrict__ x, float* out, long long mask, long long odd, int each) {
  long long i = (long long)GX * each; float t = 0.f;
  for (int k = 0; k < each; ++k) t += __ldcg(x + 8 * (((i + k) * odd) & mask));
  if (t == 1.234f) out[0] = t; }
__global__ void lines(const float4* __restrict__ x, float* out, long long mask, int each) {
  float t = 0.f; long long step = (long long)gridDim.x * blockDim.x, i = GX;
  for (int k = 0; k < each; ++k) { float4 v = __ldcg(x + ((i + k * step) & mask)); t += v.x + v.y + v.z + v.w; }
  if (t == 1.234f) out[0] = t; }
__global__ void apart(const float* __restrict__ x, float* out, long long stride) { out[GX] = x[(long long)GX * stride]; }
__global__ void chase(const int* x, long long* out, int n) {
  int at = 0; for (int k = 0; k < 64; ++k) at = x[at];
  long long t = clock64(); for (int k = 0; k < n; ++k) at = x[at]; t = clock64() - t; out[0] = t; out[1] = at; }
__global__ void chase_l2(const int* x, long long* out, int n) {
  int at = 0; for (int k = 0; k < 64; ++k) at = __ldcg(x + at);
  long long t = clock64(); for (int k = 0; k < n; ++k) at = __ldcg(x + at); t = clock64() - t; out[0] = t; out[1] = at; }
__global__ void atomic_one(float* out) { atomicAdd(out, 1.f); }
__global__ void atomic_warp(float* out) { if (threadIdx.x % 32 == 0) atomicAdd(out, 1.f); }
__global__ void atomic_warp_int(int* out) { if (threadIdx.x % 32 == 0) atomicAdd(out, 1); }
__global__ void atomic_int(int* out) { atomicAdd(out, 1); }
__global__ void atomic_many(int* out, int mask) { atomicAdd(out + ((GX * 2654435761u >> 8) & mask), 1); }
__global__ void atomic_return(int* out) { if (threadIdx.x % 32 == 0) out[1 + (GX & 1023)] = atomicAdd(out, 1); }
__global__ void atomic_own(int* out) { atomicAdd(out + GX, 1); }
}
#define BEGIN long long t = clock64();
#define END(v) t = clock64() - t; if (threadIdx.x % 32 == 0) out[(blockIdx.x * blockDim.x + threadIdx.x) / 32] = t; if (v == 7777.0) out[0] = 1;
#define CHAINS(NAME, TYPE, CODE) \
template <int C> __global__ void NAME(long long* out, TYPE a, int n) { \
  TYPE v[C]; for (int c = 0; c < C; ++c) v[c] = a * (TYPE)(threadIdx.x + c + 1); \
  __syncthreads(); BEGIN \
  for (int k = 0; k < n; k += 32) { _Pragma("unroll") for (int u = 0; u < 32; ++u) { _Pragma("unroll") for (int c = 0; c < C; ++c) { CODE; } } } \
  TYPE s = 0; for (int c = 0; c < C; ++c) s += v[c]; END((double)s) }
CHAINS(ffma, float, v[c] = fmaf(v[c], a, a))
CHAINS(dfma, double, v[c] = fma(v[c], a, a))
CHAINS(imad, int, v[c] = v[c] * a + a)
CHAINS(iadd, int, v[c] = (v[c] ^ a) + (int)k)
CHAINS(imad64, long long, v[c] = v[c] * a + a)
CHAINS(iadd64, long long, v[c] = (v[c] ^ a) + k)
CHAINS(shuffle, int, v[c] = __shfl_xor_sync(ALL, v[c], a))
CHAINS(exponent, float, v[c] = exp2f(v[c]))
CHAINS(expo, float, v[c] = expf(v[c]))
CHAINS(root, float, v[c] = sqrtf(v[c]))
CHAINS(quotient, float, v[c] = a / v[c])
CHAINS(convert, float, v[c] = (float)((int)v[c] + 1))
CHAINS(quotient64, long long, v[c] = (a + 1000003) / (v[c] | 3))
CHAINS(quotient32, int, v[c] = (a + 1000003) / (v[c] | 3))
template <int C> __global__ void looped(long long* out, float a, int n) {
  float v = a; BEGIN
  #pragma unroll 1
  for (int k = 0; k < n; ++k) v = fmaf(v, a, a);
  END(v) }
template <int C> __global__ void barrier(long long* out, float a, int n) { BEGIN for (int k = 0; k < n; ++k) __syncthreads(); END(a) }
template <int C> __global__ void lds(long long* out, int a, int n) {
  __shared__ int s[4096]; for (int i = threadIdx.x; i < 4096; i += blockDim.x) s[i] = i * a; __syncthreads();
  int at = threadIdx.x % 32 * C, v = 0; BEGIN
  for (int k = 0; k < n; k += 32) { _Pragma("unroll") for (int u = 0; u < 32; ++u) v += s[at + u * 32]; at ^= v & (a - 1); }
  END((double)v) }
template <int C> __global__ void lds_wide(long long* out, int a, int n) {
  __shared__ int4 s[1024]; for (int i = threadIdx.x; i < 1024; i += blockDim.x) s[i] = make_int4(i, a, i, a); __syncthreads();
  int at = C ? threadIdx.x % 32 : 0, v = 0; BEGIN
  for (int k = 0; k < n; k += 32) { _Pragma("unroll") for (int u = 0; u < 32; ++u) { int4 w = s[at + u]; v += w.x + w.y + w.z + w.w; } at ^= v & (a - 1); }
  END((double)v) }
template <int C> __global__ void lds_chase(long long* out, int a, int n) {
  __shared__ int s[1024]; for (int i = threadIdx.x; i < 1024; i += blockDim.x) s[i] = (i + 32) % 1024; __syncthreads();
  int at = threadIdx.x % 32; BEGIN for (int k = 0; k < n; ++k) at = s[at]; END((double)at) }
template <int C> __global__ void lds_atomic(long long* out, int a, int n) {
  __shared__ int s[1024]; for (int i = threadIdx.x; i < 1024; i += blockDim.x) s[i] = 0; __syncthreads();
  unsigned h = threadIdx.x * 2654435761u; BEGIN
  for (int k = 0; k < n; ++k) { h = h * 1664525u + 1013904223u; atomicAdd(&s[C == 0 ? 0 : C == 1 ? threadIdx.x % 32 : (h >> 20) % 256], 1); }
  __syncthreads(); END((double)s[threadIdx.x]) }
template <int C> __global__ void l1_load(long long* out, int a, int n) {
  extern __shared__ int none[]; const int* x = (const int*)(out + 8192); int v = 0, at = threadIdx.x % 32 * C;
  BEGIN for (int k = 0; k < n; k += 32) { _Pragma("unroll") for (int u = 0; u < 32; ++u) v += __ldca(x + at + u * 32); at ^= v & (a - 1); }
  END((double)v) }
"""
CHAINED = {
    "ffma": ("float32", (1, 2, 4)),
    "dfma": ("float64", (1, 2)),
    "imad": ("int32", (1, 2, 4)),
    "iadd": ("int32", (1, 4)),
    "imad64": ("int64", (1, 4)),
    "iadd64": ("int64", (1, 4)),
    "shuffle": ("int32", (1, 4)),
    "exponent": ("float32", (1, 4)),
    "expo": ("float32", (1, 4)),
    "root": ("float32", (1, 4)),
    "quotient": ("float32", (1, 4)),
    "convert": ("float32", (1, 4)),
    "quotient64": ("int64", (1,)),
    "quotient32": ("int32", (1,)),
    "looped": ("float32", (1,)),
    "barrier": ("float32", (1,)),
    "lds": ("int32", (1, 2, 4, 32)),
    "lds_wide": ("int32", (0, 1)),
    "lds_chase": ("int32", (1,)),
    "lds_atomic": ("int32", (0, 1, 2)),
    "l1_load": ("int32", (1, 2, 8)),
}
"""Kernel to the type of its number and the second number of its name: chains, or what it says there."""
WARPS = (1, 2, 4, 8, 16, 32, 64)
LENGTH = 512
UNITS = 132
CTYPES = {"float32": "float", "float64": "double", "int32": "int", "int64": "long long"}


def names() -> list[str]:
    return [f"{name}<{c}>" for name, (_, several) in CHAINED.items() for c in several]


class Bench:
    def __init__(self, cupy: Any, seconds: Callable[..., float]) -> None:
        self.cupy, self.seconds = cupy, seconds
        self.module = cupy.RawModule(code=SOURCE, options=("--std=c++17",), name_expressions=names())
        self.out = cupy.zeros(1 << 16, dtype=cupy.int64)

    def clocked(self, name: str) -> list[dict[str, Any]]:
        """Cycles of one operation of a warp and multiprocessor, for each number of warps."""
        import numpy as np

        kind, _ = CHAINED[name.split("<")[0]]
        number = getattr(np, kind)(1)
        kernel = self.module.get_function(name)
        found = list[dict[str, Any]]()
        for warps in WARPS:
            blocks, threads = (UNITS, warps * 32) if warps <= 32 else (2 * UNITS, 1024)
            for _ in range(2):
                kernel((blocks,), (threads,), (self.out, number, np.int32(LENGTH)))
            cycles = self.cupy.asnumpy(self.out[: blocks * threads // 32])
            found.append({"warps": warps, "cycles": float(np.median(cycles)) / LENGTH, "most": float(cycles.max()) / LENGTH})
        return found

    def timed(self, name: str, grid: int, threads: int, *arguments: Any, times: int = 5) -> dict[str, float]:
        kernel = self.module.get_function(name)

        def launch() -> None:
            kernel((grid,), (threads,), arguments)

        launch()
        hot = statistics.median(self.seconds(launch, times, cold=False) for _ in range(3))
        cold = statistics.median(self.seconds(launch, 1, cold=True) for _ in range(5))
        clean = statistics.median(self.seconds(launch, 1, cold=True, clean=True) for _ in range(5))
        return {"hot_s": hot, "cold_s": cold, "cold_clean_s": clean}

    def streams(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Blocks that come and go, copies, sectors out of the L2 and the memory, atomics: seconds."""
        import numpy as np

        cp, i32, i64 = self.cupy, np.int32, np.int64
        big = cp.zeros(1 << 28, dtype=cp.float32)
        out = cp.zeros(1 << 27, dtype=cp.float32)
        whole = out.view(cp.int32)
        for threads in (32, 128, 256, 1024):
            for blocks in (132, 1056, 8448, 65536):
                yield f"empty/{blocks}x{threads}", self.timed("empty", blocks, threads, out)
        for power in (20, 22, 24, 26):
            n = 1 << power
            for name, each, t in (
                ("copy_one", 1, 256),
                ("copy_four", 4, 256),
                ("read_one", 1, 256),
                ("write_one", 1, 256),
                ("copy_one", 1, 1024),
                ("copy_one", 1, 64),
            ):
                yield f"{name}/{n}x{t}", self.timed(name, n // each // t, t, big, out, i64(n // each))
            yield f"copy_stride/{n}", self.timed("copy_stride", 1056, 256, big, out, i64(n))
        for megabytes in (2, 8, 16, 24, 32, 48, 64, 128, 512, 1024):
            power = (megabytes << 20).bit_length() - 1
            mask = i64((1 << power) // 32 - 1)
            for word, odd in (("side by side", 1), ("at random", 0x9E3779B1)):
                for each in (1, 8):
                    n = 1 << 21
                    yield (
                        f"sectors/{megabytes}MB/{word}/{each}",
                        self.timed("sectors", n // 256 // each, 256, big, out, mask, i64(odd), i32(each)),
                    )
            yield f"lines/{megabytes}MB", self.timed("lines", 1056, 256, big, out, i64((1 << power) // 16 - 1), i32(16))
        for stride in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128):
            yield f"apart/{4 * stride}B", self.timed("apart", (1 << 20) // 256, 256, big, out, i64(stride))
        for name in ("atomic_one", "atomic_warp", "atomic_warp_int", "atomic_int", "atomic_return", "atomic_own"):
            yield name, self.timed(name, 1 << 10, 256, whole if "int" in name or name in ("atomic_return", "atomic_own") else out)
        for mask in (31, 255, 4095, (1 << 20) - 1):
            yield f"atomic_many/{mask + 1}", self.timed("atomic_many", 1 << 12, 256, whole, i32(mask))

    def latencies(self) -> dict[str, float]:
        """Cycles of a dependent load: L1, L2, memory."""
        import numpy as np

        found: dict[str, float] = {}
        for name, kernel, count, step, length in (
            ("l1", "chase", 2048, 32, 1024),
            ("l2_8MB", "chase_l2", 1 << 21, 1056, 1024),
            ("l2_32MB", "chase_l2", 1 << 23, 1056, 4096),
            ("memory", "chase_l2", 1 << 26, 32800, 1900),
        ):
            places = ((np.arange(count // step + 1, dtype=np.int64) * step) % count).astype(np.int32)
            x = self.cupy.zeros(count, dtype=self.cupy.int32)
            x[self.cupy.asarray(places[:-1])] = self.cupy.asarray(places[1:])
            if name.startswith("l2"):
                for _ in range(2):
                    self.module.get_function(kernel)((1,), (1,), (x, self.out, np.int32(count // step)))
            elif name == "memory":
                self.seconds(lambda: None, 1, cold=True)
            self.module.get_function(kernel)((1,), (1,), (x, self.out, np.int32(length)))
            found[name] = float(self.out[0]) / length
        return found
