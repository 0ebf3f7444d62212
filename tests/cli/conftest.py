"""Run the command line inside the test process, and see what it wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuwise.cli.app import run
from gpuwise.predict.memory.allocator.simulation import simulate
from gpuwise.predict.memory.snapshot.writer import line_frame, write_snapshot

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON document on the last line of stdout."""
        return json.loads(self.out.splitlines()[-1])


@pytest.fixture
def gpuwise(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """``gpuwise("plan", "llama-3.1-8b", ...)`` at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str) -> Ran:
        code = run(list(arguments))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


def _event(name: str, cat: str, at: float, long: float, **args: object) -> dict[str, object]:
    return {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": 1, "ts": at, "dur": long, "args": args}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A processor's trace: loaders take two thirds of three steps."""
    events = []
    for n in range(4):
        t = n * 3000.0
        events += [
            _event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", t, 2000),
            _event("aten::mm", "cpu_op", t + 2000, 600, **{"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}),
            _event("aten::relu", "cpu_op", t + 2600, 100),
            _event("Optimizer.step#SGD.step", "user_annotation", t + 2800, 190),
        ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"traceEvents": events}))
    return file


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A memory snapshot of blocks that leave gaps: 25 and 27 MiB go, 52 is needed, a small one stays in the way."""
    sizes = [25 * MIB, 27 * MIB, 4 * MIB, 52 * MIB]
    run = simulate([0, 2, 1, 0, 1, 3], [1, 1, 1, -1, -1, 1], sizes)
    path = tmp_path / "run.pickle"
    write_snapshot(run, path, frames=[line_frame(f"train.py:{i} in step") for i in range(4)])
    return path
