"""This machine: what the doctor found, what was measured before beside what is expected, and where the time of each rank of a run
went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuwise.report.answers.drawings import Line, Part, around, lines, stacks
from gpuwise.report.answers.values import At, cell, coded, placed, shown, tiles
from gpuwise.report.page import Markup, TableCell, TableRow, Text, heading, notes, table, text
from gpuwise.text import capital, escape
from gpuwise.units import format_duration, format_measured

RESOURCES = (
    ("cpus", "processors"),
    ("memory_bytes", "memory"),
    ("shm_bytes", "shared memory, /dev/shm"),
    ("nofile", "open files at most"),
)
"""Of a process on the machine."""


def doctor(document: Mapping[str, Any]) -> list[str]:
    """Findings, worst first, each with what mends it."""
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


STATES = {
    "done": "Trained.",
    "asked": "Stopped when asked.",
    "failed": "A rank failed.",
    "running": "Under way.",
    "silent": "No rank has written for five minutes.",
}
PARTS = (
    ("computing", "compute_s"),
    ("waiting for data", "data_s"),
    ("waiting for other ranks", "wait_s"),
    ("waiting for a processor", "queue_s"),
)
"""Of a rank's step."""
MODEL = (
    ("Parameters", "parameters"),
    ("Trained", "trained"),
    ("Zeros that stay", "zeros"),
    ("Weights of rank 0", "weight_bytes"),
)


def ranks(document: Mapping[str, Any]) -> list[str]:
    """A run on ranks: each rank's time, who is waited for, what was predicted beside what was counted."""
    d = At(document)
    state = d["state"].text
    slow = d["straggler"]
    body = [
        f"<h2>{escape(d['target'].text.rpartition('/')[2])} on {escape(d['layout']['words'].text)}</h2>",
        f'<p class="{"yes" if state in ("done", "running") else "no"}">{STATES[state]}</p>',
        tiles(
            (
                ("Step", d["steps"]),
                ("A step takes", d["step_s"]),
                ("Samples a second", d["samples_per_s"]),
                ("Loss", d["loss"]),
                ("Restarts", d["restarts"]),
                *((name, d["model"][key]) for name, key in MODEL if d["model"]),
            )
        ),
        notes(d["errors"].value),
    ]
    if slow:
        body.append(
            f'<p class="no">Rank {shown(slow["rank"]).html} is waited for {shown(slow["lost_s"]).html} a step '
            f"({shown(slow['share']).html}): {escape(slow['cause'].text)}.</p>"
        )
    elif state in ("done", "asked", "running") and len(list(d["ranks"])) > 1:
        body.append('<p class="layout">No rank is waited for noticeably.</p>')
    rows = [(f"rank {r['rank'].text}", [Part(n, r[k]) for n, k in PARTS]) for r in d["ranks"] if r["step_s"].value is not None]
    body.append(f'<div class="figures">{stacks("ranks", "A step of each rank", rows, format_duration)}{_curves(d)}</div>')
    if d["collectives"]:
        parts = [
            TableRow(
                c["kind"].text, [cell(c[k]) for k in ("predicted_count", "measured_count", "predicted_bytes", "measured_bytes")]
            )
            for c in d["collectives"]
        ]
        head = ["collective", "predicted", "counted", "bytes predicted", "bytes counted"]
        body += [heading("Collectives of a step"), table("Collectives of a step", head, parts)]
    parts = [
        TableRow(r["rank"].text, [cell(r[k]) for k in ("steps", "step_s", *(k for _, k in PARTS), "memory_bytes", "loss")])
        for r in d["ranks"]
    ]
    head = ["rank", "step", "a step", *(n for n, _ in PARTS), "memory", "loss"]
    return [*body, heading("Ranks"), table("Ranks", head, parts)]


def _curves(d: At) -> str:
    """Loss, and the slowest beside the fastest rank, over the newest steps."""
    curve = list(d["curve"])
    if len(curve) < 3:
        return ""
    x = around("step", [p["step"].number for p in curve], "{:,.0f}".format)
    series = [Line("loss", [(p["step"].number, p["loss"].number) for p in curve if p["loss"].value is not None])]
    y = around("loss", [b for s in series for _, b in s.points], "{:.3g}".format)
    curves = lines("loss", "Loss", x, y, series) if len(series[0].points) > 2 else ""
    series = [
        Line(name, [(p["step"].number, p[key].number) for p in curve])
        for name, key in (("slowest rank", "slowest_s"), ("fastest rank", "fastest_s"))
    ]
    y = around("a step", [b for s in series for _, b in s.points], format_duration, zero=True)
    return curves + lines("pace", "The slowest and the fastest rank", x, y, series)
