"""Refits the attention family: every measured kernel, widths of the intervals, the fallback rule, training.

Published training figures come last (implementations).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.attention.rows import FILES, Table, read_table
from gpuwise.errors import DataError
from gpuwise.predict.kernels.attention.features import (
    FREE_FEATURES,
    Device,
)
from gpuwise.predict.kernels.attention.net import layout
from studies.attention.choices import ENGINES, MEASURED, RELATED, USUAL
from studies.attention.implementations import fit_training
from studies.attention.kernel_fit import (
    F64,
    Bools,
    Data,
    KernelCoefficients,
    device_of,
    evaluate,
    family_devices,
    fit_kernel,
    gather,
    tree_edges,
)
from studies.attention.widths import generic_rule, log_sigmas, simple_rule
from studies.coefficient_files import write

_LOG = logging.getLogger(__name__)


def fit(folder: Path) -> None:
    """Refit and write. Raises DataError when a table is missing."""
    tables: dict[str, Table] = {}
    for phase in FILES:
        table = read_table(folder, phase)
        if table is None:
            raise DataError(f"{folder}/ops/{FILES[phase]} is missing", hint="give the folder of the measured tables")
        tables[phase] = table
    data = gather(tables)
    document, arrays, fits = _fit_all(data)
    document |= {
        "log_sigma": log_sigmas(data, fits, document.pop("_edges")),
        "baseline": simple_rule(tables),
        "generic": generic_rule(tables),
        "training": fit_training(tables["forward"]),
    }
    write("attention", document, arrays)


def _fit_all(
    data: dict[tuple[str, ...], Data],
) -> tuple[dict[str, Any], dict[str, Any], dict[tuple[str, ...], KernelCoefficients]]:
    devices = family_devices()
    edges = {p: tree_edges([d for k, d in data.items() if k[0] == p]) for p in FILES}
    fits: dict[tuple[str, ...], KernelCoefficients] = {}
    entries: dict[str, dict[str, Any]] = {p: {} for p in FILES}
    networks: dict[str, list[NDArray[np.float32]]] = {p: [] for p in FILES}
    at = 0
    for key, rows in data.items():
        kernel_devices = [device_of(a, rows.key[2]) for a in devices[rows.key[0]]]
        fitted = fit_kernel(rows.rows(~rows.check), kernel_devices, edges[rows.phase], seed=1)
        fits[key] = fitted
        n_trees = len(fitted.trees.feature)
        errors = _errors(fitted, rows, kernel_devices, edges[rows.phase])
        entries[rows.phase][rows.name] = {
            "row": len(networks[rows.phase]),
            "trees": [at, at + n_trees],
            "step": fitted.trees.step,
            "rows": len(rows.seconds),
            **errors,
        }
        networks[rows.phase].append(fitted.network)
        at += n_trees
        _LOG.info("%s", (rows.phase, rows.name, len(rows.seconds), errors))
    arrays: dict[str, Any] = {
        "tree_feature": np.concatenate([f.trees.feature for f in fits.values()]),
        "tree_cut": np.concatenate([f.trees.cut for f in fits.values()]),
        "tree_leaf": np.concatenate([f.trees.leaf for f in fits.values()]),
    }
    for phase in FILES:
        arrays[f"{phase}_networks"] = np.stack(networks[phase]).astype(np.float16)  # 0.4 % of a time at most
        arrays[f"{phase}_edges"] = np.concatenate(edges[phase])
        arrays[f"{phase}_edge_counts"] = np.array([len(e) for e in edges[phase]])
    families = {
        family: {
            "usual": USUAL[family],
            "engines": ENGINES[family],
            "measured": [{"id": a.id, "bf16_flop_per_s": a.peak("bf16")} for a in group],
        }
        for family, group in devices.items()
    }
    rising = {p: networks[p][0].size for p in FILES}
    sizes = {layout(n).size: n for n in range(1, 40)}
    document = {
        "kernels": entries,
        "families": families,
        "related": RELATED,
        "features": {p: sizes[rising[p]] for p in FILES},
        "free_features": list(FREE_FEATURES),
        "longest": {p: _longest(data, p) for p in FILES},
        "_edges": edges,
        "provenance": _provenance(data),
    }
    return document, arrays, fits


def _longest(data: dict[tuple[str, ...], Data], phase: str) -> float:
    return max(float(d.shape.kv_len.max()) for k, d in data.items() if k[0] == phase)


def _errors(fitted: KernelCoefficients, data: Data, devices: list[Device], edges: list[F64]) -> dict[str, float]:
    smooth, measured = evaluate(fitted, data, devices, edges, data.gpu)
    check = data.check

    def mape(predicted: F64, where: Bools) -> float | None:
        return round(float(np.mean(np.abs(predicted[where] / data.seconds[where] - 1))), 4) if where.any() else None

    errors = {
        "mape_fit": mape(measured, ~check),
        "mape_check": mape(measured, check),
        "smooth_mape_check": mape(smooth, check),
    }
    return {k: v for k, v in errors.items() if v is not None}


def _provenance(data: dict[tuple[str, ...], Data]) -> dict[str, Any]:
    return {
        "sources": "aiconfigurator attention tables (ai-dynamo/aiconfigurator, Apache-2.0); training figures "
        "as listed in studies/attention/attention_published.csv",
        "rows": {p: int(sum(len(d.seconds) for k, d in data.items() if k[0] == p)) for p in FILES},
        "date": "2026-11-21",
        "devices": list(MEASURED),
        "split": "check: one whole site (heads, key-value heads, head size, window) in 8, by hash, and every device not listed",
        "errors": "kernels/*/*/mape_check: on sites kept from the fit",
    }
