"""Fits what serving engines cost beside their kernels: each engine's share of an iteration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.serving.predict import ServingGroup
from gpuwise.calibrate.serving.rows import ServingRow, is_check
from gpuwise.serve.engines.costs import EngineCosts
from gpuwise.serve.engines.engine import version_number
from studies.coefficient_files import write
from studies.optimizers import least_squares
from studies.spreads import log_sigma_of

F64 = NDArray[np.float64]
START = {  # in the order of EngineCosts
    "kernel_slowdown": 1.1,
    "prefill_slowdown": 1.1,
    "communication_slowdown": 1.0,
    "iteration_s": 1e-3,
    "sequence_s": 5e-6,
    "layer_s": 1e-5,
}
LOW = {
    "kernel_slowdown": 1.0,
    "prefill_slowdown": 0.8,
    "communication_slowdown": 0.5,
    "iteration_s": 1e-5,
    "sequence_s": 1e-7,
    "layer_s": 1e-7,
}
HIGH = {
    "kernel_slowdown": 1.6,
    "prefill_slowdown": 3.0,
    "communication_slowdown": 3.0,
    "iteration_s": 1e-2,
    "sequence_s": 1e-4,
    "layer_s": 1e-4,
}


def fit_engines(rows: Sequence[ServingRow], groups: Sequence[ServingGroup]) -> dict[str, float]:
    """Fit every engine that has rows, write ``coefficients/inference.json``, return the errors."""
    engines: list[dict[str, Any]] = []
    errors: dict[str, float] = {}
    for engine, tuned in sorted({(g.config.engine, g.config.tuned) for g in groups}):
        mine = [g for g in groups if (g.config.engine, g.config.tuned) == (engine, tuned)]
        costs = fit_engine(rows, mine)
        ratios: dict[str, list[float]] = {"fit": [], "check": []}
        for g in mine:
            for i, t in zip(g.at, g.seconds(EngineCosts(**costs)), strict=True):
                ratios["check" if is_check(rows[i]) else "fit"].append(float(t / rows[i].measured_s))
        name = engine if tuned else f"{engine} as installed"
        for part, values in ratios.items():
            if values:
                errors[f"{name} {part} mape ({len(values)} rows)"] = round(float(np.mean(np.abs(np.array(values) - 1))), 4)
        scored = np.array(ratios["check"] or ratios["fit"])
        engines.append(
            {
                "engine": engine,
                "tuned": tuned,
                "versions": _versions(mine),
                "costs": {k: float(f"{v:.4g}") for k, v in costs.items()},
                "log_sigma": round(log_sigma_of(np.ones_like(scored), scored), 3),
            }
        )
    provenance = {
        "source": "InferenceX (aiconfigurator silicon samples, Apache-2.0), ML.ENERGY v3 batch sweeps",
        "split": "a third of the models kept for checking, by hash",
        "errors": errors,
        "date": "2026-11-21",
    }
    write("inference", {"engines": engines, "provenance": provenance})
    return errors


def _versions(groups: Sequence[ServingGroup]) -> list[str]:
    """Oldest and newest version among those that say theirs."""
    versions = sorted({g.config.version for g in groups if g.config.version is not None}, key=version_number)
    return [versions[0], versions[-1]] if versions else []


def fit_engine(rows: Sequence[ServingRow], groups: Sequence[ServingGroup]) -> dict[str, float]:
    """Costs of one engine by robust least squares on log time; a model counts the same however many rows it
    has."""
    names = list(START)
    low, high = (np.log([bound[k] for k in names]) for bound in (LOW, HIGH))
    start = np.log([START[k] for k in names])
    learn = [(g, np.array([not is_check(rows[i]) for i in g.at])) for g in groups]
    if not any(keep.any() for _, keep in learn):
        learn = [(g, np.ones(len(g.at), bool)) for g in groups]
    per_model: dict[str, int] = {}
    for g, keep in learn:
        per_model[_model(rows, g)] = per_model.get(_model(rows, g), 0) + int(keep.sum())

    def residual(x: F64) -> F64:
        costs = EngineCosts(*(float(v) for v in np.exp(x)))
        parts: list[F64] = []
        for g, keep in learn:
            measured = np.array([rows[i].measured_s for i in g.at])
            parts.append((np.log(g.seconds(costs) / measured) * max(per_model[_model(rows, g)], 1) ** -0.25)[keep])
        return np.concatenate([*parts, 0.02 * (x - start)])

    best = least_squares(residual, start, bounds=(low, high), loss="soft_l1", f_scale=0.05, diff_step=1e-3)
    return dict(zip(names, np.exp(best.x).tolist(), strict=True))


def _model(rows: Sequence[ServingRow], group: ServingGroup) -> str:
    arch = rows[group.at[0]].architecture
    assert arch is not None
    return arch.id
