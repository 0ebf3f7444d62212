"""``gpuwise bench --list``, ``--history``, ``--export`` and ``--import``: what can be measured, and what was."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.cli.reports import report
from gpuwise.errors import DataError, InputError
from gpuwise.files import write_whole

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.machine.bench.history import DevicePast
    from gpuwise.records.store import Records


def show_list(only: tuple[str, ...], *, quick: bool, shown: Shown | None, json: bool) -> int:
    """The table of measurements."""
    from gpuwise.machine.bench.cases import select_cases
    from gpuwise.report.answers.machine import measurements_answer

    rows = select_cases(only, quick=quick)
    listed = [{"measurement": c.key, "family": c.family, "on": sorted(c.on), "quick": c.quick, "unit": c.unit} for c in rows]
    report({"measurements": listed}, measurements_answer, shown, json=json)
    return 0


def show_kept(export: str | None, import_: Path | None, model: str | None, shown: Shown | None, *, json: bool) -> int:
    """Export, import, or the records by device. ``model`` is the one whose speeds are imported, where it is named."""
    from gpuwise.records.store import Records

    if import_ is not None:
        return _import(import_, model, json=json)
    with Records(create=False) as records:
        if export is not None:
            return _export(records, export)
        return _history(records, shown, json=json)


def _import(path: Path, model: str | None, *, json: bool) -> int:
    from gpuwise.cli.out import print_json
    from gpuwise.files import GIB, read_stdin, read_text
    from gpuwise.records.store import Records

    is_stdin = str(path) == "-"
    text = read_stdin() if is_stdin else read_text(path, most=GIB, hint="give a file that --export or a program wrote")
    lines = text.splitlines()
    if model is not None or (lines and '"measurement"' not in lines[0]):
        from gpuwise.cli.bench.model import import_speeds

        return import_speeds(text, "stdin" if is_stdin else str(path), model, json=json)
    with Records() as records:
        try:
            new = records.import_lines(lines, str(path))
        except DataError as error:
            if not error.message.startswith(str(path)):
                raise
            raise InputError(error.message, hint=error.hint) from None  # in the file that was named, not in the records
        if json:
            print_json({"new": new, "records": str(records.path)})
        else:
            sys.stdout.write(f"{new} new records in {records.path}\n")
    return 0


def _export(records: object, name: str) -> int:
    from gpuwise.records.store import Records

    assert isinstance(records, Records)
    text = "".join(line + "\n" for line in records.export_lines())
    if name == "-":
        sys.stdout.write(text)
    else:
        write_whole(Path(name), text)
    return 0


def _history(records: Records, shown: Shown | None, *, json: bool) -> int:
    """The newest value of each measurement of each device beside what is expected, and how many there are."""
    from gpuwise.machine.bench.history import history
    from gpuwise.records.record import record_document
    from gpuwise.report.answers.machine import history_answer

    all_records = records.query()
    devices = [_device(d) for d in history(all_records)]
    report({"devices": devices, "records": [record_document(r) for r in all_records]}, history_answer, shown, json=json)
    return 0


def _device(device: DevicePast) -> dict[str, object]:
    """One device's measurements as JSON."""
    from gpuwise.units import format_day

    rows = list[dict[str, object]]()
    for row in device.rows:
        last, e = row.newest.record, row.newest.expectation
        rows.append(
            {
                "measurement": last.measurement,
                "unit": last.unit,
                "newest": last.value,
                "failed": last.failed,
                "expected": None if e is None else {"low": e.low, "expected": e.expected, "high": e.high, "source": e.source},
                "of_expected": row.newest.of_expected,
                "verdict": str(row.newest.verdict),
                "reason": row.newest.reason,
                "median": row.median,
                "count": row.count,
                "on": format_day(last.at_s),
            }
        )
    return {"device": device.name, "machine_id": device.machine_id, "measurements": rows}
