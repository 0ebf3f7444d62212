"""The command in a process of its own, on terminals and files as they are found: encodings, full disks, closed pipes."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.cli import streams
from gpuwise.cli.bars import GLYPHS

FIT = ("fit", "gpt2", "--on", "4090", "--for", "train")
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")


def _environment(**more: str) -> dict[str, str]:
    hidden = ("PYTHONIOENCODING", "PYTHONUTF8", "LC_ALL", "LC_CTYPE", "LANG")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**kept, "COLUMNS": "80", **more}


@cache
def _run(*words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "gpuwise", *words], capture_output=True, env=_environment(**environment))


@pytest.mark.parametrize(
    "encoding", ["ascii", "cp1252", *(pytest.param(e, marks=pytest.mark.slow) for e in ("latin-1", "cp437", "utf-8"))]
)
def test_every_encoding_gets_the_whole_answer(encoding: str) -> None:
    done = _run(*FIT, PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode(encoding)
    assert "GPT-2" in text and "?" not in text.replace("What makes", "")
    plain = _run(*FIT, PYTHONIOENCODING="utf-8").stdout.decode()
    assert [len(line) for line in text.splitlines()] == [len(line) for line in plain.splitlines()]


@pytest.mark.thorough
@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LC_ALL": "POSIX"}])
def test_a_forced_c_locale_gets_ascii(locale: dict[str, str]) -> None:
    done = _run(*FIT, **locale)
    assert done.returncode == 0
    assert done.stdout.isascii() and b"weights" in done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("locale", [{"LC_ALL": "C.UTF-8"}, {"LC_ALL": "C", "PYTHONUTF8": "1"}])
def test_utf_8_keeps_its_blocks(locale: dict[str, str]) -> None:
    assert "█" in _run(*FIT, **locale).stdout.decode()


def test_glyphs_of_bars_stay_apart_in_ascii() -> None:
    plain = "".join(_encoded(glyph) for glyph in GLYPHS)
    assert plain.isascii() and len(set(plain)) == len(GLYPHS)


def _encoded(text: str) -> str:
    import codecs

    codecs.register_error(streams.FALLBACK, streams._replace)  # pyright: ignore[reportPrivateUsage]
    return text.encode("ascii", errors=streams.FALLBACK).decode()


@given(st.text())
def test_any_text_has_an_ascii_form(text: str) -> None:
    assert _encoded(text).isascii()


@needs_full
@pytest.mark.parametrize("words", [["gpus"], ["gpus", "--json"], ["--version"], ["--help"], ["plan", "--help"], list(FIT)])
def test_a_full_disk_is_an_error(words: list[str]) -> None:
    with FULL.open("wb") as full:
        done = subprocess.run([sys.executable, "-m", "gpuwise", *words], stdout=full, stderr=subprocess.PIPE, env=_environment())
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: cannot write the output: ") and b"\nhint: " in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["top", "--demo", "1", "--count", "1", "--record", "seen.db"],
        ["top", "--demo", "1", "--count", "1", "--csv", "seen.csv"],
        ["tune", "train.py", "--minutes", "1"],
        ["bench", "--export", "kept.jsonl"],
        ["top", "--grafana", "board.json"],
    ],
    ids=lambda w: " ".join(w[:4]),
)
def test_a_folder_that_is_read_only_is_an_error(words: list[str], tmp_path: Path) -> None:
    """The superuser too, without the right to write where it may not."""
    (tmp_path / "train.py").write_text("import torch", "utf-8")
    as_a_person: list[str] = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("the superuser writes everywhere, and no setpriv is here")
        as_a_person = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]
    tmp_path.chmod(0o555)
    try:
        command = [*as_a_person, sys.executable, "-m", "gpuwise", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, env=_environment(HOME=str(tmp_path)), check=False)
    finally:
        tmp_path.chmod(0o755)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(b"error: ") and b"\nhint: " in done.stderr and b"Traceback" not in done.stderr
    assert not [p for p in tmp_path.iterdir() if p.name != "train.py"]


@needs_full
def test_an_error_that_nobody_can_read_keeps_its_exit_code() -> None:
    with FULL.open("wb") as full:
        done = subprocess.run([sys.executable, "-m", "gpuwise", "gpus", "zzz"], stderr=full, env=_environment())
    assert done.returncode == 2


@pytest.mark.parametrize("words", [["gpus"], ["models"], ["gpus", "--json"], ["--help"], list(FIT)])
def test_a_reader_that_leaves_is_no_fault(words: list[str]) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "gpuwise", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()
    )
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    said = child.stderr.read()
    child.stderr.close()
    assert child.wait() in (0, 141) and said == b""


@pytest.mark.parametrize("words", [["gpus"], ["models"], ["prices", "4090"], list(FIT), ["compare", "4090", "3090"]])
def test_lines_end_without_blanks(words: list[str]) -> None:
    done = _run(*words)
    assert done.returncode == 0
    assert not [line for line in done.stdout.decode().splitlines() if line != line.rstrip()]


@given(st.lists(st.text(alphabet="ab \n", max_size=8)))
def test_trimmed_lines_are_those_written_without_the_blanks(parts: list[str]) -> None:
    target = io.StringIO()
    to = streams.TrimmedLines(target)
    for part in parts:
        to.write(part)
    lines = "".join(parts).split("\n")
    assert target.getvalue() == "\n".join(line.rstrip(" ") for line in lines)


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "gpt2", "--on", "zzz"],
        ["plan", "gpt2", "--on", "4090", "--tokens", "-5B"],
        ["plan"],
        ["plam"],
        ["fit", "gpt2", "--onn", "4090"],
        ["gpus", "zzz"],
        ["models", "zzz"],
        ["prices", "zzz"],
        ["op", "matmul", "1", "--on", "4090"],
        ["compare", "4090", "zzz"],
        ["pick", "zzz", "--for", "infer"],
        ["cost", "gpt2", "--on", "zzz", "--tokens", "1B"],
        ["memory", "/no/such/file"],
        ["profile", "/no/such.py"],
        ["tune", "/no/such.py"],
        ["run", "/no/such.py"],
        ["bench", "--on", "zzz"],
        ["doctor", "--gpus", "-1"],
        ["top", "--replay", "/no/such/file"],
        ["validate", "--data", "/no/such/folder"],
    ],
)
def test_errors_under_json_are_a_document(words: list[str]) -> None:
    done = _run(*words, "--json")
    assert done.returncode == 2, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["error"] and document["hint"]
    assert done.stderr.decode().startswith(f"error: {document['error']}")
