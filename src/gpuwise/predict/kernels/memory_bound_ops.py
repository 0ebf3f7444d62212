"""Device time of rows that wait for memory, by family: how their kernels go through it, how often, in how many launches.

What a row says of itself (``OpTable.detail``: passes, elements visited, bytes of a normalised row, serial steps) is of its
kernel's source; what stands beside it here is fitted (``memory_bound.json``, ``captured_time.json``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.memory_bound import WARP_SOFTMAX_ROW, Pattern, memory_time
from gpuwise.workload.step import KERNEL_CODE, OpTable, Phase

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
    "pooling": "pooling",
    "resampling": "gather",
    "sort": "elementwise",
    "scan": "reduction",
    "fourier": "transpose",
    "loss": "elementwise",
    "optimizer": "elementwise",
}
_OF_KERNEL: tuple[Pattern, ...] = ("transpose", "broadcast", "cast", "mixed", "join")
_HALF = ("fp16", "bf16")
"""Formats of which a thread takes twice as many elements (``elementwise_kernel``'s unroll, native/cuda/CUDALoops.cuh)."""


def memory_bound_time(accelerator: Accelerator, rows: OpTable, family: str) -> KernelTime:
    """[R] device time of rows of one family, the kernels of a row together."""
    model: dict[str, Any] = load_json("captured_time")
    latency = float(load_json("memory_bound")["latency_s"])
    again, visited, row, serial = rows.detail.T
    again = np.where(again > 0, again, 1.0)
    input_bytes, output_bytes = rows.bytes_read * again, rows.bytes_written * np.maximum(again, 1.0)
    visited = np.where(visited > 0, visited, np.where(output_bytes > 0, output_bytes, input_bytes) / 4.0)
    blocks = _blocks(rows, family)
    read_again = np.where(rows.phase == Phase.BACKWARD, rows.bytes_written / 2.0, rows.bytes_read)
    time, sigma, basis = np.zeros(len(rows)), np.zeros(len(rows)), _BASIS
    for pattern, part in _patterns(rows, family):
        one = memory_time(
            accelerator,
            input_bytes[part],
            output_bytes[part],
            pattern=pattern,
            elements=visited[part],
            row_bytes=row[part],
            blocks=blocks[part],
            again_bytes=read_again[part] if pattern == "softmax" else None,
        )
        time[part], sigma[part], basis = one.time_s, one.log_sigma, one.basis
    fused = rows.kernel == KERNEL_CODE["fused"]
    if family == "softmax":
        time = np.maximum(time, np.where(fused, 0.0, _block_softmax_seconds(accelerator, visited, row)) + latency)
    slow = np.where(
        fused, float(load_json("host_time")["compiled"]["memory_slowdown"]), float(model["memory_slowdown"].get(family, 1.0))
    )
    body = (time - latency) * slow
    launches = latency * np.maximum(rows.n_kernels, 1.0)
    body = body + column_tail_seconds(accelerator, rows) + _turned_seconds(accelerator, rows, family)
    spread = np.hypot(sigma, float(model["family_log_sigma"]))
    return KernelTime(body + launches + serial * float(model["serial_step_s"]), spread, basis)


def _block_softmax_seconds(accelerator: Accelerator, visited: F64, row_bytes: F64) -> F64:
    """[R] least seconds of softmaxes whose rows outgrow a warp: a block of PyTorch's waits for itself between its passes."""
    if not accelerator.compute_units or not accelerator.boost_hz:
        return np.zeros(len(visited))
    rate = float(load_json("memory_bound")["block_softmax_elements_per_clock"]) * accelerator.compute_units * accelerator.boost_hz
    return np.where(row_bytes > 4.0 * WARP_SOFTMAX_ROW, visited / rate, 0.0)


def _turned_seconds(accelerator: Accelerator, rows: OpTable, family: str) -> F64:
    """[R] seconds of the copies that bring the rows of a norm together; 0 where they lie so."""
    turned = np.where((family == "norm") & (rows.kernel == 0), rows.shape[:, 0], 0).astype(np.float64)
    if not turned.any():
        return np.zeros(len(rows))
    moved = turned * rows.shape[:, 1]
    return np.where(turned > 0, memory_time(accelerator, moved, moved, pattern="transpose", elements=turned).time_s, 0.0)


def column_tail_seconds(accelerator: Accelerator, rows: OpTable) -> F64:
    """[R] seconds in which the last block of a sum over rows adds what the others have; 0 for other rows.

    A block sums 128 neighbours with 4 threads each, or fewer with more; where they are few, blocks share the rows until the
    units are full, and the last to end reads the sums of all (``setReduceConfig``, aten/src/ATen/native/cuda/Reduce.cuh).
    """
    sums = rows.kernel == KERNEL_CODE["columns"]
    if not sums.any() or not accelerator.compute_units or not accelerator.boost_hz:
        return np.zeros(len(rows))
    model = load_json("memory_bound")["column_sum"]
    added, results = (np.maximum(rows.shape[:, i], 1).astype(np.float64) for i in (0, 1))
    lanes = np.where(results % VECTOR == 0, results / VECTOR, results)
    threads = np.where(results % VECTOR == 0, REDUCE_THREADS / VECTOR, REDUCE_THREADS)
    across = np.minimum(2.0 ** np.floor(np.log2(lanes)), 32.0)
    down = np.minimum(2.0 ** np.floor(np.log2(added)), threads / across)
    grid, each = np.ceil(lanes / across), np.ceil(added / down)
    full = accelerator.compute_units * np.floor(32.0 * (accelerator.max_warps_per_unit or 64) / threads)
    shared = np.maximum(np.minimum(np.ceil(full / grid), np.ceil(each / 16.0)), np.ceil(each / 256.0))
    shared = np.where((each >= 256.0) & (grid <= full), shared, 1.0)
    clocks = np.where(shared > 1.0, model["end_clocks"] + np.ceil(shared / down) * model["sum_clocks"], 0.0)
    return np.where(sums, clocks / accelerator.boost_hz, 0.0)


VECTOR = 4.0
"""Neighbours of which a thread keeps the sums (``output_vec_size``)."""
REDUCE_THREADS = 512.0
"""MAX_REDUCE_THREADS of a reduction."""


def _blocks(rows: OpTable, family: str) -> F64:
    """[R] rows of a norm that a block of threads each takes; kernels that a compiler wrote take several, batch norm has none."""
    row = rows.detail[:, 2]
    apart = (row > 0) & (rows.kernel != KERNEL_CODE["fused"]) & (rows.kernel != KERNEL_CODE["batch_norm"])
    tensors = np.where(rows.phase == Phase.BACKWARD, 2.0, 1.0)
    return np.where(apart & (family == "norm"), rows.bytes_read / tensors / np.maximum(row, 1.0), 0.0)


_BASIS: Basis = "derived"


def _patterns(rows: OpTable, family: str) -> list[tuple[Pattern, NDArray[np.intp]]]:
    """Rows by how they go through memory: the family's way unless their kernel has another."""
    others: dict[Pattern, NDArray[np.intp]] = {p: np.flatnonzero(rows.kernel == KERNEL_CODE[p]) for p in _OF_KERNEL}
    half = np.isin(np.array(rows.dtype, dtype=object)[others["broadcast"]], _HALF)
    others["broadcast_half"], others["broadcast"] = others["broadcast"][half], others["broadcast"][~half]
    plain = np.flatnonzero(~np.isin(rows.kernel, [KERNEL_CODE[p] for p in _OF_KERNEL]))
    every: list[tuple[Pattern, NDArray[np.intp]]] = [(_PATTERN[family], plain), *others.items()]
    return [(pattern, part) for pattern, part in every if part.size]
