"""What `gpuwise pick` answers to the questions of `questions.toml`, judged as the file's first lines say."""

from __future__ import annotations

import datetime
import re
import shlex
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpuwise.cli.app import build
from gpuwise.cli.pick.command import ANYTHING, NO_LIMITS, job_of, limits_of, terms_of
from gpuwise.errors import GpuwiseError
from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.api import pick
from gpuwise.pick.fleet import fleet
from gpuwise.pick.learning import learn
from gpuwise.pick.tries import Predictions

TODAY = datetime.date(2026, 11, 21)
FILE = Path(__file__).parent / "questions.toml"
KNOWN = Predictions()
_COUNTED = re.compile(r"(\d+)x (.+)")


@dataclass(frozen=True, slots=True)
class Judged:
    """The first three of an answer as ``2x rtx-3090``, and why an expert does not agree; empty when one does."""

    first: tuple[str, ...]
    objection: str


@cache
def questions() -> tuple[dict[str, Any], ...]:
    """The questions with their classes spelled out."""
    document = tomllib.loads(FILE.read_text())
    classes: dict[str, list[str]] = document["classes"]
    for question in document["question"]:
        for key in ("expert", "also", "never"):
            question[key] = [name for entry in question[key] for name in (classes[entry[1:]] if entry[0] == "@" else [entry])]
    return tuple(document["question"])


def judged(question: dict[str, Any]) -> Judged:
    """The question asked and its answer judged; refused, it has none."""
    try:
        first = answer(question["command"])
    except GpuwiseError as error:
        return Judged((), f"refused: {error.message}")
    return Judged(first, _objection(question, first))


def answer(command: str) -> tuple[str, ...]:
    """The first three different accelerators of the answer, each with its count."""
    _, bound, _ = build().parse_args(["pick", *shlex.split(command)], exit_on_error=False, print_error=False)
    asked = bound.arguments
    purpose, model = asked["purpose"], asked.get("model")
    work, within = asked.get("work", ANYTHING), asked.get("within", NO_LIMITS)
    limits, terms = limits_of(within, asked.get("by"), purpose), terms_of(within)
    if purpose == "mixed":
        best = fleet(find_model(model), limits, today=TODAY, terms=terms).best
        found = [] if best is None else [(name.split("x ", 1)[0].split(" ")[-1], name) for name in best.names]
        return tuple(dict.fromkeys(_of_fleet(name) for _, name in found))
    if purpose == "learn" and model is None:
        ranked: Any = learn(limits, today=TODAY, terms=terms, known=KNOWN).ranked
    else:
        ranked = pick(job_of(purpose, model, work, within), limits, today=TODAY, terms=terms, known=KNOWN).ranked
    first: dict[str, str] = {}
    for outcome in ranked:
        first.setdefault(outcome.way.accelerator.id, f"{outcome.n}x {outcome.way.accelerator.id}")
    return tuple(first.values())[:3]


def _of_fleet(name: str) -> str:
    """``used 2x RTX 3090`` as ``2x rtx-3090``."""
    from gpuwise.facts.hardware.naming import find_accelerator

    counted = _COUNTED.search(name)
    assert counted is not None
    return f"{counted[1]}x {find_accelerator(counted[2]).id}"


def _objection(question: dict[str, Any], first: tuple[str, ...]) -> str:
    if not first:
        return "no answer"
    warned = [name for name in first if _among(name, question["never"])]
    if warned:
        return f"{warned[0]} is warned against"
    if not _among(first[0], [*question["expert"], *question["also"]]):
        return f"{first[0]} is what no expert names"
    if not any(_among(name, question["expert"]) for name in first):
        return "none of the three is what the source recommends"
    return ""


def _among(name: str, entries: list[str]) -> bool:
    return name in entries or name.split("x ", 1)[1] in entries
