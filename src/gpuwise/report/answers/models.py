"""Which models run on a device: those that fit whole, those with a part in RAM, those that are slower than one reads."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gpuwise.report.answers.answer import Answer, Cell, Column, Command, Number, Row, Section, Table, span
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import At

TITLES = PARTS["models"]
BY_SIZE = "sorted by size (of experts the mean of all and the active), long contexts first: there are no scores of quality here"


def models_answer(document: Mapping[str, Any]) -> Answer:
    """The answer of ``models --on``."""
    d = At(document)
    rows = {name: [m for m in d["models"] if m["group"].value == name] for name in TITLES}
    whole, part = len(rows["whole"]), len(rows["part"])
    verdict = f"{d['machine']['label'].text} runs {_models(whole)} as fast as one reads"
    verdict += f", and {part} more with a part in RAM" if part else ""
    every = [m for group in rows.values() for m in group]
    return Answer(
        "models",
        verdict if whole or part else f"{d['machine']['label'].text} runs none of them as fast as one reads",
        "yes" if whole else "maybe" if every else "no",
        (
            Number(d["context"], lambda n: f"{n:,.0f}"),
            " tokens of context; in the format of least loss that is fast enough",
        ),
        parts=[Section(name, TITLES[name], [_table(name, group)], first=name != "slow") for name, group in rows.items() if group],
        next=_next(d, every),
        assumed=[BY_SIZE, *(str(s.value) for s in d["assumed"])],
    )


def _models(n: int) -> str:
    return "no model" if not n else "one model" if n == 1 else f"{n} models"


def _table(name: str, models: Sequence[At]) -> Table:
    columns = [
        Column("model", words=True),
        Column("parameters", leaves=2),
        Column("active", leaves=1),
        Column("format", words=True),
        Column("memory"),
        *([Column("in RAM")] if name != "whole" else []),
        Column("tokens/s"),
        *([Column("longest context")] if name == "whole" else []),
    ]
    return Table(TITLES[name], columns, [_row(name, m) for m in models])


def _row(name: str, m: At) -> Row:
    rate = m["tokens_per_s"]
    return Row(
        [
            Cell(m["id"]),
            Cell(m["parameters"]),
            Cell(m["active_parameters"]),
            Cell(m["weights"]),
            Cell(m["memory_bytes"]),
            *([Cell(m["host_bytes"]) if m["host_bytes"].number else Cell("-")] if name != "whole" else []),
            Cell(rate, span(rate)),
            *([Cell(Number(m["longest_context"], lambda n: f"{n:,.0f}"))] if name == "whole" else []),
        ]
    )


def _next(d: At, models: Sequence[At]) -> Command | None:
    """The first one in full."""
    on = ["--on", shlex.quote(d["on"].text)]
    for m in models:
        return Command("The first one in full", ["gpuwise", "fit", m["id"].text, *on, "--for", "run"])
    return None


__all__ = ["models_answer"]
