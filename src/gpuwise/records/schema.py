"""The tables of a record file, and the migration of files from older versions of gpuwise.

``PRAGMA user_version`` counts the applied steps of :data:`MIGRATIONS`; ``application_id`` marks it as gpuwise's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from gpuwise.errors import DataError

APPLICATION_ID = 0x67707765
""""gpwe" in ASCII."""
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE runs (
            id TEXT PRIMARY KEY, at_s REAL NOT NULL, machine_id TEXT NOT NULL, machine TEXT NOT NULL,
            software TEXT NOT NULL, command TEXT NOT NULL) STRICT""",
        """CREATE TABLE records (
            number INTEGER PRIMARY KEY, run TEXT NOT NULL REFERENCES runs(id), at_s REAL NOT NULL,
            measurement TEXT NOT NULL, family TEXT NOT NULL, device TEXT NOT NULL, device_name TEXT NOT NULL,
            accelerator TEXT, dtype TEXT NOT NULL, parameters TEXT NOT NULL, unit TEXT NOT NULL, value REAL, low REAL,
            high REAL, samples INTEGER NOT NULL, time_s REAL, correct INTEGER, error REAL, conditions TEXT NOT NULL,
            failed TEXT) STRICT""",
    ),
    (
        "CREATE INDEX records_of_a_device ON records (accelerator, measurement, at_s)",
        # an import that is repeated adds nothing
        "CREATE UNIQUE INDEX records_once ON records (run, device, measurement, at_s)",
    ),
)
"""A step is never changed once released: a new one is added."""


def migrate(connection: sqlite3.Connection, path: Path, steps: Sequence[Sequence[str]] = MIGRATIONS) -> None:
    """Bring the file to the newest schema, all steps or none. Raises DataError for a file that is not ours or newer."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        ours = int(connection.execute("PRAGMA application_id").fetchone()[0]) == APPLICATION_ID
        if not ours and (version or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]):
            raise DataError(f"{path} is a database of another program", hint="set GPUWISE_RECORDS to another file")
        if version > len(steps):
            raise DataError(
                f"{path} was written by a newer gpuwise (schema {version}, this one knows {len(steps)})",
                hint="pip install -U gpuwise, or set GPUWISE_RECORDS to another file",
            )
        for step in steps[version:]:
            for statement in step:
                connection.execute(statement)
        if version < len(steps):
            connection.execute(f"PRAGMA user_version = {len(steps)}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
