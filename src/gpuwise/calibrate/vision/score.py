"""timm's published image-network benchmarks: score and fit ``predict.network``.

A third of the architectures is kept for checking, by a hash of the name without pre-training tags. How it
does on a GPU left out of the fit altogether is measured while fitting and recorded in the coefficients'
provenance. The baseline is one constant per GPU and mode on FLOP at peak plus one pass of activations at full
bandwidth.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.validation import Scores
from gpuwise.calibrate.vision.rows import VisionRows, read_rows
from gpuwise.predict.kernels.image_network import network_time

F64 = NDArray[np.float64]


def is_check(architectures: NDArray[Any]) -> NDArray[np.bool_]:
    """A third of the architectures [R], by hash."""
    digest = {a: hashlib.sha256(a.encode()).digest()[0] % 3 == 0 for a in set(architectures)}
    return np.array([digest[a] for a in architectures], dtype=bool)


def score(folder: Path, all_check: bool) -> Scores | None:
    """Predict every row of ``models/timm.csv`` under ``folder``; None when it is not there."""
    rows = read_rows(folder)
    if rows is None:
        return None
    n = len(rows.gpu)
    predicted, sigma = np.full(n, np.nan), np.full(n, np.nan)
    for gpu, precision, at in groups(rows):
        result = network_time(rows.accelerators[gpu], precision, rows.networks.take(at))
        predicted[at], sigma[at] = result.time_s, result.log_sigma
    check = is_check(rows.architecture) | all_check
    source = np.where(rows.networks.training, "timm training", "timm inference")
    return Scores(
        source=source.tolist(),
        gpu=rows.gpu.tolist(),
        split=np.where(check, "check", "fit").tolist(),
        measured=rows.step_s,
        predicted=predicted,
        log_sigma=sigma,
        baseline=constant_efficiency(rows, ~check),
        reason=rows.reason.tolist(),
    )


def groups(rows: VisionRows) -> list[tuple[str, str, NDArray[np.intp]]]:
    """(GPU, precision, positions) of the rows that can be predicted."""
    usable = rows.reason == ""
    return [
        (gpu, precision, at)
        for gpu in sorted(set(rows.gpu[usable]))
        for precision in sorted(set(rows.precision[usable]))
        if len(at := np.flatnonzero(usable & (rows.gpu == gpu) & (rows.precision == precision)))
    ]


def constant_efficiency(rows: VisionRows, fit: NDArray[np.bool_]) -> F64:
    """Baseline [R]; its constant is the median over the fit rows of the GPU and mode (over all where there
    are none)."""
    ideal, out = np.full(len(rows.gpu), np.nan), np.full(len(rows.gpu), np.nan)
    n = rows.networks
    for gpu, precision, at in groups(rows):
        device = rows.accelerators[gpu]
        flop = 2.0 * n.macs[at] * np.where(n.training[at], 3.0, 1.0)
        bytes_moved = n.activations[at] * 4.0
        ideal[at] = n.batch[at] * (flop / device.peak(precision) + bytes_moved / device.memory_bandwidth_bytes_per_s)
    for gpu in set(rows.gpu):
        for training in (False, True):
            mine = (rows.gpu == gpu) & (n.training == training) & np.isfinite(ideal)
            learn = mine & fit if (mine & fit).any() else mine
            if learn.any():
                out[mine] = ideal[mine] * np.median(rows.step_s[learn] / ideal[learn])
    return out


def fit(folder: Path) -> dict[str, float]:
    """Refit ``coefficients/network`` from ``folder``; returns its errors."""
    from gpuwise.calibrate.vision.fit import fit_network

    rows = read_rows(folder)
    assert rows is not None
    return fit_network(rows, is_check(rows.architecture))
