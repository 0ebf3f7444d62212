"""Convolutions (forward; each of the two gradients is another convolution of the same size).

Shape legend: B images, C_in, C_out channels, P = B H_out W_out output positions, R kernel area, G groups.

The library times its algorithms and keeps the fastest; so does this:

* implicit matrix product: G products [P, C_in R / G] x [C_in R / G, C_out / G], operands read in place;
* Winograd F(4x4, 3x3) (3 x 3, stride 1, fp32): 36 products [P / 16, C_in] x [C_in, C_out] with a quarter of
  the multiplications, and the transformed input and output written and read once (Lavin and Gray, arXiv
  1509.09308);
* fused Winograd F(2x2, 3x3): 4/9 of the multiplications, transforms kept on chip;
* one channel a group (depthwise): a stencil, bound by memory or by the vector unit.

fp32 runs on the vector unit (``fp32``); tf32, fp16 and bf16 on the matrix unit at ``peak``.
Constants: ``coefficients/convolution.json``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis
from gpuwise.predict.kernels.clock import sustained_fraction
from gpuwise.predict.kernels.gemm.fp32 import Shapes, family_basis, peak_rate, product_time
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.memory_bound import dram_rate

F64 = NDArray[np.float64]


class Convolutions(NamedTuple):
    """Arrays [R]."""

    batch: F64
    c_in: F64
    c_out: F64
    h_out: F64
    w_out: F64
    area: F64
    groups: F64
    stride: F64

    @property
    def positions(self) -> F64:
        return self.batch * self.h_out * self.w_out

    @property
    def flop(self) -> F64:
        return 2.0 * self.positions * self.c_out * self.c_in / self.groups * self.area

    def bytes(self, element: float) -> F64:
        """Input, weights and output once."""
        image = self.positions * (self.c_in * self.stride**2 + self.c_out)
        return element * (image + self.c_in * self.c_out / self.groups * self.area)


def convolution_time(
    accelerator: Accelerator,
    dtype: str,
    batch: ArrayLike,
    c_in: ArrayLike,
    c_out: ArrayLike,
    h_out: ArrayLike,
    w_out: ArrayLike,
    kernel_area: ArrayLike,
    groups: ArrayLike = 1,
    stride: ArrayLike = 1,
) -> KernelTime:
    """Device time of convolutions [R] in ``dtype`` (``fp32`` without TF32, ``tf32``, ``fp16``, ``bf16``).

    Raises UnpredictableError when the catalogue has no rate for ``dtype``.
    """
    given = (batch, c_in, c_out, h_out, w_out, kernel_area, groups, stride)
    conv = Convolutions(*np.broadcast_arrays(*(np.atleast_1d(np.asarray(a, np.float64)) for a in given)))
    model = load_json("convolution")
    products = load_json("fp32")
    if dtype == "fp32":
        time = vector_time(accelerator, conv, model, products)
        basis = family_basis(accelerator, products)
    else:
        time = matrix_unit_time(accelerator, dtype, conv, model)
        basis: Basis = "derived" if accelerator.family in model["matrix_families"] else "specified"
    depthwise = (conv.groups > 1) & (conv.c_in <= conv.groups)
    time = np.where(depthwise, _stencil_time(accelerator, dtype, conv, model), time)
    sigma = model["log_sigma"]["fp32" if dtype == "fp32" else "matrix"]
    return KernelTime(time, np.where(depthwise, model["log_sigma"]["depthwise"], sigma), basis)


def vector_time(accelerator: Accelerator, conv: Convolutions, model: dict[str, Any], products: dict[str, Any]) -> F64:
    """Seconds in fp32: the fastest of implicit product and the two Winograd forms."""
    implicit = _implicit_time(accelerator, conv, model, products, conv.area, model["implicit_efficiency"])
    fused = _implicit_time(accelerator, conv, model, products, conv.area * 4.0 / 9.0, model["fused_winograd_efficiency"])
    tiles = _winograd_tiles(conv)
    product = product_time(accelerator, Shapes(_ELEMENTS + 0.0 * tiles, tiles, conv.c_out, conv.c_in), products, batched=True)
    winograd = product / model["winograd_efficiency"] + _transforms_time(accelerator, conv, model)
    return np.where(_winograd_allowed(conv), np.minimum(np.minimum(winograd, fused), implicit), implicit)


def winograd_filter_time(accelerator: Accelerator, conv: Convolutions, model: dict[str, Any], products: dict[str, Any]) -> F64:
    """Seconds of the gradient of 3 x 3 filters in fp32 by Winograd: 36 products [C_out, P / 16] x [P / 16, C_in] of the
    transformed gradient and input (cuDNN's backward filter, ``WINOGRAD_NONFUSED``); infinite where it is not one."""
    tiles = _winograd_tiles(conv)
    product = product_time(accelerator, Shapes(_ELEMENTS + 0.0 * tiles, conv.c_out, conv.c_in, tiles), products, batched=True)
    time = product / model["winograd_efficiency"] + _transforms_time(accelerator, conv, model)
    return np.where(_winograd_allowed(conv), time, np.inf)


_ELEMENTS = 36.0
"""Of a transformed tile: 6 x 6 inputs make 4 x 4 outputs of a 3 x 3 filter."""


def _winograd_allowed(conv: Convolutions) -> NDArray[np.bool_]:
    return (conv.area == 9.0) & (conv.stride == 1.0) & (conv.groups == 1.0)


def _winograd_tiles(conv: Convolutions) -> F64:
    return conv.batch * np.ceil(conv.h_out / 4.0) * np.ceil(conv.w_out / 4.0)


def _transforms_time(accelerator: Accelerator, conv: Convolutions, model: dict[str, Any]) -> F64:
    """Seconds of transforming images and filters to and fro."""
    images = _ELEMENTS * 4.0 * _winograd_tiles(conv) * (conv.c_in + conv.c_out)
    weights = (_ELEMENTS + conv.area) * 4.0 * conv.c_in * conv.c_out
    moved = model["image_passes"] * images + model["weight_passes"] * weights
    return moved / dram_rate(accelerator) + 4.0 * model["kernel_s"]


def _implicit_time(
    accelerator: Accelerator,
    conv: Convolutions,
    model: dict[str, Any],
    products: dict[str, Any],
    area: F64,
    efficiency: float,
) -> F64:
    """A product that gathers its operand; groups run side by side."""
    shapes = Shapes(conv.groups, conv.positions, conv.c_out / conv.groups, conv.c_in / conv.groups * area)
    time = product_time(accelerator, shapes, products, batched=False)
    return np.maximum(time / efficiency, conv.bytes(4.0) / dram_rate(accelerator)) + model["kernel_s"]


def matrix_unit_time(accelerator: Accelerator, dtype: str, conv: Convolutions, model: dict[str, Any]) -> F64:
    """Seconds on the matrix unit: implicit products in tiles of 128 positions x 64 or 128 channels, channels
    padded to 16 bytes. Raises UnpredictableError when the catalogue has no rate for ``dtype``."""
    element = FORMAT_BYTES[dtype]
    pad = 16.0 / element
    reduction = np.ceil(conv.c_in / conv.groups / pad) * pad * conv.area
    channels = np.ceil(conv.c_out / conv.groups / pad) * pad
    peak = accelerator.peak(dtype)
    units = float(accelerator.compute_units or 1)
    best = np.full(conv.flop.shape, np.inf)
    for tile in (64.0, 128.0):
        blocks = conv.groups * np.ceil(conv.positions / 128.0) * np.ceil(channels / tile)
        turns = np.maximum(np.ceil(blocks / units), 1.0)
        best = np.minimum(best, turns * 2.0 * 128.0 * tile * (reduction + model["matrix_prologue"]) / (peak / units))
    compute = best / model["matrix_efficiency"]
    held = sustained_fraction(accelerator, np.minimum(conv.flop / (compute * peak), 1.0), dtype)
    memory = conv.bytes(element) / dram_rate(accelerator)
    power = model["overlap"]
    return ((compute / held) ** power + memory**power) ** (1.0 / power) + model["kernel_s"]


def _stencil_time(accelerator: Accelerator, dtype: str, conv: Convolutions, model: dict[str, Any]) -> F64:
    """Depthwise: memory at a fraction of the stream rate, or the vector unit at a fraction of its peak."""
    memory = conv.bytes(FORMAT_BYTES[dtype]) / (dram_rate(accelerator) * model["depthwise_bandwidth"])
    arithmetic = conv.flop / (peak_rate(accelerator) * model["depthwise_vector"])
    return np.maximum(memory, arithmetic) + model["kernel_s"]
