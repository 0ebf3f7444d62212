"""The answer of a run of reinforcement learning or DPO: how long, what a step is made of, what would change it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuwise.plan.explain import speed_words
from gpuwise.report.answers.answer import (
    Answer,
    Cell,
    Code,
    Column,
    Command,
    Figure,
    Number,
    Phrase,
    Row,
    Section,
    Stack,
    Table,
    span,
)
from gpuwise.report.answers.drawings import Part
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.strategy import plain_words
from gpuwise.report.answers.values import At
from gpuwise.units import format_count

PLAN = PARTS["plan"]


def rl_answer(document: Mapping[str, Any]) -> Answer:
    """The answer."""
    d = At(document)
    goal = d["goal"]
    verdict: Phrase = (
        d["model"]["name"],
        " on ",
        d["cluster"]["label"],
        ": ",
        goal["steps"],
        " steps of ",
        d["title"],
        " take ",
        d["time_s"].expected,
    )
    cost = (" and cost ", d["cost_usd"].expected) if d["cost_usd"] else ""
    figures = [
        Figure(
            "time",
            d["time_s"].expected,
            span(d["time_s"]),
            (d["step_time_s"].expected, " a step, ", Number(d["tokens_per_s"].expected, lambda x: f"{format_count(x)} tokens/s")),
        ),
        *([Figure("cost", d["cost_usd"].expected, span(d["cost_usd"]))] if d["cost_usd"] else []),
        Figure("memory", d["memory_bytes"], "", ("of ", d["device_bytes"], f" a GPU, fullest in the {d['fullest'].text}")),
    ]
    changes = Table(
        PLAN["changes"],
        [Column("change", words=True), Column("a step"), Column("step is", words=True), Column("learns", words=True)],
        [_change(c) for c in d["changes"]],
    )
    return Answer(
        "plan",
        (verdict, cost),
        "yes",
        _lead(d),
        figures,
        [
            Section("step", PLAN["step"], [_step(d)], first=True),
            *([Section("changes", PLAN["changes"], [changes], first=True)] if d["changes"] else []),
            Section("memory", PLAN["memory"], [_memory(d)]),
            Section(
                "settings",
                PLAN["settings"],
                [Code(name, [str(line.value) for line in lines], whole=True) for name, lines in d["settings"].items()],
            ),
        ],
        Command("Settings of the programs that run it", sets={"settings": "yes"}),
        warnings=[str(w.value) for w in d["warnings"]],
        assumed=[str(a.value) for a in d["assumed"]],
    )


def _lead(d: At) -> Phrase:
    goal, engine = d["goal"], d["engine"]
    what: Phrase = (
        goal["prompts"],
        " prompts x ",
        goal["group"],
        " responses a step, at most ",
        goal["response_tokens"],
        " tokens; ",
        goal["updates"],
        " update; " if goal["updates"].number == 1 else " updates; ",
    )
    if not engine:
        return (what, plain_words(d["strategy"]))
    where = "GPUs of their own" if engine["own_gpus"].value else "the same GPUs"
    sleeps = ", training in host memory meanwhile" if engine["training_offloaded"].value else ""
    return (
        what,
        engine["engines"],
        " engines of vLLM on ",
        where,
        ", tensor parallel ",
        engine["ranks"],
        sleeps,
        "; ",
        plain_words(d["strategy"]),
    )


def _step(d: At) -> Stack:
    parts = [Part(name, place) for name, place in d["breakdown_s"].items()]
    return Stack("step", "A step", sorted(parts, key=lambda p: -p.place.number), d["step_time_s"].expected, apart=True)


def _memory(d: At) -> Table:
    rows = [Row([Cell(name), Cell(place)]) for name, place in d["memory_phases_bytes"].items()]
    return Table(PLAN["memory"], [Column("phase", words=True), Column("fullest GPU")], rows)


def _change(change: At) -> Row:
    slower = Number(change["slower"], lambda x: speed_words(x))
    learns = "the same" if change["same_result"].value else "otherwise"
    sets = {name: str(value.value) for name, value in change["sets"].items()}
    return Row([Cell(str(change["name"].value), sets=sets), Cell(change["step_time_s"].expected), Cell(slower), Cell(learns)])
