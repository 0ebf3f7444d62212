"""Device time of convolution rows: forward, gradient of the input, gradient of the filter, and layout changes.

Each gradient is another convolution of the same FLOP. The input's is one over the output's places with the channels
exchanged (a stride spreads it: ``area / stride^2`` of each filter meets a place). The filter's is a product
[C_out, P] x [P, C_in R] that sums over all places P: small outputs split the sum. The matrix unit wants channels last:
on contiguous 16-bit images the library copies image and result (NVIDIA, Tensor Layouts In Memory: NCHW vs NHWC).
Transposed convolutions are the gradient of the mirrored one; one dimension has W = 1, three fold the first two.

On devices with matrix units, 16-bit and TF32 convolutions that are not transposed take the form fitted on whole networks
(:mod:`gpuwise.predict.kernels.measured_networks`): no table of single kernels covers them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis, weakest
from gpuwise.predict.kernels import measured_networks
from gpuwise.predict.kernels.clock import sustained_fraction
from gpuwise.predict.kernels.conditions import Conditions, lies_last
from gpuwise.predict.kernels.convolution import Convolutions, convolution_time, winograd_filter_time
from gpuwise.predict.kernels.depthwise import depthwise_seconds, is_depthwise
from gpuwise.predict.kernels.gemm.fp32 import Shapes, product_time
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.memory_bound import dram_rate, memory_time
from gpuwise.predict.kernels.memory_bound_ops import memory_bound_time
from gpuwise.predict.kernels.products import by_format
from gpuwise.predict.kernels.run_formats import HALF, matrix_units
from gpuwise.workload.row_codes import BIAS_GRADIENT, FILTER_GRADIENT, IMAGE_GRADIENT, TRANSPOSED
from gpuwise.workload.step import OpTable

F64 = NDArray[np.float64]
_ON_MATRIX_UNITS = (*HALF, "tf32")


def convolution_rows_time(accelerator: Accelerator, rows: OpTable, conditions: Conditions) -> KernelTime:
    """[R] device seconds. A row without sizes is timed by its bytes."""
    time, sigma, bases = np.zeros(len(rows)), np.full(len(rows), 0.4), list[Basis]()
    known = rows.shape[:, 0] > 0
    odd = np.flatnonzero(~known)
    if odd.size:
        plain = memory_bound_time(accelerator, rows.take(odd), "elementwise")
        time[odd] = plain.time_s
        bases.append(plain.basis)
    for dtype, of_format in by_format(accelerator, rows, conditions):
        part = of_format[known[of_format]]
        if not part.size:
            continue
        few = rows.take(part)
        one = captured_convolution_time(accelerator, dtype, few, last=lies_last(few, conditions))
        slow = accelerator.peak("fp32") / accelerator.peak("fp64") if dtype == "fp64" else 1.0
        seconds = one.time_s * max(slow, 1.0)
        if dtype in _ON_MATRIX_UNITS and matrix_units(accelerator):
            measured = measured_networks.convolution_seconds(accelerator, few, dtype, conditions)
            seconds = np.where(few.flag & TRANSPOSED, seconds, measured)
        depthwise = np.flatnonzero(is_depthwise(accelerator, few)) if dtype != "fp64" else np.zeros(0, np.intp)
        if depthwise.size:
            some = few.take(depthwise)
            seconds[depthwise] = depthwise_seconds(accelerator, dtype, some, lies_last(some, conditions))
        time[part], sigma[part] = seconds, one.log_sigma
        bases.append(one.basis)
    return KernelTime(time, sigma, weakest(*bases) if bases else "derived")


def captured_convolution_time(accelerator: Accelerator, dtype: str, rows: OpTable, *, last: NDArray[np.bool_]) -> KernelTime:
    """[R] device seconds by kernel: forward, and each required gradient. Formats without a matrix unit run on the vector lanes
    at fp32's rate."""
    vector = dtype not in _ON_MATRIX_UNITS
    shape, beside = rows.shape.astype(np.float64), rows.detail
    columns = {f: shape[:, i] for i, f in enumerate(("batch", "c_in", "c_out"))}
    columns |= {"area": shape[:, 5], "groups": shape[:, 6], "stride": np.where(beside[:, 2] > 0, beside[:, 2], 1.0)}
    hw_in, hw_out = beside[:, :2], shape[:, 3:5]
    wants = np.stack([(rows.flag & bit) != 0 for bit in (IMAGE_GRADIENT, FILTER_GRADIENT, BIAS_GRADIENT)], axis=1)
    forward, transposed = ~wants.any(axis=1), (rows.flag & TRANSPOSED) != 0
    image = np.where(forward, transposed, np.where(transposed, False, wants[:, 0]))
    plain: NDArray[np.bool_] = np.where(forward, np.logical_not(transposed), np.logical_and(transposed, wants[:, 0]))
    arithmetic = "fp32" if vector else dtype
    time, sigma = np.zeros(len(rows)), np.full(len(rows), 0.3)
    bases = list[Basis]()
    for mask, one in ((plain, _forward), (image, _image_gradient), (wants[:, 1], _filter_gradient)):
        if mask.any():
            part = one(accelerator, arithmetic, {k: v[mask] for k, v in columns.items()}, hw_in[mask], hw_out[mask])
            time[mask] += part.time_s
            sigma[mask] = np.maximum(sigma[mask], part.log_sigma) if one is not _forward else part.log_sigma
            bases.append(part.basis)
    time += _layout_s(accelerator, dtype, columns, hw_in, hw_out, wants, last, vector)
    grad_bias = memory_time(
        accelerator, columns["batch"] * hw_out.prod(1) * columns["c_out"] * _width(dtype), 0.0, pattern="reduction"
    ).time_s
    return KernelTime(time + np.where(wants[:, 2], grad_bias, 0.0), sigma, weakest(*bases) if bases else "derived")


