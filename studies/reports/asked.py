"""What people measured in public (``*.toml`` beside this), asked as they would: ``python -m studies.reports.asked [WORDS]``.

Prints each answer beside the measurement, and how many are right (within 12.5 %), partly right (25 %) and wrong.
"""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gpuwise.cli.called import ask
from gpuwise.errors import GpuwiseError

FOLDER = Path(__file__).parent
VERDICTS = ("wrong", "partly", "right")
"""From worst to best."""
RIGHT, PARTLY = 0.125, 0.25
"""Largest distance from the measured figure, as a share of it."""


@dataclass(frozen=True)
class Report:
    """One row; ``reports.toml`` describes its fields."""

    source: str
    ask: str
    answer: str
    at: str = ""
    measured: Any = None
    refused: str = ""
    why: str = ""

    def said(self) -> Any:
        """What the command answers: the figure at ``at``, or the refusal's words where it refuses."""
        try:
            document = ask(*shlex.split(self.ask)).document
        except GpuwiseError as error:
            return str(error)
        return found(document, self.at.split(".")) if self.at else "answered"

    def verdict(self, said: Any) -> str:
        """Right, partly or wrong."""
        if self.refused:
            return "right" if isinstance(said, str) and re.search(self.refused, said) else "wrong"
        if isinstance(self.measured, str | bool):
            return "right" if said == self.measured else "wrong"
        if not isinstance(said, int | float):
            return "wrong"
        low, high = cast("list[float]", [self.measured] * 2 if isinstance(self.measured, int | float) else self.measured)
        off = max(said / high - 1.0, 1.0 - said / low, 0.0)
        return "right" if off <= RIGHT else "partly" if off <= PARTLY else "wrong"


def found(document: Any, path: list[str]) -> Any:
    """What stands at ``path`` of ``document``; ``*`` is any part that has the rest. None where nothing does."""
    if not path:
        return document
    key, rest = path[0], path[1:]
    if isinstance(document, list):
        parts = {str(i): part for i, part in enumerate(cast("list[Any]", document))}
        return found(parts.get(key), rest)
    if not isinstance(document, dict):
        return None
    parts = cast("dict[str, Any]", document)
    if key != "*":
        return found(parts.get(key), rest)
    inside = (found(part, rest) for part in parts.values())
    return next((x for x in inside if x is not None), None)


def reports() -> list[Report]:
    """All rows of all files."""
    return [Report(**row) for file in sorted(FOLDER.glob("*.toml")) for row in tomllib.loads(file.read_text())["report"]]


def main() -> None:
    words = sys.argv[1] if len(sys.argv) > 1 else ""
    counted: Counter[str] = Counter()
    for report in reports():
        if words not in report.ask + report.source:
            continue
        said = report.said()
        verdict = report.verdict(said)
        counted[verdict] += 1
        figure = f"{said:.6g}" if isinstance(said, int | float) else str(said)
        measured = str(report.refused or report.measured)
        sys.stdout.write(f"{verdict:7} {figure:>12.60} {measured:>14}  {report.source}: {report.ask}\n")
    sys.stdout.write(", ".join(f"{counted[v]} {v}" for v in reversed(VERDICTS)) + f" of {counted.total()}\n")


if __name__ == "__main__":
    main()
