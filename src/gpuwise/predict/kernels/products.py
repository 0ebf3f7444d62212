"""Device time of rows that multiply matrices: products, grouped products, attention and recurrent layers.

The format a product runs in is the device's, not the tensor's (:mod:`gpuwise.predict.kernels.run_formats`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuwise.dtypes import TENSOR_BYTES
from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Basis, weakest
from gpuwise.predict.kernels.accelerator_factors import family_factor
from gpuwise.predict.kernels.attention.fused import (
    attention_backward_time,
    attention_decode_time,
    attention_forward_time,
    attention_unfused_time,
)
from gpuwise.predict.kernels.attention.specified import attention_flop
from gpuwise.predict.kernels.attention.training import BACKWARD_PRODUCTS
from gpuwise.predict.kernels.conditions import Conditions
from gpuwise.predict.kernels.experts.grouped import grouped_time
from gpuwise.predict.kernels.gemm.alignment import alignment_slowdown, misaligned_time
from gpuwise.predict.kernels.gemm.fp32 import Layout, linear_time
from gpuwise.predict.kernels.gemm.product import gemm_time
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.predict.kernels.memory_bound import cache_rate, dram_rate, memory_time
from gpuwise.predict.kernels.run_formats import HALF, MATRIX, arithmetic, matrix_units, run_format
from gpuwise.workload.row_codes import CAUSAL, DROPOUT, FUSED_ATTENTION, Phase
from gpuwise.workload.step import CUDNN_ATTENTION_ON, KERNEL_CODE, KERNELS, OpTable

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
_SPECIFIED_SHARE = 0.5
"""Judgement, not fit: share of the peak that products reach in a format no kernel of which was measured."""
_SPECIFIED_SIGMA = 0.4
_CUDNN_HEAD_DIM = 128
"""The widest head torch gives to cuDNN's attention."""
LARGEST_SHARE = 0.93
"""Share of the published peak, on cards whose products were fitted on whole networks: 0.869, the highest measured on an NVIDIA
card (A100 SXM, bf16, ml-engineering's MAMF table, CC BY-SA, one figure), times 1.07 for the clock that GeForce cards sustain
above the published boost (2.7 against 2.52 GHz on an RTX 4090: judgement, not fit)."""
_LIBRARY = {"fp8": "fp8_gemm", "mxfp8": "fp8_gemm"}
"""The bare product of the library where the format's default kernel also turns its input into it: the step table has the
casts as rows of their own."""


class _Sum:
    """[R] times of one family's rows, put together from parts of them."""

    def __init__(self, rows: OpTable) -> None:
        self.time, self.sigma = np.zeros(len(rows)), np.zeros(len(rows))
        self.bases: list[Basis] = []

    def put(self, part: NDArray[Any], result: KernelTime) -> None:
        self.time[part], self.sigma[part] = result.time_s, result.log_sigma
        self.bases.append(result.basis)

    def whole(self) -> KernelTime:
        return KernelTime(self.time, self.sigma, weakest(*self.bases) if self.bases else "derived")


def by_format(accelerator: Accelerator, rows: OpTable, conditions: Conditions) -> list[tuple[str, NDArray[np.intp]]]:
    """Positions of the rows by the format they run in. Raises UnpredictableError for one the device lacks."""
    formats = {d: run_format(accelerator, d, emulated=conditions.emulated) for d in dict.fromkeys(rows.dtype)}
    run = np.array([formats[d] for d in rows.dtype], dtype=object)
    return [(dtype, np.flatnonzero(run == dtype)) for dtype in sorted(set(formats.values()))]


def matmul_time(accelerator: Accelerator, rows: OpTable, conditions: Conditions) -> KernelTime:
    """[R] device seconds of matrix products. Raises UnpredictableError when the device has no rate for a format."""
    total = _Sum(rows)
    for dtype, part in by_format(accelerator, rows, conditions):
        shape = np.maximum(rows.shape[part, :4].astype(np.float64), 1.0)
        layouts = rows.kernel[part]
        if dtype != "fp32":
            total.put(part, product_time(accelerator, dtype, shape, conditions, _LAYOUTS[layouts]))
            continue
        for code in sorted(set(layouts.tolist())):
            one = layouts == code
            layout = cast("Layout", KERNELS[code] or "tn")
            total.put(part[one], product_time(accelerator, dtype, shape[one], conditions, layout))
    whole = total.whole()
    copied, real = rows.detail[:, 0], rows.detail[:, 1]
    time = whole.time_s * np.where(real > 0, real, 1.0)
    if copied.any():  # a bias that does not fit the library's epilogue is copied out first
        time = time + np.where(copied > 0, memory_time(accelerator, 0.0, copied).time_s, 0.0)
    return whole._replace(time_s=np.where(rows.flop == 0, load_json("memory_bound")["latency_s"], time))


