"""Attention against measurement, with the published times of training kernels beside the tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpuwise.calibrate.attention.score import score as score_tables
from gpuwise.calibrate.scores import Scores, joined
from gpuwise.predict.kernels.attention.training import training_time
from studies.attention.published import read_published, takes_part


def score(folder: Path, all_check: bool) -> Scores | None:
    """Every row of the tables in ``folder/ops``, then every published figure; None when neither table is there."""
    tables = score_tables(folder, all_check)
    return tables and joined([tables, score_published()])


def score_published() -> Scores:
    """Published training figures: their split is their own, whatever the folder's."""
    rows = read_published()
    times = [
        training_time(r.accelerator, r.dtype, r.shape, causal=r.causal, kernel=r.implementation, backward=r.phase == "backward")
        for r in rows
    ]
    return Scores(
        source=[f"published attention {r.phase}" for r in rows],
        gpu=[r.accelerator.id for r in rows],
        split=["fit" if takes_part(r) else "check" for r in rows],
        measured=np.array([r.seconds for r in rows]),
        predicted=np.array([float(t.time_s[0]) for t in times]),
        log_sigma=np.array([float(t.log_sigma[0]) for t in times]),
        baseline=np.full(len(rows), np.nan),
        reason=[""] * len(rows),
    )
