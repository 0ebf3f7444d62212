"""Each answer on a terminal: a first screen, parts, a next step that runs, and no number that the document lacks."""

from __future__ import annotations

import functools
import json
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from tests.answers.asked import QUESTIONS
from tests.ui.test_views import at

from gpuwise.cli.answer import LINES, text
from gpuwise.cli.app import build
from gpuwise.cli.asked import asking
from gpuwise.report.answers.answer import Answer, Notes, Stack, Table, plain, shows
from gpuwise.report.answers.catalogue import gpus_answer
from gpuwise.report.answers.checks import checks_answer
from gpuwise.report.answers.choosing import compare_answer, pick_answer
from gpuwise.report.answers.costs import cost_answer
from gpuwise.report.answers.models import catalogue_answer, models_answer
from gpuwise.report.answers.operations import op_answer
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.passes import passes_answer
from gpuwise.report.answers.serving import capacity_answer
from gpuwise.report.answers.shared import shared_answer
from gpuwise.report.answers.steps import step_answer
from gpuwise.report.answers.training import fit_answer, plan_answer

ANSWERS: Mapping[str, Callable[[Mapping[str, Any]], Answer]] = {
    r"(fit|plan) \S*\.py": step_answer,
    "fit": fit_answer,
    "plan": plan_answer,
    "pick": pick_answer,
    "compare": compare_answer,
    r"capacity (vit-|whisper|clip-|bge-|bert-base --on T4)": passes_answer,
    "capacity": capacity_answer,
    "cost": cost_answer,
    "op": op_answer,
    "check": checks_answer,
    "share": shared_answer,
    "gpus": gpus_answer,
    "models --on": models_answer,
    "models": catalogue_answer,
}
"""By the beginning of a question; the first that matches."""
NOT_YET = r"--for run"
"""Questions whose answers are not of this kind: running a model."""
MORE = (
    "plan examples/train_resnet.py --on T4 --batch 64 --samples 1M --remedies",
    "fit examples/train_gpt.py --on 4090 --remedies",
    "models",
    "models jamba-v0.1",
    "models gemma-3n-e4b",
    "models --on 4090",
    "check tests/answers/data/gpuwise.checks.toml",
    "share tests/answers/data/llama-bench.json",
)
"""Questions beside those of the table of answers."""
FEW = 3
"""Questions of each command by default; thorough runs have all."""


def questions() -> Iterator[Any]:
    counts: dict[str, int] = {}
    for question in (*QUESTIONS, *MORE):
        command = next((kind for kind in ANSWERS if re.match(kind, question)), None)
        if command is not None and not re.search(NOT_YET, question):
            counts[command] = counts.get(command, 0) + 1
            yield pytest.param(question, id=question, marks=[pytest.mark.thorough] if counts[command] > FEW else [])


def commands(screen: str) -> Iterator[str]:
    """The command lines of a screen, each as a shell reads it."""
    joined = re.sub(r"\\\n\s*", "", screen)
    yield from (line[line.index("gpuwise ") :] for line in joined.splitlines() if re.search(r"(^|  )gpuwise ", line))


def suits(text: str, width: int) -> bool:
    """Whether no line is wider, but one of a single word, which is whole to be pasted."""
    return all(len(line) <= width or " " not in line.strip().removesuffix(" \\") for line in text.splitlines())


@pytest.mark.parametrize("question", list(questions()))
def test_an_answer(question: str, gpuwise: Callable[..., Any]) -> None:
    words = shlex.split(question)
    printed = gpuwise(*words, "--json").out.splitlines()[-1]
    document = json.loads(printed)
    answer = next(function for kind, function in ANSWERS.items() if re.match(kind, question))(document)
    with asking(words):
        screen, whole, ascii_only = text(answer), text(answer, None), text(answer).encode("ascii", "replace").decode()
        wide, narrow = text(answer, width=120), text(answer, width=60)
    lines = screen.splitlines()
    assert len(lines) <= LINES
    assert suits(screen, 80) and suits(whole, 80) and suits(wide, 120) and suits(narrow, 60)
    assert len(ascii_only.splitlines()) == len(lines)
    assert lines[0] and plain(answer.verdict).startswith(lines[0][:40])
    for command in commands(screen):
        parse(command)
    if answer.next is not None:
        line = "".join(answer.next.line(words)) if answer.next.words else shlex.join(["gpuwise", *answer.next.line(words)])
        assert re.sub(r"\s", "", screen.replace("\\\n", "")).endswith(re.sub(r"\s", "", line))
    for place in shows(answer):
        if place.value is not None:
            assert place.value == at(document, place.pointer), place.pointer
    assert {p.name for p in answer.parts} <= PARTS[answer.command].keys()
    everything(answer, whole)


def parse(command: str) -> None:
    """Raises where a command line cannot be read."""
    words = shlex.split(command)
    build().parse_args(words[1:], exit_on_error=False, print_error=False)


def everything(answer: Answer, whole: str) -> None:
    """All of it has each part with each of its rows and notes."""
    flat = re.sub(r"\s+", "", whole)
    for part in answer.parts:
        assert part.title in whole
        for block in part.blocks:
            if isinstance(block, Table):
                for row in block.rows:
                    stays = [c for c, column in zip(row.cells, block.columns, strict=False) if not column.leaves]
                    longest = max((w for c in stays for w in plain(c.value).split()), key=len)
                    assert longest in flat, (part.name, longest)
            elif isinstance(block, Notes):
                for item in block.items:
                    assert re.sub(r"\s+", "", plain(item))[1:20] in flat
            elif isinstance(block, Stack):
                assert plain(block.whole.expected) in whole or block.apart
    for sentence in (*answer.assumed, *answer.warnings):
        assert re.sub(r"\s+", "", sentence)[1:20] in flat


@pytest.mark.parametrize("command", sorted(PARTS))
def test_each_part_has_a_flag_that_the_document_does_not_heed(command: str) -> None:
    app = build()
    asked = functools.reduce(operator.getitem, command.split(), app)
    given = asked.assemble_argument_collection(default_parameter=app.default_parameter, parse_docstring=True)
    names = {n for a in given for n in a.names}
    assert {f"--{part}" for part in (*PARTS[command], "all")} <= names


def test_a_next_step_is_the_question_with_other_options() -> None:
    from gpuwise.report.answers.answer import Command

    asked = ["fit", "gpt2", "--on", "4090", "--recompute", "none", "--tried", "--json", "--micro-batch=2"]
    again = Command("", sets={"recompute": "full", "lora": "yes", "micro_batch": "1"}).line(asked)
    assert shlex.join(again) == "fit gpt2 --on 4090 --lora --recompute full --micro-batch 1"
    assert Command("", command="plan", drops=["on"]).line(asked) == ["plan", "gpt2", "--recompute", "none", "--micro-batch=2"]
    assert Command("").line(()) == []
