"""Baselines that measured rows are compared with, and how wide predictions spread around them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.interval import INTERVAL, Z80
from gpuwise.workload.capture.captured import Capture

F64 = NDArray[np.float64]


def constant_efficiency(group: NDArray[Any], work_over_peak: F64, measured: F64) -> F64:
    """Seconds had every row of a group the group's median efficiency."""
    out = np.full(len(measured), np.nan)
    for name in set(group):
        here = (group == name) & np.isfinite(work_over_peak) & (measured > 0)
        if here.any():
            out[here] = np.median(measured[here] / work_over_peak[here]) * work_over_peak[here]
    return out


def roofline_s(capture: Capture, accelerator: Accelerator, rate_flop_per_s: float) -> float:
    """Seconds of a captured step's FLOP at a rate, or of its bytes at the bandwidth: the larger."""
    span = capture.steady
    count = np.bincount(capture.op_signature[span.first_op : span.end_op], minlength=len(capture.signatures))
    moved = float(sum(n * (s.bytes_read + s.bytes_written) for n, s in zip(count.tolist(), capture.signatures, strict=True) if n))
    return max(capture.flop() / rate_flop_per_s, moved / accelerator.memory_bandwidth_bytes_per_s)


def log_sigma_of(measured: F64, predicted: F64) -> float:
    """Interval width that covers 80 % of the residuals: quantile 0.8 of |log ratio| over the normal's 1.28."""
    ratio = np.abs(np.log(measured / predicted))
    ratio = ratio[np.isfinite(ratio)]
    return float(np.quantile(ratio, INTERVAL) / Z80) if ratio.size else math.nan


def weighted_quantile(values: F64, weights: F64, level: float) -> float:
    """The least value at or below which ``level`` of the weight lies."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(reached, level - 1e-12)])
