"""Refits all that the serving tables tell: engines, single streams, starts, loads and diffusion."""

from __future__ import annotations

from pathlib import Path

from gpuwise.calibrate.serving.client_fit import fit_clients
from gpuwise.calibrate.serving.diffusion_fit import fit_diffusion
from gpuwise.calibrate.serving.engine_fit import fit_engine_runs, fit_in_process, fit_throughput
from gpuwise.calibrate.serving.fit import fit_engines, fit_single_stream
from gpuwise.calibrate.serving.load_fit import fit_load, fit_widths, note_checked
from gpuwise.calibrate.serving.pool_fit import fit_pool
from gpuwise.calibrate.serving.predict import build_groups
from gpuwise.calibrate.serving.rows import read_rows


def fit_family(folder: Path) -> dict[str, float]:
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
    return {**engines, **fit_single_stream(rows), **fit_diffusion(folder), **load}
