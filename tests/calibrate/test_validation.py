"""What is said of a family's rows."""

from __future__ import annotations

import math

import numpy as np

from gpuwise.calibrate.scores import Scores
from gpuwise.calibrate.validation import summarise


def test_a_verdict_has_no_interval_to_be_inside_of() -> None:
    measured, predicted = np.array([1.0, 1.0, 1.0, 1.0]), np.array([1.05, 1.5, 1.0, 2.0])
    sigma = np.array([0.1, 0.1, math.nan, math.nan])
    source = ["bytes", "bytes", "verdict", "verdict"]
    none = np.full(4, math.nan)
    found = summarise("memory", Scores(source, ["GPU"] * 4, ["check"] * 4, measured, predicted, sigma, none, [""] * 4))
    coverage = {r.source: r.coverage80 for r in found if r.gpu is None}
    assert coverage == {"bytes": 0.5, "verdict": None}


def test_a_mixed_source_counts_the_rows_that_have_an_interval() -> None:
    measured, sigma = np.ones(3), np.array([0.1, 0.1, math.nan])
    scores = Scores(["jobs"] * 3, ["GPU"] * 3, ["check"] * 3, measured, np.ones(3), sigma, np.full(3, math.nan), [""] * 3)
    assert {r.coverage80 for r in summarise("memory", scores)} == {1.0}
