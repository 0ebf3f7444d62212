"""``gpuwise validate --ranks``: a run on ranks, ended or under way, by its journals."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

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
