"""Names that other people chose, folders that cannot be written and devices that are full: commands that look at the machine end
with a word, never with a traceback, and no control character reaches a terminal, a file or a script."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwise.testing.fake_nvml import Card, FakeNvml, NoCompilerError, fake_nvml

HOSTILE = "\x1b[31mRTX\x07 \x1b]0;own\x07[bold]4090\n RUN rm \u202eevil"
WORDS = (
    ("doctor", "--no-frameworks"),
    ("doctor", "--no-frameworks", "--share"),
    ("doctor", "--no-frameworks", "--fix-plan", "-"),
    ("doctor", "--no-frameworks", "--dockerfile", "-"),
    ("doctor", "--no-frameworks", "--json"),
    ("top", "--once"),
    ("top", "--once", "--json"),
    ("top", "--count", "1", "--csv", "-"),
)


@pytest.fixture(scope="module")
def machine() -> Iterator[FakeNvml]:
    try:
        fake = fake_nvml([Card("RTX 4090", {"name": HOSTILE, "vbios": "\x1b[2J"})])
    except NoCompilerError:
        pytest.skip("no C compiler")
    with fake:
        fake.gpu(0).add_process(os.getpid(), memory_bytes=1e9, name="\x1b[2Jevil\n\r[red]x")
        yield fake


def _run(machine: FakeNvml, *words: str, **environment: str) -> tuple[int, str]:
    hostile = {"CUDA_VISIBLE_DEVICES": "\x1b[31m7", **environment}
    done = subprocess.run(
        [sys.executable, "-m", "gpuwise", *words], env={**machine.env, **hostile}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_no_control_character_of_a_name_is_passed_on(machine: FakeNvml, words: tuple[str, ...]) -> None:
    status, text = _run(machine, *words)
    assert status in (0, 2, 3) and "Traceback" not in text
    assert not [c for c in text if c in "\x1b\x07\r\u202e"]
    assert "4090" in text
    assert not [line for line in text.splitlines() if line.strip().startswith("RUN rm")], "a name has left its line"


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "--no-frameworks", "--fix-plan", "/proc/none/x.sh"),
        ("top", "--count", "1", "--csv", "/proc/none/x.csv"),
        ("top", "--count", "1", "--record", "/proc/none/x.db"),
        ("bench", "--quick", "--only", "memory", "--each", "0.1s"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_written_is_said_in_a_line(machine: FakeNvml, words: tuple[str, ...]) -> None:
    status, text = _run(machine, *words, GPUWISE_RECORDS="/proc/none/records.db", GPUWISE_HOME="/proc/none")
    assert status in (1, 2) and "Traceback" not in text
    assert "error: " in text and "hint: " in text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_full_device_is_said_in_a_line(machine: FakeNvml, words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gpuwise", *words],
            env=machine.env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and "No space left on device" in done.stderr
