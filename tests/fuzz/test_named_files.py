"""Every option that takes a file, given what is none: refused with a hint, without waiting and without filling the memory."""

from __future__ import annotations

import contextlib
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwise.cli.app import build, every_command, run

SERVE = ("capacity", "llama-3.1-8b", "--on", "h100-sxm", "--quick")
LAB = ("lab", "occupancy", "--on", "4090")
READ: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {
    ("top", "--replay"): (".sqlite", ("top", "--once", "--replay", "FILE")),
    ("plan", "--model"): (".json", ("plan", "FILE", "--on", "4090")),
    ("fit", "--model"): (".json", ("fit", "FILE", "--on", "4090")),
    ("cost run", "--model"): (".json", ("cost", "run", "FILE", "--on", "4090", "--tokens", "1B")),
    ("cost serve", "--model"): (".json", ("cost", "serve", "FILE", "--on", "4090", "--users", "5")),
    ("capacity", "--model"): (".json", ("capacity", "FILE", "--on", "4090", "--quick")),
    ("models", "QUERY"): (".json", ("models", "FILE")),
    ("pick", "--model"): (".json", ("pick", "--for", "infer", "--model", "FILE")),
    ("compare", "--model"): (".json", ("compare", "4090", "3090", "--for", "infer", "--model", "FILE")),
    ("op", "SIZES"): (".json", ("op", "decode", "FILE", "--on", "4090")),
    ("export", "--plan"): (".json", ("export", "FILE")),
    ("run", "--plan"): (".json", ("run", "SCRIPT:kernel", "--plan", "FILE")),
    ("run", "SCRIPT"): (".json", ("run", "FILE", "SCRIPT:kernel")),
    ("run", "--config"): (".toml", ("run", "--config", "FILE", "SCRIPT")),
    ("fit", "own"): (".py", ("fit", "FILE:kernel", "--on", "4090")),
    ("plan", "hf"): (".json", ("plan", "hf:FILE", "--on", "4090")),
    ("tune", "SCRIPT"): (".py", ("tune", "FILE")),
    ("profile", "--script"): (".py", ("profile", "FILE")),
    ("profile", "--trace"): (".json", ("profile", "--trace", "FILE")),
    ("memory", "--snapshot"): (".pickle", ("memory", "FILE")),
    ("capacity", "--trace"): (".csv", (*SERVE, "--trace", "FILE")),
    ("capacity", "--workload"): (".csv", (*SERVE, "--workload", "FILE")),
    ("prices", "--import"): (".csv", ("prices", "--import", "FILE", "--dry-run")),
    ("bench", "--import"): (".jsonl", ("bench", "--import", "FILE")),
    ("lab occupancy", "--cubin"): (".cubin", (*LAB, "--cubin", "FILE")),
    ("lab occupancy", "--ptxas-log"): (".log", (*LAB, "--ptxas-log", "FILE")),
    ("lab occupancy", "--triton"): (".json", (*LAB, "--triton", "FILE")),
    ("lab simulate", "--task"): (".py", ("lab", "simulate", "FILE:kernel", "--grid", "1", "--block", "32")),
    ("lab simulate", "--arg"): (".npy", ("lab", "simulate", "SCRIPT:kernel", "--grid", "1", "--block", "32", "--arg", "x=FILE")),
    ("share", "--file"): (".json", ("share", "FILE")),
    ("check", "--file"): (".toml", ("check", "FILE")),
    ("validate", "--data"): ("", ("validate", "--data", "FILE")),
    ("validate", "--ranks"): ("", ("validate", "--ranks", "FILE")),
}
"""What is read: the end of its name, and a command line that reads FILE."""
WRITTEN = {"--record", "--timeline", "--snapshot", "--trace", "--html", "--svg", "--out", "--grafana", "--fix-plan", "--otlp"}
"""Options whose path is written, where they are not read."""
NOT_READ = {
    ("ui", "--folder"): "a folder, of which the page lists the names",
    ("mcp", "--folder"): "a folder, of which an agent may name the files",
    ("tune", "--config"): "is written",
    ("bench", "--llama-bench"): "a program that is started",
}
PATIENCE_S = 120
EMPTY = {("tune", "SCRIPT"), ("profile", "--script"), ("bench", "--import")}
"""Of these an empty one is as good as any: a script that does nothing, and no records."""
KINDS = ("pipe", "device", "folder", "sparse", "deep", "wide", "binary", "empty", "missing")


def options() -> Iterator[tuple[str, str]]:
    """Every option of every command whose type is a path."""
    for name, command in every_command(build()):
        for argument in command.assemble_argument_collection():
            if "Path" in str(argument.hint):
                yield name, argument.names[0]


def test_every_option_that_takes_a_path_is_known_here() -> None:
    """A new one is tried below, or is written, or says why it is no file."""
    known = {*READ, *NOT_READ}
    assert [one for one in options() if one not in known and one[1] not in WRITTEN] == []
    every = {(name, a) for name, a in options()}
    assert not [one for one in NOT_READ if one not in every]


def make(kind: str, place: Path) -> None:
    """A file of ``kind`` at ``place``."""
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        place.symlink_to("/dev/zero")
    elif kind == "folder":
        place.mkdir()
    elif kind == "sparse":
        with place.open("wb") as file:
            file.truncate(10 << 30)
    elif kind == "deep":
        place.write_text('{"a":' * 100_000)
    elif kind == "wide":
        place.write_text("build_commit,n_prompt,avg_ts\n" + f'"{"a" * 200_000}",1,1\n')
    elif kind == "binary":
        place.write_bytes(bytes(range(256)) * 20)
    elif kind == "empty":
        place.write_text("")


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """A test that waits for a pipe fails, in place of standing still."""

    def give_up(*_: object) -> None:
        raise AssertionError("waits for a file")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refused(words: list[str]) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), patience():
        code = run(words)
    assert "Traceback" not in out.getvalue() + err.getvalue()
    return code, err.getvalue()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", READ, ids=lambda o: " ".join(o))
def test_no_command_reads_what_is_no_file(
    option: tuple[str, str], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUWISE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GPUWISE_RECORDS", str(tmp_path / "records.db"))
    script = tmp_path / "script.py"
    script.write_text("def kernel(x):\n    pass\n")
    suffix, words = READ[option]
    if kind == "empty" and option in EMPTY:
        pytest.skip("nothing is wrong with it")
    if kind == "wide" and suffix == ".py":
        pytest.skip("a table is a script that fails")
    place = tmp_path / f"named{suffix}"
    make(kind, place)
    code, said = refused([w.replace("FILE", str(place)).replace("SCRIPT", str(script)) for w in words])
    assert code == 2, said
    assert said.startswith("error: ") and "\nhint: " in said
    assert "named" in said or option == ("lab simulate", "--task")
    assert {"pipe": "is a pipe", "device": "is a device"}.get(kind, "") in said or suffix in ("", ".npy")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "sparse", "binary"])
def test_no_table_of_measurements_is_waited_for(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from gpuwise.calibrate.tables import read_columns
    from gpuwise.errors import GpuwiseError

    for suffix in (".csv", ".parquet"):
        place = tmp_path / f"table{suffix}"
        make(kind, place)
        with patience(), pytest.raises(GpuwiseError) as caught:
            read_columns(place, {"x": "float"})
        assert caught.value.hint and str(place) in caught.value.message
