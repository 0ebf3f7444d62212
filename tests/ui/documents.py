"""Answers of the commands, computed once a process."""

from __future__ import annotations

import contextlib
import copy
import io
import json
from functools import cache
from typing import Any

from gpuwise.cli.app import run

ASKED: dict[str, list[str]] = {
    "plan": ["plan", "gpt2", "--on", "4xA100-80GB", "--tokens", "1B"],
    "fit": ["fit", "llama-3.1-8b", "--on", "4090"],
}


@cache
def _text(name: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run([*ASKED[name], "--json"])
    return out.getvalue().splitlines()[-1]


def document(name: str) -> Any:
    """What ``--json`` prints for one question, to be changed at will."""
    return copy.deepcopy(json.loads(_text(name)))
