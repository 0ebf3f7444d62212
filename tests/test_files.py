"""What a process that died left half written does not swallow what the next one writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwise.files import drop_torn_line
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
