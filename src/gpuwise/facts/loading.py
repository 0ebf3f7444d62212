"""Strict reading of fact files: TOML and CSV in, typed records out, or a FieldError with file, line and field.

Every table is read against a literal schema ``{name: Field}``. An unknown, missing or misspelt name, an empty cell that is
required, NaN, an infinity, a negative or zero where only positive makes sense, and a value of the wrong type are all rejected;
nothing is guessed, converted or dropped. The same functions read shipped and user files.
"""

from __future__ import annotations

import datetime
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeVar, cast

from gpuwise.errors import DataError, FieldError, nearest_names
from gpuwise.facts.plugins import plugin_folders
from gpuwise.files import csv_rows, read_text
from gpuwise.files import parse_toml as toml_tables

DATA = Path(__file__).parent / "data"
_SUBJECTS = ("", "hardware", "models", "offers", "operations", "software")
"""The fact files shipped with the package."""

Kind = Literal["text", "number", "integer", "date", "flag", "names", "numbers"]
Value = str | float | int | bool | datetime.date | tuple[str, ...] | dict[str, float]

_NUMBER = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?", re.ASCII)
_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_HEADER = re.compile(r"\s*\[\[?\s*(.+?)\s*\]\]?\s*(#.*)?")
_WHAT = {
    "text": "text",
    "number": "a number",
    "integer": "a whole number",
    "date": "a date like 2026-01-31",
    "flag": "true or false",
    "names": "a list of names",
    "numbers": "a table of numbers",
}


@dataclass(frozen=True, slots=True)
class Field:
    """Requirements on one field of a table. Numbers must be positive unless ``minimum`` is lower."""

    kind: Kind
    required: bool = True
    minimum: float | None = None
    """Smallest number allowed; None: anything above zero."""
    maximum: float | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """One checked row or table: values by field name, optional fields that were not given are absent."""

    values: Mapping[str, Value]
    file: str
    line: int | None
    name: str = ""
    """The table's own name in a TOML file."""

    def text(self, field: str, default: str = "") -> str:
        """The text of ``field``; ``default`` where it was not given."""
        return cast(str, self.values.get(field, default))

    def number(self, field: str) -> float:
        """A required number."""
        return float(cast(float, self.values[field]))

    def maybe(self, field: str) -> float | None:
        """An optional number: None when it was not given."""
        value = self.values.get(field)
        return None if value is None else float(cast(float, value))

    def integer(self, field: str) -> int:
        """A required whole number. Raises KeyError for a field that the schema does not require and the row leaves empty."""
        return cast(int, self.values[field])

    def maybe_integer(self, field: str) -> int | None:
        """An optional whole number: None when it was not given."""
        return cast("int | None", self.values.get(field))

    def maybe_flag(self, field: str) -> bool | None:
        """An optional ``true`` or ``false``: None when it was not given."""
        return cast("bool | None", self.values.get(field))

    def date(self, field: str) -> datetime.date:
        """A required day."""
        return cast(datetime.date, self.values[field])

    def maybe_date(self, field: str) -> datetime.date | None:
        """An optional day: None when it was not given."""
        return cast("datetime.date | None", self.values.get(field))

    def names(self, field: str) -> tuple[str, ...]:
        """The words of a list, in its order; empty when it was not given."""
        return cast("tuple[str, ...]", self.values.get(field, ()))

    def numbers(self, field: str) -> dict[str, float]:
        """Numbers by name; empty when they were not given."""
        return cast("dict[str, float]", self.values.get(field, {}))

    def error(self, message: str, *, field: str | None = None, hint: str | None = None) -> FieldError:
        """A FieldError that points at this record."""
        return FieldError(message, file=self.file, line=self.line, field=field, hint=hint)


Schema = Mapping[str, Field]
_N = TypeVar("_N", int, float)
_T = TypeVar("_T")


