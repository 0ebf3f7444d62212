"""``gpuwise bench --list``, ``--history``, ``--export`` and ``--import``: what can be measured, and what was."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.errors import DataError, InputError
from gpuwise.files import write_whole

if TYPE_CHECKING:
    from gpuwise.machine.bench.history import DevicePast


def show_list(only: tuple[str, ...], *, quick: bool, json: bool) -> int:
    """The table of measurements."""
    from gpuwise.cli.out import console, print_json, table_of
    from gpuwise.machine.bench.cases import FAMILIES, select_cases

    rows = select_cases(only, quick=quick)
    if json:
        listed = [{"measurement": c.key, "family": c.family, "on": sorted(c.on), "quick": c.quick, "unit": c.unit} for c in rows]
        print_json({"measurements": listed})
        return 0
    to = console()
    table = table_of(("measurement", "on", "quick"), left=("measurement", "on", "quick"), gives_way=("quick",))
    for family in dict.fromkeys(c.family for c in rows):
        if table.row_count:
            table.add_heading("")
        table.add_heading(family + ": " + FAMILIES[family][1], style="bold")
        for c in rows:
            if c.family == family:
                on = ", ".join({"cuda": "gpu", "cpu": "cpu"}[kind] for kind in sorted(c.on))
                table.add_row("  " + c.key, on, "yes" if c.quick else "")
    to.print(table)
    return 0


def show_kept(export: str | None, import_: Path | None, model: str | None, *, json: bool) -> int:
    """Export, import, or the records by device. ``model`` is the one whose speeds are imported, where it is named."""
    from gpuwise.records.store import Records

    if import_ is not None:
        return _import(import_, model, json=json)
    with Records(create=False) as records:
        if export is not None:
            return _export(records, export)
        return _history(records, json=json)


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


def _history(records: object, *, json: bool) -> int:
    """The newest value of each measurement of each device beside what is expected, and how many there are."""
    from gpuwise.cli.out import console, print_json, section, table_of
    from gpuwise.machine.bench.history import history
    from gpuwise.records.record import record_document
    from gpuwise.records.store import Records
    from gpuwise.units import format_day, format_measured

    assert isinstance(records, Records)
    all_records = records.query()
    devices = history(all_records)
    if json:
        print_json({"devices": [_device(d) for d in devices], "records": [record_document(r) for r in all_records]})
        return 0
    to = console()
    if not all_records:
        to.print("nothing was measured yet; `gpuwise bench` measures")
    for device in devices:
        table = table_of(
            ("measurement", "newest", "expected", "median", "of", "on"),
            left=("measurement",),
            wrap=("measurement",),
            gives_way=("of", "on"),
        )
        for row in device.rows:
            last, e = row.newest.record, row.newest.expectation
            table.add_row(
                last.measurement,
                "failed" if last.value is None else format_measured(last.value, last.unit),
                "-" if e is None else format_measured(e.expected, last.unit),
                "-" if row.median is None else format_measured(row.median, last.unit),
                str(row.count),
                format_day(last.at_s),
            )
        section(to, f"{device.name}, machine {device.machine_id}", table)
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
