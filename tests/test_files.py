"""Files appear whole, and what a process that died left half written does not swallow what the next one writes; what a person
names is read by one reader."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import FileError, InputError
from gpuwise.files import (
    FIGURE_SUFFIXES,
    GIB,
    MIB,
    PAGE_SUFFIXES,
    check_target,
    csv_rows,
    decode,
    drop_torn_line,
    parse_json,
    parse_toml,
    read_bytes,
    read_json,
    write_text,
)
from gpuwise.train.hook.journal import Writer, read_journal


@pytest.mark.parametrize("whole", [b"", b"one\n", b"one\n\ntwo\n"])
@pytest.mark.parametrize("torn", [b"", b"t", b'{"event": "step", "waits_s": {"' + b"x" * 9000])
def test_whole_lines_stay(whole: bytes, torn: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(whole + torn)
    drop_torn_line(path)
    assert path.read_bytes() == whole


def test_no_file_is_nothing_to_cut(tmp_path: Path) -> None:
    drop_torn_line(tmp_path / "lines")
    assert not (tmp_path / "lines").exists()


def test_a_restarted_process_begins_a_line(tmp_path: Path) -> None:
    """A rank killed at a page's end left half a step; the next attempt's begin was written behind it, and reading failed."""
    path = tmp_path / "rank-0.jsonl"
    first = Writer(path)
    first.event("begin", attempt=0)
    first.close()
    with path.open("ab") as file:
        file.write(b'{"event": "step", "waits_s": {"all_reduce": 0.1')
    again = Writer(path)
    again.event("begin", attempt=1)
    again.close()
    assert read_journal(path).begin["attempt"] == 1


def test_a_file_appears_whole_and_alone(tmp_path: Path) -> None:
    target = tmp_path / "a.html"
    target.write_text("old")
    write_text(target, "new\n", PAGE_SUFFIXES)
    assert target.read_text() == "new\n" and [p.name for p in tmp_path.iterdir()] == ["a.html"]


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.html"
    target.write_text("old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(target, "new", PAGE_SUFFIXES)
    assert target.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.html"]


@pytest.mark.parametrize("name", ["a.pdf", "a", "a.html.txt", ".html"])
def test_an_unknown_suffix_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as caught:
        write_text(tmp_path / name, "x", PAGE_SUFFIXES)
    assert caught.value.hint and ".html" in caught.value.hint and not list(tmp_path.iterdir())


def test_a_directory_and_a_place_that_is_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "d.svg").mkdir()
    for path in (tmp_path / "d.svg", tmp_path / "nowhere" / "a.svg"):
        with pytest.raises(InputError) as caught:
            check_target(path, FIGURE_SUFFIXES)
        assert caught.value.hint


def test_no_target_is_no_error() -> None:
    check_target(None, PAGE_SUFFIXES)


# --- the reader ---


def unreadable(make: Path) -> dict[str, Path]:
    """Files that a reader has to refuse, made in a folder: what each is, and where."""
    pipe, link, sparse, deep, wide = (make / name for name in ("pipe", "link", "sparse", "deep", "wide"))
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with sparse.open("wb") as file:
        file.truncate(10 * GIB)
    deep.write_text("[" * 100_000)
    wide.write_text("{" + '"a":{' * 2000 + "}" * 2001)
    return {
        "pipe": pipe,
        "link to a pipe": link,
        "device": Path("/dev/zero"),
        "folder": make,
        "sparse": sparse,
        "deep": deep,
        "wide": wide,
        "missing": make / "missing",
        "not a name": Path("a\0b"),
    }


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("pipe", "is a pipe, not a regular file"),
        ("link to a pipe", "is a pipe"),
        ("device", "is a device"),
        ("folder", "is a folder"),
        ("sparse", "is larger than 64 MiB"),
        ("deep", "is nested more than 100 deep"),
        ("wide", "is nested more than 100 deep"),
        ("missing", "cannot be read: No such file or directory"),
        ("not a name", "cannot be read: "),
    ],
)
def test_what_no_reader_reads(tmp_path: Path, kind: str, said: str) -> None:
    with pytest.raises(FileError, match=said) as caught:
        read_json(unreadable(tmp_path)[kind])
    assert caught.value.hint and caught.value.file


def test_a_link_to_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"x": [1, 2.5]}')
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert read_json(tmp_path / "b") == {"x": [1, 2.5]}


def test_a_file_that_grows_or_says_nothing_of_its_size_is_bounded(tmp_path: Path) -> None:
    """Files of /proc have 0 bytes; the limit counts what is read."""
    with pytest.raises(FileError, match="larger than"):
        read_bytes(Path("/proc/self/smaps"), most=100)
    (tmp_path / "zeros").write_bytes(bytes(5 * MIB))
    with pytest.raises(FileError, match="zero bytes without end"):
        read_bytes(tmp_path / "zeros")


def test_a_file_that_comes_too_slowly_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwise.files.MOST_READ_S", -1.0)
    (tmp_path / "a").write_text("text")
    with pytest.raises(FileError, match="was not read within"):
        read_bytes(tmp_path / "a")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "a": 2}', "has the field 'a' twice"),
        ("[NaN]", "has NaN"),
        ("[-Infinity]", "has -Infinity"),
        ("[1e999]", "number too large"),
        (f"[{10**30}]", "more than 64 bits"),
        (f"[{'9' * 5000}]", "is not JSON"),
        ("", "is not JSON: Expecting value"),
        ("[1,\n2", "file.json:2: is not JSON"),
        ("[1] [2]", "Extra data"),
        ('"\\ud800', "is not JSON"),
    ],
)
def test_json_that_means_nothing_or_two_things_is_refused(text: str, said: str) -> None:
    with pytest.raises(FileError, match=re.escape(said)) as caught:
        parse_json(text, "file.json")
    assert caught.value.hint


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(value=json_values)
def test_any_finite_value_is_read_as_it_was_written(value: object) -> None:
    assert parse_json(json.dumps(value), "file.json") == value


@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_with_a_hint(content: bytes) -> None:
    for parse in (parse_json, parse_toml, lambda text, file: list(csv_rows(text, file))):
        try:
            parse(decode(content, "file"), "file")
        except FileError as error:
            assert error.hint and error.message.startswith("file")


def test_csv_that_is_none_is_refused() -> None:
    with pytest.raises(FileError, match=r"file\.csv:2: is not CSV"):
        list(csv_rows('a,b\n1,"' + "x" * 200_000, "file.csv"))


def test_toml_without_end_is_refused() -> None:
    for text in ("x = " + "[" * 100_000, "x = " + "9" * 5000, "x"):
        with pytest.raises(FileError, match="is not TOML"):
            parse_toml(text, "file.toml")


# --- nothing else opens a file that a person named ---

SOURCE = Path(__file__).parents[1] / "src" / "gpuwise"
OPENING = {
    *("open", "os.open", "io.open", "gzip.open", "bz2.open", "lzma.open", "zipfile.ZipFile", "tarfile.open", "mmap.mmap"),
    *("np.load", "np.loadtxt", "np.fromfile", "np.memmap", "torch.load", "sqlite3.connect"),
}
METHODS = {"open", "read_text", "read_bytes", "ParquetFile", "read_table", "read_csv"}
NO_PATHS = ("self.open", "app.open", "webbrowser.", "self._watch.", "self.watch.", "self._noting.", "host.")
"""Whose method of that name opens no file that was named."""
OWN_PLACES = re.compile(r"files\(|__file__|\b_?(DATA|SOURCES|TABLE|PUBLISHED|FILE|PLAY|\w+_FILE)\b|/proc|/sys|/etc|devnull")
"""In what is opened: a file of the package, or of the system."""
ELSEWHERE = {
    "files.py": "the reader itself",
    "calibrate/attention/rows.py": "pyarrow opens by name what the reader has checked",
    "calibrate/gemm/rows.py": "pyarrow opens by name what the reader has checked",
    "calibrate/tables.py": "pyarrow opens by name what the reader has checked",
    "cli/lab/simulate.py": "numpy opens by name what the reader has checked",
    "facts/loading.py": "files of the package",
    "facts/offers/store.py": "what gpuwise itself stored in its folder",
    "machine/devices": "the kernel's files",
    "machine/doctor/host.py": "the system's files, of bounded size",
    "machine/telemetry/host_processes.py": "the kernel's files",
    "machine/telemetry/recording/parquet.py": "libraries open by name what the reader has checked",
    "machine/telemetry/outputs/line_file.py": "writes",
    "machine/telemetry/recording/recorder.py": "writes",
    "machine/telemetry/recording/replay.py": "SQLite opens by name what the reader has checked",
    "machine/telemetry/small_files.py": "the kernel's files",
    "predict/coefficients/__init__.py": "files of the package, whose hash is checked",
    "records/store.py": "what gpuwise itself stored; SQLite opens by name",
    "testing": "doubles of drivers, for tests",
    "train/profile/trace_reader.py": "gzip unpacks a stream that the reader has opened",
    "train/ranks/beat.py": "what ranks of the same run wrote",
    "train/ranks/hugging_face.py": "numpy opens by name what the reader has checked",
    "train/ranks/launch.py": "what ranks of the same run wrote",
    "train/ranks/manifest.py": "weights, hashed a part at a time",
    "train/ranks/saving.py": "what ranks of the same run wrote",
    "train/tune/parity.py": "what a child of this program wrote",
    "train/tune/energy.py": "the kernel's files",
    "train/tune/gate.py": "what a child of this program wrote",
    "ui/application.py": "files of the package",
    "workload/stacks/stack.py": "files of the package",
    "workload/tables/table.py": "files of the package",
    "ui/workers.py": "a folder of this program's own",
}
"""Where else something is opened, and why that is none that a person named."""


def opened_in(source: str) -> Iterator[tuple[int, str]]:
    """Calls that open a file for reading, by line and text."""
    for node in (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)):
        name = ast.unparse(node.func)
        text = ast.unparse(node)
        last = name.rpartition(".")[2]
        is_method = isinstance(node.func, ast.Attribute) and last in METHODS and not name.startswith(NO_PATHS)
        if name not in OPENING and not is_method:
            continue
        modes = [a.value for a in (*node.args, *(k.value for k in node.keywords)) if isinstance(a, ast.Constant)]
        writes = any(isinstance(m, str) and re.fullmatch(r"[wax]b?\+?|r\+b", m) for m in modes) or "O_WRONLY" in text
        if not writes and not OWN_PLACES.search(text):
            yield node.lineno, text


def foreign_openings() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if any(place == known or place.startswith(f"{known}/") for known in ELSEWHERE):
            continue
        for line, text in opened_in(path.read_text("utf-8")):
            yield f"{place}:{line}: {text[:100]}"


def test_what_a_person_names_is_opened_by_the_reader_alone() -> None:
    """``gpuwise.files`` refuses pipes, devices, folders and files without end; what opens one by itself does not."""
    assert list(foreign_openings()) == []


def test_an_opening_is_seen() -> None:
    lines = ("Path(a).read_text()", "open(b)", "with path.open() as f: pass", "np.load(x)", "os.open(p, os.O_RDONLY)")
    assert all(len(list(opened_in(line))) == 1 for line in lines)
    assert not list(opened_in("path.open('w')\nos.open(p, os.O_WRONLY)\nfiles('gpuwise').read_text()"))


@pytest.mark.parametrize("place", ELSEWHERE)
def test_an_exception_is_still_one(place: str) -> None:
    path = SOURCE / place
    sources = path.rglob("*.py") if path.is_dir() else [path]
    if place != "files.py":
        assert any(list(opened_in(source.read_text("utf-8"))) for source in sources)
