"""The line of progress: on a terminal alone, with a count and what is left, and gone before other output."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwise.cli.progress import CLEAR, WIDTH, timed

SLOW = """
import sys, time
from gpuwise.cli.progress import progress
with progress("trying") as tell:
    for i in range(1, 5):
        tell(f"[{i}/4] change {i}")
        time.sleep(0.8)
print("the answer")
"""


def on_a_terminal(code: str) -> str:
    """What a program writes where stdout and stderr are one terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        written += piece
    os.close(ours)
    assert process.wait(timeout=60) == 0, written
    return written.decode()


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_terminal_sees_a_count_and_what_is_left_and_then_the_answer_alone() -> None:
    written = on_a_terminal(SLOW)
    assert re.search(r"trying: \[\d/4\] change \d \(\d s, about \d s left\)", written.replace("\xa0", " ")), written
    before, _, after = written.rpartition(CLEAR)
    assert before and after.strip() == "the answer"


def test_nothing_is_written_where_stderr_is_no_terminal(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    assert ran.stderr == "" and ran.stdout == "the answer\n"


@pytest.mark.parametrize(
    ("line", "elapsed_s", "shown"),
    [
        ("trying: [1/4] a", 0.2, "trying: [1/4] a"),
        ("trying: [1/4] a", 5.0, "trying: [1/4] a (5 s)"),
        ("trying: [3/4] c", 20.0, "trying: [3/4] c (20.0 s, about 20.0 s left)"),
    ],
)
def test_what_is_left_is_at_the_pace_so_far(line: str, elapsed_s: float, shown: str) -> None:
    assert timed(line, elapsed_s) == shown
    assert len(timed(line + "x" * 200, elapsed_s)) == WIDTH
