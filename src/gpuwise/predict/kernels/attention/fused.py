"""Attention: device time of prefill, training forward and decode kernels.

Shapes of every function: arrays of R calls (or scalars that broadcast), integers. ``kv_heads`` below
``heads`` is grouped or multi-query attention. ``window`` 0 is full attention; otherwise each query sees at
most that many keys, itself included. Causal masks are aligned at the end: query i of q sees keys up to i +
kv_len - q_len.

A call is described by the time each resource needs (``features``), a fitted network turns that into time (``net``), a table
selects the measured kernel for the call (``implementations``). Training kernels, forward and backward, are in ``training``,
attention that writes its scores in attention_unfused; all are exported here. Not included: launch cost, rotary embedding,
projections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.kernels.attention import implementations as kernels
from gpuwise.predict.kernels.attention.features import (
    BLOCK,
    AttentionWork,
    Shape,
    decode_work,
    element_seconds,
    forward_work,
    free_features,
    tree_features,
)
from gpuwise.predict.kernels.attention.net import bins, network_seconds, trees_log
from gpuwise.predict.kernels.attention.specified import attention_flop, specified
from gpuwise.predict.kernels.attention.training import tiles, training_time
from gpuwise.predict.kernels.kernel_time import KernelTime
from gpuwise.units import MICRO

F64 = NDArray[np.float64]

_WIDTHS = (64.0, 128.0, 256.0)
"""Head sizes below a call's own whose time it may not undercut (a kernel of a narrow head is sometimes
slower)."""
_UNMASKED_SIGMA = 0.1
"""Spread added for a kernel that was measured only with a mask: cuDNN and FlashAttention-3 reach 5 to 10 % more without one."""
_VERSION_SIGMA = 0.05
"""Spread added for devices without measurements: their kernels have other software versions, which differ by 3 to 9 % on the
same device, while the devices of the fit ran the same version."""
_SIGMA_PER_OCTAVE = 0.05
"""Added uncertainty for each doubling of the key length beyond the longest measured, in quadrature."""


class Call(NamedTuple):
    """Calls of a measured kernel, ready to be evaluated."""

    kernel: kernels.Kernel | None
    shape: Shape


def shape_of(
    batch: ArrayLike,
    q_len: ArrayLike,
    kv_len: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    v_head_dim: ArrayLike | None,
    window: ArrayLike,
) -> Shape:
    """Columns of equal length. Raises InputError on a count below 1 or heads that kv_heads does not
    divide."""
    columns = [
        batch,
        q_len,
        kv_len,
        heads,
        kv_heads,
        head_dim,
        head_dim if v_head_dim is None else v_head_dim,
        window,
    ]
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(c, dtype=np.float64)) for c in columns))
    shape = Shape(*(np.ascontiguousarray(a) for a in arrays))
    if any(c.size and not c.min() >= 1 for c in shape[:7]) or (shape.window.size and not shape.window.min() >= 0):
        raise InputError("attention needs batch, lengths, heads and head sizes of at least 1 and a window of at least 0")
    if (shape.heads % shape.kv_heads).any():
        raise InputError("attention heads must be a multiple of key-value heads")
    return shape


def attention_forward_time(
    accelerator: Accelerator,
    dtype: str,
    batch: ArrayLike,
    q_len: ArrayLike,
    kv_len: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    v_head_dim: ArrayLike | None = None,
    *,
    causal: bool = True,
    window: ArrayLike = 0,
    kernel: str | None = None,
    kv_dtype: str | None = None,
) -> KernelTime:
    """Time of fused attention over ``q_len`` queries: prefill and training forward.

    ``kernel``: see ``implementations``. ``kv_dtype``: format of the key-value cache where it differs.
    Raises UnpredictableError when the accelerator has no rate for ``dtype``, UnknownNameError for an unknown
    kernel.
    """
    shape = shape_of(batch, q_len, kv_len, heads, kv_heads, head_dim, v_head_dim, window)
    if kernel is None or ":" not in kernel:
        return training_time(accelerator, dtype, shape, causal=causal, kernel=kernel, backward=False)
    resolved = kernels.resolve(accelerator, "forward", dtype, kv_dtype, kernel)
    time = _measured(accelerator, dtype, Call(resolved, shape))
    return time if causal or resolved is None else _unmasked(resolved, shape, time)


def attention_decode_time(
    accelerator: Accelerator,
    dtype: str,
    batch: ArrayLike,
    kv_len: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    *,
    window: ArrayLike = 0,
    kernel: str | None = None,
    kv_dtype: str | None = None,
) -> KernelTime:
    """Time of one decode step of attention: one query token per sequence, ``kv_len`` keys each (its own
    included).

    Bytes of keys and values over the bandwidth that is reached, from the second-level cache where they fit.
    Raises as attention_forward_time.
    """
    shape = shape_of(batch, 1, kv_len, heads, kv_heads, head_dim, None, window)
    source = None if kernel in kernels.IMPLEMENTATIONS else kernel
    call = Call(kernels.resolve(accelerator, "decode", dtype, kv_dtype, source), shape)
    return _measured(accelerator, dtype, call) if source else _lawful(accelerator, dtype, call)


def _unmasked(kernel: kernels.Kernel, shape: Shape, masked: KernelTime) -> KernelTime:
    """A measured kernel without its causal mask: the tiles the mask would have skipped, at the kernel's own
    pace there.

    Every measured call was causal. The pace is that of the masked call, at most twice its arithmetic.
    """
    with_mask, without = (tiles(shape, causal=c)[0] * BLOCK * BLOCK for c in (True, False))
    per = element_seconds(kernel.device, shape.head_dim, shape.v_head_dim) * shape.batch * shape.heads
    pace = np.clip(masked.time_s / (with_mask * per), 1.0, 2.0)
    return KernelTime(masked.time_s + (without - with_mask) * per * pace, masked.log_sigma + _UNMASKED_SIGMA, masked.basis)


def _work(call: Call, shape: Shape) -> AttentionWork:
    k = call.kernel
    assert k is not None
    if k.phase == "decode":
        return decode_work(k.device, shape, k.kv_bytes, k.q_bytes)
    return forward_work(k.device, shape, k.kv_bytes, k.q_bytes, causal=True)


def _smooth(call: Call, shape: Shape) -> F64:
    """[R] seconds by the network alone, never below what the device's rates allow."""
    k = call.kernel
    assert k is not None
    parameters, _ = kernels.network(k.phase, k.name)
    work = _work(call, shape)
    seconds = network_seconds(parameters, work, free_features(shape))
    return np.maximum(seconds, _floor(call, shape))


