"""What a family's score is: measured and predicted rows, the baselines beside them, and how wide they spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.interval import INTERVAL, Z80
from gpuwise.workload.capture.captured import Capture

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scores:
    """One row per measured row, in table order. ``predicted`` is NaN where ``reason`` is not empty.

    ``log_sigma`` is NaN where an answer has no interval (a verdict). ``baseline`` is the same row by the simple rule the
    family is compared with (one constant efficiency fitted on the same fit rows); NaN where it does not apply.
    """

    source: Sequence[str]
    gpu: Sequence[str]
    split: Sequence[str]
    """``fit`` or ``check``."""
    measured: F64
    predicted: F64
    log_sigma: F64
    baseline: F64
    reason: Sequence[str]
    """Why a row could not be predicted; empty where it was."""


def joined(parts: Sequence[Scores | None]) -> Scores | None:
    """The rows of every table that was there, in order; None when none was."""
    tables = [s for s in parts if s is not None]
    if not tables:
        return None
    return Scores(
        source=[v for s in tables for v in s.source],
        gpu=[v for s in tables for v in s.gpu],
        split=[v for s in tables for v in s.split],
        measured=np.concatenate([s.measured for s in tables]),
        predicted=np.concatenate([s.predicted for s in tables]),
        log_sigma=np.concatenate([s.log_sigma for s in tables]),
        baseline=np.concatenate([s.baseline for s in tables]),
        reason=[v for s in tables for v in s.reason],
    )


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
