"""What an attention kernel has to do, in seconds each resource of a device would need for it.

Shapes: every argument is an array of R rows (or broadcasts to it); results are [R] float64.

Each feature is the logarithm of a time (or of a count that a bigger device makes smaller), so that it never
grows when the device gets more units, a higher rate, more bandwidth or more cache, and never falls when
batch, query length, key length or heads (at the same group size) grow. A kernel model that rises with every
feature inherits both laws.

Cost of one score element (one query-key pair of one head): two products of ``head_dim`` and ``v_head_dim`` on
the matrix unit, one exponential on the special-function unit and some arithmetic on the vector unit,
overlapped:

    seconds = ((2 (d + d_v) / matrix_rate)^3 + ((E 16/x + C) / (units clock))^3)^(1/3)

with ``x`` exponentials per clock and unit (16 from Volta to Blackwell, 32 on Blackwell Ultra: CUDA
programming guide, arithmetic throughput table; NVIDIA, "Making Softmax More Efficient with NVIDIA Blackwell
Ultra"). E, C are fitted to cuDNN's published GB200 and GB300 forward times (NVIDIA/cudnn-frontend,
benchmark/sdpa_benchmark_training, MIT), where the two devices differ in x alone and fp8 halves the first
term.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.units import MICRO

F64 = NDArray[np.float64]

EXP_CYCLES, SOFTMAX_CYCLES, OVERLAP = 0.047, 0.0173, 3.0
"""E and C in cycles of one unit per score element, and the exponent of the overlap."""
_EXP_PER_CLOCK = {"10.3": 32.0}
_EXP_PER_CLOCK_DEFAULT = 16.0
BLOCK = 128
"""Rows and columns of a score tile: that of FlashAttention-2/3 and trtllm-gen at head size 128."""
_CTA_CYCLES = 900.0
"""Prologue and epilogue of a thread block, in cycles (order of one tile's global load and store)."""
_L2_BYTES_PER_CLOCK_AND_UNIT = 64.0
_RESIDENT_BELOW = 0.5
"""Share of the second-level cache that a working set may fill before a repeated pass misses it, on split
caches."""

FREE_FEATURES = (
    "group",
    "group_1",
    "group_4",
    "group_8",
    "width",
    "width_64",
    "width_128",
    "windowed",
    "window_kernel",
)


@dataclass(frozen=True, slots=True)
class Device:
    """The rates an attention kernel sees, at the clock it holds."""

    units: float
    clock_hz: float
    matrix_flop_per_s: float
    exp_per_clock: float
    bandwidth_bytes_per_s: float
    cache_bytes: float

    def at_matrix_rate(self, relative: float) -> Device:
        """The same device when its matrix unit sustains ``relative`` times the rate."""
        return replace(self, matrix_flop_per_s=self.matrix_flop_per_s * relative)

    def imagined(self, compute: float, bandwidth: float) -> Device:
        """A device that multiplies and exponentiates ``compute`` times as fast and has ``bandwidth`` times
        the bandwidth."""
        return replace(
            self,
            matrix_flop_per_s=self.matrix_flop_per_s * compute,
            exp_per_clock=self.exp_per_clock * compute,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s * bandwidth,
        )


def exp_per_clock(compute_capability: str | None) -> float:
    """Exponentials per clock and unit."""
    return _EXP_PER_CLOCK.get(compute_capability or "", _EXP_PER_CLOCK_DEFAULT)


class Shape(NamedTuple):
    """Rows of calls as float64 [R]. ``window`` 0 means none."""

    batch: F64
    q_len: F64
    kv_len: F64
    heads: F64
    kv_heads: F64
    head_dim: F64
    v_head_dim: F64
    window: F64


class AttentionWork(NamedTuple):
    """``features`` [R, n] logarithms of times or counts; the rest [R] seconds at the device's full rates."""

    features: F64
    memory_s: F64
    """Fetching what misses the cache."""
    tiles_s: F64
    """Score tiles a mask leaves (0 for decode, whose arithmetic never decides)."""


def element_seconds(device: Device, head_dim: F64, v_head_dim: F64, *, products: float = 1.0, vector: float = 1.0) -> F64:
    """Seconds the whole device needs per score element; ``products`` and ``vector`` scale its two parts
    (backward)."""
    matrix = products * 2.0 * (head_dim + v_head_dim) / device.matrix_flop_per_s
    cycles = EXP_CYCLES * _EXP_PER_CLOCK_DEFAULT / device.exp_per_clock + SOFTMAX_CYCLES
    softmax = vector * cycles / (device.units * device.clock_hz)
    return (matrix**OVERLAP + softmax**OVERLAP) ** (1.0 / OVERLAP)


def _attended(shape: Shape) -> F64:
    """[R] keys each query attends to: the window where there is one, else the whole length."""
    return np.where(shape.window > 0, np.minimum(shape.kv_len, shape.window), shape.kv_len)


def _missed(size: F64, cache: float, sharpness: float) -> F64:
    """Share of a repeatedly used set of ``size`` bytes that a cache of ``cache`` bytes does not hold: a soft
    step."""
    if cache <= 0:
        return np.ones_like(size)
    return 1.0 / (1.0 + (size / cache) ** -sharpness)


def forward_work(device: Device, shape: Shape, kv_bytes: float, q_bytes: float, *, causal: bool) -> AttentionWork:
    """Features and rate-limited seconds [R] of prefill and training forward.

    Padded tiles: query blocks of 128 rows against key blocks of 128; causal blocks above the diagonal are
    skipped. Waves: thread blocks over units, each as long as the mean tile plus a fixed cost.
    """
    b, q, kv, h, g, d, dv, _ = shape
    attended = _attended(shape)
    q_pad, kv_pad = np.ceil(q / BLOCK) * BLOCK, np.ceil(kv / BLOCK) * BLOCK
    whole = q_pad * kv_pad
    before = np.maximum(kv - q, 0.0)
    triangle = np.minimum(whole, q_pad * (before + (q + BLOCK) / 2 + BLOCK / 2)) if causal else whole
    band = np.minimum(triangle, q_pad * (attended + BLOCK))
    per = element_seconds(device, d, dv) / MICRO
    fixed = _CTA_CYCLES / device.clock_hz / MICRO
    blocks = np.ceil(q / BLOCK) * h * b

    def waves(elements: F64) -> F64:
        return np.ceil(blocks / device.units) * (b * h * elements / blocks * per * device.units + fixed)

    tile = BLOCK * np.minimum(kv_pad, attended + BLOCK) * per * device.units
    packed = np.ceil(np.ceil(q * (h / g) / BLOCK) * g * b / device.units) * (tile + fixed)
    q_side, k_side = b * q * h * (d + dv) * q_bytes, b * kv * g * (d + dv)
    cache = (q_side + k_side * kv_bytes) / (device.units * device.clock_hz * _L2_BYTES_PER_CLOCK_AND_UNIT) / MICRO
    moved = q_side + k_side * 2.0
    memory = moved * _missed(moved, device.cache_bytes, 6.0) / device.bandwidth_bytes_per_s
    features = np.stack(
        [
            np.log(b * h * band * per + 0.3),
            np.log(b * h * triangle * per + 0.3),
            np.log(waves(band)),
            np.log(waves(triangle)),
            np.log(tile + fixed),
            np.log(attended / device.clock_hz * 1e9 + 32.0),
            np.log(cache + 0.3),
            np.log(packed),
        ],
        axis=1,
    )
    return AttentionWork(features, memory, b * h * band * per * MICRO)


def decode_work(device: Device, shape: Shape, kv_bytes: float, q_bytes: float) -> AttentionWork:
    """Features and rate-limited seconds [R] of one query token per sequence against a cache of ``kv_len`` tokens.

    Keys and values come from memory, or from the second-level cache where they fit (a benchmark repeats the
    same cache; so does a decode step over few layers). Otherwise a unit works through its share of the keys
    one after another.
    """
    b, _, kv, h, g, d, _, _ = shape
    attended = _attended(shape)
    slow = 1e9 / device.clock_hz
    cache_bytes, query_bytes = b * attended * g * d * 2 * kv_bytes, b * h * d * 2 * q_bytes
    l2_rate = device.units * device.clock_hz * _L2_BYTES_PER_CLOCK_AND_UNIT * MICRO
    missed = _missed(cache_bytes, device.cache_bytes, 8.0)
    memory = (cache_bytes * missed + 0.02 * cache_bytes + query_bytes * missed) / device.bandwidth_bytes_per_s
    wide, units = d / 128.0 * slow, device.units
    fits = device.cache_bytes if device.cache_bytes > 0 else np.inf
    columns = (
        np.minimum(cache_bytes, fits) / l2_rate + 0.2,
        np.minimum(cache_bytes, _RESIDENT_BELOW * fits) / l2_rate + 0.2,
        np.ceil(b * g / units) * attended * wide + 64.0,
        np.ceil(b * h / units) * attended * wide + 64.0,
        b * g * attended / units * wide + 64.0,
        b * h * attended / units * wide + 64.0,
        b * g * kv / units * wide + 64.0,
        b * g / units * slow + 0.05,
        b * h / units * slow + 0.05,
        query_bytes / l2_rate + 0.05,
        attended * slow + 16.0,
        kv * slow + 16.0,
        b * slow + 1.0,
    )
    return AttentionWork(np.stack([np.log(c) for c in columns], axis=1), memory, np.zeros_like(memory))


def _hat(x: F64, at: float) -> F64:
    """1 at ``at``, falling to 0 one octave away."""
    return np.maximum(0.0, 1.0 - np.abs(x - at))


def free_features(shape: Shape) -> F64:
    """[R, 9] what selects another code path of a kernel and has no direction: group size, head size,
    window."""
    group = np.log2(shape.heads / shape.kv_heads)
    width = np.log2(shape.head_dim / 64.0)
    windowed = (shape.window > 0) & (shape.window < shape.kv_len)
    return np.stack(
        [
            group,
            _hat(group, 0.0),
            np.minimum(group, 2.0),
            np.minimum(group, 3.0),
            width,
            _hat(width, 0.0),
            _hat(width, 1.0),
            windowed.astype(np.float64),
            (shape.window > 0).astype(np.float64),
        ],
        axis=1,
    )


def tree_features(shape: Shape, gpu: float) -> F64:
    """[R, 11] the call's own dimensions (no device rates): what the measured irregularities of a kernel
    depend on."""
    b, _, kv, h, g, d, _, window = shape
    columns = (b, kv, h, g, h / g, d, window + 1.0, b * h, b * g, b * g * kv)
    return np.stack([*(np.log2(c) for c in columns), np.full(b.shape, gpu)], axis=1)
