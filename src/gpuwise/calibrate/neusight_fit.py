"""Fits the sustained clock, the memory-bound kernels, fp32 products and convolutions to the NeuSight operation table.

Rows whose shape falls in half 0 are fitted (``OpRows.site``), the other half gives the errors and the interval widths.
Deterministic. Figures that are not in that table are typed below with their source.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate import coefficient_files
from gpuwise.calibrate.neusight_tables import BINARY, UNARY, OpRows, accelerator_of, read_ops
from gpuwise.errors import DataError
from gpuwise.facts.accelerators import Accelerator
from gpuwise.predict import fp32
from gpuwise.predict.coefficients import load_json

F64 = NDArray[np.float64]
"""Where constants live in the trial document: path of keys."""
Path_ = tuple[str, ...]

NEUSIGHT = "NeuSight per-operation tables (github.com/sitar-lab/NeuSight, MIT; ASPLOS 2025)"
ROWS_PER_GROUP = 700
SHORTEST_S = 1.5e-4
"""Shorter rows of the table are host time."""


def fit(folder: Path) -> None:
    """Refit ``fp32.json`` from the tables in ``folder``. Raises DataError when the table is missing."""
    rows = read_ops(folder)
    if rows is None:
        raise DataError(f"no {NEUSIGHT} in {folder}")
    document = copy.deepcopy(load_json("fp32"))
    _fit_products(rows, document)
    document["provenance"]["date"] = date.today().isoformat()
    coefficient_files.write("fp32", document)


_FREE_FORM = ("small_tile", "quantization", "lone_block", "lone_block_exponent", "prologue", "split_cost", "split_traffic",
              "overlap", "latency_s")  # fmt: skip
_BOUNDS = {"quantization": (0.02, 1.0), "overlap": (1.5, 8.0), "split_cost": (1e-3, 0.5), "prologue": (1.0, 128.0),
           "lone_block_exponent": (0.05, 1.0), "latency_s": (2e-6, 1.5e-5), "misaligned_linear": (0.3, 1.0), "misaligned_batched": (0.3, 1.0),
           "long_k": (5e3, 2e6)}  # fmt: skip


def _groups(rows: OpRows, site: int) -> list[tuple[Any, bool, fp32.Shapes, F64]]:
    """(accelerator, batched, shapes, seconds) of a sample per GPU and kind of product."""
    picker = np.random.default_rng(7)
    out: list[tuple[Any, bool, fp32.Shapes, F64]] = []
    usable = (rows.measured_s > SHORTEST_S) & (rows.site == site)
    for name in sorted(set(rows.gpu)):
        accelerator = accelerator_of(name)
        for op in ("linear", "bmm"):
            index = np.flatnonzero(usable & (rows.gpu == name) & (rows.op == op))
            if accelerator is None or not index.size:
                continue
            index = np.sort(picker.permutation(index)[:ROWS_PER_GROUP])
            out.append((accelerator, op == "bmm", fp32.Shapes(*rows.shape[index].T), rows.measured_s[index]))
    return out


def _weights(shapes: fp32.Shapes) -> F64:
    """Aligned shapes, which is what models have, count four times the study's random sizes."""
    aligned = (shapes.k % 4 == 0) & (shapes.n % 4 == 0)
    return np.where(aligned, 1.0, 0.25)


def bench_time(accelerator: Accelerator, shapes: fp32.Shapes, document: dict[str, Any], batched: bool) -> F64:
    """What the study's benchmark shows for a product: best 5 of 25 launches, each between two events."""
    key = next((k for k in document["bench"]["burst_s"] if k in _keys(accelerator)), "")
    burst_s = document["bench"]["burst_s"].get(key, 0.0)
    return fp32.product_time(accelerator, shapes, document, batched, burst_s=burst_s) + document["bench"]["event_s"]


def _keys(accelerator: Accelerator) -> tuple[str, str]:
    return f"sm_{(accelerator.compute_capability or '').replace('.', '')}", accelerator.family


def _fit_products(rows: OpRows, document: dict[str, Any]) -> None:
    from scipy.optimize import least_squares

    groups = _groups(rows, 0)
    free: list[tuple[dict[str, Any], str]] = []
    for vendor in ("NVIDIA", "AMD"):
        free += [(document["form"][vendor], name) for name in _FREE_FORM]
    for key in document["fitted_kernels"]:
        names = ("linear", "batched", "misaligned_linear", "misaligned_batched", "long_k")
        tied = document["tied_linear"].get(key) is not None
        free += [(document["kernels"][key], name) for name in names if not (tied and name == "linear")]
    low, high = (
        np.log([_BOUNDS.get(name, (1e-6, 10.0))[side] for _, name in free]) for side in (0, 1)
    )  # fmt: skip
    start = np.clip(np.log([float(table[name]) for table, name in free]), low + 1e-6, high - 1e-6)

    def put(values: F64) -> None:
        for (table, name), value in zip(free, values, strict=True):
            table[name] = float(np.exp(value))
        for key, like in document["tied_linear"].items():
            document["kernels"][key]["linear"] = document["kernels"][like]["linear"]

    def residuals(values: F64) -> F64:
        put(values)
        return np.concatenate([
            _weights(shapes) * np.log(bench_time(acc, shapes, document, batched) / t)
            for acc, batched, shapes, t in groups
        ])  # fmt: skip

    solution = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=14, diff_step=2e-2
    )
    put(solution.x)
    _round(document)
    document["provenance"]["errors"] = _errors(rows, document)


def _round(node: dict[str, Any]) -> None:
    for key, value in node.items():
        if isinstance(value, dict):
            _round(value)
        elif isinstance(value, float):
            node[key] = float(f"{value:.4g}")


def _errors(rows: OpRows, document: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Median and mean absolute relative error on the half kept from the fit, by GPU and kind."""
    out: dict[str, dict[str, float]] = {}
    for acc, batched, shapes, t in _groups(rows, 1):
        predicted = bench_time(acc, shapes, document, batched)
        error = np.abs(predicted / t - 1)
        out[f"{acc.id} {'batched' if batched else 'linear'}"] = {
            "rows": len(t), "median_ape": round(float(np.median(error)), 4), "mape": round(float(np.mean(error)), 4),
        }  # fmt: skip
    return out


_ = (BINARY, UNARY, Callable)
