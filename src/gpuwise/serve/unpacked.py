"""Products with weights that no matrix unit takes: GGUF files and bitsandbytes' 4 bits in vLLM.

    a vector at a time   t = r W / (s B)                                  up to a few rows r, at most as below
    tiles                t = max(W / (s B), ceil(r / 4) 4 x 2 N / (f u h))   GGUF's plain and K formats
    widened              t = (W + 2 N) / (d B) + the product in 16 bits    GGUF's IQ formats, bitsandbytes

``N`` weights of ``W`` bytes, ``B`` bandwidth, ``u h`` units times clock. vLLM multiplies GGUF weights in llama.cpp's kernels of
May 2024 (csrc/quantization/gguf/mmq.cuh: build 2899) with tiles of 4 rows and 32 columns, which shared memory
bounds; a batch below :data:`VECTOR_ROWS` goes through the kernel for vectors row by row
(layers/quantization/gguf.py, _fused_mul_mat_gguf). bitsandbytes multiplies one row directly, and widens the whole matrix for
more (vLLM: layers/quantization/bitsandbytes.py); from vLLM 0.28 on, which takes it from a plugin, its fused kernels of 2026 read
up to 64 rows as one (bitsandbytes pull request 1949).

Constants and what was left out of them: benchmarks/records/serving/formats_2026-11-30.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.kernels.conditions import SERVING
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.memory_bound import dram_rate, memory_time
from gpuwise.predict.kernels.single import matmul
from gpuwise.serve.formats import BNB, FORMATS, GGUF, TILED, WIDE_BYTES

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

TILE_ROWS = 4
TILE_FLOP_PER_CLOCK = 54.0
"""Of a unit: 1,927 tokens of Llama 3.1 8B in Q4_K_M in 4.03 s on an RTX 3090 (dphnAI/sonar pull request 1395, which has the same
kernels)."""
VECTOR_ROWS = {True: (6, 2), False: (16, 8)}
"""Most rows that go through the kernel for vectors, of matrices up to :data:`TALL` columns and taller ones; False: IQ formats."""
TALL = 5120
VECTOR_SHARE = {GGUF: 0.65, BNB: 0.36}
"""Share of a long stream's bandwidth: 96.9 tokens/s (the same 3090); 20 tokens/s of Gemma 3 27B on an RTX 6000 Ada
(vllm-project/vllm issue 22780)."""
WIDENED_SHARE = 0.53
"""The same of widening a matrix: 9.4 tokens/s of two sequences on that card."""
FUSED_ROWS = 64
"""Most rows of bitsandbytes' fused kernels."""
LOG_SIGMA = 0.2
"""Judgement: the largest error on machines that were left out."""


def unpacked_time(device: Accelerator, weights: str, half: str, m: I64, n: I64, k: I64, *, fused: bool) -> KernelTime:
    """[R] device seconds of products [m, k] x [k, n] with weights in the format ``weights``; ``fused``: bitsandbytes reads up to
    64 rows as one. ``half`` is the 16-bit format that widened matrices are multiplied in."""
    rows, count = m.astype(np.float64), n.astype(np.float64) * k
    held, stream = count * FORMATS[weights].bytes_per_weight, dram_rate(device)
    tiled = TILED.fullmatch(weights) is not None
    launch = float(memory_time(device, 0.0, 1.0).time_s[0])
    vector = held / (VECTOR_SHARE[BNB if weights == BNB else GGUF] * stream)
    if weights == BNB:
        one, most = vector, np.full(m.shape, FUSED_ROWS if fused else 1)
    else:
        short, tall = VECTOR_ROWS[tiled]
        one, most = rows * vector, np.where(n > TALL, tall, short)
    if tiled:
        assert device.compute_units is not None and device.boost_hz is not None
        rate = TILE_FLOP_PER_CLOCK * device.compute_units * device.boost_hz
        other = np.maximum(vector, np.ceil(rows / TILE_ROWS) * 2.0 * TILE_ROWS * count / rate)
    else:
        wide = matmul(device, half, m, n, k, 1, SERVING).time_s
        other = (held + WIDE_BYTES * count) / (WIDENED_SHARE * stream) + wide
        one = np.maximum(one, wide) if weights == BNB and fused else one
    if weights != BNB:  # rows after the first find a part of the matrix in the cache; they are not slower than the other way
        one = np.minimum(one, np.maximum(vector, other))
    seconds = np.where(m <= most, one, other) + launch
    return KernelTime(seconds, np.full(m.shape, LOG_SIGMA), "derived")
