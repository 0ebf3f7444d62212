"""Measured tables: CSV needs nothing beside the package, Parquet names what it needs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from gpuwise.calibrate.tables import each, leaving_out, read_columns
from gpuwise.errors import DataError, MissingExtraError


@pytest.fixture
def without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else real(name))


@pytest.mark.usefixtures("without_pyarrow")
def test_a_csv_table_is_read_without_pyarrow(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbfgpu,time_s,n,more\nH100,1.5,8,x\n"a ""b"",\nc",nan,0,\n\nNone,1e-3,3,y\n')
    columns = read_columns(path, {"time_s": "float", "gpu": "str", "n": "int"})
    assert columns is not None and list(columns) == ["time_s", "gpu", "n"]
    assert columns["gpu"].tolist() == ["H100", 'a "b",\nc', ""]
    assert np.array_equal(columns["time_s"], [1.5, np.nan, 1e-3], equal_nan=True)
    assert columns["n"].dtype == np.int64 and columns["n"].tolist() == [8, 0, 3]


@pytest.mark.usefixtures("without_pyarrow")
def test_a_parquet_table_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(MissingExtraError, match=r"reading t\.parquet needs pyarrow") as caught:
        read_columns(tmp_path / "t.parquet", {"a": "float"})
    assert caught.value.hint == "pip install 'gpuwise[parquet]'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column 'a'"),
        ("b\n1\n", "no column 'a'"),
        ("a,b\n1\n", "line 2: 1 cells, expected 2"),
        ("a\nfast\n", "t.csv, line 2: a is 'fast', not a number"),
        ("a\n\xff", "is not UTF-8 text"),
    ],
)
def test_a_broken_csv_table_says_what_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=message):
        read_columns(tmp_path / "t.csv", {"a": "float"})


def test_rows_that_cannot_be_read_are_left_out_with_a_line_each(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,n,b\n1,2,x\nfast,2,x\n3,,x\n4,2,\n5,2,\n")
    with leaving_out() as lines:
        columns = read_columns(tmp_path / "t.csv", {"a": "float", "n": "int", "b": "str"}, needed=("b",))
    assert columns is not None and columns["a"].tolist() == [1.0]
    assert lines == [
        "t.csv, line 3: a is 'fast', not a number",
        "t.csv, line 4: n is empty",
        "t.csv, line 5: b is empty",
        "t.csv, line 6: b is empty",
    ]


def test_a_row_whose_cells_do_not_go_together_is_left_out() -> None:
    with leaving_out() as lines:
        assert each([1.0, float("nan"), 3.0], int, "t.csv") == [1, 3]
    assert lines == ["t.csv, row 2: a number that it needs is missing"]
    with pytest.raises(DataError, match="row 1"):
        each([{}], lambda row: row["absent"], "t.csv")


def test_a_table_without_rows_has_empty_columns(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n")
    columns = read_columns(tmp_path / "t.csv", {"a": "float", "b": "str"})
    assert columns is not None and {name: len(c) for name, c in columns.items()} == {"a": 0, "b": 0}
