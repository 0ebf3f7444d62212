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
    "phases": ["plan", "qwen2.5-1.5b", "--on", "8xH100-SXM", "--for", "grpo", "--response", "1024"],
    "fit": ["fit", "llama-3.1-8b", "--on", "4090", "--for", "train"],
    "pick": ["pick", "--for", "infer", "--model", "llama-3.1-8b"],
    "compare": ["compare", "H100-SXM", "A100-80GB"],
    "cost": ["cost", "--on", "8xH100-SXM", "--hours", "5000/month"],
    "occupancy": ["lab", "occupancy", "--on", "V100", "--chart", "--regs", "37", "--block", "320"],
    "simulate": ["lab", "simulate", "--timeline", "matmul-tiled", "--size", "64", "--on", "v100"],
    "capacity": ["capacity", "llama-3.1-8b", "--on", "H100-SXM", "--users", "50", "--quick"],
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