class ShippedData:
    """Context for reading a shipped file: an error in it is a DataError, while in a user's own file it is a FieldError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, FieldError):
            raise DataError(error.message, hint=error.hint) from error


def own_folder() -> Path:
    """Where a person's own rows are: ``$GPUWISE_HOME/facts``, or ``facts`` of the user's configuration folder."""
    home = os.environ.get("GPUWISE_HOME")
    return Path(home) / "facts" if home else user_folder("config") / "facts"


@cache
def user_folder(kind: Literal["config", "data"]) -> Path:
    """The platform's folder of a person's configuration or data, as platformdirs has it."""
    if sys.platform.startswith("linux"):  # every command would pay for the import
        variable, usual = {"config": ("XDG_CONFIG_HOME", "~/.config"), "data": ("XDG_DATA_HOME", "~/.local/share")}[kind]
        return Path(os.environ.get(variable) or usual).expanduser() / "gpuwise"
    from platformdirs import user_config_path, user_data_path

    return {"config": user_config_path, "data": user_data_path}[kind]("gpuwise", appauthor=False)


def own_texts(name: str) -> list[tuple[str, str]]:
    """The texts and paths of the files ``name`` of plugins and of a person's own folder, of the form of the shipped one. The
    last wins. Raises FileError."""
    paths = (folder / name for folder in (*plugin_folders("facts"), own_folder()))
    return [(read_text(p, hint=f"the folder of own facts is {own_folder()}"), str(p)) for p in paths if p.is_file()]


def own_rows(name: str, schema: Schema) -> list[Record]:
    """The rows of all own CSV files ``name``, checked as the shipped ones. Raises FieldError."""
    return [row for text, path in own_texts(name) for row in parse_csv(text, schema, path)]


def shipped_path(name: str) -> Path:
    """Path of the fact file ``name`` under :data:`DATA`: names are unique over its folders. An unknown name is placed at the
    top, where reading it fails."""
    return next((path for subject in _SUBJECTS if (path := DATA / subject / name).is_file()), DATA / name)


def shipped_text(name: str) -> str:
    """The text of a fact file of the package. Raises DataError when it is missing or not UTF-8."""
    try:
        return shipped_path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the fact file {name} cannot be read: {error}", hint="reinstall gpuwise") from error


def parse_csv(text: str, schema: Schema, file: str) -> list[Record]:
    """The rows of a CSV table with a header line; a line that starts with ``#`` is a comment.

    Raises FieldError.
    """
    return [_record(row) for row in _csv_rows(text, schema, file)]


@dataclass(frozen=True, slots=True)
class _Row:
    """The cells of one row before they are checked, with what their columns require."""

    columns: Mapping[str, tuple[int, Field]]
    """Place and requirement by name."""
    cells: Sequence[str]
    file: str
    line: int

    def text(self, column: str) -> str:
        """Empty where the file does not have the column."""
        return self.cells[self.columns[column][0]] if column in self.columns else ""


def _csv_rows(text: str, schema: Schema, file: str) -> Iterator[_Row]:
    rows = ((line, cells) for line, cells in csv_rows(text, file) if cells and not cells[0].startswith("#"))
    header = next(rows, None)
    if header is None:
        raise FieldError("is empty", file=file, hint="the first line names the columns: " + ", ".join(schema))
    _check_names(header[1], schema, file, header[0], columns_of_csv=True)
    columns = {name: (i, schema[name]) for i, name in enumerate(header[1])}
    for line, cells in rows:
        if len(cells) != len(columns):
            raise FieldError(
                f"{len(cells)} cells where the header has {len(columns)}",
                file=file,
                line=line,
                hint="quote a cell that holds a comma",
            )
        yield _Row(columns, cells, file, line)


def _record(row: _Row) -> Record:
    values: dict[str, Value] = {}
    for (name, (_, field)), cell in zip(row.columns.items(), row.cells, strict=True):
        if cell:
            values[name] = _from_cell(cell, name, field, row.file, row.line)
        elif field.required:
            raise FieldError(f"{name} is empty", file=row.file, line=row.line, field=name, hint=_hint(field))
    return Record(values, row.file, row.line)


class Rows(Mapping[str, _T]):
    """What the rows of a shipped CSV file describe, by their id, with a person's own rows, which win.

    A shipped row is checked when it is asked for: all rows of a catalogue take a twentieth of a second. Raises DataError for what
    is shipped and corrupt, FieldError for a person's own.
    """

    def __init__(self, name: str, text: str, schema: Schema, make: Callable[[Record], _T]) -> None:
        """``text`` is that of the shipped file ``name``; ``make`` raises FieldError for a row that contradicts itself."""
        self._make = make
        self._made: dict[str, _T] = {}
        with ShippedData():
            self._rows = _by_id(_csv_rows(text, schema, name))
        for own, path in own_texts(name):
            rows = _by_id(_csv_rows(own, schema, path))
            self._made |= {key: make(_record(row)) for key, row in rows.items()}
            self._rows |= rows

    def __getitem__(self, key: str) -> _T:
        if key not in self._made:
            row = self._rows[key]
            with ShippedData():
                self._made[key] = self._make(_record(row))
        return self._made[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def texts(self, column: str) -> dict[str, str]:
        """The cell of ``column`` by id, unchecked; empty where a file does not have the column."""
        return {key: row.text(column) for key, row in self._rows.items()}

    def names(self) -> dict[str, list[str]]:
        """Id, name and aliases by id."""
        names, aliases = self.texts("name"), self.texts("aliases")
        return {key: [key, names[key], *filter(None, map(str.strip, aliases[key].split(";")))] for key in self}


def _by_id(rows: Iterable[_Row]) -> dict[str, _Row]:
    by_id: dict[str, _Row] = {}
    for row in rows:
        key = row.text("id")
        if key in by_id:
            raise FieldError(f"id {key!r} appears twice", file=row.file, line=row.line, field="id", hint="remove one line")
        by_id[key] = row
    return by_id


def parse_toml(text: str, schema: Schema, file: str) -> dict[str, Record]:
    """The top-level tables of a TOML file, each read against ``schema``. Raises FieldError."""
    document = toml_tables(text, file)
    lines = _TomlLines(text)
    records: dict[str, Record] = {}
    for name, table in document.items():
        if not isinstance(table, dict):
            raise FieldError(
                f"{name} stands outside a table",
                file=file,
                line=lines.find(None, name),
                field=name,
                hint="put it under a [name] line",
            )
        records[name] = _from_table(name, cast("dict[str, object]", table), schema, file, lines)
    return records


def _check_names(names: list[str], schema: Schema, file: str, line: int | None, *, columns_of_csv: bool = False) -> None:
    """Refuse a repeated or unknown name, then a required name that is missing."""
    what = "column" if columns_of_csv else "field"
    for i, name in enumerate(names):
        if name in names[:i]:
            raise FieldError(f"{what} {name!r} appears twice", file=file, line=line, field=name, hint="remove one")
        if name not in schema:
            raise _unknown(what, name, schema, file, line)
    for name, field in schema.items():
        if field.required and name not in names:
            near = nearest_names(name, [n for n in names if n not in schema], n=1)
            raise FieldError(
                f"{what} {name!r} is missing",
                file=file,
                line=line,
                field=name,
                hint=f"rename {near[0]!r}" if near else _hint(field),
            )


def _unknown(what: str, name: str, schema: Schema, file: str, line: int | None) -> FieldError:
    near = nearest_names(name, schema, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(schema)
    return FieldError(f"unknown {what} {name[:80]!r}", file=file, line=line, field=name, hint=hint)


def _hint(field: Field) -> str:
    return "one of " + ", ".join(field.choices) if field.choices else f"give {_WHAT[field.kind]}"


def _from_cell(cell: str, name: str, field: Field, file: str, line: int) -> Value:
    """A CSV cell as its field's type."""
    kind = field.kind
    if kind == "number" and _NUMBER.fullmatch(cell):
        return _in_range(float(cell), name, field, file, line)
    if kind == "integer" and _INTEGER.fullmatch(cell):
        return _in_range(int(cell), name, field, file, line)
    if kind == "text":
        return _one_of(cell, name, field, file, line)
    if kind == "names":
        return tuple(_one_of(part.strip(), name, field, file, line) for part in cell.split(";"))
    if kind == "flag" and cell in ("true", "false"):
        return cell == "true"
    if kind == "date" and _DATE.fullmatch(cell):
        try:
            return datetime.date.fromisoformat(cell)
        except ValueError:
            pass
    raise FieldError(f"{name} is {cell[:80]!r}, not {_WHAT[kind]}", file=file, line=line, field=name, hint=_hint(field))