def _floor(call: Call, shape: Shape) -> F64:
    k = call.kernel
    assert k is not None
    flop = attention_flop(
        shape.batch,
        shape.q_len,
        shape.kv_len,
        shape.heads,
        shape.head_dim,
        shape.v_head_dim,
        True,
        shape.window,
    )
    return flop / k.device.matrix_flop_per_s


def _lawful(accelerator: Accelerator, dtype: str, call: Call) -> KernelTime:
    """The network's time with the laws made exact: a window never costs, a wider head never saves.

    Between measured head sizes the time is interpolated, so that it rises there too.
    """
    if call.kernel is None:
        return specified(accelerator, dtype, call.shape, True)
    seconds = np.zeros(call.shape.batch.shape)
    for width in sorted(set(call.shape.head_dim.tolist())):
        rows = call.shape.head_dim == width
        seconds[rows] = _at_width(call, Shape(*(c[rows] for c in call.shape)), float(width))
    return KernelTime(seconds, _sigma(call, seconds, measured=False), call.kernel.basis)


def _at_width(call: Call, shape: Shape, width: float) -> F64:
    """[R] seconds of rows that share one head size: the running maximum over the measured sizes up to it."""
    below = [w for w in _WIDTHS if w <= width]
    if not below:
        return np.minimum(_cheapest(call, shape, width), _cheapest(call, shape, _WIDTHS[0]))
    floor = np.max([_cheapest(call, shape, w) for w in below], axis=0)
    if below[-1] == width:
        return floor
    above = [w for w in _WIDTHS if w > width]
    if not above:
        return np.maximum(floor, _cheapest(call, shape, width))
    share = np.log2(width / below[-1]) / np.log2(above[0] / below[-1])
    return floor ** (1 - share) * np.maximum(floor, _cheapest(call, shape, above[0])) ** share


def _cheapest(call: Call, shape: Shape, width: float) -> F64:
    """[R] seconds at head size ``width``; with a window the cheaper of its kernel and the one without."""
    wide = np.full(shape.batch.shape, width)
    whole = shape._replace(head_dim=wide, v_head_dim=wide, window=np.zeros(shape.batch.shape))
    seconds = _smooth(call, whole)
    windowed = (shape.window > 0) & (shape.window < shape.kv_len)
    if windowed.any():
        part = Shape(*(c[windowed] for c in whole))._replace(window=shape.window[windowed])
        seconds[windowed] = np.minimum(seconds[windowed], _smooth(call, part))
    return seconds


def _measured(accelerator: Accelerator, dtype: str, call: Call) -> KernelTime:
    """The network's time with the measured irregularities of the kernel."""
    k = call.kernel
    if k is None:
        return specified(accelerator, dtype, call.shape, True)
    seconds = _irregular(call, call.shape)
    windowed = call.shape.window > 0
    if k.phase == "decode" and k.provenance != "device" and windowed.any():
        seconds[windowed] = _windowed_decode(call, Shape(*(c[windowed] for c in call.shape)))
    return KernelTime(seconds, _sigma(call, seconds, measured=True), k.basis)


