"""Whole rows of a table by index: gathered (embedding, ``index_select``), and the dense gradient of a table.

Rows are gathered 16 bytes a thread, a block for each row (``vectorized_gather_kernel``, native/cuda/IndexKernelUtils.cu):

    t = t_latency + max((distinct rows) / (e_r B) + (rows again) / B_L2 + t_stream(result), blocks x clocks / units)

Rows of which each was touched once come from memory at the share ``e_r`` of what a stream reaches; blocks start one after the
other however short a row is.

The gradient of a table (native/cuda/Embedding.cu) is cleared first. Up to 3,072 indices, 32 at a time are looked through by
blocks of 32 columns, each lot a trip to the table and back. More are sorted (a pass for each eight bits, however few they
are), cut into runs of at most ten equal ones, summed up run by run and written by a second kernel, in waves of blocks whose
trips to memory follow one another. Where runs outnumber the rows of the table (kinds of token, distances), one thread counts
the runs of a row.

Distinct rows are those of indices drawn evenly: E (1 - exp(-n / E)) of a table of E rows. Constants:
``coefficients/kernels/memory_bound.json`` (``lookup``).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.memory_bound import cache_rate, dram_rate, memory_time, stream_time

F64 = NDArray[np.float64]
VECTOR_BYTES = 16.0
"""Bytes that a thread of a gather moves; rows that are not a multiple are gathered element by element."""
GATHER_BLOCK_BYTES = 4096.0
"""Bytes of a row that one block moves (256 threads)."""
MOST_UNSORTED = 3072
"""Indices up to which the gradient of a table is added up without a sort (``embedding_dense_backward_cuda``)."""
UNSORTED_KERNELS = 2
"""Kernels of a gradient that needs no sort: the table cleared, the rows added."""
LOT = 32.0
"""Indices that a block of the unsorted kernel looks at together, and its columns."""
RUN = 10.0
"""Equal indices that one thread adds up (NROWS_PER_THREAD)."""
MOST_THREADS, WARP = 1024.0, 32.0
"""Threads per block that sums the runs."""
SORT_PASSES = 8.0
"""Digits of eight bits of an index."""


def distinct_rows(rows: F64, entries: F64) -> F64:
    """[R] distinct rows of a table touched by ``rows`` uniform draws; all of them if the table's size is unknown (0)."""
    table = np.where(entries > 0, entries, 1.0)
    return np.where(entries > 0, table * -np.expm1(-rows / table), rows)


def gather_time(accelerator: Accelerator, rows: ArrayLike, row_bytes: ArrayLike, entries: ArrayLike = 0.0) -> KernelTime:
    """[R] seconds to copy ``rows`` rows of ``row_bytes`` each out of tables of ``entries`` rows (0: more than anybody reads)."""
    n, width, table = _columns(rows, row_bytes, entries)
    model = load_json("memory_bound")
    constants: Mapping[str, float] = model["lookup"]
    moved = n * np.maximum(width, 32.0)
    plain = memory_time(accelerator, moved, n * width, pattern="gather", elements=n * width / 2.0)
    if not accelerator.compute_units or not accelerator.boost_hz:
        return plain
    distinct = distinct_rows(n, table)
    first = distinct * np.maximum(width, 32.0) / (float(constants["row_share"]) * dram_rate(accelerator))
    again = (n - distinct) * width / (2.0 * (cache_rate(accelerator) or dram_rate(accelerator)))
    blocks = n * np.ceil(width / GATHER_BLOCK_BYTES)
    starts = blocks * float(constants["block_clocks"]) / (accelerator.compute_units * accelerator.boost_hz)
    time = np.maximum(first + again + stream_time(accelerator, n * width, 1.0), starts) + float(model["latency_s"])
    return plain._replace(time_s=np.where(np.mod(width, VECTOR_BYTES) == 0, time, plain.time_s))


