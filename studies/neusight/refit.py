"""Refits the kernels of single fp32 operations, then the widths and baselines of their family."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np

from gpuwise.errors import DataError
from gpuwise.predict.coefficients import forget_files, load_json
from studies import coefficient_files
from studies.neusight import fit as neusight_fit
from studies.neusight.score import collect
from studies.neusight.tables import read_ops
from studies.spreads import log_sigma_of


def fit(folder: Path) -> None:
    """Refit the kernel families from the tables, then this family's baselines and interval widths."""
    neusight_fit.fit(folder)
    fit_widths(folder)


def fit_widths(folder: Path) -> None:
    """Refit the baselines (on the half that fits) and the interval widths (on the other half) of this family."""
    rows = read_ops(folder)
    if rows is None:
        raise DataError(f"no NeuSight per-operation table in {folder}")
    scored = collect(rows)
    document = copy.deepcopy(load_json("neusight"))
    source, situation = np.array(scored.source), np.array(scored.situation)
    measured, predicted, roofline = (np.array(c) for c in (scored.measured, scored.predicted, scored.roofline))
    check, good = np.array(scored.check), np.array(scored.reason) == ""
    document["baseline"], document["log_sigma"] = {}, {}
    for name in sorted(set(source)):
        mask = (source == name) & good & ~check & np.isfinite(roofline)
        document["baseline"][name] = float(np.median(measured[mask] / roofline[mask])) if mask.any() else None
    for name in sorted(set(situation)):
        mask = (situation == name) & good & check
        if mask.any():
            document["log_sigma"][name] = log_sigma_of(measured[mask], predicted[mask])
    coefficient_files.write("neusight", document)
    forget_files()
