# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Reads measured tables: CSV and Parquet as columns, tolerant of extra columns, strict about the ones asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import DataError, require
from gpuwise.files import GIB, check_file


def check_table(path: Path) -> Path:
    """``path``, for pyarrow, which opens it by its name. Raises FileError where it is no regular file."""
    return check_file(path, most=64 * GIB, hint="is it laid out like the published measurement tables?")


def read_columns(path: Path, kinds: dict[str, str]) -> dict[str, NDArray[Any]] | None:
    """Columns of ``path`` by name; None when the file is not there.

    ``kinds`` maps a column to ``"float"`` (missing cells are NaN), ``"int"`` or ``"str"`` (missing cells are "").
    Raises DataError when the file cannot be read or lacks a column.
    """
    if not path.exists():
        return None
    check_table(path)
    require("pyarrow", "reading measured tables")
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pa_parquet

    try:
        if path.suffix == ".parquet":
            table = pa_parquet.read_table(path, columns=list(kinds))
        else:
            types = {n: pa.string() if k == "str" else pa.float64() for n, k in kinds.items()}
            options = pa_csv.ConvertOptions(
                include_columns=list(kinds), column_types=types, null_values=["", "nan", "NaN", "None"], strings_can_be_null=True
            )
            table = pa_csv.read_csv(path, parse_options=pa_csv.ParseOptions(newlines_in_values=True), convert_options=options)
        return {name: _column(table.column(name), kind) for name, kind in kinds.items()}
    except (pa.ArrowException, OSError, KeyError) as error:
        raise DataError(f"{path}: {str(error)[:500]}", hint="is it laid out like the published measurement tables?") from None


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
