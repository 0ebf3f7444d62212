"""Writes the table "how right it is" of the first page from the newest record of ``gpuwise validate``, and checks it.

python -m tools.docs.accuracy docs/index.md             write the table
python -m tools.docs.accuracy --check docs/index.md     say whether it is stale (exit code 1)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- accuracy: python -m tools.docs.accuracy docs/index.md -->", "<!-- end of accuracy -->"
HEAD = "| what is predicted | measurements kept out of every fit | median error | mean error | inside the 80 % interval |"
RECORDS = Path(__file__).parent.parent.parent / "benchmarks" / "records" / "validate"
FAMILIES = {
    "gemm": "a matrix product",
    "attention": "an attention kernel",
    "moe": "kernels of mixtures of experts",
    "collectives": "a collective over GPUs",
    "llm_training": "a step of training a language model",
    "llm_memory": "its memory",
    "captured_time": "a step of your own code",
    "captured_memory": "its memory",
    "serving": "serving: latencies, near saturation too, and throughput",
}
"""Families that a reader asks for, in their words; the whole table is in the record."""


def newest() -> Path:
    """The latest record by its date."""
    return max(RECORDS.glob("validate_after_*.json"))


def table(record: dict[str, Any], name: str) -> str:
    """The check rows of the families in :data:`FAMILIES`."""
    lines = [BEGIN, "", HEAD, "|---|---:|---:|---:|---:|"]
    for family, words in FAMILIES.items():
        check = record["families"].get(family, {}).get("check")
        if check:
            inside = "" if check.get("coverage80") is None else f"{check['coverage80']:.0f} %"
            lines.append(f"| {words} | {check['predicted']:,} | {check['median']:.1f} % | {check['mape']:.1f} % | {inside} |")
    lines += [
        "",
        f"Of {record['date']}, commit {record['commit']}; every family and source: `benchmarks/records/validate/{name}`.",
        "",
        END,
    ]
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The page with its table written anew. Raises ValueError where it has no place for one."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the page has no place for the table")
    path = newest()
    return before + table(json.loads(path.read_text(encoding="utf-8")), path.name) + after


def main(arguments: Sequence[str]) -> int:
    """Write the table, or with ``--check`` say whether it is stale."""
    places = [Path(a) for a in arguments if a != "--check"]
    if len(places) != 1:
        sys.stderr.write("error: name the page\nhint: python -m tools.docs.accuracy docs/index.md\n")
        return 2
    text = places[0].read_text(encoding="utf-8")
    written = with_table(text)
    if "--check" not in arguments:
        places[0].write_text(written, encoding="utf-8")
        return 0
    if text == written:
        return 0
    sys.stderr.write(f"error: {places[0]} is stale\nhint: python -m tools.docs.accuracy {places[0]}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
