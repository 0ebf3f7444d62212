"""Files appear whole; what a process that died left half written does not swallow what the next one writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwise.errors import InputError
from gpuwise.files import FIGURE_SUFFIXES, PAGE_SUFFIXES, check_target, drop_torn_line, write_text
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
