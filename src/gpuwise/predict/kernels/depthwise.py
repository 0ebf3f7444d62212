"""Depthwise convolutions, one channel a group: no matrix unit helps, and two libraries have kernels for them.

Contiguous images run PyTorch's own kernels (native/cuda/DepthwiseConv2d.cu), whatever their format: a thread computes an output,
so a pass takes a fixed number of clocks per position and multiply-add. The filter's gradient has one block for each number of the
filter, which sums over all places; blocks come in whole waves over the units. Channels-last images run cuDNN's, whose 16-bit
kernels do several channels at once. Neither is ever faster than memory.

Constants (clocks of one unit): ``coefficients/kernels/convolution.json``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.accelerator_factors import factor_key
from gpuwise.predict.kernels.memory_bound import dram_rate
from gpuwise.workload.row_codes import FILTER_GRADIENT, IMAGE_GRADIENT, TRANSPOSED
from gpuwise.workload.step import OpTable

F64 = NDArray[np.float64]


def is_depthwise(accelerator: Accelerator, rows: OpTable) -> NDArray[np.bool_]:
    """[R] whether this module times a row: depthwise, not transposed, on an NVIDIA card without a measured network."""
    known = accelerator.vendor == "NVIDIA" and factor_key(accelerator) is None
    known = known and bool(accelerator.compute_units and accelerator.boost_hz)
    groups = rows.shape[:, 6]
    return (groups > 1) & (rows.shape[:, 1] <= groups) & ((rows.flag & TRANSPOSED) == 0) & known


def depthwise_seconds(accelerator: Accelerator, dtype: str, rows: OpTable, last: NDArray[np.bool_]) -> F64:
    """[R] device seconds: forward, or each required gradient. ``last``: whether the images are channels-last."""
    model: dict[str, Any] = load_json("convolution")["depthwise"]
    units, clock_hz = float(accelerator.compute_units or 1), float(accelerator.boost_hz or 1.0)
    shape, element = rows.shape.astype(np.float64), FORMAT_BYTES.get(dtype, 4.0)
    batch, c_out, area = shape[:, 0], shape[:, 2], shape[:, 5]
    out = batch * c_out * shape[:, 3] * shape[:, 4]
    places = batch * shape[:, 1] * rows.detail[:, :2].prod(axis=1)
    wants = [(rows.flag & bit) != 0 for bit in (IMAGE_GRADIENT, FILTER_GRADIENT)]
    memory = element * (out + places) / dram_rate(accelerator)
    waves = np.ceil(c_out * area / units) * units / (c_out * area)
    time = np.zeros(len(rows))
    for one, mask in (("forward", ~(wants[0] | wants[1])), ("image", wants[0]), ("filter", wants[1])):
        visited = places if one == "image" else out  # a thread makes a place of the image and asks all of the filter
        clocks = np.zeros(len(rows))
        for layout, lies in (("plain", ~last), ("last" if element <= 2.0 else "last_wide", last)):
            each = model[layout][one]
            repeated = waves if one == "filter" and layout == "plain" else 1.0
            clocks = np.where(lies, (visited * each["place"] + visited * area * each["product"]) * repeated, clocks)
        time = time + np.where(mask, np.maximum(clocks / (units * clock_hz), memory) + model["kernel_s"], 0.0)
    return time
