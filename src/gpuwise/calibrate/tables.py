# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Reads measured tables: CSV and Parquet as columns, tolerant of extra columns, strict about the requested ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import DataError, FileError, require
from gpuwise.files import GIB, check_file, csv_rows, read_text


def check_table(path: Path) -> Path:
    """``path``, for pyarrow, which opens it by its name. Raises FileError where it is no regular file."""
    return check_file(path, most=64 * GIB, hint=HINT)


HINT = "is it laid out like the published measurement tables?"
MISSING = ("", "nan", "NaN", "None")


def read_columns(path: Path, kinds: dict[str, str]) -> dict[str, NDArray[Any]] | None:
    """Columns of ``path`` by name; None when the file is not there.

    ``kinds`` maps a column to ``"float"`` (missing cells are NaN), ``"int"`` or ``"str"`` (missing cells are "").
    Raises DataError when the file cannot be read or lacks a column, MissingExtraError for Parquet without pyarrow.
    """
    if not path.exists():
        return None
    check_table(path)
    if path.suffix != ".parquet":
        return _read_csv(path, kinds)
    require("pyarrow", f"reading {path.name}")
    import pyarrow as pa
    import pyarrow.parquet as pa_parquet

    try:
        table = pa_parquet.read_table(path, columns=list(kinds))
        return {name: _column(table.column(name), kind) for name, kind in kinds.items()}
    except (pa.ArrowException, OSError, KeyError) as error:
        raise DataError(f"{path}: {str(error)[:500]}", hint=HINT) from None


def _read_csv(path: Path, kinds: dict[str, str]) -> dict[str, NDArray[Any]]:
    try:
        (_, header), *rows = list(csv_rows(read_text(path, most=GIB, hint=HINT), str(path))) or [(1, [])]
    except FileError as error:
        raise DataError(error.message, hint=HINT) from None
    for name in kinds:
        if name not in header:
            raise DataError(f"{path}: no column {name!r}", hint=HINT)
    places = [header.index(name) for name in kinds]
    cells: list[list[str]] = []
    for line, row in rows:
        if len(row) == len(header):
            cells.append([row[i] for i in places])
        elif row:
            raise DataError(f"{path}, line {line}: {len(row)} cells, expected {len(header)}", hint=HINT)
    columns = zip(*cells, strict=True) if cells else [()] * len(kinds)
    try:
        return {name: _cells(column, kinds[name]) for name, column in zip(kinds, columns, strict=True)}
    except ValueError as error:
        raise DataError(f"{path}: {error}", hint=HINT) from None


def _cells(column: Sequence[str], kind: str) -> NDArray[Any]:
    if kind == "str":
        return np.array(["" if v in MISSING else v for v in column], dtype=object)
    values = np.array([math.nan if v in MISSING else float(v) for v in column])
    return np.nan_to_num(values, nan=0).astype(np.int64) if kind == "int" else values


def read_records(path: Path, kinds: dict[str, str]) -> list[dict[str, Any]] | None:
    """The rows of ``path`` as dictionaries of the columns of :func:`read_columns`; None when the file is not there."""
    columns = read_columns(path, kinds)
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
    values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    if kind == "int":
        return np.nan_to_num(values, nan=0).astype(np.int64)
    return values
