"""This machine: what the doctor found, what was measured before beside what is expected, and where the time of each rank of a run
went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuwise.report.answers.values import At, cell, coded, placed, shown
from gpuwise.report.page import Markup, TableCell, TableRow, Text, heading, notes, table, text
from gpuwise.text import capital, escape
from gpuwise.units import format_measured

RESOURCES = (
    ("cpus", "processors"),
    ("memory_bytes", "memory"),
    ("shm_bytes", "shared memory, /dev/shm"),
    ("nofile", "open files at most"),
)
"""Of a process on the machine."""


def doctor(document: Mapping[str, Any]) -> list[str]:
    """Findings, worst first, each with its fix."""
    d = At(document)
    good = not d["findings"]
    verdict, summary = (escape(capital(d[key].text)) for key in ("verdict", "summary"))
    body = [f'<h2>{verdict}</h2><p class="{"yes" if good else "no"}">{summary}</p>']
    for finding in (*d["findings"], *d["notes"]):
        body.append(
            f"<h3>{coded(finding['what'].text)}</h3><p>{coded(finding['why'].text)}</p>{notes(finding['evidence'].value)}"
        )
        for mend in finding["mends"]:
            lines = "\n".join(mend["commands"].value)
            body.append(f"<p>{coded(mend['what'].text)}</p>" + (f"<pre>{escape(lines)}</pre>" if lines else ""))
    resources = d["machine"]["resources"]
    rows = [TableRow(words, [cell(resources[name])]) for name, words in RESOURCES]
    system = d["machine"]["system"]
    rows = [TableRow("system", [TableCell(system["name"].text, system["kernel"].text)]), *rows]
    return [*body, heading("The machine"), table("The machine", ["what", "value"], rows)]


KINDS = {"tune": "tune: all levers together, from one by one", "run": "run: a whole run, from the tuning or earlier runs"}


def runs(document: Mapping[str, Any]) -> list[str]:
    """Trainings of this machine, predicted beside measured, or how to come by one."""
    d = At(document)
    if not d["runs"]:
        return [
            "<p>No prediction of a training is kept here yet. <code>gpuwise run train.py</code> predicts one, runs it and keeps "
            "both; <code>gpuwise tune train.py</code> does so of its levers.</p>"
        ]
    rows = [
        TableRow(KINDS.get(r["kind"].text, r["kind"].text), [cell(r["n"]), cell(r["scripts"]), *(_percent(r[k]) for k in ERRORS)])
        for r in d["runs"]
    ]
    head = ["predicted", "times", "scripts", "median error", "bias", "worst"]
    body = [heading("Speed of your trainings: predicted against measured"), table("Errors", head, rows)]
    each = [
        TableRow(
            r["on"].text,
            [
                TableCell(f"{r['kind'].text} {r['job'].text[:8]}", r["basis"].text, "words"),
                TableCell(r["device"].text, mark="words"),
                *(TableCell(Markup(f"{shown(r[k]).html} {escape(r['per'].text)}/s")) for k in ("predicted", "measured")),
                _percent(r["error"]),
            ],
        )
        for r in reversed(list(d["each"]))
    ]
    head = ["on", "script", "device", "predicted", "measured", "error"]
    return [*body, heading("Each"), table("Each prediction", head, each)]


ERRORS = ("median_error", "bias", "worst")


def _percent(place: At) -> TableCell:
    """A share with its sign, where one is worth a sign."""
    sign = "+" if place.name in ("bias", "error") else ""
    return TableCell(placed(place, f"{100 * place.number:{sign}.1f} %"))


def history(document: Mapping[str, Any]) -> list[str]:
    """The newest value of each measurement beside what is expected of the device and the middle of all; or how to come by one."""
    d = At(document)
    body = list[str]()
    for device in d["devices"]:
        rows = list[TableRow]()
        for r in device["measurements"]:
            e, share = r["expected"], r["of_expected"]
            verdict = r["verdict"].text
            low = verdict == "low"
            rows.append(
                TableRow(
                    r["measurement"].text,
                    [
                        TableCell(f"failed: {r['failed'].text}" if r["failed"] else _measured(r["newest"], r)),
                        TableCell(_measured(e["expected"], r), _range(e, r)) if e else TableCell("-", r["reason"].text),
                        TableCell(shown(share), verdict, "weak" if low else "") if e and share else TableCell("-"),
                        TableCell(_measured(r["median"], r), f"of {r['count'].text}"),
                        TableCell(r["on"].text),
                    ],
                )
            )
        words = f"{device['device'].text}, machine {device['machine_id'].text}"
        head = ["measurement", "newest", "expected", "of expected", "median", "on"]
        body += [heading(words), table(words, head, rows)]
    empty = "<p>Nothing was measured here yet. <code>gpuwise bench --quick</code> takes a minute or two.</p>"
    return body or [empty]


def _measured(place: At, row: At) -> Text:
    """A value in the unit of its measurement."""
    if place.value is None:
        return "-"
    return placed(place, format_measured(place.value, row["unit"].text).replace(" ", "\u00a0"))


def _range(expected: At, row: At) -> Text:
    low, high = (_measured(expected[k], row) for k in ("low", "high"))
    return Markup(f"{text(low)} to {text(high)}")
