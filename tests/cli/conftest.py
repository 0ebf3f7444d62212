"""Run the command line inside the test process, and see what it wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gpuwise.cli.app import run


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
