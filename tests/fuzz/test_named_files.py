"""Every option that takes a file, given what is none: refused with a hint, without waiting and without filling the memory."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from itertools import pairwise
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
    ("plan", "--link"): (".txt", ("plan", "gpt2", "--on", "4xA100-80GB", "--link", "FILE")),
    ("plan", "slurm"): (".txt", ("plan", "gpt2", "--on", "slurm:gpu@FILE")),
    ("plan", "k8s"): (".json", ("plan", "gpt2", "--on", "k8s@FILE")),
    ("fit", "gguf"): (".gguf", ("fit", "FILE", "--on", "4090")),
    ("fit", "safetensors"): (".safetensors", ("fit", "FILE", "--on", "4090")),
    ("prices", "--import ods"): (".tsv", ("prices", "--import", "FILE", "--dry-run")),
    ("bench", "csv"): (".csv", ("bench", "--import", "FILE")),
    ("profile", "gz"): (".json.gz", ("profile", "--trace", "FILE")),
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
EMPTY = {("tune", "SCRIPT"), ("profile", "--script"), ("bench", "--import"), ("bench", "csv")}
"""Of these an empty one is as good as any: a script that does nothing, and no records."""
PYTHON = {"wide", "nulls", "nan", "twice", "negative"}
"""Kinds that are a valid program."""
UNNAMED = {("lab simulate", "--task"), ("export", "--plan")}
"""What is wrong there may be another thing than the file: a model's configuration is exported on GPUs that are named."""
KINDS = (
    *("pipe", "device", "folder", "sparse", "deep", "wide", "binary", "empty", "missing"),
    *("loop", "unreadable", "utf-16", "bom", "nulls", "nan", "long number", "twice", "bomb", "anchors", "negative"),
)
MOST_MEMORY = 2 << 30
"""Bytes that a command may add to this process before it is refused them."""


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


FIELDS = ("model_type", "hidden_size", "num_hidden_layers", "plan_version", "best", "traceEvents", "version", "run", "items")
TEXTS = {
    "empty": "",
    "utf-16": '{"a": 1}',
    "bom": "\ufeff",
    "nulls": "{" + ", ".join(f'"{name}": null' for name in FIELDS) + "}",
    "nan": '{"hidden_size": NaN, "plan_version": Infinity, "traceEvents": [-Infinity]}',
    "long number": '{"hidden_size": ' + "9" * 100_000 + "}",
    "twice": '{"plan_version": 1, "plan_version": 2, "traceEvents": [], "traceEvents": []}',
    "anchors": "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in pairwise("abcdefghijklmn")),
    "negative": '{"hidden_size": -1, "num_hidden_layers": -5, "plan_version": -1, "vocab_size": -3, "model_type": "llama"}',
}


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
    elif kind in TEXTS:
        place.write_text(TEXTS[kind], encoding="utf-16" if kind == "utf-16" else "utf-8")
    elif kind == "loop":
        place.symlink_to(place)
    elif kind == "unreadable":  # it opens, and no byte of it can be read: for root too
        place.symlink_to("/proc/self/mem")
    elif kind == "bomb":
        place.write_bytes(gzip.compress(b" " * (16 << 20)) * 256)


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


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """What reads without end fails here, in place of filling the machine."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[5])
    resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + MOST_MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def refused(words: list[str]) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), patience(), little_memory():
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
    if kind in ("empty", "bom") and option in EMPTY:
        pytest.skip("nothing is wrong with it")
    if kind in PYTHON and suffix == ".py":
        pytest.skip("a script that ends or fails by itself")
    place = tmp_path / f"named{suffix}"
    make(kind, place)
    code, said = refused([w.replace("FILE", str(place)).replace("SCRIPT", str(script)) for w in words])
    assert code == 2, said
    assert said.startswith("error: ") and "\nhint: " in said
    assert "named" in said or "/mem" in said or option in UNNAMED
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


FOUND: dict[str, tuple[str, ...]] = {
    "facts/accelerators.csv": ("gpus", "4090"),
    "facts/cpus.csv": ("cpus",),
    "facts/models.toml": ("models", "gpt2"),
    "facts/sources.csv": ("gpus", "4090", "--all"),
    "prices/own-acme/2026-11-01.csv": ("prices", "4090"),
    "coefficients.json": ("op", "matmul", "64", "64", "64", "--on", "4090", "--calibrated"),
    "records.db": ("validate",),
    "top.json": ("top", "--demo", "--once"),
    "model/config.json": ("fit", "model", "--on", "4090"),
    "model/model.safetensors.index.json": ("fit", "model", "--on", "4090"),
    "gpuwise.checks.toml": ("check",),
    "gpuwise.toml": ("run", "script.py"),
}
"""Files that a command finds by itself, in ``GPUWISE_HOME`` or here, and a command that reads each."""


@pytest.mark.parametrize("name", FOUND)
def test_no_command_fails_by_a_file_that_it_finds(name: str) -> None:
    """It answers without the file, or refuses it with a hint."""
    child = [sys.executable, __file__, name, *FOUND[name]]
    ran = subprocess.run(child, capture_output=True, text=True, timeout=10 * PATIENCE_S, check=True)
    answers = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    assert [kind for kind, *_ in answers] == list(KINDS)
    for kind, code, said in answers:
        good = code == 0 or (code in (1, 2) and said.startswith("error: ") and "\nhint: " in said)
        assert good and "cannot write" not in said, f"{kind}: {code} {said[-800:]}"


def ask_with_a_found_file(name: str, kind: str, words: list[str]) -> None:
    """Print the kind, the exit code and what was on stderr as a line of JSON."""
    with tempfile.TemporaryDirectory() as home:
        os.chdir(home)
        os.environ.update(GPUWISE_HOME=home, GPUWISE_RECORDS=f"{home}/records.db")
        Path("script.py").write_text("pass\n", encoding="utf-8")
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        make(kind, Path(home, name))
        try:
            code, said = refused(words)
        except BaseException:  # noqa: BLE001 - a fork that failed is an answer too
            code, said = -1, traceback.format_exc()
    print(json.dumps([kind, code, said]), flush=True)


if __name__ == "__main__":  # in a fork for each kind: what is read once a process is read again
    for each in KINDS:
        child = os.fork()
        if not child:
            ask_with_a_found_file(sys.argv[1], each, sys.argv[2:])
            os._exit(0)
        os.waitpid(child, 0)