_LAYOUTS = np.array([k if k in ("tn", "nn", "nt") else "" for k in KERNELS])
"""Layout of the operands of a product, by its kernel's code; empty if the row does not specify it."""


def product_time(
    accelerator: Accelerator, dtype: str, shape: F64, conditions: Conditions, layout: Layout | NDArray[np.str_] = "tn"
) -> KernelTime:
    """[R] seconds of products (batch, m, n, k) [R, 4] in a format the device runs, with the card's factor. ``layout``: operand
    layout, of each or of all; fp32 takes one for all.

    Raises UnpredictableError for a format it has no rate for, unless the conditions allow a substitute.
    """
    b, m, n, k = shape.T
    if dtype == "fp32":
        return linear_time(accelerator, m, n, k, b, layout=cast("Layout", str(layout)))
    try:
        burst = gemm_time(
            accelerator,
            dtype,
            m,
            n,
            k,
            b,
            implementation=conditions.implementation.get(dtype) or _LIBRARY.get(dtype),
            cold=conditions.cold,
            sustained=conditions.sustained,
        )
    except UnpredictableError:
        if not conditions.emulated:
            raise
        return _specified(accelerator, dtype, 2.0 * b * m * n * k, b * (m * k + n * k + m * n) * TENSOR_BYTES.get(dtype, 1))
    seconds = burst.time_s
    if conditions.alignment:
        seconds = misaligned_time(accelerator, dtype, seconds, m, n, k, b, layout, compiled=conditions.compiled)
    unit = arithmetic(accelerator, dtype)
    factor = family_factor(accelerator, "matmul") if unit in MATRIX else 1.0
    if factor != 1.0:  # no factor takes a product beyond what large ones reach
        reachable = LARGEST_SHARE * (accelerator.peak_flop_per_s.get(unit) or accelerator.peak("fp32"))
        least = np.minimum(seconds, 2.0 * b * m * n * k / reachable)
        seconds = np.maximum(seconds * factor, least)
    return burst._replace(time_s=seconds)


def _specified(accelerator: Accelerator, dtype: str, flop: F64, moved: F64) -> KernelTime:
    rate = accelerator.peak_flop_per_s.get(dtype) or accelerator.peak("fp32")
    time = np.maximum(flop / (_SPECIFIED_SHARE * rate), moved / dram_rate(accelerator)) + load_json("memory_bound")["latency_s"]
    return KernelTime(time, np.full(time.shape, _SPECIFIED_SIGMA), "specified")


def grouped_products_time(accelerator: Accelerator, rows: OpTable, conditions: Conditions) -> KernelTime:
    """[R] device seconds of grouped (expert) products, tokens spread evenly."""
    total = _Sum(rows)
    for dtype, part in by_format(accelerator, rows, conditions):
        shape = rows.shape[part].astype(np.float64)
        has_shape = shape[:, :4].min(axis=1, initial=1) > 0 if len(part) else np.zeros(0, bool)
        moved = (rows.bytes_read + rows.bytes_written)[part]
        try:
            if has_shape.any():
                total.put(
                    part[has_shape],
                    _experts_time(accelerator, dtype, shape[has_shape, :4], rows.kernel[part[has_shape]], conditions),
                )
        except UnpredictableError:
            if not conditions.emulated:
                raise
            has_shape = np.zeros_like(has_shape)
        if (~has_shape).any():
            total.put(part[~has_shape], _specified(accelerator, dtype, rows.flop[part][~has_shape], moved[~has_shape]))
    return total.whole()


_STREAM_TILE = 128.0
"""Rows of the tile each expert's product is padded to: the least the matmul library takes for tall products."""