def _from_table(name: str | None, table: dict[str, object], schema: Schema, file: str, lines: _TomlLines) -> Record:
    top = lines.find(name, None)
    for key in table:
        if key not in schema:
            raise _unknown("field", key, schema, file, lines.find(name, key))
    _check_names(list(table), schema, file, top)
    values: dict[str, Value] = {}
    for key, value in table.items():
        values[key] = _from_toml(value, key, schema[key], file, lines.find(name, key) or top)
    return Record(values, file, top, name or "")


def _from_toml(value: object, name: str, field: Field, file: str, line: int | None) -> Value:
    """A TOML value as its field's type; ``true`` is not a number and ``1`` is not a flag."""
    kind, shown = field.kind, str(value)[:80]
    if kind == "text" and isinstance(value, str):
        return _one_of(value, name, field, file, line)
    if kind == "flag" and isinstance(value, bool):
        return value
    if kind == "date" and isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    if not isinstance(value, bool):
        if kind == "integer" and isinstance(value, int):
            return _in_range(value, name, field, file, line)
        if kind == "number" and isinstance(value, int | float):
            return _in_range(_as_float(value), name, field, file, line)
    if kind == "names" and isinstance(value, list):
        parts = cast("list[object]", value)
        if all(isinstance(part, str) for part in parts):
            return tuple(_one_of(cast(str, part), name, field, file, line) for part in parts)
    if kind == "numbers" and isinstance(value, dict):
        return _numbers(cast("dict[str, object]", value), name, field, file, line)
    raise FieldError(
        f"{name} is {shown!r}, not {_WHAT[kind]}",
        file=file,
        line=line,
        field=name,
        hint=_hint(field),
    )


