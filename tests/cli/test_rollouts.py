"""``gpuwise plan --for grpo``: one screen, the verdict first and the next command last; what means nothing is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpuwise.cli.app import run

ASKED = "plan qwen2.5-7b --on 8xH100-SXM --for grpo --group 16 --response 8192 --steps 500"


def test_the_first_screen_begins_with_the_verdict_and_ends_with_a_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(ASKED.split()) == 0
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert len(lines) <= 25 and "500 steps of GRPO take" in lines[0]
    assert "--steps 500" in " ".join(" ".join(lines[-2:]).replace("\\", "").split()) and lines[-1].endswith("--settings")


def test_json_has_the_phases(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASKED.split(), "--json"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["step_time_s"]["expected"] == pytest.approx(sum(document["breakdown_s"].values()))
    assert [c["slower"] for c in document["changes"]] == sorted(c["slower"] for c in document["changes"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--for grpo --tokens 1B", "--steps"),
        ("--for grpo --seq 4096", "--seq means nothing for --for grpo"),
        ("--for lora --group 8", "--group is for trainings"),
        ("--for grppo", "grpo"),
        ("--for embed --prompts 64", "--global-batch and --seq"),
        ("--for distill --teacher stored --tokens 1B --steps 10", "two lengths"),
        ("--for grpo --stack nanogpt", "nanogpt has no GRPO"),
    ],
)
def test_what_means_nothing_is_refused(words: str, message: str, gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("plan", "gpt2" if "nanogpt" in words else "qwen2.5-7b", "--on", "8xH100-SXM", *words.split())
    assert ran.code == 2 and message in ran.err


@pytest.mark.parametrize("words", ["--for grpo --response 1024", "--for embed", "--for distill --teacher qwen2.5-14b"])
def test_fit_names_what_fills_the_memory_and_cost_its_bill(words: str, gpuwise: Callable[..., Any]) -> None:
    asked = ["qwen2.5-1.5b", "--on", "8xH100-SXM", *words.split()]
    fit = gpuwise("fit", *asked)
    assert fit.code == 0 and " fits, " in fit.out.splitlines()[0] and "optimizer" in fit.out
    cost = gpuwise("cost", "run", *asked, "--steps", "100")
    assert cost.code == 0 and "The bill" in cost.out