def _experts_time(accelerator: Accelerator, dtype: str, shape: F64, kernel: I64, conditions: Conditions) -> KernelTime:
    """Grouped products: one kernel, or the library's product for each expert, on streams that fill the device together: then
    the time of one product of all their rows, each expert's padded to a tile."""
    streams = kernel == KERNEL_CODE["streams"]
    time, sigma = np.zeros(len(shape)), np.zeros(len(shape))
    bases: list[Basis] = []
    if (~streams).any():
        one = grouped_time(accelerator, dtype, *(shape[~streams, i] for i in range(4)))
        time[~streams], sigma[~streams] = one.time_s, one.log_sigma
        bases.append(one.basis)
    if streams.any():
        experts, routed, n, k = shape[streams].T
        rows = experts * np.ceil(routed / experts / _STREAM_TILE) * _STREAM_TILE
        dense = np.column_stack([np.ones_like(rows), rows, n, k])
        one = product_time(accelerator, dtype, dense, conditions)
        time[streams], sigma[streams] = one.time_s, one.log_sigma
        bases.append(one.basis)
    return KernelTime(time, sigma, weakest(*bases))


def attention_time(accelerator: Accelerator, rows: OpTable, conditions: Conditions) -> KernelTime:
    """[R] device seconds of attention: one fused kernel, or products and passes over the scores.

    A bias or mask of the scores (bytes in ``detail[:, 0]``) is added to every score of every head.
    """
    total = _Sum(rows)
    backward = rows.phase == Phase.BACKWARD
    has_shape = rows.shape[:, :6].min(axis=1) > 0 if len(rows) else np.zeros(0, bool)
    for dtype, of_format in by_format(accelerator, rows, conditions):
        one_query = rows.shape[:, 1] == 1
        flags = rows.flag & (CAUSAL | FUSED_ATTENTION | DROPOUT)
        keys = np.column_stack([backward, flags, rows.kernel, has_shape, one_query])[of_format]
        for key in np.unique(keys, axis=0, return_index=True)[0]:
            part = of_format[(keys == key).all(axis=1)]
            one = rows.take(part)
            if not key[3]:
                seconds = _specified(accelerator, dtype, one.flop, one.bytes_read)
            elif not key[1] & FUSED_ATTENTION:
                seconds = _unfused(accelerator, dtype, one, bool(key[0]), conditions)
            else:
                seconds = _fused(accelerator, dtype, one, bool(key[0]), KERNELS[int(key[2])], conditions)
                least = _products_at_peak(accelerator, dtype, one, bool(key[0]))
                seconds = seconds._replace(time_s=np.maximum(seconds.time_s, least))
            total.put(part, seconds)
    seconds = total.whole()
    biased = rows.detail[:, 0] > 0
    return seconds._replace(time_s=seconds.time_s + _bias_seconds(accelerator, rows)) if biased.any() else seconds


def _bias_seconds(accelerator: Accelerator, rows: OpTable) -> F64:
    """[R] what a bias adds: its bytes from memory, and each score's own to the unit that computes it, which takes vectors where
    rows of keys begin on 16 bytes."""
    mask = rows.detail[:, 0]
    seconds = mask / dram_rate(accelerator)
    if not accelerator.compute_units or not accelerator.boost_hz:
        return seconds
    b, q, kv, a = (rows.shape[:, i].astype(np.float64) for i in range(4))
    model: dict[str, float] = load_json("captured_time")["attention_bias_per_clock"]
    per_clock = np.where(kv % _BIAS_VECTOR == 0, model["vectors"], model["elements"])
    return np.where(
        mask > 0, np.maximum(seconds, b * a * q * kv / (per_clock * accelerator.compute_units * accelerator.boost_hz)), 0.0
    )


_BIAS_VECTOR = 8
"""Keys of a vector of a 16-bit bias."""


