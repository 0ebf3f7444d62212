"""``gpuwise validate --local``: runs the cases, shows prediction beside measurement."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwise.machine.bench.local.validation import LocalResult, Machine

NAMES = {
    "allocated_bytes": "peak allocated",
    "reserved_bytes": "peak reserved",
    "process_bytes": "nvidia-smi",
    "step_time_s": "step time",
}


def validate_local(only: str | None, minutes: float | None, record: Path | None, *, json: bool) -> int:
    """Exit code 0 when at least one case could be compared."""
    from gpuwise.machine.bench.local.cases import choose, for_cpu
    from gpuwise.machine.bench.local.validation import find_machine, run, summarise

    cases = choose(only)
    machine = find_machine()
    if machine.device == "cpu":
        cases = for_cpu(cases)
    path = record or _default_record(machine)
    results = run(cases, machine, path, minutes=minutes, progress=_progress(len(cases)))
    rows = summarise(results)
    if json:
        from dataclasses import asdict

        from gpuwise.cli.out import print_json
        from gpuwise.cli.validate.runs import own_document

        print_json(
            {
                "machine": asdict(machine),
                "record": str(path),
                "asked": len(cases),
                "summary": [asdict(r) for r in rows],
                "runs": own_document(),
                "cases": [{"case": r.case, "predicted": r.predicted, "measured": r.measured} for r in results],
            }
        )
    else:
        _show(machine, path, results)
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


def _show(machine: Machine, path: Path, results: list[LocalResult]) -> None:
    from gpuwise.cli.out import console, section, table_of
    from gpuwise.cli.validate.runs import show_runs
    from gpuwise.machine.bench.local.validation import QUANTITIES, summarise

    to = console()
    driver = f", driver {machine.driver}" if machine.driver else ""
    to.print(f"{machine.gpu}, torch {machine.torch}{driver}", style="bold")
    quantities = [q for q in QUANTITIES if any(r.error(q) is not None for r in results)]
    table = table_of(["case", *(NAMES[q] for q in quantities)], left=("case",), wrap=("case",))
    failures: list[str] = []
    for r in results:
        if all(r.error(q) is None for q in quantities):
            side, reason = ("measuring", r.measured) if "failed" in r.measured else ("predicting", r.predicted)
            failures.append(f"{r.case}: {side}: {reason.get('failed', 'nothing to compare')}")
            continue
        table.add_row(r.case, *(_cell(r, q) for q in quantities))
    to.print(table)
    errors = table_of(["", "cases", "median error", "MAPE", "90 % within", "bias"], left=("",), gives_way=("90 % within",))
    for s in summarise(results):
        errors.add_row(
            NAMES[s.quantity],
            str(s.cases),
            f"{s.median_ape:.1%}",
            f"{s.mape:.1%}",
            f"{s.p90_ape:.1%}",
            f"{s.bias:+.1%}",
        )
    section(to, "Prediction against measurement", errors)
    if failures:
        section(to, "Not compared", "\n".join(failures))
    show_runs(to)
    if machine.device == "cpu":
        to.print("\nNo GPU here: the bytes of live storages on the CPU were compared, not time.", style="dim")
    to.print(f"\nrecord: {path}", style="dim", soft_wrap=True)


def _cell(result: LocalResult, quantity: str) -> str:
    from gpuwise.units import format_bytes, format_duration

    error = result.error(quantity)
    if error is None:
        return "-"
    show = format_duration if quantity.endswith("_s") else format_bytes
    return f"{show(result.measured[quantity])} {error:+.1%}"
