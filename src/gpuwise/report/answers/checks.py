"""Checks and their limits, as an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuwise.report.answers.answer import Answer, Cell, Column, Command, Row, Section, Table
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import At

TITLES = PARTS["check"]


def reasons(check: At) -> list[str]:
    """Why a check fails, in words; none where it passes."""
    if check["error"]:
        return [check["error"].text]
    return [f"{limit['words'].text}: {found_words(limit)}" for limit in check["limits"] if not limit["passed"].value]


def found_words(limit: At) -> str:
    """The figure of a limit beside what is allowed."""
    if limit["limit"].value == "fits":
        return "yes" if limit["passed"].value else "it does not fit"
    found, most = (next(at for key, at in limit.items() if key.startswith(name)) for name in ("found", "most"))
    return f"{found.text} of {most.text} at most" if found else "the answer has no such figure"


def checks_answer(document: Mapping[str, Any]) -> Answer:
    """How many checks pass; those that fail first, with their figures."""
    at = At(document)
    checks = sorted(at["checks"], key=lambda c: bool(c["passed"].value))
    failed = [c for c in checks if not c["passed"].value]
    n = len(checks)
    verdict = f"All {n} checks pass" if not failed else f"{len(failed)} of {n} checks {'fails' if len(failed) == 1 else 'fail'}"
    rows = [_row(c, failed=not c["passed"].value) for c in checks]
    columns = [Column("check", words=True), Column("result", words=True), Column("figures", words=True)]
    first = (failed or checks)[0]["command"].text
    asked = [Row([Cell(c["name"].text), Cell(c["command"].text), Cell(c["hint"].text if c["hint"] else "")]) for c in checks]
    return Answer(
        "check",
        verdict,
        "no" if failed else "yes",
        at["file"].text,
        [],
        [
            Section("checks", TITLES["checks"], [Table(TITLES["checks"], columns, rows)], first=True),
            Section(
                "commands",
                TITLES["commands"],
                [
                    Table(
                        TITLES["commands"],
                        [Column("check", words=True), Column("command", words=True), Column("", words=True)],
                        asked,
                    )
                ],
            ),
        ],
        Command("Ask the first that fails" if failed else "Ask one alone", first.split(" ")),
    )


def _row(check: At, *, failed: bool) -> Row:
    figures = reasons(check) if failed else [f"{limit['words'].text} {found_words(limit)}" for limit in check["limits"]]
    return Row(
        [Cell(check["name"].text), Cell("fails" if failed else "passes"), Cell("; ".join(figures))], mark="bad" if failed else ""
    )
