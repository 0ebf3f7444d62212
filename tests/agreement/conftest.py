"""Questions asked as a person asks them: a command with ``--json``, run inside the test process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpuwise.cli.app import run


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """``ask("plan", "llama-3.1-8b", "--on", "8xH100-SXM")``: the document on the last line of stdout."""

    def call(*arguments: str) -> Any:
        code = run([*arguments, "--json"])
        captured = capsys.readouterr()
        document = json.loads(captured.out.splitlines()[-1])
        assert code == (1 if document.get("fits") is False and "--for" in arguments else 0), captured.err
        return document

    return call
