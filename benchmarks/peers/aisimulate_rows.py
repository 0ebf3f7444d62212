"""What aiconfigurator (AISimulate) answers for the closed loops of a table; run in an environment of its own.

    python -m venv peer && peer/bin/pip install aiconfigurator
    python benchmarks/peers/serving.py FOLDER > ids.txt
    peer/bin/python benchmarks/peers/aisimulate_rows.py inferencex.csv peer.csv ids.txt

``ids.txt`` are the rows that gpuwise is scored on. Each row is asked with its own model, system, engine, quantisation and layout;
where the tool has no tables of the row's release, its newest are taken. Columns of the output: id, ttft_ms, tpot_ms, tables
(``row`` or ``newest``), error.
"""

from __future__ import annotations

import csv
import logging
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aiconfigurator.cli.api import cli_estimate  # pyright: ignore[reportMissingImports]

SHIPPED = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
}
"""Models that it ships under another name; others are asked by the row's."""


def asked(row: dict[str, str]) -> dict[str, Any]:
    """The row as arguments; what it leaves empty is the tool's own."""

    def number(name: str) -> int | None:
        return int(float(row[name])) if row[name] else None

    names = ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "batch_size", "isl", "osl")
    given = {name: value for name in names if (value := number(name)) is not None}
    modes = {name: row[name] for name in ("gemm_quant_mode", "moe_quant_mode") if row[name]}
    return {"mode": "agg", "backend_name": row["backend"], **given, **modes}


GROUP = ("model_path", "system", "backend", "precision", "moe_ep_size")
EACH = 8
"""Rows of a group that are asked: each group loads tables for some seconds."""


def sample(rows: Iterable[dict[str, str]]) -> list[list[dict[str, str]]]:
    """Groups in a fixed random order, some rows of each, so that what is there after a while is a sample of all."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        if row["mode"] == "agg":
            groups.setdefault(tuple(row[name] for name in GROUP), []).append(row)
    draw = random.Random(0)
    chosen = [draw.sample(group, min(EACH, len(group))) for group in groups.values()]
    draw.shuffle(chosen)
    return chosen


def answer(row: dict[str, str]) -> list[Any]:
    """A row of the output."""
    error = ""
    for tables, version in (("row", row["backend_version"]), ("newest", None)):
        try:
            model = SHIPPED.get(row["model_path"], row["model_path"])
            found = cli_estimate(model, row["system"], backend_version=version, **asked(row))
        except Exception as refused:  # noqa: BLE001  whatever it raises is its answer
            error = f"{type(refused).__name__}: {str(refused)[:120]}".replace("\n", " ")
        else:
            return [row["id"], found.ttft, found.tpot, tables, ""]
    return [row["id"], "", "", "", error]


def main() -> None:
    logging.disable(logging.CRITICAL)
    with Path(sys.argv[1]).open(newline="") as source:
        wanted = set(Path(sys.argv[3]).read_text().split())
        groups = sample(row for row in csv.DictReader(source) if row["id"] in wanted)
    with Path(sys.argv[2]).open("w", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(["id", "ttft_ms", "tpot_ms", "tables", "error"])
        for group in groups:
            for row in group:
                line = answer(row)
                writer.writerow(line)
                target.flush()
                if "DataNotAvailable" in line[-1]:
                    break  # the others of the group lack the same table


if __name__ == "__main__":
    main()
