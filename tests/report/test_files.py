from __future__ import annotations

from pathlib import Path

import pytest

from gpuwise.errors import InputError
from gpuwise.report.files import FIGURE_SUFFIXES, PAGE_SUFFIXES, check_target, write_text


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