def _width(dtype: str) -> float:
    return FORMAT_BYTES.get(dtype, 4.0)


def _forward(acc: Accelerator, dtype: str, c: dict[str, F64], hw_in: F64, hw_out: F64) -> KernelTime:
    return convolution_time(
        acc, dtype, c["batch"], c["c_in"], c["c_out"], hw_out[:, 0], hw_out[:, 1], c["area"], c["groups"], c["stride"]
    )


def _image_gradient(acc: Accelerator, dtype: str, c: dict[str, F64], hw_in: F64, hw_out: F64) -> KernelTime:
    area = np.maximum(c["area"] / c["stride"] ** 2, 1.0)
    time = convolution_time(
        acc, dtype, c["batch"], c["c_out"], c["c_in"], hw_in[:, 0], hw_in[:, 1], area, c["groups"], 1.0 / c["stride"]
    )
    return time._replace(time_s=time.time_s * float(load_json("captured_time")["image_gradient_slowdown"]))


def _filter_gradient(acc: Accelerator, dtype: str, c: dict[str, F64], hw_in: F64, hw_out: F64) -> KernelTime:
    model, factors = load_json("convolution"), load_json("captured_time")
    positions = c["batch"] * hw_out.prod(1)
    rows, columns = c["c_out"] / c["groups"], c["c_in"] / c["groups"] * c["area"]
    element = _width(dtype)
    conv = Convolutions(c["batch"], c["c_in"], c["c_out"], hw_out[:, 0], hw_out[:, 1], c["area"], c["groups"], c["stride"])
    memory = conv.bytes(element) / dram_rate(acc)
    if dtype == "fp32":
        products = product_time(acc, Shapes(c["groups"], rows, columns, positions), load_json("fp32"), batched=False, layout="nt")
        implicit = np.maximum(products / model["filter_efficiency"], memory)
        time = np.minimum(implicit, winograd_filter_time(acc, conv, model))
    else:
        pad = 16.0 / element
        tiles = c["groups"] * np.ceil(np.ceil(rows / pad) * pad / 64.0) * np.ceil(np.ceil(columns / pad) * pad / 64.0)
        tile_flop = 2.0 * 64.0 * 64.0 * tiles * positions
        units = float(acc.compute_units or 1)
        rate = acc.peak(dtype) * model["matrix_efficiency"]
        splits = np.clip(np.ceil(2.0 * units / tiles), 1.0, np.maximum(positions / 256.0, 1.0))
        fill = np.minimum(1.0, tiles * splits / units)
        compute = tile_flop / (rate * fill)
        clock_share = sustained_fraction(acc, np.minimum(conv.flop / (compute * acc.peak(dtype)), 1.0), dtype)
        partial = 4.0 * c["groups"] * rows * columns * np.where(splits > 1, splits + 1.0, 0.0) / dram_rate(acc)
        time = np.hypot(compute / clock_share, memory) + partial * float(factors["split_traffic"])
    depthwise = (c["groups"] > 1) & (c["c_in"] <= c["groups"])
    stencil = convolution_time(
        acc, dtype, c["batch"], c["c_in"], c["c_out"], hw_out[:, 0], hw_out[:, 1], c["area"], c["groups"], c["stride"]
    )
    time = np.where(depthwise, stencil.time_s * float(factors["depthwise_filter_slowdown"]), time + model["kernel_s"])
    time = time * np.where(depthwise, 1.0, float(factors["filter_gradient_slowdown"]))
    return KernelTime(time, np.full(time.shape, model["log_sigma"]["matrix" if dtype != "fp32" else "fp32"]), stencil.basis)


def _layout_s(
    acc: Accelerator,
    dtype: str,
    c: dict[str, F64],
    hw_in: F64,
    hw_out: F64,
    wants: NDArray[np.bool_],
    last: NDArray[np.bool_],
    vector: bool,
) -> F64:
    """Seconds of the copies between layouts: image and result forward; each gradient its two."""
    if vector or dtype not in ("fp16", "bf16", "tf32"):
        return np.zeros(len(last))
    model: dict[str, Any] = load_json("captured_time")
    share = float(model["layout_copy_share"]["tf32" if dtype == "tf32" else "half"])
    element = _width(dtype)
    image, result = (c["batch"] * c[k] * hw.prod(1) * element for k, hw in (("c_in", hw_in), ("c_out", hw_out)))
    times = np.maximum(wants[:, :2].sum(1), 1.0)
    depthwise = (c["groups"] > 1) & (c["c_in"] <= c["groups"])
    moved = (image + result) * times
    copy = memory_time(acc, moved, moved, pattern="transpose").time_s
    return np.where(last | depthwise, 0.0, copy * share)
