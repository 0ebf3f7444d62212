"""This machine: what the doctor found, what was measured before, and where the time of each rank of a run went."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpuwise.report.answers.code import tiles
from gpuwise.report.answers.drawings import Line, Part, around, lines, stacks
from gpuwise.report.answers.values import At, cell, sentences, shown
from gpuwise.report.page import TableCell, TableRow, heading, notes, table
from gpuwise.text import capital, escape
from gpuwise.units import format_duration

RESOURCES = (
    ("cpus", "processors"),
    ("memory_bytes", "memory"),
    ("shm_bytes", "shared memory, /dev/shm"),
    ("nofile", "open files at most"),
)
"""Of a process on the machine."""
_CODE = re.compile("`([^`]+)`")


def _coded(words: str) -> str:
    """HTML of a sentence with commands between backticks."""
    return _CODE.sub(r"<code>\1</code>", escape(words))


def doctor(document: Mapping[str, Any]) -> list[str]:
    """Findings, worst first, each with what mends it."""
    d = At(document)
    good = not d["findings"]
    body = [f'<h2>{escape(capital(d["verdict"].text))}</h2><p class="{"yes" if good else "no"}">{escape(d["summary"].text)}</p>']
    for finding in (*d["findings"], *d["notes"]):
        body.append(
            f"<h3>{_coded(finding['what'].text)}</h3><p>{_coded(finding['why'].text)}</p>{notes(sentences(finding['evidence']))}"
        )
        for mend in finding["mends"]:
            lines = "\n".join(sentences(mend["commands"]))
            body.append(f"<p>{_coded(mend['what'].text)}</p>" + (f"<pre>{escape(lines)}</pre>" if lines else ""))
    resources = d["machine"]["resources"]
    rows = [TableRow(words, [cell(resources[name])]) for name, words in RESOURCES]
    system = d["machine"]["system"]
    rows = [TableRow("system", [TableCell(system["name"].text, system["kernel"].text)]), *rows]
    return [*body, heading("The machine"), table("The machine", ["what", "value"], rows)]


def runs(document: Mapping[str, Any]) -> list[str]:
    """Trainings of this machine, predicted beside measured, or how to come by one."""
    empty = "No training was run by gpuwise here yet. gpuwise run train.py predicts one, runs it and keeps both."
    return history(document, empty)


def history(
    document: Mapping[str, Any], empty: str = "Nothing was measured here yet. gpuwise bench --quick takes a minute or two."
) -> list[str]:
    """Every list of the records as a table; ``empty`` where there is none."""
    body = list[str]()
    for name, place in At(document).items():
        rows = [r for r in place if isinstance(r.value, dict)] if isinstance(place.value, list) else []
        if rows:
            keys = [k for k, v in rows[0].items() if not isinstance(v.value, dict | list)][:7]
            table_rows = [TableRow(r[keys[0]].text, [cell(r[k]) for k in keys[1:]]) for r in rows]
            body += [heading(name), table(name, [k.replace("_", " ") for k in keys], table_rows)]
    return body or [f"<p>{escape(empty)}</p>"]


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
        notes(sentences(d["errors"])),
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
        made = [
            TableRow(
                c["kind"].text, [cell(c[k]) for k in ("predicted_count", "measured_count", "predicted_bytes", "measured_bytes")]
            )
            for c in d["collectives"]
        ]
        head = ["collective", "predicted", "counted", "bytes predicted", "bytes counted"]
        body += [heading("Collectives of a step"), table("Collectives of a step", head, made)]
    made = [
        TableRow(r["rank"].text, [cell(r[k]) for k in ("steps", "step_s", *(k for _, k in PARTS), "memory_bytes", "loss")])
        for r in d["ranks"]
    ]
    head = ["rank", "step", "a step", *(n for n, _ in PARTS), "memory", "loss"]
    return [*body, heading("Ranks"), table("Ranks", head, made)]


def _curves(d: At) -> str:
    """Loss, and the slowest beside the fastest rank, over the newest steps."""
    curve = list(d["curve"])
    if len(curve) < 3:
        return ""
    x = around("step", [p["step"].number for p in curve], "{:,.0f}".format)
    series = [Line("loss", [(p["step"].number, p["loss"].number) for p in curve if p["loss"].value is not None])]
    y = around("loss", [b for s in series for _, b in s.points], "{:.3g}".format)
    made = lines("loss", "Loss", x, y, series) if len(series[0].points) > 2 else ""
    series = [
        Line(name, [(p["step"].number, p[key].number) for p in curve])
        for name, key in (("slowest rank", "slowest_s"), ("fastest rank", "fastest_s"))
    ]
    y = around("a step", [b for s in series for _, b in s.points], format_duration, zero=True)
    return made + lines("pace", "The slowest and the fastest rank", x, y, series)
