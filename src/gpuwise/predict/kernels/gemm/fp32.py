"""FP32 matrix products without tensor cores (TF32 off): y[M, N] = x[M, K] w, B of them.

A library cuts the output into tiles and gives them to the units; small outputs also split K. Over the tiles
and splits the library has, the fastest counts:

    t_c = 2 tile (K/s + K0) g(b) / (r eps),   b = B tiles s / units,   g(b) = max(b + q (ceil(b) - b), floor)

``r`` is one unit's rate times the kernels' efficiency, ``eps`` falls with small tiles, ``floor`` is what a
lone block costs. The clock is the one sustained at the power these FLOP draw (``clock``). Memory time
overlaps: ``t = (t_c^p + t_m^p)^(1/p)`` with the operands and the result moved once. A split product also
reduces partial sums. CDNA computes FP32 products on its matrix cores, at their rate. Constants:
``coefficients/fp32.json``.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis
from gpuwise.predict.kernels.clock import sustained_fraction
from gpuwise.predict.kernels.corrections import corrected
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.memory_bound import dram_rate

F64 = NDArray[np.float64]
Layout = Literal["tn", "nn", "nt"]
"""Layout of the operands: ``tn`` a linear layer's forward (both contiguous along K), ``nn`` and ``nt`` its gradients."""
FP32_BYTES = 4.0


class Shapes(NamedTuple):
    """Arrays [R] of the product B x [M, K] x [K, N]."""

    b: F64
    m: F64
    n: F64
    k: F64

    @property
    def flop(self) -> F64:
        """[R] 2 B M N K."""
        return 2.0 * self.b * self.m * self.n * self.k

    @property
    def bytes(self) -> F64:
        """[R] bytes of both operands and the result, each once."""
        return FP32_BYTES * self.b * (self.m * self.k + self.k * self.n + self.m * self.n)


def linear_time(
    accelerator: Accelerator,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    batch: ArrayLike = 1,
    *,
    layout: Layout = "tn",
) -> KernelTime:
    """Device time of fp32 products [R]. ``batch`` > 1 uses the batched kernels, which have fewer tiles to
    choose from.

    Raises UnpredictableError when the catalogue has no fp32 rate or unit count for the accelerator.
    """
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(a, np.float64)) for a in (batch, m, n, k)))
    shapes = Shapes(*arrays)
    model = load_json("fp32")
    time = np.empty(shapes.m.shape)
    batched = shapes.b > 1
    for part, is_batched in ((~batched, False), (batched, True)):
        if part.any():
            time[part] = product_time(accelerator, Shapes(*(a[part] for a in shapes)), model, is_batched, layout)
    basis = family_basis(accelerator, model)
    result = KernelTime(time, _log_sigma(accelerator, time, model, basis), basis)
    if not accelerator.corrections:
        return result
    result = corrected(accelerator, "matmul/fp32", result, shapes.b * shapes.m, shapes.n, shapes.k)
    return result._replace(time_s=np.maximum(result.time_s, shapes.flop / peak_rate(accelerator)))


def product_time(
    accelerator: Accelerator,
    shapes: Shapes,
    model: dict[str, Any],
    batched: bool,
    layout: Layout = "tn",
    burst_s: float = 0.0,
) -> F64:
    """Seconds of each product under the constants ``model`` (the coefficient document, or a trial one while
    fitting).

    Products shorter than ``burst_s`` run at boost: a benchmark of a few launches ends before the governor
    reacts.
    """
    form = model["form"].get(accelerator.vendor, model["form"]["NVIDIA"])
    compute = _compute_time(accelerator, shapes, model, form, batched, layout)
    memory = shapes.bytes / dram_rate(accelerator)
    power = form["overlap"]
    at_boost = (compute**power + memory**power) ** (1.0 / power)
    clock_share = sustained_fraction(accelerator, shapes.flop / (at_boost * peak_rate(accelerator)), "fp32")
    clock_share = np.where(at_boost < burst_s, 1.0, clock_share)
    return ((compute / clock_share) ** power + memory**power) ** (1.0 / power) + form["latency_s"]


def peak_rate(accelerator: Accelerator) -> float:
    """FP32 FLOP/s of the unit that multiplies matrices: the matrix cores on CDNA, the vector lanes
    elsewhere."""
    return accelerator.fp32_matrix_flop_per_s or accelerator.peak("fp32")


def kernel_constants(accelerator: Accelerator, model: dict[str, Any]) -> dict[str, Any]:
    """Constants of the kernels of this compute capability, else of the family, else of the unit's width."""
    table: dict[str, dict[str, Any]] = model["kernels"]
    for key in (f"sm_{(accelerator.compute_capability or '').replace('.', '')}", accelerator.family):
        if key in table:
            return table[key]
    if accelerator.vendor == "AMD":
        return table["CDNA2"]
    wide = (accelerator.fp32_flop_per_clock_per_unit or 256.0) > 128.0
    return table["Hopper"] if wide else table["Volta"]


