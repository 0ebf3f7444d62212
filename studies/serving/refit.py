"""Refits all that the serving tables tell: engines, starts, loads and diffusion."""

from __future__ import annotations

from pathlib import Path

from gpuwise.calibrate.serving.predict import build_groups
from gpuwise.calibrate.serving.rows import read_rows
from studies.serving.client_fit import fit_clients
from studies.serving.diffusion_fit import fit_diffusion
from studies.serving.engine_fit import fit_engine_runs, fit_in_process, fit_throughput
from studies.serving.fit import fit_engines
from studies.serving.load_fit import fit_load, fit_widths, note_checked
from studies.serving.pool_fit import fit_pool


def fit(folder: Path) -> dict[str, float]:
    """Refit from ``folder`` and write the coefficient files of ``serving``; returns their errors."""
    rows = read_rows(folder)
    assert rows is not None
    groups, _ = build_groups(rows)
    engines = fit_engines(rows, groups)
    pool = fit_pool(folder)
    fit_load(folder)
    loads = {**fit_engine_runs(folder), **fit_in_process(folder), **fit_clients(folder)}
    load = {**pool, **loads, **fit_throughput(folder), **fit_widths(folder)}
    note_checked(folder)
    return {**engines, **fit_diffusion(folder), **load}
