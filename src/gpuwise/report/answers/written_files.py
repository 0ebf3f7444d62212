"""The files that run a plan, as an answer: what they are, what to fill in, what starts them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuwise.report.answers.answer import Answer, Cell, Code, Column, Command, Notes, Row, Section, Table
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import At, sentences

TITLES = PARTS["export"]


def export_answer(document: Mapping[str, Any], *, title: str, folder: Path | None) -> Answer:
    """The answer for files written to ``folder``; to none where that is None. ``title``: what they run."""
    d = At(document)
    files = d["files"].items()
    count = "1 file runs" if len(files) == 1 else f"{len(files)} files run"
    rows = [Row([Cell(name), Cell(f"{len(str(text.value).splitlines())}")]) for name, text in files]
    command = " ".join(shlex.quote(str(word)) for word in d["command"].value)
    notes = sentences(d["notes"])
    return Answer(
        "export",
        f"{count} {title}" + ("" if folder is None else "; written"),
        "yes",
        parts=[
            Section(
                "files",
                TITLES["files"],
                [
                    Table(TITLES["files"], [Column("file", words=True), Column("lines")], rows),
                    *(Code(name, text.value.splitlines(), whole=True) for name, text in files),
                ],
                first=True,
            ),
            *([Section("notes", TITLES["notes"], [Notes(notes)], first=True)] if notes else []),
        ],
        next=Command("Write them to a folder", sets={"out": "job"})
        if folder is None
        else Command("Start it", [f"cd {shlex.quote(str(folder))} && {command}"]),
    )
