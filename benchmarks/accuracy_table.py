"""Two kept records of `gpuwise validate` side by side, as Markdown: every family, then every source, fit and check apart.

    cd benchmarks/records/validate
    python ../../accuracy_table.py validate_after_2026-11-28.json validate_after_2026-11-28b.json

Old figures stand before the arrow, new ones after it, in percent; a figure that did not move stands once.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]
HEADER = """| {} | check rows | check MAPE | bias | 80 % covers | fit rows | fit MAPE | 80 % covers |
|---|---:|---:|---:|---:|---:|---:|---:|"""


def table(old: Row, new: Row) -> str:
    """Both documents' families and sources; a source that only one of them has keeps its side empty."""
    lines = [HEADER.format("family")]
    lines += [_line(f"**{name}**", old["families"].get(name, {}), entry) for name, entry in new["families"].items()]
    for name, entry in new["families"].items():
        before = old["families"].get(name, {}).get("sources", {})
        after = entry["sources"]
        lines += ["", HEADER.format(name)]
        lines += [_line(s, before.get(s, {}), after.get(s, {})) for s in dict.fromkeys((*after, *before))]
    return "\n".join(lines)


def _line(name: str, old: Row, new: Row) -> str:
    cells = [name]
    for part, columns in (("check", ("predicted", "mape", "bias", "coverage80")), ("fit", ("predicted", "mape", "coverage80"))):
        cells += [_cell(old.get(part, {}).get(c), new.get(part, {}).get(c), c) for c in columns]
    return "| " + " | ".join(cells) + " |"


def _cell(old: float | None, new: float | None, column: str) -> str:
    before, after = _number(old, column), _number(new, column)
    return after if before == after else f"{before} → {after}"


def _number(value: float | None, column: str) -> str:
    if value is None:
        return "–"
    if column == "predicted":
        return f"{value:,.0f}"
    return f"{value:+.1f}" if column == "bias" else f"{value:.0f}" if column == "coverage80" else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    given = parser.parse_args()
    old, new = (json.loads(p.read_text(encoding="utf-8")) for p in (given.old, given.new))
    sys.stdout.write(table(old, new) + "\n")


if __name__ == "__main__":
    main()
