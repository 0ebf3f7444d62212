"""The answer of a training whose step has phases: how long, what a step is made of, what would change it, whether it fits."""

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
    """What ``plan`` answers."""
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
    return Answer(
        "plan",
        (verdict, cost),
        "yes",
        _lead(d),
        figures,
        [
            Section("step", PLAN["step"], [_step(d)], first=True),
            *_changes(d, "changes"),
            Section("memory", PLAN["memory"], _memory(d)),
            Section("settings", PLAN["settings"], _settings(d)),
        ],
        Command("Settings of the programs that run it", sets={"settings": "yes"}),
        warnings=[str(w.value) for w in d["warnings"]],
        assumed=[str(a.value) for a in d["assumed"]],
    )


def rl_fit_answer(document: Mapping[str, Any]) -> Answer:
    """What ``fit`` answers: the memory of the fullest phase."""
    d = At(document)
    verdict: Phrase = (
        d["model"]["name"],
        " on ",
        d["cluster"]["label"],
        f": {d['title'].text} fits, ",
        d["memory_bytes"],
        " of ",
        d["device_bytes"],
    )
    return Answer(
        "fit",
        (verdict, " a GPU"),
        "yes",
        _lead(d),
        [Figure("step", d["step_time_s"].expected, span(d["step_time_s"]), ())],
        [
            Section("memory", PARTS["fit"]["memory"], _memory(d), first=True),
            *_changes(d, "tried"),
            Section("step", PARTS["fit"]["step"], [_step(d)]),
        ],
        Command("How long it takes, and what it costs", command="plan"),
        warnings=[str(w.value) for w in d["warnings"] if "price" not in str(w.value)],
        assumed=[str(a.value) for a in d["assumed"]],
    )


def _settings(d: At) -> list[Code]:
    return [Code(name, [str(line.value) for line in lines], whole=True) for name, lines in d["settings"].items()]


def _changes(d: At, part: str) -> list[Section]:
    columns = [Column("change", words=True), Column("a step"), Column("step is", words=True), Column("learns", words=True)]
    table = Table(PLAN["changes"], columns, [_change(c) for c in d["changes"]])
    title = PARTS["plan" if part == "changes" else "fit"][part]
    return [Section(part, title, [table], first=part == "changes")] if d["changes"] else []


def _lead(d: At) -> Phrase:
    goal, engine = d["goal"], d["engine"]
    teacher = f"teacher {goal['teacher'].text}; " if goal["teacher"] else ""
    if goal["texts"].value:
        unit = f"queries with {goal['group'].text} texts each" if goal["contrastive"].value else "sequences"
        what = (goal["prompts"], f" {unit} a step, at most ", goal["response_tokens"], f" tokens; {teacher}")
        return (*what, plain_words(d["strategy"]))
    what: Phrase = (
        goal["prompts"],
        " prompts x ",
        goal["group"],
        " responses a step, at most " if goal["group"].number != 1 else " response a step, at most ",
        goal["response_tokens"],
        " tokens; ",
        goal["updates"],
        " update; " if goal["updates"].number == 1 else " updates; ",
    )
    what = (*what, teacher)
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


def _memory(d: At) -> list[Table]:
    phases = [Row([Cell(name), Cell(place)]) for name, place in d["memory_phases_bytes"].items()]
    parts = [Row([Cell(name), Cell(place)]) for name, place in d["memory_parts_bytes"].items()]
    return [
        Table(PLAN["memory"], [Column("in the update", words=True), Column("fullest GPU")], parts),
        *([Table(PLAN["memory"], [Column("phase", words=True), Column("fullest GPU")], phases)] if len(phases) > 1 else []),
    ]


def _change(change: At) -> Row:
    slower = Number(change["slower"], lambda x: speed_words(x))
    learns = "the same" if change["same_result"].value else "otherwise"
    sets = {name: str(value.value) for name, value in change["sets"].items()}
    return Row([Cell(str(change["name"].value), sets=sets), Cell(change["step_time_s"].expected), Cell(slower), Cell(learns)])