def table_gradient_time(
    accelerator: Accelerator,
    rows: ArrayLike,
    columns: ArrayLike,
    element_bytes: ArrayLike,
    entries: ArrayLike = 0.0,
    *,
    sorts: ArrayLike = False,
) -> KernelTime:
    """[R] seconds of the dense gradient of tables of ``entries`` rows (0: as many as there are indices) by ``columns``, of which
    ``rows`` were read. ``sorts``: indices are sorted however few they are (a table with a row for padding)."""
    n, width, element, table = _columns(rows, columns, element_bytes, entries)
    table = np.where(table > 0, table, n)
    model = load_json("memory_bound")
    gradient = n * width * element
    distinct = distinct_rows(n, table)
    moved = stream_time(accelerator, gradient + distinct * width * element, 1.0)
    cleared = stream_time(accelerator, table * width * element, 1.0) + float(model["latency_s"])
    few = (n <= MOST_UNSORTED) & ~np.broadcast_to(np.asarray(sorts, bool), n.shape)
    sigma = np.full(n.shape, float(model["log_sigma"]["gather"]))
    if not accelerator.compute_units or not accelerator.boost_hz:
        return KernelTime(cleared + 3.0 * moved, sigma, "derived")
    lots = np.ceil(n / LOT) * np.maximum(np.ceil(np.ceil(width / LOT) / (2.0 * accelerator.compute_units)), 1.0)
    hit = np.minimum(1.0, model["l2_share"] * (accelerator.l2_bytes or 0.0) / np.maximum(table * width * element, 1.0))
    trip = model["lookup"]["lot_clocks"] * hit + model["lookup"]["lot_clocks_from_memory"] * (1.0 - hit)
    unsorted = np.maximum(lots * trip / accelerator.boost_hz, moved) + float(model["latency_s"])
    by_runs = np.maximum(_run_seconds(accelerator, n, width, table, distinct, model["lookup"]), 2.0 * moved)
    return KernelTime(cleared + np.where(few, unsorted, by_runs + _sort_seconds(accelerator, n, model)), sigma, "derived")


def _sort_seconds(accelerator: Accelerator, n: F64, model: Mapping[str, float]) -> F64:
    """[R] seconds of sorting indices with their places and cutting them into runs: launches, and a wait in each pass."""
    constants: Mapping[str, float] = model["lookup"]  # type: ignore[assignment]
    waits = SORT_PASSES * float(constants["pass_clocks"]) / float(accelerator.boost_hz or 1.0)
    moved = SORT_PASSES * stream_time(accelerator, 32.0 * n, 1.0)
    return float(constants["sort_launches"]) * float(model["latency_s"]) + np.maximum(waits, moved)


def _run_seconds(accelerator: Accelerator, n: F64, width: F64, table: F64, distinct: F64, constants: Mapping[str, float]) -> F64:
    """[R] seconds of summing up runs, and of writing the rows they belong to; of both at once by atomic additions where runs
    outnumber the table's rows, with one thread that counts the runs of the commonest row first (n / sqrt(E) of its indices:
    judgement, kinds are not drawn evenly)."""
    clock, units = float(accelerator.boost_hz or 1.0), float(accelerator.compute_units or 1)
    threads = np.minimum(np.ceil(width / WARP) * WARP, MOST_THREADS)
    at_once = units * np.clip(np.floor(WARP * (accelerator.max_warps_per_unit or 64) / threads), 1.0, 32.0)
    across = np.maximum(width / threads, 1.0)
    start, row = float(constants["run_clocks"]), float(constants["run_row_clocks"])
    atomic = n / RUN > table
    runs = np.where(atomic, n / RUN + table, np.maximum(distinct, n / RUN))
    sums = np.maximum(runs * across / at_once, 1.0) * (start + row * np.minimum(n / np.maximum(runs, 1.0), RUN))
    writes = np.maximum(distinct * across / at_once, 1.0) * (start + row * runs / np.maximum(distinct, 1.0))
    counts = float(constants["count_clocks"]) * n / RUN / np.sqrt(np.maximum(table, 1.0))
    return (sums + np.where(atomic, counts, writes)) / clock


def _columns(*values: ArrayLike) -> tuple[F64, ...]:
    return tuple(np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, np.float64)) for v in values)))
