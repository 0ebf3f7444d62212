"""Convolutions and batch norm: the form that is fitted on whole networks, which no table of single kernels covers.

For one launch of a row with FLOP ``F``, bytes moved ``Q`` and ``k`` kernels, on a card with matrix rate ``P``, vector rate
``V`` and bandwidth ``B``:

    t = F p / (P a_P e n/(n + n_0) d/(d + d_0) c s) + F / (V v) + Q (1 - h) / (B a_B b) + t_l + k l
    h = min(c_2 L2 / Q, 0.9)

The first term is of convolutions, the second of depthwise ones; arithmetic and traffic add up (fitted as a power of the two's
powers, the exponent ran to 1). ``p`` is the padding of the channels to 16 bytes, ``n`` the channels out of a group, ``d`` what
a place sums over, ``a_P`` and ``a_B`` factors of the card (or its architecture), ``c`` the clock held under the power limit
(:mod:`gpuwise.predict.kernels.clock`), ``e`` and ``b`` what a kind of kernel reaches (:data:`KINDS`), ``s`` how channels-last
images, the compiler, groups whose width is no power of two or libraries before torch 2 change it, ``h`` the share that the
last-level cache still holds from the operation before. ``t_l`` is the change of layout of a convolution whose images are not
channels-last: its tensors read and written once more, in part; in full if it was not measured on the card's architecture, as
kernels for data-centre cards want channels-last images (NVIDIA, Tensor Layouts In Memory: NCHW vs NHWC). Constants:
``coefficients/captured_kernels.json``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.accelerator_factors import factor_key
from gpuwise.predict.kernels.clock import sustained_fraction
from gpuwise.predict.kernels.conditions import Conditions, lies_last
from gpuwise.predict.kernels.memory_bound import memory_time
from gpuwise.workload.row_codes import BIAS_GRADIENT, FILTER_GRADIENT, IMAGE_GRADIENT, Phase
from gpuwise.workload.step import OpTable

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]
KINDS = ("pointwise", "spatial", "stem", "grouped", "depthwise")
"""Convolutions of one place, of several, of an image of few channels, of several groups, of one channel a group."""
POINTWISE, SPATIAL, STEM, GROUPED, DEPTHWISE = range(len(KINDS))
STEM_CHANNELS = 4
NARROW_GROUP = 32.0
"""Channels of a group up to which channels-last gradients of grouped convolutions have kernels of their own."""
ALIGNED_ELEMENTS = 8.0
"""16 bytes of half precision: tensor-core kernels load whole vectors (cuBLAS, cuDNN alignment rules)."""
NEW_CAPABILITY = 9.0
"""Hopper's, the first whose convolutions were timed one by one."""
MOST_HIT = 0.9
"""A cache never saves everything: results are written back."""


def convolution_seconds(
    accelerator: Accelerator,
    rows: OpTable,
    dtype: str,
    conditions: Conditions,
    model: Mapping[str, Any] | None = None,
) -> F64:
    """[R] device seconds of one launch of convolution rows that run in ``dtype`` on matrix units.

    Raises UnpredictableError when the catalogue has no bandwidth or rate for the accelerator.
    """
    constants: Mapping[str, Any] = load_json("captured_kernels") if model is None else model
    conditions = _measured_conditions(accelerator, conditions)
    compiled, last = conditions.compiled, lies_last(rows, conditions) | conditions.compiled
    backward = (rows.flag & (IMAGE_GRADIENT | FILTER_GRADIENT | BIAS_GRADIENT)) != 0
    kind, c_in, c_out = _kinds(rows)
    share = _layout_share(constants["relayouts"], accelerator, rows, backward, dtype)
    copied = (share > 0) & ~last & _has_new_kernels(accelerator) & (dtype != "tf32")
    as_run = last | (copied & (kind != STEM))
    wide = _wide_seconds(accelerator, constants, conditions, (kind, c_in, c_out), rows, backward, as_run, dtype)
    vector = constants["vector_efficiency"]
    lanes = rows.flop / (accelerator.peak("fp32") * _either(backward, vector["depthwise_backward"], vector["depthwise"]))
    passes = constants["bandwidth"]
    layout = "depthwise_compiled" if compiled else "depthwise"
    stencil = _either(last & (not compiled), passes["depthwise_last"], passes[layout])
    stencil = _either(backward, passes["depthwise_backward"], stencil)
    reached = _either(kind == DEPTHWISE, stencil, passes["convolution"])
    time = np.where(kind == DEPTHWISE, lanes, wide) + _traffic(accelerator, constants, conditions, reached, rows)
    moved = 2.0 * (rows.bytes_read + rows.bytes_written)
    copies = share * moved / (_bandwidth(accelerator, constants) * passes["pointwise"])
    if copied.any():
        copies = np.where(copied, _relayout_seconds(accelerator, constants["relayouts"], rows, backward), copies)
    time = time + np.where((kind != DEPTHWISE) & ~last, copies, 0.0)
    if factor_key(accelerator) is None:
        time = time + _bias_seconds(accelerator, rows, backward)
    if _has_new_kernels(accelerator):
        time = time + np.where(
            kind == STEM, _padding_seconds(accelerator, constants["stem_padding_clocks"], rows, backward, last), 0.0
        )
    return time


