"""``gpuwise validate --runs`` and ``--ranks``: predictions of trainings on this machine beside what was measured, and a run on
ranks, ended or under way, by its journals."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwise.cli.reports import report

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown


def validate_ranks(folder: Path, shown: Shown | None = None, *, json: bool) -> int:
    """Exit code 0 unless a rank failed. Raises InputError where ``folder`` holds no run."""
    from gpuwise.report.answers.scores import ranks_answer
    from gpuwise.train.ranks.report import ranks_document

    document = ranks_document(folder.absolute(), time.time())
    report(document, ranks_answer, shown, json=json)
    return 1 if document["state"] == "failed" else 0


def validate_runs(shown: Shown | None, *, json: bool) -> int:
    """Exit code 0 when at least one prediction is in the records."""
    from gpuwise.report.answers.machine import runs_answer

    document = {"runs": own_document(), "each": each_document()}
    report(document, runs_answer, shown, json=json)
    return 0 if document["runs"] else 1


def own_document() -> list[dict[str, Any]]:
    """By kind, as JSON. Raises DataError where the records cannot be read."""
    from dataclasses import asdict

    from gpuwise.train.tune.record import prediction_errors

    return [asdict(e) for e in prediction_errors()]


def each_document() -> list[dict[str, Any]]:
    """Every prediction beside its measurement, oldest first, as JSON."""
    from dataclasses import asdict

    from gpuwise.train.tune.record import comparisons
    from gpuwise.units import format_day

    made = list[dict[str, Any]]()
    for c in comparisons():
        row = {**asdict(c), "on": format_day(c.at_s), "error": c.error}
        del row["at_s"]
        made.append(row)
    return made
