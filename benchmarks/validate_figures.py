"""The figures of `gpuwise validate` by family and source, for keeping: numbers only, no measured row.

    gpuwise validate --data MEASURED --json > documents.json
    python benchmarks/validate_figures.py --commit b10255a --date 2026-11-22 documents.json > kept.json

Several documents (a family each) may be given. Everything is in percent, two digits after the point. A family's
figures are means over its sources, weighted by the rows that could be predicted. `tests/agreement/test_nothing_worse.py`
compares the file of before with that of after: what rises by more than half a point is explained under `explained`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = {"mape": "mape", "median": "median_ape", "bias": "bias", "coverage80": "coverage80"}
"""Name in the kept file, name in the document of ``gpuwise validate --json``."""

Row = dict[str, Any]


def figures(results: list[Row]) -> dict[str, Row]:
    """By family: ``check``, ``fit`` (where there are rows of it) and ``sources`` with the same two."""
    families: dict[str, Row] = {}
    whole = [r for r in results if r["gpu"] is None]
    for family in dict.fromkeys(r["family"] for r in whole):
        rows = [r for r in whole if r["family"] == family]
        kept: Row = {part: _together(part_rows) for part in ("check", "fit") if (part_rows := _of(rows, part))}
        kept["sources"] = {
            source: {r["split"]: _together([r]) for r in rows if r["source"] == source}
            for source in dict.fromkeys(r["source"] for r in rows)
        }
        families[family] = kept
    return families


def _of(rows: list[Row], split: str) -> list[Row]:
    return [r for r in rows if r["split"] == split]


def _together(rows: list[Row]) -> Row:
    """Rows, how many of them were predicted, and the weighted means in percent; null where nothing was predicted, and for the
    coverage where no row has an interval."""
    counted = [(r, r["rows"] - sum(r["unpredicted"].values())) for r in rows]
    means = {name: _mean([(w, r[column]) for r, w in counted if w and r[column] is not None]) for name, column in COLUMNS.items()}
    return {"rows": sum(r["rows"] for r in rows), "predicted": sum(w for _, w in counted), **means}


def _mean(weighted: list[tuple[int, float]]) -> float | None:
    whole = sum(w for w, _ in weighted)
    return round(100 * sum(w * value for w, value in weighted) / whole, 2) if whole else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("documents", nargs="+", type=Path, help="what `gpuwise validate --json` printed")
    parser.add_argument("--commit", required=True)
    parser.add_argument("--date", required=True)
    given = parser.parse_args()
    results: list[Row] = []
    for path in given.documents:
        lines = path.read_text(encoding="utf-8").splitlines()
        results += json.loads(lines[-1])["results"] if lines else []
    document = {
        "date": given.date,
        "commit": given.commit,
        "command": "gpuwise validate --data MEASURED --json",
        "families": figures(results),
        "explained": {},
    }
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