def _relayout_seconds(accelerator: Accelerator, model: Mapping[str, float], rows: OpTable, backward: Mask) -> F64:
    """[R] seconds of cuDNN's layout changes around a convolution that needs channels-last images. Forward: image and result
    once. Backward: the image and its gradient once each, the result's gradient for either product. Filters use a slower
    kernel. One launch each."""
    images = 2.0 * rows.shape[:, 0] * rows.shape[:, 1] * rows.detail[:, :2].prod(axis=1)
    results = 2.0 * rows.shape[:, 0] * rows.shape[:, 2] * rows.shape[:, 3] * rows.shape[:, 4]
    filters = 2.0 * rows.shape[:, 1] * rows.shape[:, 2] / np.maximum(rows.shape[:, 6], 1) * rows.shape[:, 5]
    image, filter_ = ((rows.flag & bit) != 0 for bit in (IMAGE_GRADIENT, FILTER_GRADIENT))
    each = np.where(backward, image.astype(np.float64) + filter_, 1.0)
    rate = accelerator.memory_bandwidth_bytes_per_s
    moved = 2.0 * each * (images + results) / (rate * model["image_rate"])
    return moved + each * (2.0 * filters / (rate * model["filter_rate"]) + 3.0 * model["launch_s"])


def _bias_seconds(accelerator: Accelerator, rows: OpTable, backward: Mask) -> F64:
    """[R] seconds of a bias: an addition to the whole result behind the library's kernel, a sum over it in the backward."""
    result = rows.shape[:, 0] * rows.shape[:, 2] * rows.shape[:, 3] * rows.shape[:, 4]
    width = np.where(np.isin(np.array(rows.dtype, dtype=object), ("fp16", "bf16")), 2.0, 4.0)
    adds = memory_time(accelerator, result * width, result * width, pattern="broadcast_half", elements=result).time_s
    sums = memory_time(accelerator, result * width, 0.0, pattern="reduction").time_s
    biased = np.where(backward, (rows.flag & BIAS_GRADIENT) != 0, rows.n_kernels > 1.0)
    return np.where(biased, np.where(backward, sums, adds), 0.0)


def _padding_seconds(accelerator: Accelerator, clocks: Mapping[str, float], rows: OpTable, backward: Mask, last: Mask) -> F64:
    """[R] seconds to pad images of few channels to whole vectors, one thread per position: in the forward if they are
    channels-last, for the filter gradient always."""
    if not accelerator.compute_units or not accelerator.boost_hz:
        return np.zeros(len(rows))
    places = rows.shape[:, 0] * rows.detail[:, :2].prod(axis=1)
    pads = np.where(backward, (rows.flag & FILTER_GRADIENT) != 0, last)
    each = np.where(last, clocks["channels_last"], clocks["channels_first"])
    return np.where(pads, places * each / (accelerator.compute_units * accelerator.boost_hz), 0.0)


def batch_norm_seconds(
    accelerator: Accelerator, rows: OpTable, conditions: Conditions, model: Mapping[str, Any] | None = None
) -> F64:
    """[R] device seconds of one launch of batch norm rows; ``training`` ones take the moments of their batch."""
    constants: Mapping[str, Any] = load_json("captured_kernels") if model is None else model
    passes = constants["bandwidth"]
    trains = _either(rows.detail[:, 0] > 1.0, passes["batch_norm_training"], passes["batch_norm"])
    reached = _either(rows.phase == Phase.BACKWARD, passes["batch_norm_backward"], trains)
    return _traffic(accelerator, constants, _measured_conditions(accelerator, conditions), reached, rows)


