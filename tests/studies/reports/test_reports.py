"""Public reports are answered at least as well as their files say."""

from __future__ import annotations

import pytest

from studies.reports.asked import PARTLY, RIGHT, VERDICTS, Report, found, reports

SLOW = ("capacity", "pick", "plan --for grpo")
"""Questions that simulate a load, by their command and task: asked in the slow group."""


def is_slow(report: Report) -> bool:
    command, task = report.ask.split()[0], " --for grpo" * (" --for grpo" in report.ask)
    return command + task in SLOW and not report.refused


@pytest.mark.parametrize(
    "report",
    [pytest.param(r, id=f"{r.source} {r.at}", marks=pytest.mark.thorough if is_slow(r) else ()) for r in reports()],
)
def test_public_report(report: Report) -> None:
    said = report.said()
    assert VERDICTS.index(report.verdict(said)) >= VERDICTS.index(report.answer), f"{said} where {report.measured} was measured"


def test_verdicts() -> None:
    row = Report("x", "op", "right", "a.0.b", [80, 100])
    assert [row.verdict(x) for x in (70, 60, 59, 112.5, 125, 126, None, "no")] == [
        "right", "partly", "wrong", "right", "partly", "wrong", "wrong", "wrong",
    ]  # fmt: skip
    assert (RIGHT, PARTLY) == (0.125, 0.25)
    assert Report("x", "op", "right", refused="heads").verdict("25 heads") == "right"


def test_found() -> None:
    document = {"served": None, "miss": {"memory": {"tokens": 3}}, "rows": [{"x": 1}]}
    assert found(document, ["*", "memory", "tokens"]) == 3
    assert found(document, ["rows", "0", "x"]) == 1
    assert found(document, ["rows", "1", "x"]) is None and found(document, ["gone", "x"]) is None
