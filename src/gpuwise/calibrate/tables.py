# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Reads measured tables: CSV and Parquet as columns, tolerant of extra columns, strict about the requested ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import DataError, FileError, require
from gpuwise.files import GIB, check_file, csv_rows, read_text


def check_table(path: Path) -> Path:
    """``path``, for pyarrow, which opens it by its name. Raises FileError where it is no regular file."""
    return check_file(path, most=64 * GIB, hint=HINT)


HINT = "is it laid out like the published measurement tables?"
MISSING = ("", "nan", "NaN", "None")


R = TypeVar("R")
Made = TypeVar("Made")
_left_out: ContextVar[list[str] | None] = ContextVar("left_out", default=None)


@contextmanager
def leaving_out() -> Generator[list[str]]:
    """While rows that cannot be read are left out, each with a line in this list: its table, its place and why."""
    lines: list[str] = []
    token = _left_out.set(lines)
    try:
        yield lines
    finally:
        _left_out.reset(token)


def leave_out(words: str) -> None:
    """Leave a row out for the reason in ``words``, which begin with its table. Raises DataError outside :func:`leaving_out`."""
    lines = _left_out.get()
    if lines is None:
        raise DataError(words, hint=HINT)
    lines.append(words)


def each(rows: Iterable[R], make: Callable[[R], Made], table: str) -> list[Made]:
    """``make`` of each row. One whose cells do not go together (no number where one is needed, a name of another form, no row of
    that name in a second table) is left out (:func:`leave_out`)."""
    made: list[Made] = []
    for i, row in enumerate(rows):
        try:
            made.append(make(row))
        except (ValueError, KeyError, IndexError) as error:
            words = " ".join(str(error).split())[:60]
            words = "a number that it needs is missing" if "NaN" in words else f"cannot be used ({words})"
            leave_out(f"{table}, row {i + 1}: {words}")
    return made


def read_columns(path: Path, kinds: dict[str, str], needed: Collection[str] = ()) -> dict[str, NDArray[Any]] | None:
    """Columns of ``path`` by name; None when the file is not there.

    ``kinds`` maps a column to ``"float"`` (missing cells are NaN), ``"int"`` or ``"str"`` (missing cells are ""). A row without
    a cell of an ``int`` or of a ``needed`` column, or with a word for a number, is left out (:func:`leave_out`).
    Raises DataError when the file cannot be read or lacks a column, MissingExtraError for Parquet without pyarrow.
    """
    needed = {*needed, *(name for name, kind in kinds.items() if kind == "int")}
    if not path.exists():
        return None
    check_table(path)
    if path.suffix != ".parquet":
        return _read_csv(path, kinds, needed)
    require("pyarrow", f"reading {path.name}")
    import pyarrow as pa
    import pyarrow.parquet as pa_parquet

    try:
        table = pa_parquet.read_table(path, columns=list(kinds))
        columns = {name: _column(table.column(name), kind) for name, kind in kinds.items()}
    except (pa.ArrowException, OSError, KeyError) as error:
        raise DataError(f"{path}: {str(error)[:500]}", hint=HINT) from None
    whole = np.ones(len(table), dtype=bool)
    for name in needed:
        column = columns[name]
        there = column != "" if column.dtype == object else np.isfinite(column)
        for row in np.flatnonzero(whole & ~there):
            leave_out(f"{path.name}, row {row + 1}: {name} is empty")
        whole &= there
    return {name: _as(column[whole], kinds[name]) for name, column in columns.items()}


def _read_csv(path: Path, kinds: dict[str, str], needed: Collection[str]) -> dict[str, NDArray[Any]]:
    try:
        (_, header), *rows = list(csv_rows(read_text(path, most=GIB, hint=HINT), str(path))) or [(1, [])]
    except FileError as error:
        raise DataError(error.message, hint=HINT) from None
    for name in kinds:
        if name not in header:
            raise DataError(f"{path}: no column {name!r}", hint=HINT)
    places = [(name, kind, header.index(name)) for name, kind in kinds.items()]
    columns: dict[str, list[str | float]] = {name: [] for name in kinds}
    for line, row in rows:
        if len(row) == len(header):
            cells = _cells(row, places, needed, f"{path.name}, line {line}")
            for name, cell in cells.items():
                columns[name].append(cell)
        elif row:
            raise DataError(f"{path}, line {line}: {len(row)} cells, expected {len(header)}", hint=HINT)
    return {name: _as(np.array(columns[name], dtype=object if kind == "str" else float), kind) for name, kind in kinds.items()}


def _cells(
    row: Sequence[str], places: Sequence[tuple[str, str, int]], needed: Collection[str], where: str
) -> dict[str, str | float]:
    """The cells of a row by column; none where it is left out."""
    cells: dict[str, str | float] = {}
    for name, kind, at in places:
        cell = row[at]
        if cell in MISSING:
            if name in needed:
                leave_out(f"{where}: {name} is empty")
                return {}
            cells[name] = "" if kind == "str" else math.nan
            continue
        try:
            cells[name] = cell if kind == "str" else float(cell)
        except ValueError:
            leave_out(f"{where}: {name} is {cell[:40]!r}, not a number")
            return {}
    return cells


def _as(column: NDArray[Any], kind: str) -> NDArray[Any]:
    return column.astype(np.int64) if kind == "int" else column


def read_records(path: Path, kinds: dict[str, str], needed: Collection[str] = ()) -> list[dict[str, Any]] | None:
    """The rows of ``path`` as dictionaries of the columns of :func:`read_columns`; None when the file is not there."""
    columns = read_columns(path, kinds, needed)
    if columns is None:
        return None
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _column(column: Any, kind: str) -> NDArray[Any]:
    import pyarrow as pa

    if kind == "str":
        if pa.types.is_dictionary(column.type):
            column = column.combine_chunks().dictionary_decode() if hasattr(column, "combine_chunks") else column
        values = column.to_pylist()
        return np.array(["" if v is None else str(v) for v in values], dtype=object)
    return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
