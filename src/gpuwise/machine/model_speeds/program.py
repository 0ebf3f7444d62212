"""``llama-bench`` as a process: each row is read as it is printed, so that what was measured stays if it is stopped."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path

from gpuwise.errors import InputError
from gpuwise.machine.model_speeds.read import read_speeds
from gpuwise.processes import script_environment
from gpuwise.serve.local_measured import MeasuredSpeed

PROGRAM = "llama-bench"
PROMPT, WRITTEN = 512, 128
"""Tokens of its tests by default (pp512, tg128), which published tables have."""
GRACE_S = 5.0
"""Seconds to end after SIGTERM, before SIGKILL."""
GET = (
    "it is part of llama.cpp: `brew install llama.cpp`, `winget install llama.cpp`, or github.com/ggml-org/llama.cpp/releases; "
    "--llama-bench names it where it is not on PATH"
)


def find_program(named: Path | None) -> str:
    """The program ``named``, or the one on PATH. Raises InputError."""
    found = shutil.which(PROGRAM if named is None else str(named.expanduser()))
    if found is None:
        what = f"{PROGRAM} is not installed" if named is None else f"{named} cannot be run"
        raise InputError(what, hint=GET if named is None else "name the file llama-bench itself")
    return found


def command(
    program: str, file: str, depths: Sequence[int], *, layers: int, expert_layers: int = 0, gpu: int | None = None
) -> list[str]:
    """Of the tests at each depth: ``layers`` of the model on the devices, or of the one GPU."""
    words = [program, "-m", file, "-p", str(PROMPT), "-n", str(WRITTEN), "-d", ",".join(map(str, depths))]
    words += ["-ngl", str(layers), "-fa", "1", "-o", "jsonl"]
    words += ["-ncmoe", str(expert_layers)] if expert_layers else []
    return words + ([] if gpu is None else ["-sm", "none", "-mg", str(gpu)])


def run(words: Sequence[str]) -> Generator[MeasuredSpeed]:
    """Speeds as they are measured. The process is ended when the iterator is closed, or by Ctrl-C. Raises InputError where the
    program fails, FileError where it prints something else."""
    # a driver's order of GPUs, as indices are counted here
    environment = script_environment() | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, env=environment)
        except OSError as error:
            raise InputError(
                f"{words[0]} cannot be run: {error.strerror or error}", hint="name the file llama-bench itself"
            ) from None
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip():
                    yield from read_speeds(line.decode("utf-8", "replace"), PROGRAM)
            code = process.wait()
        finally:
            end(process)
        if code:
            errors.seek(0, os.SEEK_END)
            errors.seek(max(errors.tell() - 2000, 0))
            last = [text for text in errors.read().decode("utf-8", "replace").splitlines() if text.strip()]
            why = f": {last[-1].strip()[:200]}" if last else ""
            raise InputError(f"{PROGRAM} ended with code {code}{why}", hint="run it by itself to see more: " + shlex.join(words))


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that may still run, and close its pipe."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
