"""Scores of several tables as those of one family, and the baselines beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.validation import Scores
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.workload.capture.record.capture import Capture

F64 = NDArray[np.float64]


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
