"""The tables of a recording, from the fields of what is recorded. SQLite; one file.

``recording`` holds the version and what was recorded; ``card`` who the cards are; ``frame`` one row a refresh; ``sample`` one
row a card and refresh; ``health`` one a card and slow reading; ``process`` one a process, ``process_sample`` one a process, card
and refresh; ``cause`` one a cause from when it came to when it went. ``words`` holds texts that repeat (JSON), and columns that
end in ``_words`` point there. Units are in the names.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Union, get_args, get_origin

from gpuwise.machine.devices.readings import GpuProcess, Health, Sample
from gpuwise.machine.telemetry.frames import HostProcess
from gpuwise.machine.telemetry.recording.plain import field_types

VERSION = 1
"""Raise it when a field that is recorded changes its meaning; new fields need no new version."""
APPLICATION_ID = 0x67707577
"""``gpuw``: so that `file` and we know such a file."""
STILL = ("name", "command", "user", "container", "parent_pid", "started_s")
"""Fields of a process that do not change while it lives."""

Columns = Mapping[str, Any]


@cache
def columns(kind: type, *left_out: str) -> Columns:
    """Column -> the type of the field it holds."""
    return {name: hint for name, hint in field_types(kind).items() if name not in left_out}


def sample_columns() -> Columns:
    """Columns of the table ``sample``."""
    return columns(Sample, "index", "processes")


def health_columns() -> Columns:
    """Columns of the table ``health``."""
    return columns(Health, "index")


def gpu_columns() -> Columns:
    """Columns of a process on a GPU."""
    return columns(GpuProcess, "pid")


def host_columns() -> Columns:
    """Columns of a process on the host."""
    return columns(HostProcess, "pid", *STILL)


def is_text_apart(hint: Any) -> bool:
    """Whether a field is stored as JSON in ``words``."""
    return get_origin(_bare(hint)) is not None


def _bare(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = [a for a in get_args(hint) if a is not type(None)]
    return hint


def _declaration(table: Columns, before: str = "") -> str:
    parts: list[str] = []
    for name, hint in table.items():
        bare = _bare(hint)
        kind = "REAL" if bare is float else "INTEGER" if bare in (int, bool) or is_text_apart(hint) else "TEXT"
        parts.append(f"{column_name(name, hint, before)} {kind}")
    return ", ".join(parts)


def column_name(name: str, hint: Any, before: str = "") -> str:
    """The column of a field."""
    return f"{before}{name}_words" if is_text_apart(hint) else f"{before}{name}"


def statements() -> tuple[str, ...]:
    """The SQL statements that make an empty recording."""
    return (
        f"PRAGMA application_id = {APPLICATION_ID}",
        f"PRAGMA user_version = {VERSION}",
        "CREATE TABLE recording (key TEXT PRIMARY KEY, value TEXT)",
        "CREATE TABLE words (id INTEGER PRIMARY KEY, text TEXT)",
        "CREATE TABLE card (number INTEGER, sequence INTEGER, name TEXT, uuid TEXT, identity TEXT, "
        "PRIMARY KEY (number, sequence))",
        "CREATE TABLE frame (sequence INTEGER PRIMARY KEY, at_s REAL, wall_s REAL, failed_words INTEGER, host TEXT, "
        "drivers_words INTEGER, xids_words INTEGER)",
        f"CREATE TABLE sample (sequence INTEGER, number INTEGER, mean_power_w REAL, processes_listed INTEGER, "
        f"{_declaration(sample_columns())}, "
        "PRIMARY KEY (sequence, number)) WITHOUT ROWID",
        f"CREATE TABLE health (sequence INTEGER, number INTEGER, error TEXT, {_declaration(health_columns())}, "
        "PRIMARY KEY (sequence, number)) WITHOUT ROWID",
        "CREATE TABLE process (id INTEGER PRIMARY KEY, pid INTEGER, name TEXT, command TEXT, user TEXT, container TEXT, "
        "parent_pid INTEGER, started_s REAL)",
        f"CREATE TABLE process_sample (sequence INTEGER, number INTEGER, process INTEGER, {_declaration(gpu_columns())}, "
        f"{_declaration(host_columns(), 'host_')}, PRIMARY KEY (sequence, number, process)) WITHOUT ROWID",
        "CREATE TABLE cause (number INTEGER, id TEXT, severity TEXT, from_sequence INTEGER, to_sequence INTEGER, sentence TEXT, "
        "evidence TEXT, cost TEXT, hint TEXT)",
    )
