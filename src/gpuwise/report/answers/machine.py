"""This machine: what the doctor found, and what was measured before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuwise.report.answers.values import At, cell, sentences
from gpuwise.report.page import TableCell, TableRow, heading, notes, table
from gpuwise.text import escape


def doctor(document: Mapping[str, Any]) -> list[str]:
    """Findings, worst first, each with what mends it."""
    d = At(document)
    good = not d["findings"]
    body = [f'<h2>{escape(d["verdict"].text)}</h2><p class="{"yes" if good else "no"}">{escape(d["summary"].text)}</p>']
    for found in (*d["findings"], *d["notes"]):
        body.append(
            f"<h3>{escape(found['what'].text)}</h3><p>{escape(found['why'].text)}</p>{notes(sentences(found['evidence']))}"
        )
        for mend in found["mends"]:
            lines = "\n".join(sentences(mend["commands"]))
            body.append(f"<p>{escape(mend['what'].text)}</p>" + (f"<pre>{escape(lines)}</pre>" if lines else ""))
    resources = d["machine"]["resources"]
    rows = [TableRow(name.replace("_", " "), [cell(resources[name])]) for name in ("cpus", "memory_bytes", "shm_bytes", "nofile")]
    system = d["machine"]["system"]
    rows = [TableRow("system", [TableCell(system["name"].text, system["kernel"].text)]), *rows]
    return [*body, heading("The machine"), table("The machine", ["what", "value"], rows)]


def history(document: Mapping[str, Any]) -> list[str]:
    """Every list of the records as a table."""
    body = list[str]()
    for name, place in At(document).items():
        rows = [r for r in place if isinstance(r.value, dict)] if isinstance(place.value, list) else []
        if rows:
            keys = [k for k, v in rows[0].items() if not isinstance(v.value, dict | list)][:7]
            made = [TableRow(r[keys[0]].text, [cell(r[k]) for k in keys[1:]]) for r in rows]
            body += [heading(name), table(name, [k.replace("_", " ") for k in keys], made)]
    return body or ["<p>Nothing has been measured here yet.</p>"]
