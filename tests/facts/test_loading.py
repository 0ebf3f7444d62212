import datetime
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import DataError, FieldError
from gpuwise.facts.loading import (
    Field,
    Record,
    Rows,
    own_folder,
    parse_csv,
    parse_toml,
    shipped_text,
)
from gpuwise.files import read_text

SCHEMA = {
    "name": Field("text"),
    "rate": Field("number", maximum=1e6),
    "count": Field("integer", required=False),
    "share": Field("number", required=False, minimum=0.0),
    "day": Field("date", required=False),
    "kind": Field("text", required=False, choices=("list", "marketplace")),
    "tags": Field("names", required=False),
    "usual": Field("flag", required=False),
    "widths": Field("numbers", required=False, choices=("fp16", "int8")),
}
GOOD_CSV = "name,rate,count,share,day,kind,tags,usual\nx,1.5,3,0,2026-01-31,list,a;b,true\n\n# note\ny,2e3,,,,,,\n"
GOOD_TOML = """
[x]
name = "first"
rate = 1.5
count = 3
day = 2026-01-31
tags = ["a", "b"]
usual = false
widths = { fp16 = 1024, int8 = 2048.5 }

[y]
name = "second"
rate = 7
"""


def test_csv_values_and_lines():
    first, second = parse_csv(GOOD_CSV, SCHEMA, "f.csv")
    assert first.values == {
        "name": "x",
        "rate": 1.5,
        "count": 3,
        "share": 0.0,
        "day": datetime.date(2026, 1, 31),
        "kind": "list",
        "tags": ("a", "b"),
        "usual": True,
    }
    assert (first.line, second.line) == (2, 5)
    assert second.number("rate") == 2000.0
    assert second.maybe("share") is None and second.maybe_integer("count") is None and second.names("tags") == ()


ROWS_SCHEMA = {"id": Field("text"), "name": Field("text"), "aliases": Field("names", required=False), "rate": Field("number")}
ROWS = "id,name,aliases,rate\na,A,one; two,1\nb,B,,none\n"


def test_a_row_is_checked_when_it_is_asked_for(home: Path) -> None:
    made: list[str] = []

    def make(record: Record) -> float:
        made.append(record.text("id"))
        return record.number("rate")

    rows = Rows("rates.csv", ROWS, ROWS_SCHEMA, make)
    assert (list(rows), made) == (["a", "b"], [])
    assert rows.names() == {"a": ["a", "A", "one", "two"], "b": ["b", "B"]}
    assert (rows["a"], rows["a"], made) == (1.0, 1.0, ["a"])
    with pytest.raises(DataError, match="rate is 'none'"):
        rows["b"]
    assert rows.get("c") is None


def test_own_rows_win_and_are_checked_at_once(home: Path) -> None:
    folder = own_folder()
    folder.mkdir(parents=True)
    (folder / "rates.csv").write_text("rate,id,name\n3,b,mine\n4,c,new\n")
    rows = Rows("rates.csv", ROWS, ROWS_SCHEMA, lambda record: record.number("rate"))
    assert dict(rows) == {"a": 1.0, "b": 3.0, "c": 4.0} and rows.names()["b"] == ["b", "mine"]
    (folder / "rates.csv").write_text("rate,id,name\nnone,d,D\n")
    with pytest.raises(FieldError, match="rate is 'none'"):
        Rows("rates.csv", ROWS, ROWS_SCHEMA, lambda record: record.number("rate"))


def test_an_id_twice_is_refused(home: Path) -> None:
    with pytest.raises(DataError, match="appears twice"):
        Rows("rates.csv", ROWS + "a,A,,1\n", ROWS_SCHEMA, lambda record: record)


def test_toml_values_and_lines():
    tables = parse_toml(GOOD_TOML, SCHEMA, "f.toml")
    assert list(tables) == ["x", "y"]
    assert tables["x"].numbers("widths") == {"fp16": 1024.0, "int8": 2048.5}
    assert tables["x"].date("day") == datetime.date(2026, 1, 31)
    assert (tables["x"].line, tables["y"].line, tables["y"].name) == (2, 11, "y")


@pytest.mark.parametrize(
    ("cell", "column"),
    [
        ("nan", "rate"),
        ("NaN", "rate"),
        ("inf", "rate"),
        ("-inf", "rate"),
        ("1e999", "rate"),
        ("-3", "rate"),
        ("0", "rate"),
        ("2e6", "rate"),
        ("1_000", "rate"),
        ("0x10", "rate"),
        (" 1.5", "rate"),
        ("1,5", "rate"),
        ("١٢", "rate"),
        ("3.0", "count"),
        ("-0.1", "share"),
        ("2026-02-30", "day"),
        ("31.1.2026", "day"),
        ("lists", "kind"),
        ("yes", "usual"),
        ("a;;b", "tags"),
    ],
)
def test_bad_cell_names_file_line_and_field(cell, column):
    columns = ["name", "rate", "count", "share", "day", "kind", "tags", "usual"]
    row = {"name": "x", "rate": "1"} | {column: f'"{cell}"'}
    text = ",".join(columns) + "\nok,1,,,,,,\n" + ",".join(row.get(c, "") for c in columns) + "\n"
    with pytest.raises(FieldError) as caught:
        parse_csv(text, SCHEMA, "prices.csv")
    assert (caught.value.file, caught.value.line, caught.value.field) == ("prices.csv", 3, column)
    assert "prices.csv:3:" in caught.value.message and caught.value.hint


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("rate = nan", "rate"),
        ("rate = inf", "rate"),
        ("rate = -1.0", "rate"),
        ("rate = 0", "rate"),
        ("rate = true", "rate"),
        ('rate = "5"', "rate"),
        ("rate = 1e999", "rate"),
        ("rate = 1\ncount = 2.0", "count"),
        ("rate = 1\nday = 2026-01-31T00:00:00", "day"),
        ("rate = 1\nusual = 1", "usual"),
        ("rate = 1\ntags = [1]", "tags"),
        ('rate = 1\ntags = ""', "tags"),
        ("rate = 1\nwidths = { fp16 = nan }", "widths.fp16"),
        ("rate = 1\nwidths = { fp16 = false }", "widths.fp16"),
        ("rate = 1\nwidths = { fp17 = 1 }", "fp17"),
    ],
)
def test_bad_toml_value_names_line_and_field(line, field):
    text = '[first]\nname = "a"\nrate = 1\n[second]\nname = "b"\n' + line
    with pytest.raises(FieldError) as caught:
        parse_toml(text, SCHEMA, "mine.toml")
    assert caught.value.field == field and caught.value.hint
    assert caught.value.line == 6 + line.count("\n")


