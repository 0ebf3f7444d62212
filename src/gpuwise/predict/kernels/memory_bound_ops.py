"""Device time of memory-bound rows, by family: access pattern, passes and number of launches.

The details of a row (``OpTable.detail``: passes, elements visited, bytes of a normalised row, serial steps) come from its
kernel's source; other constants here are fitted (``memory_bound.json``, ``captured_time.json``).
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
from gpuwise.predict.kernels.norms.rows import are_row_norms, one_moment_share
from gpuwise.workload.row_codes import Phase
from gpuwise.workload.step import FAMILY_CODE, KERNEL_CODE, OpTable

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
_HAS_PATTERN = np.array([name in _OF_KERNEL for name in KERNEL_CODE])
"""Whether a pattern exists, by kernel code."""
_HALF = ("fp16", "bf16")
"""Formats for which a thread processes twice as many elements (``elementwise_kernel``'s unroll, native/cuda/CUDALoops.cuh)."""


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
    if family == "copy":
        time = np.maximum(time, pieces_seconds(accelerator, rows) + latency)
    if family == "reduction":
        time = np.maximum(time, row_reduction_seconds(accelerator, rows) + latency)
    if family == "scan":
        time = np.maximum(time, scan_seconds(accelerator, rows) + latency)
    body = (time - latency) * slow
    launches = latency * np.maximum(rows.n_kernels, 1.0)
    body = body + sum_tail_seconds(accelerator, rows) + _turned_seconds(accelerator, rows, family)
    spread = np.hypot(sigma, float(model["family_log_sigma"]))
    return KernelTime(body + launches + serial * float(model["serial_step_s"]), spread, basis)


def _block_softmax_seconds(accelerator: Accelerator, visited: F64, row_bytes: F64) -> F64:
    """[R] minimum seconds of softmaxes whose rows exceed a warp: a block of PyTorch's synchronises between its passes."""
    if not accelerator.compute_units or not accelerator.boost_hz:
        return np.zeros(len(visited))
    rate = float(load_json("memory_bound")["block_softmax_elements_per_clock"]) * accelerator.compute_units * accelerator.boost_hz
    return np.where(row_bytes > 4.0 * WARP_SOFTMAX_ROW, visited / rate, 0.0)


def _turned_seconds(accelerator: Accelerator, rows: OpTable, family: str) -> F64:
    """[R] seconds of the copies that make the rows of a norm contiguous; 0 if they already are."""
    turned = np.where((family == "norm") & are_row_norms(rows), rows.shape[:, 0], 0).astype(np.float64)
    if not turned.any():
        return np.zeros(len(rows))
    moved = turned * rows.shape[:, 1]
    return np.where(turned > 0, memory_time(accelerator, moved, moved, pattern="transpose", elements=turned).time_s, 0.0)


def sum_tail_seconds(accelerator: Accelerator, rows: OpTable) -> F64:
    """[R] seconds in which the last block of a sum adds what the others have; 0 for other rows.

    Over rows a block sums 128 neighbours with 4 threads each, or fewer with more, within a row with all of its threads; where
    they are few, blocks share the rows until the units are full, and the last to end reads the sums of all
    (``setReduceConfig``, aten/src/ATen/native/cuda/Reduce.cuh).
    """
    sums = (rows.kernel == KERNEL_CODE["columns"]) | ((rows.family == FAMILY_CODE["reduction"]) & (rows.kernel == 0))
    sums = sums & (rows.shape[:, 1] > 0)
    if not sums.any() or not accelerator.compute_units or not accelerator.boost_hz:
        return np.zeros(len(rows))
    model = load_json("memory_bound")["column_sum"]
    added, results = (np.maximum(rows.shape[:, i], 1).astype(np.float64) for i in (0, 1))
    columns = rows.kernel == KERNEL_CODE["columns"]
    lanes = np.where(results % VECTOR == 0, results / VECTOR, results)
    threads = np.where(columns & (results % VECTOR == 0), REDUCE_THREADS / VECTOR, REDUCE_THREADS)
    across = np.where(columns, np.minimum(2.0 ** np.floor(np.log2(lanes)), 32.0), 1.0)
    down = np.minimum(2.0 ** np.floor(np.log2(added)), threads / across)
    across = np.where(columns, across, threads / down)
    grid, each = np.ceil(np.where(columns, lanes, results) / across), np.ceil(added / down)
    full = accelerator.compute_units * np.floor(32.0 * (accelerator.max_warps_per_unit or 64) / threads)
    shared = np.maximum(np.minimum(np.ceil(full / grid), np.ceil(each / 16.0)), np.ceil(each / 256.0))
    shared = np.where((each >= 256.0) & (grid <= full), shared, 1.0)
    clocks = np.where(shared > 1.0, model["end_clocks"] + np.ceil(shared / down) * model["sum_clocks"], 0.0)
    return np.where(sums, clocks / accelerator.boost_hz, 0.0)


def row_reduction_seconds(accelerator: Accelerator, rows: OpTable) -> F64:
    """[R] minimum seconds of reductions within rows; 0 for other rows. Each row occupies some threads, with a fixed cost at
    its start and end; reductions that track an index process fewer elements per clock."""
    within = (rows.shape[:, 1] > 0) & (rows.kernel != KERNEL_CODE["columns"]) & (rows.kernel != KERNEL_CODE["fused"])
    if not within.any() or not accelerator.compute_units or not accelerator.boost_hz:
        return np.zeros(len(rows))
    model: dict[str, float] = load_json("memory_bound")["row_reduction"]
    added, results = (rows.shape[:, i].astype(np.float64) for i in (0, 1))
    pairs = rows.kernel == KERNEL_CODE["pairs"]
    clocks = np.where(pairs, model["pair_clocks"] + added / model["pairs_per_clock"], model["clocks"])
    return np.where(within, results * clocks / (accelerator.compute_units * accelerator.boost_hz), 0.0)


PIECE_BLOCKS, PIECE_ELEMENTS = 32.0, 512.0
"""Blocks a unit of one piece of a ``cat`` at most, and the elements of each (native/cuda/Shape.cu)."""


def pieces_seconds(accelerator: Accelerator, rows: OpTable) -> F64:
    """[R] minimum seconds of concatenations, which give every piece the number of blocks of the largest; 0 for other rows."""
    joined = rows.kernel == KERNEL_CODE["pieces"]
    if not joined.any() or not accelerator.compute_units or not accelerator.boost_hz:
        return np.zeros(len(rows))
    model = load_json("memory_bound")
    count, largest, whole = (np.maximum(rows.shape[:, i], 1).astype(np.float64) for i in range(3))
    units = float(accelerator.compute_units)
    blocks = np.minimum(PIECE_BLOCKS * units, np.ceil(largest / PIECE_ELEMENTS))
    begun = count * blocks * float(model["lookup"]["block_clocks"])
    moved = whole / float(model["piece_elements_per_clock"])
    return np.where(joined, np.maximum(begun, moved) / (units * accelerator.boost_hz), 0.0)


SCAN_THREADS = 512.0
"""Threads per block of a row scan; 16 to all of them per row, by the powers of two of the number and length of rows
(``get_log_num_threads_x_inner_scan``, native/cuda/ScanUtils.cuh)."""


def scan_seconds(accelerator: Accelerator, rows: OpTable) -> F64:
    """[R] minimum seconds of cumulative sums (native/cuda/ScanUtils.cuh); 0 if the scanned dimension is unknown.

    Threads of a row take two neighbours each and combine their sums in a tree, chunk by chunk. A sum across rows has one
    thread per column, which reads the rows one by one. A single row is scanned by all units together (cub).
    """
    count, length, apart = (np.maximum(rows.shape[:, i], 0).astype(np.float64) for i in range(3))
    scans = (length > 1) & (count > 1)
    if not scans.any() or not accelerator.compute_units or not accelerator.boost_hz:
        return np.zeros(len(rows))
    model: dict[str, float] = load_json("memory_bound")["scan"]
    deep, many = (np.ceil(np.log2(np.maximum(x, 1.0))) for x in (length, count))
    log_threads = np.clip(np.floor((9.0 + deep - many) / 2.0), 4.0, 9.0)
    at_once = accelerator.compute_units * np.floor(32.0 * (accelerator.max_warps_per_unit or 64) / SCAN_THREADS)
    waves = np.ceil(count / (SCAN_THREADS / 2.0**log_threads) / at_once)
    lots = np.ceil(length / 2.0 ** (log_threads + 1.0))
    waits = waves * lots * (model["lot_clocks"] + model["halving_clocks"] * log_threads)
    busy = count * length / (model["elements_per_clock"] * accelerator.compute_units)
    across = (
        length
        * model["trip_clocks"]
        * np.ceil(count / (accelerator.compute_units * 32.0 * (accelerator.max_warps_per_unit or 64)))
    )
    clocks = np.where(apart > 1.0, across, np.maximum(waits, busy))
    return np.where(scans, clocks / accelerator.boost_hz, 0.0)


VECTOR = 4.0
"""Neighbours of which a thread keeps the sums (``output_vec_size``)."""
REDUCE_THREADS = 512.0
"""MAX_REDUCE_THREADS of a reduction."""


def _blocks(rows: OpTable, family: str) -> F64:
    """[R] rows of a norm that a block of threads each takes, those of RMSNorm in rows of LayerNorm; kernels that a compiler wrote
    take several, batch norm has none."""
    row = rows.detail[:, 2]
    apart = (row > 0) & (rows.kernel != KERNEL_CODE["fused"]) & (rows.kernel != KERNEL_CODE["batch_norm"])
    tensors = np.where(rows.phase == Phase.BACKWARD, 2.0, 1.0)
    count = np.where(apart & (family == "norm"), rows.bytes_read / tensors / np.maximum(row, 1.0), 0.0)
    return count * np.where(rows.kernel == KERNEL_CODE["rms_norm"], one_moment_share(row), 1.0)


_BASIS: Basis = "derived"


def _patterns(rows: OpTable, family: str) -> list[tuple[Pattern, NDArray[np.intp]]]:
    """Rows by how they go through memory: the family's way unless their kernel has another."""
    others: dict[Pattern, NDArray[np.intp]] = {p: np.flatnonzero(rows.kernel == KERNEL_CODE[p]) for p in _OF_KERNEL}
    half = np.array([rows.dtype[i] in _HALF for i in others["broadcast"].tolist()], dtype=bool)
    others["broadcast_half"], others["broadcast"] = others["broadcast"][half], others["broadcast"][~half]
    plain = np.flatnonzero(~_HAS_PATTERN[rows.kernel])
    every: list[tuple[Pattern, NDArray[np.intp]]] = [(_PATTERN[family], plain), *others.items()]
    return [(pattern, part) for pattern, part in every if part.size]
