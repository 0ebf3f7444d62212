"""PyTorch's own batch norm in training (bfloat16 images, which cuDNN's is not taken for): moments, values, their gradients.

Its kernels walk the images with few threads (aten/src/ATen/native/cuda/Normalization.cuh), so that they wait for memory long
before they fill its bandwidth. One launch takes

    t = max(passes x bytes / B,  waves x (iterations x c_i + c_e) / f,  ceil(blocks / units) x max(elements / r, c_b) / f)

with ``c_i`` clocks of an iteration of a block, ``c_e`` of its end (where blocks add up what each has), ``c_b`` the least of a
block, ``r`` elements of it a clock and unit, ``f`` the clock. Constants: ``coefficients/memory_bound.json``, ``own_batch_norm``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.conditions import Conditions, lies_last
from gpuwise.predict.kernels.memory_bound import stream_time
from gpuwise.workload.row_codes import Phase
from gpuwise.workload.step import OpTable

F64 = NDArray[np.float64]
BLOCK, WARP = 512.0, 32.0
"""Threads of the largest block (MAX_BLOCK_SIZE), and the narrowest."""
ELEMENTS_OF_A_THREAD, MOST_BLOCKS, FEW_BLOCKS = 16.0, 128.0, 8.0
"""For channels-last kernels: elements per thread before another block is added (ELEMENTS_PER_THREAD), maximum blocks over the
images (MAX_H_BLOCK), and the number of blocks too small to combine their sums (flexible_launch_configs)."""


class _Grid(NamedTuple):
    """[R] blocks, iterations of one, and elements it visits."""

    blocks: F64
    iterations: F64
    elements: F64


def own_batch_norm_seconds(accelerator: Accelerator, rows: OpTable, conditions: Conditions) -> F64:
    """[R] device seconds of one launch of rows of PyTorch's own batch norm in training, its kernels together.

    The units and the clock of the accelerator must be known. A row's shape: images, channels, places, bytes of an element.
    """
    images, channels, places, width = (np.maximum(rows.shape[:, i], 1).astype(np.float64) for i in range(4))
    last = lies_last(rows, conditions)
    grids = {
        "channel": _block_of_a_channel(images, channels, places),
        "image": _block_of_an_image(images, channels, places),
        "columns": _block_of_columns(images * places, channels),
    }
    moved, total = images * channels * places * width, np.zeros(len(rows))
    backward = rows.phase == Phase.BACKWARD
    model: dict[str, Any] = load_json("memory_bound")["own_batch_norm"]
    for layout, lies in (("channels_first", ~last), ("channels_last", last)):
        for phase, when in (("forward", ~backward), ("backward", backward)):
            for kernel in model[layout][phase]:
                seconds = _kernel_seconds(accelerator, grids[kernel["grid"]], moved, kernel)
                total += np.where(lies & when, seconds, 0.0)
    return total + float(load_json("memory_bound")["latency_s"]) * rows.n_kernels


def _kernel_seconds(accelerator: Accelerator, grid: _Grid, moved: F64, kernel: Mapping[str, Any]) -> F64:
    """[R] seconds of one kernel on ``grid`` that makes ``kernel``'s number of passes over ``moved`` bytes."""
    units, clock = float(accelerator.compute_units or 1), float(accelerator.boost_hz or np.inf)
    at_once = units * max(1.0, WARP * (accelerator.max_warps_per_unit or 64) // BLOCK)
    waiting = np.ceil(grid.blocks / at_once) * (grid.iterations * kernel["iteration_clocks"] + kernel["end_clocks"])
    each = np.maximum(grid.elements / kernel["elements_per_clock"], kernel["block_clocks"])
    busy = np.ceil(grid.blocks / units) * each
    return np.maximum(np.maximum(waiting, busy) / clock, stream_time(accelerator, moved, kernel["passes"]))


def _threads(n: F64) -> F64:
    """Threads along ``n`` places: the power of two that covers them, from a warp to a block (getNumThreads)."""
    return np.clip(2.0 ** np.ceil(np.log2(np.maximum(n, 1.0))), WARP, BLOCK)


def _block_of_a_channel(images: F64, channels: F64, places: F64) -> _Grid:
    """One block takes all images of a channel, several at once where places are few."""
    along = _threads(places)
    return _Grid(channels, np.ceil(images / np.maximum(BLOCK // along, 1.0)) * np.ceil(places / along), images * places)


def _block_of_an_image(images: F64, channels: F64, places: F64) -> _Grid:
    """One block takes the places of one channel of one image, a vector of four a thread."""
    return _Grid(images * channels, np.ceil(places / (4.0 * _threads(places / 4.0))), places)


def _block_of_columns(rows: F64, channels: F64) -> _Grid:
    """Blocks of up to 32 channels share the images' places (flexible_launch_configs)."""
    across = np.minimum(2.0 ** np.floor(np.log2(channels)), WARP)
    down = np.minimum(2.0 ** np.floor(np.log2(np.ceil(rows / ELEMENTS_OF_A_THREAD))), BLOCK // across)
    deep = np.minimum(np.ceil(rows / (down * ELEMENTS_OF_A_THREAD)), MOST_BLOCKS)
    deep = np.where(deep < FEW_BLOCKS, 1.0, deep)
    blocks = np.ceil(channels / across) * deep
    return _Grid(blocks, np.ceil(rows / (down * deep)), rows * channels / blocks)