def family_basis(accelerator: Accelerator, model: dict[str, Any]) -> Basis:
    """Fitted where ``accelerator`` was measured, derived where its family was, else specified."""
    measured = accelerator.id in model["measured"]
    if measured:
        return "fitted"
    return "derived" if accelerator.family in model["families"] else "specified"


def _compute_time(
    accelerator: Accelerator,
    shapes: Shapes,
    model: dict[str, Any],
    form: dict[str, float],
    batched: bool,
    layout: Layout,
) -> F64:
    """Seconds of arithmetic at boost: the best tile and split."""
    from gpuwise.errors import UnpredictableError

    units = accelerator.compute_units
    if not units:
        raise UnpredictableError(
            "no unit count for accelerator",
            f"the catalogue has no unit count for {accelerator.name}",
            hint="its formats with a rate can be asked for: --dtype bf16",
        )
    constants = kernel_constants(accelerator, model)
    kind = "batched" if batched else "linear"
    rate = np.full(shapes.m.shape, peak_rate(accelerator) / units * constants[kind])
    off = _misaligned(shapes, batched, layout, constants.get("aligned_sides", "k"))
    rate *= np.where(off, constants[f"misaligned_{kind}"], 1.0)
    if not batched and "misaligned_growth" in constants:
        rate /= np.where(off, _growth(accelerator, shapes, constants["misaligned_growth"]), 1.0)
    if not batched and layout == "tn":
        rate /= 1.0 + (shapes.k / constants["long_k"]) ** 1.5
    tiles = constants["batched_tiles"] if batched else model["tiles"]
    extra: list[list[float]] = constants.get("narrow_tiles", []) if batched else []
    best = np.full(shapes.m.shape, np.inf)
    fill = shapes.b * np.ceil(shapes.m / 32.0) * np.ceil(shapes.n / 32.0) / units
    may_split = fill < constants["split_below_fill"]
    narrow = (shapes.m <= _NARROW) | (shapes.n <= _NARROW)
    for place, (tile_n, tile_m) in enumerate(tiles + extra):
        blocks = shapes.b * np.ceil(shapes.m / tile_m) * np.ceil(shapes.n / tile_n)
        slower = 1.0 + form["small_tile"] * (32.0 / tile_m + 32.0 / tile_n - 0.5)
        floor = form["lone_block"] * (8192.0 / (tile_m * tile_n)) ** form["lone_block_exponent"]
        for split in (1,) if batched else constants["splits"]:
            load = blocks * split / units
            turns = np.maximum(load + form["quantization"] * (np.ceil(load) - load), floor)
            block_flop = 2.0 * tile_m * tile_n * (np.ceil(shapes.k / split) + form["prologue"])
            time = block_flop * turns * slower / rate
            if split > 1:
                partial = FP32_BYTES * shapes.b * shapes.m * shapes.n * (split + 1)
                time = time * (1.0 + form["split_cost"]) + form["split_traffic"] * partial / dram_rate(accelerator)
                time = np.where(may_split, time, np.inf)
            best = np.minimum(best, time if place < len(tiles) else np.where(narrow, time, np.inf))
    return best


_NARROW = 64.0
"""Largest number of rows or columns of a batched product for which libraries for wide units take a tile of that size
(``narrow_tiles``)."""


def _growth(accelerator: Accelerator, shapes: Shapes, exponent: float) -> F64:
    """How much longer misaligned products of operands beyond the last-level cache take: their size over it, to a power."""
    operands = FP32_BYTES * shapes.k * (shapes.m + shapes.n)
    return np.maximum(operands / (accelerator.l2_bytes or np.inf), 1.0) ** exponent


def _misaligned(shapes: Shapes, batched: bool, layout: Layout, sides: str) -> NDArray[np.bool_]:
    """Rows whose contiguous dimension is not a multiple of four floats load one float at a time. If the fast kernel of a
    linear layer needs every side aligned (``mnk``: ``sgemm_128x128x8_NT_vec`` of small Pascal, in 85 % of products whose sides
    are and in 3 % of the others), one side off is enough."""
    off_k, off_n, off_m = (a % 4.0 != 0 for a in (shapes.k, shapes.n, shapes.m))
    if not batched and sides == "mnk":
        return off_k | off_n | off_m
    if batched or layout == "nn":
        return off_k | off_n
    return off_k if layout == "tn" else off_m | off_n


def _log_sigma(accelerator: Accelerator, time: F64, model: dict[str, Any], basis: Basis) -> F64:
    sigma = model["log_sigma"]
    wide = sigma["power_limited"] if (accelerator.tdp_w or np.inf) <= sigma["power_limited_below_w"] else sigma[basis]
    return np.hypot(wide, sigma["short"] * np.minimum(1.0, sigma["short_s"] / time))
