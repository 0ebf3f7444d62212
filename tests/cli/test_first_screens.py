"""The default answer of every command: one screen, a verdict in the first line, a next step that works in the last."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuwise.cli.answer import LINES
from gpuwise.cli.app import COMMANDS, build

WIDTH = 80
SCREENS: Mapping[str, tuple[str, ...]] = {
    "plan": ("plan llama-3.1-8b --on 8xH100-SXM --tokens 15B", "plan llama-3.1-8b"),
    "fit": (
        "fit llama-3.1-8b --on 4090",
        "fit llama-3.1-8b --on 4090 --for train",
        "fit llama-3.1-8b --on 4090 --for run",
        "fit flux-dev --on 4070",
        "fit whisper-large-v3 --on T4",
        "fit bge-m3 --on 3060 --for run",
    ),
    "capacity": ("capacity llama-3.1-8b --on H100 --users 200", "capacity whisper-small --on 4090 --max"),
    "pick": ("pick --for infer --model llama-3.1-8b", "pick --for train --model gpt2 --tokens 10B", "pick"),
    "compare": ("compare 4090 3090", "compare H100-SXM A100-80GB --model llama-3.1-8b"),
    "cost": ("cost 8xH100", "cost llama-3.1-8b --on 8xH100-SXM --tokens 15B", "cost llama-3.1-8b --on L40S --users 50"),
    "op": ("op matmul 4096 4096 4096 --on 4090", "op decode llama-3.1-8b --on 4090", "op allreduce 1GB --on 8xH100"),
    "prices": (
        "prices",
        "prices h100",
        "prices 4090",
        "prices --buy",
        "prices 4090 --buy",
        "prices h100 --history",
        "prices l4 --spot",
    ),
    "gpus": ("gpus", "gpus h100", "gpus 4090", "gpus hopper"),
    "cpus": ("cpus", "cpus zen 4", "cpus EPYC 9654"),
    "models": ("models", "models llama-3.1-8b", "models qwen", "models --on 4090"),
    "explain": ("explain", "explain MFU"),
    "export": (
        "export llama-3.1-8b --on 8xH100-SXM --tokens 1B",
        "export llama-3.1-8b --on 8xH100-SXM --tokens 1B --to axolotl --out {tmp}/job",
    ),
    "doctor": ("doctor --no-frameworks", "doctor --no-frameworks --gpus 99"),
    "top": ("top --once --demo 2", "top --once --demo"),
    "memory": ("memory {here}/run.pickle",),
    "profile": ("profile --trace {here}/trace.json",),
    "validate": ("validate", "validate --runs"),
    "lab": (
        "lab",
        "lab occupancy --on H100-SXM --regs 64 --block 256",
        "lab simulate",
        "lab simulate vector-add --on 4090",
        "lab cpu-vs-gpu 64",
        "lab exercise",
        "lab exercise 1",
        "lab exercise 1 25",
        "lab exercise 1 --solution",
    ),
    "bench": ("bench --list",),
    "share": ("share {here}/llama-bench.json",),
    "check": ("check {here}/gpuwise.checks.toml",),
}
"""Common questions of each command."""
ELSEWHERE = {"mcp", "run", "tune", "ui"}
"""A script's own output, and a server."""
HERE = Path(__file__).parents[1] / "answers" / "data"
NOT_RUN = re.compile(r"gpuwise (ui|tune|run|profile|bench|doctor|validate)\b|--fix-plan|--refresh|--local|--out ")
"""Next steps that take minutes, look at this machine or write files: they are parsed."""


def test_every_command_is_asked() -> None:
    assert {name for name, *_ in COMMANDS} == SCREENS.keys() | ELSEWHERE


def _marked() -> list[Any]:
    return [
        pytest.param(line, id=line, marks=[pytest.mark.thorough] if i >= 2 and name not in ("prices", "lab") else [])
        for name, lines in SCREENS.items()
        for i, line in enumerate(lines)
    ]


@pytest.mark.parametrize("line", _marked())
def test_the_default_answer_is_one_screen(
    line: str, gpuwise: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    for name in ("GPUWISE_PRICES", "GPUWISE_RECORDS"):
        monkeypatch.setenv(name, str(tmp_path / name))
    ran = gpuwise(*shlex.split(line.format(here=HERE, tmp=tmp_path)))
    lines = ran.out.splitlines()
    assert ran.code in (0, 1, 2) and len(lines) <= LINES
    long = [text for text in lines if len(text) > WIDTH and str(tmp_path) not in text and str(HERE) not in text]
    assert not long
    verdict = " ".join(lines[: 2 if len(lines[0]) > WIDTH - 15 else 1])
    assert len(verdict.split()) >= 3 and not verdict.rstrip().endswith(":"), verdict
    assert verdict[0].isalnum(), "a sentence, not a table's indented head"
    following(next_step(ran.out), gpuwise)


def next_step(screen: str) -> str:
    """The command of the last lines."""
    joined = re.sub(r" *\\\n\s*", " ", screen.rstrip())
    last = joined.splitlines()[-1]
    found = re.search(r"(^|  )(gpuwise|cd|export|llama-server|vllm|huggingface-cli|hf) .*", last)
    assert found, last
    return found[0].strip()


def following(command: str, gpuwise: Callable[..., Any]) -> None:
    """A next step of gpuwise parses, and runs where that is cheap."""
    if not command.startswith("gpuwise "):
        return
    words = shlex.split(command)[1:]
    build().parse_args(words, exit_on_error=False, print_error=False)
    if not NOT_RUN.search(command):
        ran = gpuwise(*words)
        assert ran.code in (0, 1) and ran.out, (command, ran.err)
