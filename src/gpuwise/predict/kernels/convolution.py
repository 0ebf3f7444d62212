"""Convolutions (forward; each of the two gradients is another convolution of the same size).

Shape legend: B images, C_in, C_out channels, P = B H_out W_out output positions, R kernel area, G groups.

The library times its algorithms and keeps the fastest; so does this:

* implicit matrix product: G products [P, C_in R / G] x [C_in R / G, C_out / G], operands read in place, in blocks of
  128 positions x 32, 64 or 128 channels;
* Winograd F(4x4, 3x3) (3 x 3, stride 1, fp32): 36 products [P / 16, C_in] x [C_in, C_out] with a quarter of
  the multiplications, and the transformed input, filter and output written and read once (Lavin and Gray, arXiv
  1509.09308);
* fused Winograd F(2x2, 3x3): 4/9 of the multiplications, transforms kept on chip, in blocks of 32 tiles (of 1, 2 or 4
  images) x 32 channels;
* one channel a group (depthwise): a stencil, bound by memory or by the vector unit.

Blocks as in the grids of cuDNN's kernels (``scudnn_winograd_128x128_.._tile148t``, ``scudnn_128x64``, ``sgemm_64x64`` with 36
in the grid). ``b`` blocks on a device of ``u`` units, each of ``w`` FLOP, take ``max(n + q (ceil(n) - n), floor) w u / rate``
with ``n = b / u``. fp32 runs on the vector unit; tf32, fp16 and bf16 on the matrix unit at ``peak``.
Constants: ``coefficients/convolution.json``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.dtypes import FORMAT_BYTES
from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis
from gpuwise.predict.kernels.clock import sustained_fraction
from gpuwise.predict.kernels.gemm.fp32 import family_basis, kernel_constants, peak_rate
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.memory_bound import dram_rate

F64 = NDArray[np.float64]


class Convolutions(NamedTuple):
    """Convolutions as columns: arrays [R]."""

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
        """[R] places of the output over the batch."""
        return self.batch * self.h_out * self.w_out

    @property
    def flop(self) -> F64:
        """[R] 2 B H W C_out (C_in / groups) x filter area."""
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
    sizes = (batch, c_in, c_out, h_out, w_out, kernel_area, groups, stride)
    conv = Convolutions(*np.broadcast_arrays(*(np.atleast_1d(np.asarray(a, np.float64)) for a in sizes)))
    model = load_json("convolution")
    if dtype == "fp32":
        time = vector_time(accelerator, conv, model)
        basis = family_basis(accelerator, load_json("fp32"))
    else:
        time = matrix_unit_time(accelerator, dtype, conv, model)
        basis: Basis = "derived" if accelerator.family in model["matrix_families"] else "specified"
    depthwise = (conv.groups > 1) & (conv.c_in <= conv.groups)
    time = np.where(depthwise, _stencil_time(accelerator, dtype, conv, model), time)
    sigma = model["log_sigma"]["fp32" if dtype == "fp32" else "matrix"]
    return KernelTime(time, np.where(depthwise, model["log_sigma"]["depthwise"], sigma), basis)


def vector_time(accelerator: Accelerator, conv: Convolutions, model: dict[str, Any], burst_s: float = 0.0) -> F64:
    """Seconds in fp32: the fastest of the implicit product and the two Winograd forms.

    Kernels shorter than ``burst_s`` run at boost, as the launches of a benchmark do if the governor reacts slowly.
    ``forward_rate`` is the share of all this that the library reaches on an architecture it has no fp32 kernels of its own
    for: on Hopper ``implicit_convolve_sgemm`` and transforms of Maxwell's days. Raises UnpredictableError where the catalogue
    has no rate or unit count.
    """
    slower = 1.0 / float(model["forward_rate"].get(f"sm_{(accelerator.compute_capability or '').replace('.', '')}", 1.0))
    implicit = slower * _implicit_time(accelerator, conv, model, burst_s)
    allowed = _winograd_allowed(conv)
    if not allowed.any():
        return implicit
    tiles = _winograd_tiles(conv)
    apart = _winograd_time(accelerator, tiles, conv.c_out, conv.c_in, conv, model, burst_s)
    fused = _fused_winograd_time(accelerator, conv, model, burst_s)
    return np.where(allowed, np.minimum(slower * np.minimum(apart, fused), implicit), implicit)


def winograd_filter_time(accelerator: Accelerator, conv: Convolutions, model: dict[str, Any]) -> F64:
    """Seconds of the gradient of 3 x 3 filters in fp32 by Winograd: 36 products [C_out, P / 16] x [P / 16, C_in] of the
    transformed gradient and input (cuDNN's backward filter, ``WINOGRAD_NONFUSED``); infinite where it is not one."""
    time = _winograd_time(accelerator, conv.c_out, conv.c_in, _winograd_tiles(conv), conv, model, 0.0)
    return np.where(_winograd_allowed(conv), time, np.inf)


_ELEMENTS = 36.0
"""Elements of a transformed tile: 6 x 6 inputs give 4 x 4 outputs of a 3 x 3 filter."""
_PRODUCT_TILES = ((128.0, 64.0), (64.0, 64.0), (32.0, 128.0), (128.0, 32.0))
"""Rows and columns of a block of the products."""
_FUSED_TILES = ((1, 4, 8), (2, 4, 4), (2, 2, 8), (4, 1, 8), (4, 2, 4), (4, 4, 2))
"""Images, rows and columns of the 32 tiles (2 x 2 outputs each) of a block."""


def _winograd_allowed(conv: Convolutions) -> NDArray[np.bool_]:
    return (conv.area == 9.0) & (conv.stride == 1.0) & (conv.groups == 1.0)


def _winograd_tiles(conv: Convolutions) -> F64:
    return conv.batch * np.ceil(conv.h_out / 4.0) * np.ceil(conv.w_out / 4.0)


def _relative_rate(accelerator: Accelerator, model: dict[str, Any]) -> float:
    """Share of the vector rate, against the cards the efficiencies are of: as measured on the card; else 1, but for AMD devices
    and lanes that double by the integers' port (capability 8.6 on), which have what the card's products reach."""
    measured = model["relative_rate"].get(accelerator.id)
    if measured is not None:
        return float(measured)
    if accelerator.vendor == "NVIDIA" and float(accelerator.compute_capability or 0.0) < _SHARED_PORT:
        return 1.0
    products = load_json("fp32")
    return min(kernel_constants(accelerator, products)["linear"] / products["kernels"]["Volta"]["linear"], 1.0)


_SHARED_PORT = 8.6


def _blocks_time(
    accelerator: Accelerator,
    blocks: F64,
    flop: F64,
    multiplied: F64,
    form: dict[str, float],
    model: dict[str, Any],
    burst_s: float,
) -> tuple[F64, F64]:
    """Seconds of ``blocks`` [R] of ``flop`` each at boost, and the sustained share of the clock while they execute
    ``multiplied`` FLOP."""
    units = accelerator.compute_units
    if not units:
        raise UnpredictableError(
            "no unit count for accelerator",
            f"the catalogue has no unit count for {accelerator.name}",
            hint="name another GPU: `gpuwise gpus` lists them",
        )
    load = blocks / units
    turns = np.maximum(load + form["quantization"] * (np.ceil(load) - load), form["lone_block"])
    rate = peak_rate(accelerator)
    time = turns * flop / (rate / units * form["efficiency"] * _relative_rate(accelerator, model))
    busy = np.minimum(model["power_share"] * multiplied / (time * rate), 1.0)
    clock_share = np.where(time < burst_s, 1.0, sustained_fraction(accelerator, busy, "fp32"))
    return time, clock_share


def _fused_winograd_time(accelerator: Accelerator, conv: Convolutions, model: dict[str, Any], burst_s: float) -> F64:
    form = model["winograd_fused"]
    covers = [np.ceil(conv.batch / n) * np.ceil(conv.h_out / (2 * h)) * np.ceil(conv.w_out / (2 * w)) for n, h, w in _FUSED_TILES]
    blocks = np.ceil(conv.c_out / 32.0) * np.minimum.reduce(covers)
    block_flop = 2.0 * 16.0 * 32.0 * 32.0 * (conv.c_in + form["prologue"])
    time, clock_share = _blocks_time(accelerator, blocks, block_flop, conv.flop * 4.0 / 9.0, form, model, burst_s)
    filters = form["filter_passes"] * 4.0 * (9.0 + 16.0) * conv.c_in * conv.c_out
    rate, power = dram_rate(accelerator), form["overlap"]
    together = ((time / clock_share) ** power + (conv.bytes(4.0) / rate) ** power) ** (1.0 / power)
    return together + filters / rate + 2.0 * model["kernel_s"]


def _winograd_time(
    accelerator: Accelerator, m: F64, n: F64, k: F64, conv: Convolutions, model: dict[str, Any], burst_s: float
) -> F64:
    """36 products [m, k] x [k, n], and the transforms of images and filters to and fro."""
    form = model["winograd"]
    best, best_clock = np.full(conv.flop.shape, np.inf), np.ones(conv.flop.shape)
    for rows, columns in _PRODUCT_TILES:
        blocks = _ELEMENTS * np.ceil(m / rows) * np.ceil(n / columns)
        slower = 1.0 + form["small_tile"] * (32.0 / rows + 32.0 / columns - 0.75)
        block_flop = 2.0 * rows * columns * (k + form["prologue"]) * slower
        time, clock_share = _blocks_time(accelerator, blocks, block_flop, 2.0 * _ELEMENTS * m * n * k, form, model, burst_s)
        best, best_clock = np.where(time < best, time, best), np.where(time < best, clock_share, best_clock)
    rate, power = dram_rate(accelerator), form["overlap"]
    operands = 4.0 * _ELEMENTS * (m * k + k * n + m * n)
    products = ((best / best_clock) ** power + (operands / rate) ** power) ** (1.0 / power)
    tiles = _winograd_tiles(conv)
    images = 4.0 * (_ELEMENTS * tiles + conv.positions) * (conv.c_in + conv.c_out)
    filters = 4.0 * (_ELEMENTS + 9.0) * conv.c_in * conv.c_out
    return products + (form["image_passes"] * images + form["filter_passes"] * filters) / rate + 4.0 * model["kernel_s"]


def _implicit_time(accelerator: Accelerator, conv: Convolutions, model: dict[str, Any], burst_s: float) -> F64:
    """A product that gathers its operand; groups run side by side."""
    form = model["implicit"]
    depth, channels = conv.c_in / conv.groups * conv.area, conv.c_out / conv.groups
    best, best_clock = np.full(conv.flop.shape, np.inf), np.ones(conv.flop.shape)
    for tile in (32.0, 64.0, 128.0):
        blocks = conv.groups * np.ceil(conv.positions / 128.0) * np.ceil(channels / tile)
        slower = 1.0 + form["small_tile"] * max(64.0 / tile - 1.0, 0.0)
        block_flop = 2.0 * 128.0 * tile * (np.ceil(depth / 8.0) * 8.0 + form["prologue"]) * slower
        time, clock_share = _blocks_time(accelerator, blocks, block_flop, conv.flop, form, model, burst_s)
        best, best_clock = np.where(time < best, time, best), np.where(time < best, clock_share, best_clock)
    rate, power = dram_rate(accelerator), form["overlap"]
    together = ((best / best_clock) ** power + (conv.bytes(4.0) / rate) ** power) ** (1.0 / power)
    filters = form["filter_passes"] * 4.0 * depth * conv.c_out
    return together + filters / rate + model["kernel_s"]


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