def _unfused(accelerator: Accelerator, dtype: str, rows: OpTable, backward: bool, conditions: Conditions) -> KernelTime:
    """[R] device seconds of products and passes over the scores, times the slowdown of misaligned heads."""
    b, q, kv, a, k, d = (rows.shape[:, i] for i in range(6))
    aligned = replace(conditions, alignment=False)

    def multiply(m: F64, n: F64, k: F64, batch: F64) -> KernelTime:
        return product_time(accelerator, dtype, np.stack([batch, m, n, k], axis=1), aligned)

    time = attention_unfused_time(
        accelerator,
        dtype,
        b,
        q,
        kv,
        a,
        k,
        d,
        causal=bool(rows.flag[0] & CAUSAL),
        phase="backward" if backward else "forward",
        fused_softmax=True,
        multiply=multiply,
    )
    slow = alignment_slowdown(dtype, "attention", d) if conditions.alignment else 1.0
    return time._replace(time_s=time.time_s * slow)


def _products_at_peak(accelerator: Accelerator, dtype: str, rows: OpTable, backward: bool) -> F64:
    """[R] least seconds of a fused kernel's products on matrix units: its shares of the rates were measured on cards that clock
    above their boost."""
    if dtype not in (*HALF, "fp8"):
        return np.zeros(len(rows))
    rate = accelerator.peak_flop_per_s.get(arithmetic(accelerator, dtype))
    b, q, kv, a, _, d, dv = (rows.shape[:, i] for i in range(7))
    flop = attention_flop(b, q, kv, a, d, np.where(dv > 0, dv, d), bool(rows.flag[0] & CAUSAL), rows.window)
    return flop * (BACKWARD_PRODUCTS if backward else 1.0) / rate if rate is not None else np.zeros(len(rows))


def _fused(
    accelerator: Accelerator, dtype: str, rows: OpTable, backward: bool, kernel: str, conditions: Conditions
) -> KernelTime:
    """[R] device seconds of one fused kernel; ``kernel`` names it, empty where the conditions choose."""
    b, q, kv, a, kv_heads, d, dv = (rows.shape[:, i].astype(np.float64) for i in range(7))
    dv = np.where(dv > 0, dv, d)
    k = np.where(np.fmod(a, np.maximum(kv_heads, 1.0)) == 0, kv_heads, a)
    causal = bool(rows.flag[0] & CAUSAL)
    if dtype in (*HALF, "fp8", "mxfp8", "nvfp4", "int8") and (matrix_units(accelerator) or not conditions.emulated):
        name = kernel or conditions.implementation.get("attention") or _torch_attention(accelerator, dtype, d)
        if not backward and name != "efficient" and (q == 1.0).all() and (dv == d).all():
            decode = attention_decode_time(accelerator, dtype, b, kv, a, k, d, window=rows.window)
            return decode._replace(time_s=decode.time_s * family_factor(accelerator, "attention"))
        evaluate = attention_backward_time if backward else attention_forward_time
        fused = evaluate(
            accelerator,
            dtype,
            b,
            q,
            kv,
            a,
            k,
            d,
            dv,
            causal=causal,
            window=rows.window,
            kernel="fa2" if name == "efficient" else name,
        )
        slow = float(load_json("captured_time")["efficient_attention_slowdown"]) if name == "efficient" else 1.0
        seconds = fused.time_s * slow + _dropout_seconds(accelerator, rows, backward)
        return fused._replace(time_s=seconds * family_factor(accelerator, "attention"))
    causal_pairs = np.minimum(q, kv) * (np.minimum(q, kv) + 1.0) / 2.0 + np.maximum(q - kv, 0) * kv
    flop = 2.0 * b * a * (causal_pairs if causal else q * kv) * (d + dv) * (2.5 if backward else 1.0)
    rate = accelerator.peak("fp32")
    if "tf32" in accelerator.peak_flop_per_s:  # three TF32 products replace one fp32 product
        rate = max(rate, accelerator.peak("tf32") / 3.0)
    moved = 4.0 * b * (q * a * (d + dv) + kv * k * (d + dv)) * (3.0 if backward else 1.0)
    model = load_json("captured_time")
    rate *= float(model["fp32_attention_share"])
    if accelerator.compute_units and accelerator.boost_hz:  # what is around its products sets the pace, clock by clock
        rate = min(rate, accelerator.compute_units * accelerator.boost_hz * float(model["fp32_attention_flop_per_clock"]))
    time_s = np.maximum(flop / rate, moved / dram_rate(accelerator)) + load_json("memory_bound")["latency_s"]
    return KernelTime(time_s, np.full(time_s.shape, _SPECIFIED_SIGMA), "specified")