def _irregular(call: Call, shape: Shape) -> F64:
    """[R] seconds of the network and the trees."""
    k = call.kernel
    assert k is not None
    codes = bins(tree_features(shape, k.gpu), kernels.edges(k.phase))
    return _smooth(call, shape) * np.exp(trees_log(kernels.trees(k.phase, k.name), codes))


def _windowed_decode(call: Call, shape: Shape) -> F64:
    """[R] seconds of decode with a window on a device that was not measured: time without a window for the same number of visible
    keys, times the cost factor of a window on the measured device.

    A kernel for windows does not split the keys among units (FlashAttention-2 on L40S takes 1.0 to 5 times the bytes' time),
    and the onset of the cost depends on the L2 cache: applied to a card with a sixteenth of that cache the network alone makes
    it 4.5 times the bytes' time at 64 sequences of 640 keys, where 1.1 was measured on L40S and whole models on RTX 3090 leave
    room for 1.3.
    """
    assert call.kernel is not None
    shown = shape._replace(kv_len=np.minimum(shape.kv_len, shape.window), window=np.zeros(shape.batch.shape))
    measured = call._replace(kernel=replace(call.kernel, device=call.kernel.measured_device))
    return _irregular(call, shown) * _irregular(measured, shape) / _irregular(measured, shown)


def _sigma(call: Call, seconds: F64, *, measured: bool) -> F64:
    """[R] by how near the measurements are and how long the kernel runs, wider beyond the lengths
    measured."""
    k = call.kernel
    assert k is not None
    document = kernels.coefficients()
    widths = document["log_sigma"][k.phase]
    table = widths["device"][k.name.split("|")[0]] if k.provenance == "device" else widths[k.provenance]
    table = table["measured" if measured else "smooth"]
    limits = [x * MICRO for x in document["log_sigma"]["limits_us"]]
    sigma = np.asarray(table, dtype=np.float64)[np.searchsorted(limits, seconds)]
    if k.provenance != "device":
        sigma = np.hypot(sigma, _VERSION_SIGMA)
    beyond = np.log2(np.maximum(call.shape.kv_len / document["longest"][k.phase], 1.0))
    return np.hypot(sigma, _SIGMA_PER_OCTAVE * beyond)


def attention_backward_time(
    accelerator: Accelerator,
    dtype: str,
    batch: ArrayLike,
    q_len: ArrayLike,
    kv_len: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    v_head_dim: ArrayLike | None = None,
    *,
    causal: bool = True,
    window: ArrayLike = 0,
    kernel: str | None = None,
    kv_dtype: str | None = None,
) -> KernelTime:
    """Time of the backward pass of fused attention (``training``). ``kv_dtype`` is ignored: training has no cache.

    A serving engine's kernel has no backward pass: the family's default is used. Raises as attention_forward_time.
    """
    del kv_dtype
    shape = shape_of(batch, q_len, kv_len, heads, kv_heads, head_dim, v_head_dim, window)
    name = None if kernel is not None and ":" in kernel else kernel
    return training_time(accelerator, dtype, shape, causal=causal, kernel=name, backward=True)


def attention_unfused_time(
    accelerator: Accelerator,
    dtype: str,
    batch: ArrayLike,
    q_len: ArrayLike,
    kv_len: ArrayLike,
    heads: ArrayLike,
    kv_heads: ArrayLike,
    head_dim: ArrayLike,
    *,
    causal: bool,
    phase: str = "forward",
    fused_softmax: bool = True,
    dropout: bool = False,
    multiply: Callable[[F64, F64, F64, F64], KernelTime] | None = None,
) -> KernelTime:
    """Time of attention that writes its scores: products and passes over the scores, one kernel each (attention_unfused).
    ``multiply`` times its products (m, n, k, batch); default: burst.

    ``phase`` is ``forward`` or ``backward``. Raises InputError for another, UnpredictableError when the
    accelerator has no rate for ``dtype``.
    """
    from gpuwise.predict.kernels.attention.unfused import unfused_time

    shape = shape_of(batch, q_len, kv_len, heads, kv_heads, head_dim, None, 0)
    return unfused_time(
        accelerator,
        dtype,
        shape,
        causal=causal,
        phase=phase,
        fused_softmax=fused_softmax,
        dropout=dropout,
        multiply=multiply,
    )


__all__ = [
    "attention_backward_time",
    "attention_decode_time",
    "attention_flop",
    "attention_forward_time",
    "attention_unfused_time",
    "element_seconds",
]
