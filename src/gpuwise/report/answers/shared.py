"""A shared file, as an answer: what was measured beside what is predicted, and the file as it is written."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from typing import Any

from gpuwise.interval import P80
from gpuwise.report.answers.answer import Answer, Cell, Code, Column, Command, Number, Phrase, Row, Section, Table, span
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import At
from gpuwise.units import format_bytes, format_duration

TITLES = PARTS["share"]
KINDS = {"decode": "write a token", "prompt": "read a prompt", "total": "tokens of all requests", "all_reduce": "all-reduce"}


def file_text(document: Mapping[str, Any]) -> str:
    """The file as it is written."""
    return json.dumps(document, indent=1) + "\n"


def shared_answer(document: Mapping[str, Any]) -> Answer:
    """How far predictions are from what was measured, and the file whole."""
    at = At(document)
    rows = list(at["rows"])
    first = rows[0]
    hardware = f"{first['hardware']['count'].value}x {first['hardware']['device'].text}"
    off = [r["measured_s"].number / r["predicted_s"].number - 1 for r in rows if r["predicted_s"]]
    n = f"{len(rows)} measurement{'s' * (len(rows) > 1)} of {first['software']['program'].text} on {hardware}"
    middle = statistics.median(off) if off else 0.0
    way = "slower" if middle >= 0 else "faster"
    found = f"{abs(middle):.0%} {way} than predicted at the median" if off else "none is predicted"
    columns = [
        Column("what", words=True),
        Column("model", words=True),
        Column("measured"),
        Column("predicted"),
        Column(P80, leaves=1),
    ]
    table = Table(TITLES["rows"], columns, [_row(r) for r in rows])
    text = file_text(document).rstrip().splitlines()
    return Answer(
        "share",
        f"{n}: {found}",
        "",
        "",
        [],
        [
            Section("rows", TITLES["rows"], [table], first=True),
            Section("content", TITLES["content"], [Code(TITLES["content"], text, whole=True)]),
        ],
        Command("Write this, and nothing else, to a file", sets={"out": "measured.gpuwise.json"}),
    )


def _row(row: At) -> Row:
    q = row["question"]
    size = f"{q['tokens'].value:,} tokens after {q['before'].value:,}" if q["model"] else format_bytes(q["bytes"].number)
    predicted: Phrase = row["predicted_s"].expected if row["predicted_s"] else "-"
    model = f"{q['model'].text} {q['weights'].text}".strip()
    return Row(
        [
            Cell(f"{KINDS[q['kind'].text]}, {size}"),
            Cell(model),
            Cell(Number(row["measured_s"], format_duration)),
            Cell(predicted),
            Cell(span(row["predicted_s"])),
        ]
    )
