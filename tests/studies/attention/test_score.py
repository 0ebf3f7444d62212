"""Published times of training kernels beside the measured tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from studies.attention import score as attention


def test_no_tables_no_scores(tmp_path: Path) -> None:
    assert attention.score(tmp_path, False) is None


def test_published_figures_are_predicted_and_some_are_kept_from_the_fit() -> None:
    scores = attention.score_published()
    assert set(scores.source) == {"published attention forward", "published attention backward"}
    assert set(scores.split) == {"fit", "check"}
    assert np.median(np.abs(scores.predicted / scores.measured - 1)) < 0.2
