"""``gpuwise validate --local``: runs the cases, shows prediction beside measurement."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.machine.bench.local.validation import Machine


def validate_local(only: str | None, minutes: float | None, record: Path | None, shown: Shown | None, *, json: bool) -> int:
    """Exit code 0 when at least one case could be compared."""
    import sys
    from dataclasses import asdict

    from gpuwise.cli.reports import report
    from gpuwise.cli.validate.runs import own_document
    from gpuwise.machine.bench.local.cases import choose, for_cpu
    from gpuwise.machine.bench.local.validation import find_machine, run, summarise
    from gpuwise.report.answers.machine import local_answer

    cases = choose(only)
    machine = find_machine()
    if machine.device == "cpu":
        cases = for_cpu(cases)
    path = record or _default_record(machine)
    results = run(cases, machine, path, minutes=minutes, progress=_progress(len(cases)))
    rows = summarise(results)
    document = {
        "machine": asdict(machine),
        "record": str(path),
        "asked": len(cases),
        "summary": [asdict(r) for r in rows],
        "runs": own_document(),
        "cases": [{"case": r.case, "predicted": r.predicted, "measured": r.measured} for r in results],
    }
    sys.stderr.write(f"record: {path}\n")
    report(document, local_answer, shown, json=json)
    return 0 if rows else 1


def _default_record(machine: Machine) -> Path:
    """A file beside the user's records: nothing is written into the folder one stands in without being asked."""
    import datetime

    from gpuwise.records.store import records_path

    gpu = re.sub(r"[^a-z0-9]+", "-", machine.gpu.lower()).strip("-")
    folder = records_path().parent
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"local-validation-{gpu}-{datetime.date.today().isoformat()}.jsonl"


def _progress(total: int):
    """Says on stderr which case runs."""
    import sys

    count = iter(range(1, total + 1))

    def say(text: str) -> None:
        print(f"[{next(count, total)}/{total}] {text}", file=sys.stderr)

    return say
