"""``gpuwise bench --list``, ``--history``, ``--export`` and ``--import``: what can be measured, and what was."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from gpuwise.errors import InputError


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
        table.add_heading(family + ": " + FAMILIES[family][2], style="bold")
        for c in rows:
            if c.family == family:
                on = ", ".join({"cuda": "gpu", "cpu": "cpu"}[kind] for kind in sorted(c.on))
                table.add_row("  " + c.key, on, "yes" if c.quick else "")
    to.print(table)
    return 0


def show_kept(export: Path | None, import_: Path | None, *, json: bool) -> int:
    """Export, import, or the records by device."""
    from gpuwise.records.store import Records

    if import_ is not None:
        return _import(import_, json=json)
    with Records(create=False) as records:
        if export is not None:
            return _export(records, export)
        return _history(records, json=json)


def _import(path: Path, *, json: bool) -> int:
    from gpuwise.cli.out import print_json
    from gpuwise.records.store import Records

    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InputError(f"{path} cannot be read: {reason}", hint="give a file that --export wrote") from None
    with Records() as records:
        new = records.import_lines(lines, str(path))
        if json:
            print_json({"new": new, "records": str(records.path)})
        else:
            sys.stdout.write(f"{new} new records in {records.path}\n")
    return 0


def _export(records: object, path: Path) -> int:
    from gpuwise.records.store import Records

    assert isinstance(records, Records)
    text = "".join(line + "\n" for line in records.export_lines())
    if str(path) == "-":
        sys.stdout.write(text)
        return 0
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", hint="give another file to --export") from None
    return 0


def _history(records: object, *, json: bool) -> int:
    """The newest value of each measurement of each device, and how many there are."""
    from gpuwise.cli.bench.view import format_value
    from gpuwise.cli.out import console, print_json, section, table_of
    from gpuwise.machine.bench.sampling import summarise
    from gpuwise.records.record import record_document
    from gpuwise.records.store import Records

    assert isinstance(records, Records)
    all_records = records.query()
    if json:
        print_json({"records": [record_document(r) for r in all_records]})
        return 0
    to = console()
    if not all_records:
        to.print("nothing was measured yet; `gpuwise bench` measures")
    for machine, device, name in dict.fromkeys((r.run.machine_id if r.run else "", r.device, r.device_name) for r in all_records):
        table = table_of(
            ("measurement", "newest", "median", "of", "on"), left=("measurement",), wrap=("measurement",), gives_way=("of", "on")
        )
        here = [r for r in all_records if r.device == device and r.run is not None and r.run.machine_id == machine]
        for key in sorted({r.measurement for r in here}):
            rows = [r for r in here if r.measurement == key]
            values = [r.value for r in rows if r.value is not None]
            last = rows[-1]
            day = time.strftime("%Y-%m-%d", time.gmtime(last.at_s))
            newest = "failed" if last.value is None else format_value(last.value, last.unit)
            table.add_row(key, newest, format_value(summarise(values).median, last.unit) if values else "-", str(len(rows)), day)
        section(to, f"{name}, machine {machine}", table)
    return 0
