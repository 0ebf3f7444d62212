"""Closed loops of InferenceX: gpuwise beside aiconfigurator (AISimulate) on the same rows.

    python benchmarks/peers/serving.py FOLDER            the ids of the rows
    python benchmarks/peers/serving.py FOLDER peer.csv   the table

``FOLDER`` is that of the measured tables, ``peer.csv`` what ``aisimulate_rows.py`` wrote. Of each engine: rows that both answer
and that no cost of gpuwise was fitted on, the median error of both in %. aiconfigurator ships this table in its package.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gpuwise.calibrate.serving.engine_loads import _first_token as first_token  # pyright: ignore[reportPrivateUsage]
from gpuwise.calibrate.serving.engine_loads import engine_figure, replay
from gpuwise.calibrate.serving.predict import build_groups
from gpuwise.calibrate.serving.rows import ServingRow, inferencex_rows, is_check
from gpuwise.errors import GpuwiseError
from gpuwise.serve.engines.costs import engine_costs
from gpuwise.units import MILLI

Errors = dict[tuple[str, str, str], list[float]]


def token_times(rows: Sequence[ServingRow]) -> list[float]:
    """Seconds between tokens of each row; NaN where it is not predicted."""
    seconds = np.full(len(rows), np.nan)
    for group in build_groups(rows)[0]:
        seconds[list(group.at)] = group.seconds(engine_costs(group.config))
    return seconds.tolist()


def first_token_s(row: ServingRow, measured_s: float) -> float:
    """Mean seconds to the first token by the simulated loop; NaN where it is not predicted."""
    run = first_token(row, measured_s)
    if run.reason:
        return math.nan
    try:
        return engine_figure(run, replay(run, None), run.figures[0])
    except GpuwiseError:
        return math.nan


def left_out(folder: Path) -> dict[str, tuple[ServingRow, float]]:
    """Rows by id that no cost was fitted on, with their mean time to the first token."""
    with (folder / "serving" / "inferencex.csv").open(newline="") as table:
        names = [row["id"] for row in csv.DictReader(table)]
    rows = inferencex_rows(folder) or []
    return {name: row for name, row in zip(names, rows, strict=True) if not row[0].reason and is_check(row[0])}


def errors_of(folder: Path, peer: Mapping[str, Mapping[str, str]]) -> Errors:
    """Absolute errors in % by (engine, figure, tool)."""
    found: Errors = defaultdict(list)
    rows = {name: row for name, row in left_out(folder).items() if peer.get(name, {}).get("tpot_ms")}
    for (name, (row, ttft_s)), token_s in zip(rows.items(), token_times([row for row, _ in rows.values()]), strict=True):
        theirs = peer[name]
        engine = "" if row.config is None else row.config.engine
        figures = [("token", row.measured_s, token_s, float(theirs["tpot_ms"]) * MILLI)]
        if math.isfinite(ttft_s):
            figures.append(("first token", ttft_s, first_token_s(row, ttft_s), float(theirs["ttft_ms"]) * MILLI))
        for figure, measured_s, ours_s, theirs_s in figures:
            if math.isfinite(ours_s) and theirs_s > 0.0:
                found[engine, figure, "gpuwise"].append(100.0 * abs(ours_s / measured_s - 1.0))
                found[engine, figure, "aiconfigurator"].append(100.0 * abs(theirs_s / measured_s - 1.0))
    return found


def main() -> None:
    if len(sys.argv) == 2:
        print("\n".join(left_out(Path(sys.argv[1]))))
        return
    with Path(sys.argv[2]).open(newline="") as table:
        peer = {row["id"]: row for row in csv.DictReader(table)}
    found = errors_of(Path(sys.argv[1]), peer)
    print(f"{'engine':12} {'figure':12} {'rows':>5} {'gpuwise':>8} {'aiconfigurator':>15}   median error, %")
    for engine, figure in sorted({key[:2] for key in found}):
        ours, theirs = found[engine, figure, "gpuwise"], found[engine, figure, "aiconfigurator"]
        print(f"{engine:12} {figure:12} {len(ours):5} {np.median(ours):8.1f} {np.median(theirs):15.1f}")
    answered = sum(bool(row["tpot_ms"]) for row in peer.values())
    print(f"aiconfigurator answers {answered} of {len(peer)} rows that it was asked")


if __name__ == "__main__":
    main()