def test_misspelt_missing_and_doubled_names():
    with pytest.raises(FieldError, match="unknown column 'raet'") as caught:
        parse_csv("name,raet\nx,1\n", SCHEMA, "f.csv")
    assert caught.value.hint == "did you mean 'rate'?" and caught.value.line == 1
    with pytest.raises(FieldError, match="column 'rate' is missing"):
        parse_csv("name,count\nx,1\n", SCHEMA, "f.csv")
    with pytest.raises(FieldError, match="appears twice"):
        parse_csv("name,rate,rate\nx,1,1\n", SCHEMA, "f.csv")
    with pytest.raises(FieldError, match="unknown field 'namee'") as caught:
        parse_toml('[x]\nnamee = "a"\nrate = 1', SCHEMA, "f.toml")
    assert caught.value.hint == "did you mean 'name'?" and caught.value.line == 2
    with pytest.raises(FieldError, match="field 'rate' is missing"):
        parse_toml('[x]\nname = "a"', SCHEMA, "f.toml")
    with pytest.raises(FieldError, match="stands outside a table"):
        parse_toml("rate = 1", SCHEMA, "f.toml")


def test_broken_files():
    with pytest.raises(FieldError, match="2 cells where the header has 3") as caught:
        parse_csv("name,rate,count\nx,1\n", SCHEMA, "f.csv")
    assert caught.value.line == 2
    with pytest.raises(FieldError, match="is empty"):
        parse_csv("# only a note\n", SCHEMA, "f.csv")
    with pytest.raises(FieldError, match="is not CSV"):
        parse_csv('name,rate\n"x"y,1\n', SCHEMA, "f.csv")
    with pytest.raises(FieldError, match="is not TOML") as caught:
        parse_toml("[x]\nname = = 1", SCHEMA, "f.toml")
    assert caught.value.line == 2
    with pytest.raises(FieldError, match="is not TOML"):
        parse_toml("x = " + "[" * 100_000, SCHEMA, "f.toml")
    with pytest.raises(FieldError, match="is not TOML"):
        parse_toml("x = " + "9" * 5000, SCHEMA, "f.toml")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FieldError, match="cannot be read"):
        read_text(tmp_path / "absent.csv")
    bad = tmp_path / "bad.csv"
    bad.write_bytes(b"name\xff")
    with pytest.raises(FieldError, match="not UTF-8"):
        read_text(bad)
    bad.write_bytes("\ufeffname".encode())
    assert read_text(bad) == "name"
    with pytest.raises(DataError, match="cannot be read"):
        shipped_text("absent.csv")


def _assert_sound(record: Record) -> None:
    for name, value in record.values.items():
        numbers = value.values() if isinstance(value, dict) else [value]
        for number in numbers:
            if isinstance(number, int | float) and not isinstance(number, bool):
                assert math.isfinite(number) and (number > 0 or (name == "share" and number == 0))


@given(st.text(max_size=200) | st.text(alphabet='name,rate"\n#;0.1e-', max_size=80))
def test_any_csv_text_gives_sound_records_or_a_field_error(text):
    for prefix in ("", "name,rate\n"):
        try:
            records = parse_csv(prefix + text, SCHEMA, "f.csv")
        except FieldError:
            continue
        for record in records:
            _assert_sound(record)


@given(st.text(max_size=200) | st.text(alphabet='[]{}x=1."\n#,-:einfa', max_size=80))
def test_any_toml_text_gives_sound_records_or_a_field_error(text):
    for prefix in ("", '[x]\nname = "x"\nrate = '):
        try:
            tables = parse_toml(prefix + text, SCHEMA, "f.toml")
        except FieldError:
            continue
        for record in tables.values():
            _assert_sound(record)


@given(st.binary(max_size=120), st.integers(0, len(GOOD_CSV) - 1), st.integers(0, 12))
def test_a_damaged_file_never_yields_an_unsound_number(tmp_path_factory, junk, at, cut):
    whole = GOOD_CSV.encode()
    path = tmp_path_factory.getbasetemp() / "damaged.csv"
    path.write_bytes(whole[:at] + junk + whole[at + cut :])
    try:
        records = parse_csv(read_text(path), SCHEMA, "damaged.csv")
    except FieldError:
        return
    for record in records:
        _assert_sound(record)


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_number_is_read_as_itself_or_refused(value):
    text = f"name,rate\nx,{value!r}\n"
    if math.isfinite(value) and 0 < value <= 1e6:
        assert parse_csv(text, SCHEMA, "f.csv")[0].number("rate") == value
    else:
        with pytest.raises(FieldError):
            parse_csv(text, SCHEMA, "f.csv")
