"""Training kernels of fused attention, forward and backward: FlashAttention-2/3/4, cuDNN, Triton.

A thread block owns 128 queries of one head and walks over the 128-key blocks its mask leaves. With ``n``
score tiles in all, ``m`` thread blocks, ``u`` the time one unit needs for a tile at the share ``e`` of its
rates that the kernel reaches, and ``o`` tiles' worth of prologue and epilogue per thread block:

    busy  = (n + o m) u / units          longest = (tiles of the last thread block + o) u
    t     = sqrt(max(busy + half a mean thread block, longest)^2 + memory^2) + 3 us

Backward: five products instead of two (the scores are recomputed), half as much vector work again, its own
``e`` and ``o`` (dQ summed in fp32, the preprocessing pass, dK and dV written per query head are costs per
thread block) and its bytes. ``e`` is a share of the rates at the sustained clock (clock); warp-level matrix
units add cycles per score element. ``e`` by head size and ``o`` are fitted to published figures
(studies/attention/attention_published.csv), those of A100 to the long calls of the measured tables. Every term grows
with every dimension and shrinks with every rate: the laws hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import UnknownNameError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.kernels.attention import implementations as kernels
from gpuwise.predict.kernels.attention.features import BLOCK, Device, Shape, element_seconds
from gpuwise.predict.kernels.attention.specified import specified
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.units import MICRO

F64 = NDArray[np.float64]

BACKWARD_PRODUCTS, BACKWARD_VECTOR = 2.5, 1.5
LATENCY_S = 3.0 * MICRO
"""Start and drain of one kernel: what an empty kernel takes on the device."""
_OCTAVES_SIGMA = 0.05
_LONGEST = 131072.0
"""Longest sequence among the published figures; beyond it the interval widens by 5 % a doubling, in
quadrature."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Forward or backward of one implementation: share of the rates by head size, tiles of overhead,
    spread."""

    widths: tuple[float, ...]
    share: tuple[float, ...]
    overhead: float
    cycles: float
    """Cycles of a unit each score element costs beside its products (warp-level matrix instructions)."""
    log_sigma: float

    def share_at(self, head_dim: F64) -> F64:
        """[R] share, linear in the logarithm of the head size, constant beyond those known."""
        return np.exp(np.interp(np.log2(head_dim), np.log2(self.widths), np.log(self.share)))


@dataclass(frozen=True, slots=True)
class Implementation:
    """A training implementation on one family."""

    name: str
    forward: Pass
    backward: Pass
    backward_fp8: Pass
    measured: bool
    """Whether figures of this family stand behind it."""


def implementation(accelerator: Accelerator, name: str | None) -> Implementation | None:
    """Implementation that ``name`` means on this family: the default for None, ``flash`` and names the family lacks; None when
    no related family is known. Raises UnknownNameError for an unknown name."""
    if name is not None and name not in kernels.IMPLEMENTATIONS:
        raise UnknownNameError("attention implementation", name, kernels.IMPLEMENTATIONS)
    return _implementation(accelerator.family, name or "flash")


@cache
def _implementation(family: str, name: str) -> Implementation | None:
    table: dict[str, Any] = kernels.coefficients()["training"]
    measured = family in table["families"]
    here: dict[str, Any] | None = table["families"].get(family if measured else table["related"].get(family))
    if here is None:
        return None
    row = here["by_name"].get(name) or here["by_name"][here["default"]]
    forward, backward, backward_fp8 = (
        Pass(tuple(r["widths"]), tuple(r["share"]), r["overhead"], r["cycles"], r["log_sigma"])
        for r in (row["forward"], row["backward"], row.get("backward-fp8", row["backward"]))
    )
    return Implementation(name if name in here["by_name"] else here["default"], forward, backward, backward_fp8, measured)


def tiles(shape: Shape, *, causal: bool) -> tuple[F64, F64, F64]:
    """[R] each: score tiles of one head, its thread blocks, tiles of the longest thread block. Masked tiles
    are skipped."""
    q, kv, window = shape.q_len, shape.kv_len, shape.window
    rows = np.ceil(q / BLOCK)
    across = np.ceil(kv / BLOCK)
    before = np.maximum(kv - q, 0.0) / BLOCK
    mean = np.minimum(across, before + (rows + 1.0) / 2.0) if causal else across
    band = np.where(window > 0, window / BLOCK + 1.0, np.inf)
    return rows * np.minimum(mean, band), rows, np.minimum(across, band)


def moved_bytes(shape: Shape, width: float, *, backward: bool) -> F64:
    """[R] bytes that must move: queries and outputs once, keys and values once; backward also dO, O twice, dQ
    summed in fp32 (cleared, added to, read) and written, dK and dV per query head."""
    queries, keys = shape.batch * shape.q_len, shape.batch * shape.kv_len
    both = shape.head_dim + shape.v_head_dim
    forward = (queries * shape.heads + keys * shape.kv_heads) * both * width
    if not backward:
        return forward
    extra = queries * shape.heads * (shape.head_dim * (3 * 4 + width) + shape.v_head_dim * 3 * width)
    return forward + extra + keys * shape.heads * both * width


_HEAD_SIZES = np.array([32.0, 64.0, 96.0, 128.0, 192.0, 256.0])
"""Head sizes that FlashAttention's kernels are compiled for; others run in the next wider one, their missing columns zero
(flash-attention csrc/flash_attn/src/static_switch.h, HEADDIM_SWITCH)."""
_FLASH = ("fa2", "fa3", "fa4")


def _compiled(head_dim: F64) -> F64:
    """[R] head size of the kernel that runs ``head_dim``."""
    at = np.searchsorted(_HEAD_SIZES, head_dim)
    return np.where(at < len(_HEAD_SIZES), _HEAD_SIZES[np.minimum(at, len(_HEAD_SIZES) - 1)], head_dim)


def pass_seconds(
    device: Device, shape: Shape, chosen: Pass, width: float, *, causal: bool, backward: bool, flash: bool = False
) -> F64:
    """[R] seconds of one pass; ``flash``: of a kernel with separate code per head size."""
    products, vector = (BACKWARD_PRODUCTS, BACKWARD_VECTOR) if backward else (1.0, 1.0)
    head, v_head = (_compiled(d) if flash else d for d in (shape.head_dim, shape.v_head_dim))
    per = element_seconds(device, head, v_head, products=products, vector=vector)
    n, m, longest = tiles(shape, causal=causal)
    beside = vector * chosen.cycles / (device.units * device.clock_hz)
    tile = (per / chosen.share_at(head) + beside) * BLOCK * BLOCK * device.units
    heads = shape.batch * shape.heads
    busy = heads * (n + chosen.overhead * m) * tile / device.units
    tail = 0.5 * (n / m + chosen.overhead) * tile
    computing = np.maximum(busy + tail * np.minimum(1.0, heads * m / device.units), (longest + chosen.overhead) * tile)
    moving = moved_bytes(shape, width, backward=backward) / device.bandwidth_bytes_per_s
    return np.hypot(computing, moving) + LATENCY_S


def training_time(
    accelerator: Accelerator, dtype: str, shape: Shape, *, causal: bool, kernel: str | None, backward: bool
) -> KernelTime:
    """Time of one pass. Raises UnpredictableError (no rate for ``dtype``), UnknownNameError (no such
    implementation)."""
    chosen = implementation(accelerator, kernel)
    width = max(kernels.dtype_bytes(dtype), 2.0)
    device = kernels.device_for(accelerator, dtype)
    if chosen is None or device is None:
        base = specified(accelerator, dtype, shape, causal)
        factor = BACKWARD_PRODUCTS if backward else 1.0
        return KernelTime(base.time_s * factor, base.log_sigma, base.basis)
    part = chosen.forward
    if backward:
        part = chosen.backward_fp8 if kernels.arithmetic(dtype) == "fp8" else chosen.backward
    seconds = pass_seconds(device, shape, part, width, causal=causal, backward=backward, flash=chosen.name in _FLASH)
    table: dict[str, float] = kernels.coefficients()["training"]["log_sigma"]
    nearness = table["family_backward" if backward else "family_forward"] if chosen.measured else table["relative"]
    beyond = _OCTAVES_SIGMA * np.log2(np.maximum(np.maximum(shape.q_len, shape.kv_len) / _LONGEST, 1.0))
    sigma = np.sqrt(part.log_sigma**2 + nearness**2 + beyond**2)
    return KernelTime(seconds, np.broadcast_to(sigma, seconds.shape).copy(), "derived")
