"""PyTorch's own norms of rows (LayerNorm, RMSNorm): time of a block of threads per row, and their gradients.

The gradient of the input is a kernel that gives each row a block; those of weight and bias, where they are wanted, are another
that gives 32 columns to a block which goes down all rows, except where rows are many and columns few, when blocks share the rows
(``LaunchGammaBetaBackwardCUDAKernel``, aten/src/ATen/native/cuda/layer_norm_kernel.cu of torch 2.8 and later)::

    t_input   = max(p T / B,  rows x (c_i + row / b_i) / (units f))
    t_weights = 2/3 T / B    where rows are shared, else  max(2/3 T / B,  t_0 + rows x t_row)

with ``T`` the bytes of both inputs and the result, ``B`` the bandwidth, ``f`` the clock, ``p`` from 1 to 5/3 as rows outgrow what
units keep between the first and second time they are read. Constants: ``coefficients/memory_bound.json``, ``row_norm``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.memory_bound import stream_time
from gpuwise.workload.row_codes import Phase
from gpuwise.workload.step import KERNEL_CODE, OpTable

F64 = NDArray[np.float64]
COLUMNS = 32.0
"""Columns of a block of the weights' gradients (block_dim_x)."""
MANY_ROWS = 65536.0
"""Rows from which on blocks share them, where columns fill less than half of the units."""
WEIGHTS_WANTED = 2.0
"""Passes of a row's ``detail`` above which gradients of the weights are among its results."""


def one_moment_share(row_bytes: F64) -> F64:
    """[R] clocks of a block for a row of RMSNorm, which has one sum to share, over those of LayerNorm, which has moments."""
    memory, own = load_json("memory_bound"), load_json("memory_bound")["row_norm"]
    through = row_bytes / memory["row_bytes_per_clock"]
    return np.maximum(own["one_moment_least_clocks"], own["one_moment_clocks"] + through) / (memory["row_cycles"] + through)


def are_row_norms(rows: OpTable) -> NDArray[np.bool_]:
    """[R] which rows are PyTorch's own row norms, forward or backward."""
    return (rows.kernel == KERNEL_CODE["layer_norm"]) | (rows.kernel == KERNEL_CODE["rms_norm"])


def of_row_norms(rows: OpTable) -> NDArray[np.bool_]:
    """[R] which rows are gradients of PyTorch's own row norms."""
    return are_row_norms(rows) & (rows.phase == Phase.BACKWARD) & (rows.detail[:, 2] > 0)


def row_norm_gradient_seconds(accelerator: Accelerator, rows: OpTable) -> F64:
    """[R] device seconds of gradients of row norms, their kernels together. The units and the clock must be known."""
    model: dict[str, Any] = load_json("memory_bound")["row_norm"]
    units, clock = float(accelerator.compute_units or 1), float(accelerator.boost_hz or np.inf)
    moved, row = rows.bytes_read + rows.bytes_written, np.maximum(rows.detail[:, 2], 1.0)
    count = rows.bytes_written / row
    again = np.clip((row - model["kept_bytes"]) / (model["lost_bytes"] - model["kept_bytes"]), 0.0, 1.0)
    clocks = model["gradient_clocks"] + row / model["gradient_bytes_per_clock"]
    seconds = np.maximum(stream_time(accelerator, moved, 1.0 + 2.0 / 3.0 * again), count * clocks / (units * clock))
    through = stream_time(accelerator, moved * 2.0 / 3.0, 1.0)
    columns = row / np.array([float(TENSOR_BYTES.get(d, 4)) for d in rows.dtype])
    shared = (count > MANY_ROWS) & (np.floor(columns / COLUMNS) < np.floor(units / 2.0))
    waves = np.ceil(columns / COLUMNS / (units * model["weight_blocks_of_a_unit"]))
    down = model["weight_s"] + waves * count * model["weight_row_s"]
    weights = np.where(shared, through, np.maximum(through, down))
    wanted = rows.detail[:, 0] > WEIGHTS_WANTED
    latency = float(load_json("memory_bound")["latency_s"]) * np.maximum(rows.n_kernels, 1.0)
    return seconds + np.where(wanted, weights, 0.0) + latency
