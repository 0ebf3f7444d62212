"""The batch finder's part of a tuning's document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gpuwise.train.tune.batch.fitting import Fitting
from gpuwise.train.tune.batch.sizes import Run, Sizes


def batch_document(fitting: Fitting | None, sizes: Sizes | None) -> dict[str, Any]:
    """``fitting`` and ``batch``, null where they were not at stake; SI units, no number is infinite."""
    return {"fitting": _fitting(fitting), "batch": _sizes(sizes)}


def _fitting(fitting: Fitting | None) -> dict[str, Any] | None:
    if fitting is None:
        return None
    parity = fitting.parity
    return {
        "own": fitting.own,
        "part": fitting.part,
        "levers": dict(fitting.levers),
        "capacity": fitting.capacity,
        "runs": _runs(fitting.runs),
        "notes": list(fitting.notes),
        "parity": None if parity is None else {"passed": parity.passed, "words": parity.words},
    }


def _sizes(sizes: Sizes | None) -> dict[str, Any] | None:
    if sizes is None:
        return None
    gain = sizes.gain
    return {
        "own": sizes.own,
        "largest": sizes.largest,
        "ends": sizes.ends,
        "chosen": sizes.chosen,
        "levers": dict(sizes.levers),
        "capacity": sizes.capacity,
        "longest": sizes.longest,
        "runs": _runs(sizes.runs),
        "changes": "maths",
        "words": sizes.words,
        "gain": None
        if gain is None
        else {
            "ratio": gain.ratio,
            "low": gain.low,
            "high": gain.high if math.isfinite(gain.high) else None,
            "pairs": gain.n_pairs,
        },
        "blocks": sizes.blocks,
        "merged": None if sizes.merged is None else asdict(sizes.merged),
        "why": sizes.why,
    }


def _runs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    return [asdict(run) for run in runs]
