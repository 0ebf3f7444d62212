"""Prediction error: score every available table, summarise by family, source and GPU.

A family module offers ``score(folder, all_check) -> Scores | None`` (None: its tables are not in the folder). Fit and check
rows are separated by model, GPU or whole shape site, never by row.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.scores import Scores
from gpuwise.interval import Z80

FAMILIES: dict[str, str] = {
    "gemm": "gpuwise.calibrate.gemm.score",
    "attention": "gpuwise.calibrate.attention.score",
    "moe": "gpuwise.calibrate.experts.score",
    "collectives": "gpuwise.calibrate.collectives.score",
    "llm_training": "gpuwise.calibrate.llm_training.score",
    "llm_memory": "gpuwise.calibrate.memory.llm_score",
    "memory": "gpuwise.calibrate.memory.score",
    "serving": "gpuwise.calibrate.serving.score",
    "shared": "gpuwise.calibrate.shared",
}


@dataclass(frozen=True, slots=True)
class Result:
    """Errors as fractions: ``bias`` is mean(predicted / measured - 1); ``coverage80`` None where no row has an interval."""

    family: str
    source: str
    gpu: str | None
    split: str
    rows: int
    median_ape: float | None
    mape: float | None
    bias: float | None
    coverage80: float | None
    baseline_mape: float | None
    unpredicted: dict[str, int]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def validate(folder: Path, families: Iterable[str] | None = None, *, all_check: bool = False) -> list[Result]:
    """Score every family whose tables are in ``folder``; a row per source x GPU and one per source (gpu None)."""
    results: list[Result] = []
    for family in families or FAMILIES:
        scores = importlib.import_module(FAMILIES[family]).score(folder, all_check)
        if scores is not None:
            results += summarise(family, scores)
    return results


def summarise(family: str, scores: Scores) -> list[Result]:
    """Group ``scores`` by (source, split) and (source, GPU, split)."""
    source, gpu, split = (np.asarray(c, dtype=object) for c in (scores.source, scores.gpu, scores.split))
    reason = np.asarray(scores.reason, dtype=object)
    results: list[Result] = []
    for name in sorted(set(source)):
        for part in ("fit", "check"):
            mask = (source == name) & (split == part)
            if not mask.any():
                continue
            results.append(_result(family, name, None, part, scores, mask, reason))
            results += [_result(family, name, g, part, scores, mask & (gpu == g), reason) for g in sorted(set(gpu[mask]))]
    return results


def _result(
    family: str,
    source: str,
    gpu: str | None,
    split: str,
    scores: Scores,
    mask: NDArray[np.bool_],
    reason: NDArray[np.object_],
) -> Result:
    unpredicted = Counter(str(r) for r in reason[mask] if r)
    ok = mask & (reason == "")
    if not ok.any():
        return Result(family, source, gpu, split, int(mask.sum()), None, None, None, None, None, dict(unpredicted))
    measured, predicted = scores.measured[ok], scores.predicted[ok]
    relative = predicted / measured - 1
    with_interval = np.isfinite(scores.log_sigma[ok])
    z = np.abs(np.log(measured / predicted))[with_interval] / np.maximum(scores.log_sigma[ok][with_interval], 1e-12)
    baseline = scores.baseline[ok]
    has_baseline = np.isfinite(baseline)
    return Result(
        family,
        source,
        gpu,
        split,
        int(mask.sum()),
        median_ape=float(np.median(np.abs(relative))),
        mape=float(np.mean(np.abs(relative))),
        bias=float(np.mean(relative)),
        coverage80=float(np.mean(z <= Z80)) if with_interval.any() else None,
        baseline_mape=float(np.mean(np.abs(baseline[has_baseline] / measured[has_baseline] - 1))) if has_baseline.any() else None,
        unpredicted=dict(unpredicted),
    )
