"""A script's words on a terminal with a line of progress under them: nothing of the script's is lost or changed."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpuwise.cli.run.screen import last_line
from gpuwise.cli.run.view import format_energy, progress_words
from gpuwise.train.run.progress import Progress

SHOWS = """
import os, subprocess, sys, time
from gpuwise.cli.run.screen import screen
with screen() as shown:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=shown.streams[0], stderr=shown.streams[1])
    while child.poll() is None:
        shown.show("PROGRESS")
        time.sleep(0.01)
    shown.show("PROGRESS")
print("after")
"""
PRINTS = """
import sys, time
print("tty", sys.stdout.isatty(), sys.stderr.isatty())
for n in range(8):
    print(f"\\rbar {n}", end="", file=sys.stderr, flush=True)
    time.sleep(0.03)
print("\\nline one", flush=True)
time.sleep(0.05)
print("line two")
"""


LIMIT_S = 200.0


def heeds_interrupts() -> None:
    """As on a terminal: what runs in the background without one may have been started with interrupts ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def on_terminal(arguments: list[str], *, interrupt_at: bytes | None = None, **options: object) -> tuple[bytes, int]:
    """What a terminal is sent, and the exit code."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(  # type: ignore[call-overload]
        arguments, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=heeds_interrupts, **options
    )
    limit = threading.Timer(LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
    limit.start()
    os.close(theirs)
    written: list[bytes] = []

    def read() -> None:
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:
                return
            if not data:
                return
            written.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    if interrupt_at is not None:
        while interrupt_at not in b"".join(written) and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
    code = process.wait()
    limit.cancel()
    reader.join()
    os.close(ours)
    return b"".join(written), code


def shown(written: bytes) -> list[str]:
    """Lines as a terminal shows them at the end: line feeds, carriage returns, cursor up, erased lines."""
    lines, row, column = [""], 0, 0
    for part in re.findall(rb"\x1b\[([\d;]*)([AKm])|(\r)|(\n)|([^\x1b\r\n]+)", written):
        number, kind, carriage, feed, text = part
        if kind == b"A":
            row -= int(number or 1)
        elif kind == b"K":
            lines[row] = ""
        elif kind == b"m":
            continue
        elif carriage:
            column = 0
        elif feed:
            row += 1
            lines += [""] * (row + 1 - len(lines))
        else:
            words = text.decode()
            lines[row] = lines[row][:column].ljust(column) + words + lines[row][column + len(words) :]
            column += len(words)
    return [line.rstrip() for line in lines]


def test_progress_stays_under_what_a_script_prints() -> None:
    written, code = on_terminal([sys.executable, "-c", SHOWS, PRINTS], env={**os.environ, "TERM": "xterm"})
    assert code == 0 and written.count(b"PROGRESS") > 3
    assert [line for line in shown(written) if line] == ["tty True True", "bar 7", "line one", "line two", "after"]


def test_without_a_terminal_the_scripts_words_are_whole(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SHOWS, PRINTS], capture_output=True, text=True, check=True)
    assert done.stdout == "tty False False\n\nline one\nline two\nafter\n"
    assert "PROGRESS\n" in done.stderr and "\x1b" not in done.stderr


TRAINS = """
import time
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
try:
    while True:
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.02)
except KeyboardInterrupt:
    print("saving", flush=True)
    raise SystemExit(7)
"""


@pytest.mark.thorough
def test_an_interrupt_is_the_scripts_and_the_summary_still_comes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TRAINS)
    (tmp_path / "gpuwise.toml").write_text("version = 1\n[levers]\nfused_optimizer = true\n[run]\ntotal_steps = 100000\n")
    written, code = on_terminal(
        [sys.executable, "-c", "from gpuwise.cli import main; main()", "run", "train.py"],
        interrupt_at=b" left",
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm", "GPUWISE_HOME": str(tmp_path / "home"), "NO_COLOR": "1"},
    )
    lines = shown(written)
    assert code == 7 and "saving" in lines
    assert re.search(rb"step [\d,]+ of 100,000, [\d.]+ samples/s", written)
    assert any(line.startswith("  samples a second") for line in lines)
    assert max(map(len, lines)) <= 80 and b"\x1b[3" not in written and b"Traceback" not in written


@pytest.mark.parametrize(
    ("written", "line"),
    [
        (b"", b""),
        (b"done\n", b""),
        (b"one\ntwo", b"two"),
        (b"\r10%\r20%", b"20%"),
        (b"50%\r", b"50%\r"),
        (b"a\nb\rc\r", b"c\r"),
    ],
)
def test_what_stands_on_the_last_line(written: bytes, line: bytes) -> None:
    assert last_line(written) == line


def test_the_line_of_progress() -> None:
    now = Progress(1200, 31.24, "samples", 1.234567, 0.5, 3.0, 2**30, 7200.0, 0.42, 7200.0, 600.0, 500.0)
    assert progress_words(now) == (
        "step 1,200 of 7,200, 31.24 samples/s, loss 1.235, 10.0 min left (+20%), 1 GiB, 2 Wh, $0.42, epoch 0.50 of 3"
    )
    assert progress_words(Progress(0)) == "gpuwise: waiting for the first steps"
    assert [format_energy(j) for j in (412.0, 7200.0, 3.6e6)] == ["412 J", "2 Wh", "1 kWh"]