def _either(mask: Mask, yes: float | F64, no: float | F64) -> F64:
    """``yes`` where ``mask``, else ``no``."""
    return np.where(mask, yes, no)


def _measured_conditions(accelerator: Accelerator, conditions: Conditions) -> Conditions:
    """``conditions`` without a compiler on cards none of the networks ran on: there it lays images out and no more."""
    if not conditions.compiled or factor_key(accelerator) is not None:
        return conditions
    return replace(conditions, compiled=False, channels_last=True)


def _kinds(rows: OpTable) -> tuple[NDArray[np.int64], F64, F64]:
    """[R] index into :data:`KINDS`, channels in and out of one group."""
    groups = np.maximum(rows.shape[:, 6], 1)
    c_in, c_out = rows.shape[:, 1] / groups, rows.shape[:, 2] / groups
    kind = np.where(rows.shape[:, 5] > 1, np.where(c_in <= STEM_CHANNELS, STEM, SPATIAL), POINTWISE)
    return np.where(groups > 1, np.where(c_in <= 1, DEPTHWISE, GROUPED), kind), c_in, c_out


def _padded(n: F64) -> F64:
    return np.ceil(n / ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS / np.maximum(n, 1.0)


def _of_accelerator(table: Mapping[str, float], accelerator: Accelerator) -> float:
    """The entry of ``table`` for the key of the accelerator's factors; without one ``older`` before Hopper where the table has
    it, else ``other``."""
    key = factor_key(accelerator) or ("other" if _has_new_kernels(accelerator) else "older")
    return table.get(key, table["other"])


def _has_new_kernels(accelerator: Accelerator) -> bool:
    """Data-centre cards from Hopper on, whose convolutions were timed under cuDNN 9. For older cards there are only published
    steps under cuDNN 7 and 8."""
    capability = accelerator.compute_capability
    return factor_key(accelerator) is None and capability is not None and float(capability) >= NEW_CAPABILITY


def _bandwidth(accelerator: Accelerator, model: Mapping[str, Any]) -> float:
    if not accelerator.memory_bandwidth_bytes_per_s:
        raise UnpredictableError("no bandwidth for accelerator", f"the catalogue has no bandwidth for {accelerator.name}")
    return accelerator.memory_bandwidth_bytes_per_s * _of_accelerator(model["architecture"]["bandwidth"], accelerator)


def _layout_share(model: Mapping[str, float], accelerator: Accelerator, rows: OpTable, backward: Mask, dtype: str) -> F64:
    """How much of a convolution's tensors is read and written once more to change their layout: more where the places of an
    image are no multiple of a vector."""
    if factor_key(accelerator) is None and not _has_new_kernels(accelerator):
        return np.full(len(rows), model["older_tf32" if dtype == "tf32" else "other"])
    if _has_new_kernels(accelerator):
        # one position per step: a plain product of [C_out, C_in] and [C_in, positions] in the images' layout, if rows are vectors
        product = (rows.shape[:, 5] == 1) & (rows.shape[:, 6] <= 1) & (rows.detail[:, 2] <= 1.0)
        aligned = rows.shape[:, 3] * rows.shape[:, 4] % ALIGNED_ELEMENTS == 0
        return np.where(product & aligned, 0.0, model["other_tf32" if dtype == "tf32" else "other"])
    odd = rows.shape[:, 3] * rows.shape[:, 4] % ALIGNED_ELEMENTS != 0
    return np.where(backward, model["backward"], model["forward"]) + np.where(odd, model["odd"], 0.0)


def _traffic(accelerator: Accelerator, model: Mapping[str, Any], conditions: Conditions, reached: F64, rows: OpTable) -> F64:
    """Seconds of the bytes that the cache does not hold, at the share ``reached`` of the bandwidth, and of the launches."""
    moved = rows.bytes_read + rows.bytes_written
    hit = np.minimum(model["cache_share"] * (accelerator.l2_bytes or 0.0) / np.maximum(moved, 1.0), MOST_HIT)
    memory = moved * (1.0 - hit) / (_bandwidth(accelerator, model) * reached)
    if conditions.before_torch_2:
        memory = memory * model["before_torch_2"]["memory"]
    return memory + rows.n_kernels * model["launch_s"] * (model["fused"]["launch"] if conditions.compiled else 1.0)


def _wide_seconds(
    accelerator: Accelerator,
    model: Mapping[str, Any],
    conditions: Conditions,
    kinds: tuple[NDArray[np.int64], F64, F64],
    rows: OpTable,
    backward: Mask,
    last: Mask,
    dtype: str,
) -> F64:
    """Seconds of the multiply-adds on matrix units; nothing for depthwise rows."""
    kind, c_in, c_out = kinds
    grouped, depth = kind == GROUPED, c_in * rows.shape[:, 5]
    forward, back = (np.array([model[n][k] for k in KINDS[:DEPTHWISE]] + [1.0]) for n in ("efficiency", "efficiency_backward"))
    share = np.where(backward, back[kind], forward[kind])
    last_of = model["channels_last"]
    layout = np.array([last_of[k] for k in KINDS[:DEPTHWISE]] + [1.0])[kind]
    gradients = _either(c_in > NARROW_GROUP, last_of["wide_grouped_backward"], last_of["grouped_backward"])
    layout = np.where(grouped & backward, gradients, layout)
    share = share * np.where(last, layout, 1.0)
    odd = model["odd_groups"]
    slow = _either(backward, odd["backward"], odd["compiled" if conditions.compiled else "forward"])
    share = share * np.where(grouped & (np.log2(np.maximum(c_in, 1.0)) % 1.0 != 0), slow, 1.0)
    if conditions.compiled:
        share = share * np.array([model["compiled"][k] for k in KINDS[:DEPTHWISE]] + [1.0])[kind]
    if conditions.before_torch_2:
        share = share * model["before_torch_2"]["convolution"]
    half = _either(grouped, model["half_rate_at"]["grouped"], model["half_rate_at"]["channels"])
    share = share * c_out / (c_out + half) * depth / (depth + model["half_rate_at"]["depth"])
    clock_share = np.asarray(sustained_fraction(accelerator, np.minimum(share, 1.0), "fp16"))
    rate = _rate(accelerator, dtype) * _of_accelerator(model["architecture"]["rate"], accelerator)
    padded = rows.flop * _padded(c_in) * _padded(c_out)
    time = padded / (rate * share * clock_share)
    if _has_new_kernels(accelerator) and accelerator.compute_units and accelerator.boost_hz:
        wants = [(rows.flag & bit) != 0 for bit in (IMAGE_GRADIENT, FILTER_GRADIENT)]
        slow = _stem_seconds(accelerator, model["stem_flop_per_clock"], padded, wants, 4.0 if dtype == "tf32" else 2.0)
        time = np.where(kind == STEM, np.maximum(time, slow), time)
    return np.where(kind == DEPTHWISE, 0.0, time)


def _stem_seconds(
    accelerator: Accelerator, per_clock: Mapping[str, float], flop: F64, wants: Sequence[Mask], element: float
) -> F64:
    """[R] seconds of convolutions of images of few channels: limited by the gather rate of a unit, not by its multiply rate
    (``sm80_xmma_fprop_implicit_gemm_.._first_layer``); each gradient has its own share of the FLOP."""
    speed = (accelerator.compute_units or 1) * (accelerator.boost_hz or 1.0) * 2.0 / element
    image, filters = wants
    each = flop / np.maximum(image.astype(np.float64) + filters, 1.0) / speed
    backward = each * (image / per_clock["image"] + filters / per_clock["filter"])
    return np.where(image | filters, backward, each / per_clock["forward"])


def _rate(accelerator: Accelerator, dtype: str) -> float:
    peaks = accelerator.peak_flop_per_s
    vector = peaks.get("fp32")
    half = max(peaks.get("fp16") or 0.0, peaks.get("bf16") or 0.0, vector or 0.0)
    if not vector or not half or not math.isfinite(half):
        raise UnpredictableError("no rate for accelerator", f"the catalogue has no fp32 or fp16 rate for {accelerator.name}")
    return (peaks.get("tf32") or vector) if dtype == "tf32" else half