def _numbers(table: dict[str, object], name: str, field: Field, file: str, line: int | None) -> dict[str, float]:
    """An inline table of numbers, its keys among the field's choices."""
    numbers: dict[str, float] = {}
    for key, part in table.items():
        where = f"{name}.{key}"
        if field.choices and key not in field.choices:
            raise _unknown("field", key, dict.fromkeys(field.choices, field), file, line)
        if isinstance(part, bool) or not isinstance(part, int | float):
            raise FieldError(
                f"{where} is {str(part)[:80]!r}, not a number",
                file=file,
                line=line,
                field=where,
                hint="give a number",
            )
        numbers[key] = float(_in_range(_as_float(part), where, field, file, line))
    return numbers


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _one_of(value: str, name: str, field: Field, file: str, line: int | None) -> str:
    if not value.strip() or "\x00" in value:
        raise FieldError(f"{name} holds an empty text", file=file, line=line, field=name, hint=_hint(field))
    if field.choices and value not in field.choices:
        near = nearest_names(value, field.choices, n=1)
        raise FieldError(
            f"{name} is {value[:80]!r}",
            file=file,
            line=line,
            field=name,
            hint=f"did you mean {near[0]!r}?" if near else _hint(field),
        )
    return value


def _in_range(value: _N, name: str, field: Field, file: str, line: int | None) -> _N:
    problem = None
    if isinstance(value, float) and not math.isfinite(value):
        problem = "not a finite number"
    elif field.minimum is None and value <= 0:
        problem = "not above zero"
    elif field.minimum is not None and value < field.minimum:
        problem = f"below {field.minimum:g}"
    elif field.maximum is not None and value > field.maximum:
        problem = f"above {field.maximum:g}"
    if problem:
        raise FieldError(f"{name} is {str(value)[:40]}, {problem}", file=file, line=line, field=name, hint=_hint(field))
    return value


class _TomlLines:
    """Position of a table or key in TOML text (tomllib does not report it)."""

    def __init__(self, text: str) -> None:
        self._where: dict[tuple[str | None, str | None], int] = {}
        table: str | None = None
        for number, line in enumerate(text.split("\n"), start=1):
            header = _HEADER.fullmatch(line)
            if header:
                table = header[1].strip("\"'")
                self._where.setdefault((table, None), number)
            elif "=" in line:
                key = line.split("=", 1)[0].strip().strip("\"'")
                self._where.setdefault((table, key), number)

    def find(self, table: str | None, key: str | None) -> int | None:
        return self._where.get((table, key))