def _dropout_seconds(accelerator: Accelerator, rows: OpTable, backward: bool) -> F64:
    """[R] what dropout adds to a fused kernel: random numbers for each score (Philox, ten rounds for four), which the backward
    draws again."""
    if not accelerator.compute_units or not accelerator.boost_hz or not rows.flag[0] & DROPOUT:
        return np.zeros(len(rows))
    b, q, kv, a = (rows.shape[:, i].astype(np.float64) for i in range(4))
    scores = b * a * q * kv * (0.5 if rows.flag[0] & CAUSAL else 1.0)
    per_clock = load_json("captured_time")["attention_dropout_per_clock"]["backward" if backward else "forward"]
    return scores / (accelerator.compute_units * accelerator.boost_hz * float(per_clock))


def _torch_attention(accelerator: Accelerator, dtype: str, head_dim: F64) -> str:
    """The fused kernel that torch takes by default (``workload.capture.ops.attention`` has its whole choice)."""
    here = accelerator.compute_capability
    prefers_cudnn = here in CUDNN_ATTENTION_ON and dtype in HALF and head_dim.max(initial=0.0) <= _CUDNN_HEAD_DIM
    return "cudnn" if prefers_cudnn else "fa2"


def recurrent_time(accelerator: Accelerator, rows: OpTable, conditions: Conditions) -> KernelTime:
    """[R] device seconds of recurrent layers.

    The input's products of all time steps are one product a layer. The state's are a chain of T products [B, H] x [H, G H]: a
    step is three dependent kernels (the product, clearing its sum, the cells), ``step_s`` from each to the next, and the
    longer of its product and the load of the weights from the cache (or memory, if they do not fit). Behind each product the
    gates are computed: they and the states are read, the states written, and the values that the backward needs (cuDNN's
    reserve). Layers run staggered, each one step behind the one below (cuDNN, Appleyard et al., arXiv 1604.01946), so that L
    layers of T steps need T + L - 1 shortest steps. The backward adds the same chain and the weights' gradients as one
    product.
    """
    model: dict[str, Any] = load_json("captured_time")["recurrent"]
    time, bases = np.zeros(len(rows)), list[Basis]()
    for dtype, part in by_format(accelerator, rows, conditions):
        for i in part.tolist():
            time[i], basis = _one_recurrent(accelerator, rows, i, dtype, model, conditions)
            bases.append(basis)
    return KernelTime(time, np.full(time.shape, float(model["log_sigma"])), weakest(*bases) if bases else "derived")


def _one_recurrent(
    accelerator: Accelerator, rows: OpTable, i: int, dtype: str, model: dict[str, Any], conditions: Conditions
) -> tuple[float, Basis]:
    steps, batch, gates, hidden, layers, directions = (int(x) for x in rows.shape[i, :6])
    backward = rows.phase[i] == Phase.BACKWARD
    products = 2.0 * steps * batch * layers * gates * hidden * (2.0 if backward else 1.0)
    bulk = max(float(rows.flop[i]) / 2.0 - products, 0.0)
    tokens = float(max(steps * batch, 1))
    wide = max(bulk / 2.0 / tokens / max(gates, 1), 1.0)
    shapes = np.array([[1.0, tokens, float(gates), wide], [1.0, float(max(batch, 1)), float(gates), float(hidden)]])
    one = product_time(accelerator, dtype, shapes, conditions)
    weights = float(gates) * hidden * TENSOR_BYTES.get(dtype, 4)
    near = cache_rate(accelerator) if weights * layers <= 0.7 * (accelerator.l2_bytes or 0.0) else None
    gating = 2.0 * batch * (gates + 2.0 * hidden) * TENSOR_BYTES.get(dtype, 4) / dram_rate(accelerator)
    chain = max(float(one.time_s[1]), weights / (near or dram_rate(accelerator))) + gating + 3.0 * float(model["step_s"])
    shortest = (steps + layers / directions - 1.0) * chain
    rate = accelerator.peak_flop_per_s.get(dtype) or accelerator.peak("fp32")
    throughput_s = steps * layers * (2.0 * batch * gates * hidden / rate + gating)
    return float(one.time_s[0]) + (2.0 if backward else 1.0) * max(shortest, throughput_s), one.basis
