"""Storage of measurements: one SQLite file in write-ahead mode, one row a measurement.

A row is on the disk before :meth:`Records.add` returns, so a killed process loses no measurement. Several processes may write
at once. The file is ``$GPUWISE_RECORDS``, else ``$GPUWISE_HOME/records.db``, else in the platform's folder for user data.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpuwise.errors import DataError, FileError
from gpuwise.files import parse_json
from gpuwise.records.record import COLUMNS, MAPPINGS, Record, Run, check_record, record_document, record_from
from gpuwise.records.schema import migrate

WAIT_S = 30.0
"""Seconds a writer waits for another writing process."""
_MOVE = "move the file away and measure again, or set GPUWISE_RECORDS to another"
_IN_FILE = ("run", *COLUMNS)
_INSERT = f"INSERT INTO records ({', '.join(_IN_FILE)}) VALUES ({', '.join('?' * len(_IN_FILE))}) ON CONFLICT DO NOTHING"
_SELECT = (
    f"SELECT {', '.join('records.' + c for c in COLUMNS)}, "
    "runs.id, runs.at_s, runs.machine_id, runs.machine, runs.software, runs.command "
    "FROM records JOIN runs ON records.run = runs.id"
)


def records_path() -> Path:
    """The file of this user's records; it may not be there yet."""
    named = os.environ.get("GPUWISE_RECORDS")
    if named:
        return Path(named)
    home = os.environ.get("GPUWISE_HOME")
    if home:
        return Path(home) / "records.db"
    from platformdirs import user_data_path

    return user_data_path("gpuwise", appauthor=False) / "records.db"


class Records:
    """An open record file; a context manager. Every method raises DataError with advice where the file is not usable."""

    def __init__(self, path: Path | None = None, *, create: bool = True) -> None:
        self.path = records_path() if path is None else path
        with _as_data_error(self.path):
            if create:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            elif not self.path.exists():
                raise DataError(f"there is no record file {self.path}", hint="`gpuwise bench` writes it")
            self._connection = sqlite3.connect(self.path, timeout=WAIT_S, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self) -> None:
        run = self._connection.execute
        run("PRAGMA foreign_keys = ON")
        # a file system without shared memory (some network ones) stays in its own mode: slower, as safe
        _when_free(lambda: run("PRAGMA journal_mode = WAL"))
        run("PRAGMA synchronous = FULL")
        migrate(self._connection, self.path)

    def start(self, run: Run) -> None:
        """Note a run; records are added to it. Noting it twice changes nothing."""
        row = (run.id, run.at_s, run.machine_id, _json(run.machine), _json(run.software), run.command)
        with _as_data_error(self.path):
            self._connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row)

    def add(self, run: Run, record: Record) -> None:
        """Store ``record``; it is on disk when this returns."""
        row = _row(run, check_record(record))
        with _as_data_error(self.path):
            self._connection.execute(_INSERT, row)

    def query(
        self,
        *,
        measurement: str | None = None,
        family: str | None = None,
        accelerator: str | None = None,
        device: str | None = None,
        machine_id: str | None = None,
        run: str | None = None,
        since_s: float | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        """The records with all the given field values, oldest first; with ``limit`` the newest of that number."""
        conditions = {
            "records.measurement": measurement,
            "records.family": family,
            "records.accelerator": accelerator,
            "records.device": device,
            "runs.machine_id": machine_id,
            "runs.id": run,
        }
        parts = [f"{column} = ?" for column, value in conditions.items() if value is not None]
        values: list[Any] = [value for value in conditions.values() if value is not None]
        if since_s is not None:
            parts.append("records.at_s >= ?")
            values.append(since_s)
        text = _SELECT + (" WHERE " + " AND ".join(parts) if parts else "") + " ORDER BY records.at_s DESC, number DESC"
        if limit is not None:
            text += " LIMIT ?"
            values.append(limit)
        with _as_data_error(self.path):
            rows = self._connection.execute(text, values).fetchall()
            return [_record(row) for row in reversed(rows)]

    def export_lines(self, **conditions: Any) -> Iterator[str]:
        """One JSON object a record, without line end; takes what :meth:`query` takes."""
        for record in self.query(**conditions):
            yield json.dumps(record_document(record), allow_nan=False, separators=(",", ":"))

    def import_lines(self, lines: Iterable[str], name: str = "import") -> int:
        """Add the records of JSON lines, all or none; those already here stay as they are. Returns how many are new."""
        imported: list[Record] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                document = parse_json(line, name, line=number, finite=False)
            except FileError as error:
                raise DataError(error.message, hint="one object a line, as an export writes it") from None
            imported.append(record_from(document, f"{name}:{number}"))
        with _as_data_error(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for record in imported:
                    assert record.run is not None
                    self.start(record.run)
                at_runs = self._connection.total_changes
                for record in imported:
                    assert record.run is not None
                    self.add(record.run, record)
                new = self._connection.total_changes - at_runs
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        return new

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _when_free(act: Callable[[], object]) -> None:
    """Run ``act`` once other processes release the file, at most WAIT_S later.

    SQLite waits itself for every statement except the change of the journal's mode: that needs the whole file, and two
    processes that open a new file at once would wait for each other (sqlite.org/c3ref/busy_handler.html), so it fails at once.
    """
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            act()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until_s:
                raise
        time.sleep(random.uniform(0.002, 0.02))


@contextlib.contextmanager
def _as_data_error(path: Path) -> Generator[None, None, None]:
    """SQLite's and the file system's errors as DataError."""
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        hint = "another process holds it: try again" if "locked" in text else "check the folder, its rights and its free space"
        raise DataError(f"the record file {path} cannot be used: {text}", hint=f"{hint}, or set GPUWISE_RECORDS") from error
    except (sqlite3.DatabaseError, UnicodeError, ValueError) as error:
        raise DataError(f"the record file {path} is corrupt: {error}", hint=_MOVE) from error
    except OSError as error:
        raise DataError(
            f"the record file {path} cannot be used: {error.strerror or error}", hint="set GPUWISE_RECORDS to another file"
        ) from error


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _row(run: Run, record: Record) -> tuple[Any, ...]:
    values = [getattr(record, name) for name in COLUMNS]
    return (run.id, *(_json(dict(v)) if name in MAPPINGS else v for name, v in zip(COLUMNS, values, strict=True)))


def _record(row: tuple[Any, ...]) -> Record:
    fields = dict(zip(COLUMNS, row, strict=False))
    fields |= {name: json.loads(fields[name]) for name in MAPPINGS}
    fields["correct"] = None if fields["correct"] is None else bool(fields["correct"])
    run_id, at_s, machine_id, machine, software, command = row[len(COLUMNS) :]
    run = Run(run_id, at_s, machine_id, json.loads(machine), json.loads(software), command)
    return Record(**fields, run=run)
