"""Convolutions and batch norm: the form that is fitted on whole networks, which no table of single kernels covers.

For one launch of a row with FLOP ``F``, bytes moved ``Q`` and ``k`` kernels, on a card with matrix rate ``P``, vector rate
``V`` and bandwidth ``B``:

    t = F p / (P e_f n/(n + n_0) a_P c s) + F / (V v_f) + r_f Q (1 - h) / (B a_B b_f) + t_l + k l
    h = min(c_2 L2 / Q, 0.9)

The first term is of convolutions, the second of depthwise ones; arithmetic and traffic add up (fitted as a power of the
two's powers, the exponent ran to 1). ``p`` is the padding of the channels to 16 bytes, ``n`` the narrower of reduction and
channels out, ``a_P`` and ``a_B`` factors of the architecture, ``c`` the clock held under the power limit
(:mod:`gpuwise.predict.kernels.clock`), ``s`` how channels-last images, the compiler or libraries before torch 2 change a
convolution, ``r_f`` how often a family really passes over its tensors, ``h`` the share that the last-level cache still holds
from the operation before. ``t_l`` is the change of layout of a convolution whose images are not channels-last: its tensors
read and written once more, in part. Constants: ``coefficients/captured_kernels.json``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator, architecture_key
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.card_factors import factor_key
from gpuwise.predict.kernels.clock import sustained_fraction
from gpuwise.predict.kernels.conditions import Conditions
from gpuwise.workload.step import BIAS_GRADIENT, CHANNELS_LAST, FILTER_GRADIENT, IMAGE_GRADIENT, OpTable, Phase

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]
KINDS = (
    "convolution",
    "convolution_backward",
    "grouped",
    "depthwise",
    "depthwise_backward",
    "batch_norm",
    "batch_norm_backward",
)
"""What constants are kept for."""
_COMPUTES = np.array([n in ("convolution", "convolution_backward", "grouped") for n in KINDS])
ALIGNED_ELEMENTS = 8.0
"""16 bytes of half precision: tensor-core kernels load whole vectors (cuBLAS, cuDNN alignment rules)."""
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
    kind, c_in, c_out = _convolution_kinds(rows)
    last = _lies_last(rows, conditions)
    narrow = np.minimum(c_in * rows.shape[:, 5], c_out)
    padding = np.where(_COMPUTES[kind], _padded(c_in) * _padded(c_out), 1.0)
    arithmetic = _arithmetic(accelerator, constants, conditions, kind, rows.flop * padding, rows.flop, narrow, last, dtype)
    time = arithmetic + _traffic(accelerator, constants, conditions, kind, rows)
    copied = _COMPUTES[kind] & ~last & (not conditions.compiled)
    bandwidth = accelerator.memory_bandwidth_bytes_per_s * _of_architecture(constants, "bandwidth", accelerator)
    copies = (
        constants["relayouts"] * 2.0 * (rows.bytes_read + rows.bytes_written) / (bandwidth * constants["bandwidth"]["pointwise"])
    )
    return time + np.where(copied, copies, 0.0)


def batch_norm_seconds(
    accelerator: Accelerator, rows: OpTable, conditions: Conditions, model: Mapping[str, Any] | None = None
) -> F64:
    """[R] device seconds of one launch of batch norm rows."""
    constants: Mapping[str, Any] = load_json("captured_kernels") if model is None else model
    conditions = _measured_conditions(accelerator, conditions)
    kind = np.where(rows.phase == Phase.BACKWARD, KINDS.index("batch_norm_backward"), KINDS.index("batch_norm"))
    return _traffic(accelerator, constants, conditions, kind, rows)


def _measured_conditions(accelerator: Accelerator, conditions: Conditions) -> Conditions:
    """``conditions`` without a compiler on cards none of the networks ran on: there it lays images out and no more."""
    if not conditions.compiled or factor_key(accelerator) is not None:
        return conditions
    return replace(conditions, compiled=False, channels_last=True)


def _convolution_kinds(rows: OpTable) -> tuple[NDArray[np.int64], F64, F64]:
    """[R] index into :data:`KINDS`, channels in and out of one group."""
    groups = np.maximum(rows.shape[:, 6], 1)
    c_in, c_out = rows.shape[:, 1] / groups, rows.shape[:, 2] / groups
    backward = (rows.flag & (IMAGE_GRADIENT | FILTER_GRADIENT | BIAS_GRADIENT)) != 0
    depthwise = (groups > 1) & (c_in <= 1)
    kind = np.where(backward, KINDS.index("convolution_backward"), KINDS.index("convolution"))
    kind = np.where((groups > 1) & ~depthwise, KINDS.index("grouped"), kind)
    kind = np.where(depthwise, np.where(backward, KINDS.index("depthwise_backward"), KINDS.index("depthwise")), kind)
    return kind, c_in, c_out


def _lies_last(rows: OpTable, conditions: Conditions) -> Mask:
    if conditions.channels_last is not None:
        return np.full(len(rows), conditions.channels_last)
    return (rows.flag & CHANNELS_LAST) != 0


def _padded(n: F64) -> F64:
    return np.ceil(n / ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS / np.maximum(n, 1.0)


def _of_architecture(model: Mapping[str, Any], what: str, accelerator: Accelerator) -> float:
    table: Mapping[str, float] = model["architecture"][what]
    if factor_key(accelerator) is None:
        return table["other"]
    return table.get(architecture_key(accelerator.compute_capability, accelerator.family), table["other"])


def _by_kind(constants: Mapping[str, float]) -> F64:
    return np.array([constants.get(n, constants["pointwise"]) for n in KINDS], dtype=np.float64)


def _traffic(
    accelerator: Accelerator, model: Mapping[str, Any], conditions: Conditions, kind: NDArray[np.int64], rows: OpTable
) -> F64:
    """Seconds of the bytes that the cache does not hold, and of the launches."""
    if not accelerator.memory_bandwidth_bytes_per_s:
        raise UnpredictableError("no bandwidth for accelerator", f"the catalogue has no bandwidth for {accelerator.name}")
    bandwidth = accelerator.memory_bandwidth_bytes_per_s * _of_architecture(model, "bandwidth", accelerator)
    moved = rows.bytes_read + rows.bytes_written
    hit = np.minimum(model["cache_share"] * (accelerator.l2_bytes or 0.0) / np.maximum(moved, 1.0), MOST_HIT)
    memory = moved * _by_kind(model["passes"])[kind] * (1.0 - hit) / (bandwidth * _by_kind(model["bandwidth"])[kind])
    if conditions.before_torch_2:
        memory = memory * model["before_torch_2"]["memory"]
    return memory + rows.n_kernels * model["launch_s"] * (model["fused"]["launch"] if conditions.compiled else 1.0)


def _arithmetic(
    accelerator: Accelerator,
    model: Mapping[str, Any],
    conditions: Conditions,
    kind: NDArray[np.int64],
    padded_flop: F64,
    flop: F64,
    narrow: F64,
    last: Mask,
    dtype: str,
) -> F64:
    """Seconds of the multiply-adds of convolutions, and of depthwise ones on the vector lanes."""
    rate = _rate(accelerator, dtype) * _of_architecture(model, "rate", accelerator)
    share = _by_kind(model["efficiency"])[kind] * np.where(narrow > 0, narrow / (narrow + model["half_rate_at"]), 1.0)
    held = np.asarray(sustained_fraction(accelerator, np.minimum(share, 1.0), "fp16"))
    last = last | conditions.compiled
    grouped = kind == KINDS.index("grouped")
    share = share * np.where(_COMPUTES[kind] & last, model["channels_last"]["convolution"], 1.0)
    share = share * np.where(grouped & last, model["channels_last"]["grouped"], 1.0)
    if conditions.compiled:
        share = share * np.where(_COMPUTES[kind], model["compiled"]["convolution"], 1.0)
    if conditions.before_torch_2:
        share = share * np.where(_COMPUTES[kind], model["before_torch_2"]["convolution"], 1.0)
    wide = np.where(_COMPUTES[kind], padded_flop / (rate * share * held), 0.0)
    vector = np.zeros(len(flop))
    for name, efficiency in model["vector_efficiency"].items():
        vector = np.where(kind == KINDS.index(name), flop / (accelerator.peak("fp32") * efficiency), vector)
    return wide + vector * (model["compiled"]["depthwise"] if conditions.compiled else 1.0)


def _rate(accelerator: Accelerator, dtype: str) -> float:
    peaks = accelerator.peak_flop_per_s
    vector = peaks.get("fp32")
    half = max(peaks.get("fp16") or 0.0, peaks.get("bf16") or 0.0, vector or 0.0)
    if not vector or not half or not math.isfinite(half):
        raise UnpredictableError("no rate for accelerator", f"the catalogue has no fp32 or fp16 rate for {accelerator.name}")
    return (peaks.get("tf32") or vector) if dtype == "tf32" else half
