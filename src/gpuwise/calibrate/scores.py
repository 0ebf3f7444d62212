"""Scores of a family: measured and predicted rows, baselines, and spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scores:
    """One row per measured row, in table order. ``predicted`` is NaN where ``reason`` is not empty.

    ``log_sigma`` is NaN for an answer without interval (a verdict). ``baseline`` is the same row by the family's simple
    reference rule (one constant efficiency fitted on the same fit rows); NaN where it does not apply.
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
    """Reason why a row could not be predicted; may be empty."""


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
