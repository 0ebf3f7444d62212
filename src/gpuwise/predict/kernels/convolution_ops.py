"""Device time of captured convolutions: forward, gradient of the input, gradient of the filter, and layout changes.

Each gradient is another convolution of the same FLOP. The input's is one over the output's places with the channels
exchanged (a stride spreads it: ``area / stride^2`` of each filter meets a place). The filter's is a product
[C_out, P] x [P, C_in R] that sums over all places P: small outputs split the sum. The matrix unit wants channels last:
on contiguous 16-bit images the library copies image and result (NVIDIA, Tensor Layouts In Memory: NCHW vs NHWC).
Transposed convolutions are the gradient of the mirrored one; one dimension has W = 1, three fold the first two.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis, weakest
from gpuwise.predict.kernels.clock import sustained_fraction
from gpuwise.predict.kernels.convolution import ELEMENT_BYTES, Convolutions, convolution_time
from gpuwise.predict.kernels.families import channels_last, short_name, whole_numbers
from gpuwise.predict.kernels.gemm.fp32 import Shapes, product_time
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.memory_bound import dram_rate, memory_time
from gpuwise.workload.capture.record.capture import Signature, TensorSpec

F64 = NDArray[np.float64]


class Conv(NamedTuple):
    """One convolution as the forward sees it (of the mirrored one if transposed)."""

    batch: float
    c_in: float
    c_out: float
    places_in: tuple[float, float]
    places_out: tuple[float, float]
    area: float
    groups: float
    stride: float
    """Mean over the two dimensions."""
    last: bool
    """Channels last."""
    transposed: bool
    wants: tuple[bool, bool, bool]
    """Backward: gradients of input, filter and bias; all False forward."""


def _places(shape: tuple[int, ...]) -> tuple[float, float]:
    return (float(math.prod(shape[:-1])), float(shape[-1])) if len(shape) > 1 else (float(shape[0]) if shape else 1.0, 1.0)


def conv_of(s: Signature) -> Conv | None:
    """The sizes of a convolution signature; None where it is not written as one."""
    backward = "backward" in short_name(s.op)
    specs = s.inputs[1:3] if backward else s.inputs[:2]
    if len(specs) < 2 or len(specs[1].shape) < 3 or not (s.outputs or backward):
        return None
    image, weight = specs
    result = s.inputs[0] if backward else s.outputs[0]
    if len(image.shape) != len(weight.shape) or 0 in image.shape or 0 in result.shape:
        return None
    transposed = bool(s.attribute("transposed", False))
    groups = s.attribute("groups", 1)
    count = float(groups) if isinstance(groups, int) else 1.0
    small, large = (image, result) if transposed else (result, image)
    ratio = math.prod(large.shape[2:]) / max(math.prod(small.shape[2:]), 1)
    mask = whole_numbers(s.attribute("output_mask", (True, True, False))) if backward else (0, 0, 0)
    wants = tuple(bool(x) for x in mask) if len(mask) == 3 else (True, True, False)
    return Conv(
        float(image.shape[0]),
        float(large.shape[1]),
        float(small.shape[1]),
        _places(large.shape[2:]),
        _places(small.shape[2:]),
        float(math.prod(weight.shape[2:])),
        count,
        max(1.0, math.sqrt(ratio)) if ratio > 1.5 else 1.0,
        channels_last(image) or channels_last(weight),
        transposed,
        (wants[0], wants[1], wants[2]),
    )


def laid_out(s: Signature, last: bool) -> Signature:
    """The same convolution on images (and filters) that lie channels last, or contiguous."""
    return replace(s, inputs=tuple(_laid(t, last) for t in s.inputs), outputs=tuple(_laid(t, last) for t in s.outputs))


def _laid(t: TensorSpec, last: bool) -> TensorSpec:
    n = len(t.shape)
    if n < 3:
        return t
    order = [0, *range(2, n), 1] if last else list(range(n))
    stride, step = [0] * n, 1
    for d in reversed(order):
        stride[d] = step
        step *= max(t.shape[d], 1)
    return replace(t, stride=tuple(stride))


def captured_convolution_time(accelerator: Accelerator, dtype: str, convs: list[Conv], *, vector: bool) -> KernelTime:
    """[R] device seconds. ``vector``: no matrix unit for ``dtype``: fp32 lanes compute it."""
    n = len(convs)
    columns = {
        f: np.array([getattr(c, f) for c in convs], dtype=np.float64)
        for f in ("batch", "c_in", "c_out", "area", "groups", "stride")
    }
    hw_in, hw_out = (
        np.array([getattr(c, f) for c in convs], dtype=np.float64).reshape(n, 2) for f in ("places_in", "places_out")
    )
    forward = np.array([not any(c.wants) for c in convs])
    transposed = np.array([c.transposed for c in convs])
    wants = np.array([c.wants for c in convs]).reshape(n, 3)
    image = np.where(forward, transposed, np.where(transposed, False, wants[:, 0]))
    plain = np.where(forward, ~transposed, transposed & wants[:, 0])
    arithmetic = "fp32" if vector else dtype
    time, sigma = np.zeros(n), np.full(n, 0.3)
    bases = list[Basis]()
    for mask, one in ((plain, _forward), (image, _image_gradient), (wants[:, 1], _filter_gradient)):
        if mask.any():
            part = one(accelerator, arithmetic, {k: v[mask] for k, v in columns.items()}, hw_in[mask], hw_out[mask])
            time[mask] += part.time_s
            sigma[mask] = np.maximum(sigma[mask], part.log_sigma) if one is not _forward else part.log_sigma
            bases.append(part.basis)
    last = np.array([c.last for c in convs])
    time += _layout_s(accelerator, dtype, columns, hw_in, hw_out, wants, last, vector)
    grad_bias = memory_time(
        accelerator, columns["batch"] * hw_out.prod(1) * columns["c_out"] * _width(dtype), 0.0, pattern="reduction"
    ).time_s
    return KernelTime(time + np.where(wants[:, 2], grad_bias, 0.0), sigma, weakest(*bases) if bases else "derived")


def _width(dtype: str) -> float:
    return ELEMENT_BYTES.get(dtype, 4.0)


def _forward(acc: Accelerator, dtype: str, c: dict[str, F64], hw_in: F64, hw_out: F64) -> KernelTime:
    return convolution_time(
        acc, dtype, c["batch"], c["c_in"], c["c_out"], hw_out[:, 0], hw_out[:, 1], c["area"], c["groups"], c["stride"]
    )


def _image_gradient(acc: Accelerator, dtype: str, c: dict[str, F64], hw_in: F64, hw_out: F64) -> KernelTime:
    area = np.maximum(c["area"] / c["stride"] ** 2, 1.0)
    made = convolution_time(
        acc, dtype, c["batch"], c["c_out"], c["c_in"], hw_in[:, 0], hw_in[:, 1], area, c["groups"], 1.0 / c["stride"]
    )
    return made._replace(time_s=made.time_s * float(load_json("captured_time")["image_gradient_slowdown"]))


def _filter_gradient(acc: Accelerator, dtype: str, c: dict[str, F64], hw_in: F64, hw_out: F64) -> KernelTime:
    model, own = load_json("convolution"), load_json("captured_time")
    positions = c["batch"] * hw_out.prod(1)
    rows, columns = c["c_out"] / c["groups"], c["c_in"] / c["groups"] * c["area"]
    element = _width(dtype)
    conv = Convolutions(c["batch"], c["c_in"], c["c_out"], hw_out[:, 0], hw_out[:, 1], c["area"], c["groups"], c["stride"])
    memory = conv.bytes(element) / dram_rate(acc)
    if dtype == "fp32":
        products = product_time(acc, Shapes(c["groups"], rows, columns, positions), load_json("fp32"), batched=False, layout="nt")
        time = np.maximum(products / model["implicit_efficiency"], memory)
    else:
        pad = 16.0 / element
        tiles = c["groups"] * np.ceil(np.ceil(rows / pad) * pad / 64.0) * np.ceil(np.ceil(columns / pad) * pad / 64.0)
        work = 2.0 * 64.0 * 64.0 * tiles * positions
        units = float(acc.compute_units or 1)
        rate = acc.peak(dtype) * model["matrix_efficiency"]
        splits = np.clip(np.ceil(2.0 * units / tiles), 1.0, np.maximum(positions / 256.0, 1.0))
        fill = np.minimum(1.0, tiles * splits / units)
        compute = work / (rate * fill)
        held = sustained_fraction(acc, np.minimum(conv.flop / (compute * acc.peak(dtype)), 1.0), dtype)
        partial = 4.0 * c["groups"] * rows * columns * np.where(splits > 1, splits + 1.0, 0.0) / dram_rate(acc)
        time = np.hypot(compute / held, memory) + partial * float(own["split_traffic"])
    depthwise = (c["groups"] > 1) & (c["c_in"] <= c["groups"])
    stencil = convolution_time(
        acc, dtype, c["batch"], c["c_in"], c["c_out"], hw_out[:, 0], hw_out[:, 1], c["area"], c["groups"], c["stride"]
    )
    time = np.where(depthwise, stencil.time_s * float(own["depthwise_filter_slowdown"]), time + model["kernel_s"])
    time = time * np.where(depthwise, 1.0, float(own["filter_gradient_slowdown"]))
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
