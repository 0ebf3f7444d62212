"""Device time of the operations of a capture that wait for memory: one row per signature, evaluated per family.

The bytes are those of the capture (each tensor once); a family's kernels read some of them again. ``passes`` below is
bytes really moved over bytes of the tensors: a training batch norm reads its input for the moments and again to
normalise. Counts are those of PyTorch's CUDA kernels (aten/src/ATen/native/cuda); what stands beside them is fitted
(``memory_bound.json``, ``captured_time.json``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.families import (
    BYTES,
    broadcasts,
    changes_layout,
    channels_last,
    elements,
    largest,
    normalised_row,
    short_name,
    whole_numbers,
)
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.memory_bound import Pattern, memory_time
from gpuwise.workload.capture.record.capture import Signature

F64 = NDArray[np.float64]
_PATTERN: dict[str, Pattern] = {
    "norm": "norm",
    "softmax": "softmax",
    "elementwise": "elementwise",
    "reduction": "reduction",
    "dropout": "dropout",
    "gather": "gather",
    "scatter": "gather",
    "embedding": "gather",
    "copy": "elementwise",
    "pooling": "broadcast",
    "resampling": "gather",
    "sort": "elementwise",
    "scan": "reduction",
    "fourier": "transpose",
    "loss": "elementwise",
    "optimizer": "elementwise",
}
RADIX_BITS = 8.0
"""Digits of cub's one-sweep radix sort (Adinets and Merrill, arXiv 2206.01784)."""
FFT_POINTS_IN_ONE_PASS = 4096.0
"""Points a block transforms in shared memory; longer transforms make more passes (cuFFT documentation, 2.1)."""
NLL_THREADS = 1024.0
"""Threads of the one block that sums the losses (NLL_LOSS_THREADS, native/cuda/Loss.cu)."""


def pattern_of(s: Signature, family: str) -> Pattern:
    """How a signature's kernel goes through memory."""
    if family in ("elementwise", "copy"):
        if changes_layout(s):
            return "transpose"
        return "broadcast" if broadcasts(s) and short_name(s.op) not in _PLAIN_BROADCAST else "elementwise"
    return _PATTERN[family]


_PLAIN_BROADCAST = ("slice_backward", "select_backward", "cat", "stack")


def reads_again(s: Signature, family: str) -> float:
    """Bytes really moved over bytes of the tensors."""
    name = short_name(s.op)
    if family == "norm":
        return _norm_passes(name, s)
    if family == "sort":
        return _sort_passes(name, s)
    if family == "scan":
        return 1.5  # decoupled look-back reads once; the multi-dimensional kernels read the carry back
    if family == "fourier":
        whole = largest(s)
        points = float(whole.shape[-1]) if whole is not None and whole.shape else 1.0
        count = len(whole_numbers(s.attribute("dim"))) or 1
        return count * max(1.0, math.ceil(math.log2(max(points, 2.0)) / math.log2(FFT_POINTS_IN_ONE_PASS)))
    if family == "scatter":
        return 1.5 if s.attribute("accumulate") or "add" in name or "reduce" in name else 1.0
    return 1.0


def _norm_passes(name: str, s: Signature) -> float:
    """Moments, then values: 3 passes over the tensor instead of 2 forward, 5 instead of 3 backward. LayerNorm keeps its row
    forward; its backward reads the row twice, and again for the weights (native/cuda/layer_norm_kernel.cu)."""
    if "layer_norm" in name or "rms_norm" in name:
        return 7.0 / 3.0 if "backward" in name else 1.0
    if "backward" in name:
        return 5.0 / 3.0
    evaluates = s.attribute("training") is False or name in ("_native_batch_norm_legit_no_training", "batch_norm_elemt")
    return 1.0 if evaluates or name == "batch_norm_stats" else 1.5


def _sort_passes(name: str, s: Signature) -> float:
    """Key and 8-byte index once a digit; top-k reads the keys once a 2-bit digit and gathers."""
    whole = largest(s)
    width = BYTES.get(whole.dtype, 4) if whole is not None else 4
    if name in ("topk", "kthvalue", "median"):
        return width * 8.0 / 2.0 / 2.0
    row = whole.shape[-1] if whole is not None and whole.shape else 1
    return 1.5 if row <= 4096 else 2.0 * width * 8.0 / RADIX_BITS / 2.0


def memory_bound_time(
    accelerator: Accelerator, signatures: Sequence[Signature], families: Sequence[str], passes: F64 | None = None
) -> KernelTime:
    """[R] device time of each signature, its kernels together. ``passes`` replaces :func:`reads_again`."""
    n = len(signatures)
    time, sigma = np.zeros(n), np.zeros(n)
    model: dict[str, Any] = load_json("captured_time")
    latency = float(load_json("memory_bound")["latency_s"])
    patterns = np.array([pattern_of(s, f) for s, f in zip(signatures, families, strict=True)], dtype=object)
    again = passes if passes is not None else np.array([reads_again(s, f) for s, f in zip(signatures, families, strict=True)])
    factor = np.array([float(model["memory_slowdown"].get(f, 1.0)) for f in families])
    basis = "derived"
    for pattern in sorted(set(patterns)):
        rows = np.flatnonzero(patterns == pattern)
        few = [signatures[i] for i in rows.tolist()]
        read = np.array([s.bytes_read for s in few]) * again[rows]
        written = np.array([s.bytes_written for s in few]) * np.maximum(again[rows], 1.0)
        visited = np.array([visits(s, families[i]) for s, i in zip(few, rows.tolist(), strict=True)])
        row = np.array([normalised_row(s) for s in few])
        one = memory_time(accelerator, read, written, pattern=pattern, elements=visited, row_bytes=row)
        time[rows], sigma[rows], basis = one.time_s, one.log_sigma, one.basis
    launches = np.array([max(s.n_kernels, 1) for s in signatures], dtype=np.float64)
    serial = np.array([_serial_s(s, f, model) for s, f in zip(signatures, families, strict=True)])
    body = (time - latency) * factor
    return KernelTime(body + latency * launches + serial, np.hypot(sigma, float(model["family_log_sigma"])), basis)


def visits(s: Signature, family: str) -> float:
    """Elements a kernel computes an index for; a pooling window counts each of its places."""
    out = max((elements(t) for t in s.outputs), default=0) or max((elements(t) for t in s.inputs), default=0)
    if family == "pooling":
        window = math.prod(whole_numbers(s.attribute("kernel_size")))
        last = bool(s.inputs) and channels_last(s.inputs[0])
        return float(out) * (max(1.0, window / 4.0) if not last else max(1.0, window / 8.0))
    if family == "resampling":
        corners = 16.0 if "bicubic" in s.op else 8.0 if "3d" in s.op else 4.0 if "linear" in s.op or "sampler" in s.op else 1.0
        return float(out) * max(1.0, corners / 2.0)
    if family == "embedding":
        return float(out if "backward" not in s.op else elements(s.inputs[0]))
    return float(out)


def _serial_s(s: Signature, family: str, model: dict[str, Any]) -> float:
    """Seconds of what one block does alone: the sum of the losses of a batch."""
    if family == "loss" and "forward" in s.op and s.inputs:
        rows = elements(s.inputs[1]) if len(s.inputs) > 1 else 1
        return math.ceil(rows / NLL_THREADS) * float(model["serial_step_s"])
    return 0.0
