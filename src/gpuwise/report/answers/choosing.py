"""Which GPU: ranked for a job, side by side, rented or owned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuwise.pick.compare.rows import say
from gpuwise.report.answers.drawings import Line, around, lines, ranges
from gpuwise.report.answers.values import At, cell, placed, sentences, shown
from gpuwise.report.page import Markup, TableCell, TableRow, heading, notes, table, verdict
from gpuwise.text import capital, escape
from gpuwise.units import format_usd

OPTION = ("total_usd", "usd_per_gpu_hour", "cheapest_share", "utilisation")
SHOWN = 20
"""Rows of a ranking; the rest is in the document."""


def pick(document: Mapping[str, Any]) -> list[str]:
    """A ranking as the body of a page."""
    d = At(document)
    rows = [
        TableRow(
            f"{r['count'].text} x {r['name'].text}",
            [
                TableCell(r["way"].text, _from(r), "words"),
                *(cell(r[k]) for k in ("cost_usd", "time_s", "tokens_per_s", "memory_bytes")),
                TableCell(r["layout"].text, "; ".join(r["changes"].value or ()), "words"),
            ],
        )
        for r in list(d["ranked"])[:SHOWN]
    ]
    serving = d["job"]["purpose"].text == "infer"
    head = ["GPUs", "how", "cost", "a token" if serving else "time", "tokens/s", "memory", "layout"]
    body = [f"<h2>{escape(capital(d['job']['name'].text))}</h2>", verdict(sentences(d["verdict"])), table("Ranked", head, rows)]
    groups = [
        TableRow(g["heading"].text, [cell(g["accelerators"]), TableCell(_named(g["named"]), mark="words")])
        for g in d["left_out_groups"]
    ]
    body += [heading("Left out"), table("Left out", ["why", "GPUs", "for example"], groups)] if groups else []
    return [*body, heading("Assumed"), notes(sentences(d["assumed"]))]


def _from(option: At) -> str:
    """Who rents it out, or whether it is bought new or used."""
    return (option["price"]["provider"] if option["way"].text == "rent" else option["condition"]).value or ""


def _named(place: At) -> str:
    return "; ".join(f"{n['name'].text}: {n['why'].text}" for n in place)


def compare(document: Mapping[str, Any]) -> list[str]:
    """A comparison as the body of a page."""
    d = At(document)
    names = [s["name"].text for s in d["subjects"]]
    rows, section = list[TableRow](), ""
    for r in d["rows"]:
        if r["section"].text != section:
            section = r["section"].text
            rows.append(TableRow(section, group=True))
        best = {str(v) for v in r["best"].value or ()}
        cells = [
            TableCell(_compared(r["unit"].text, c), c["words"].text if c["words"].value else "", "best" if str(i) in best else "")
            for i, c in enumerate(r["cells"])
        ]
        rows.append(TableRow(r["title"].text, cells))
    body = [
        f"<h2>{escape(' and '.join(names))}</h2>",
        verdict(sentences(d["verdict"])),
        table("Side by side", ["what", *names], rows),
    ]
    return [*body, notes(sentences(d["notes"]))]


def _compared(unit: str, c: At) -> Markup:
    value = c["value"]
    if value.value is None:
        return Markup("")
    return placed(value, say(unit, value.value))


def cost(document: Mapping[str, Any]) -> list[str]:
    """Rent or own as the body of a page."""
    d = At(document)
    if not d["options"]:
        return []
    labels = {o["name"].text: o["label"].text for o in d["options"]}
    best = d["best"].text
    figures = "".join(
        f"<div><dt>{escape(t)}</dt><dd>{shown(p).html}</dd></div>"
        for t, p in (
            ("Owning comes out cheaper in", d["own_wins"]),
            ("Owning minus renting", d["own_minus_rent_usd"]),
            ("Owning breaks even after, months", d["break_even"]["months"]),
            ("Owning breaks even from, hours a month and GPU", d["break_even"]["hours_per_month_and_gpu"]),
        )
        if p
    )
    rows = [
        TableRow(
            o["label"].text,
            [cell(o[k], mark="best" if o["name"].text == best else "") for k in OPTION],
        )
        for o in d["options"]
    ]
    head = ["option", "total", "a GPU-hour", "cheapest in", "used"]
    drivers = [(r["label"].text, r["usd_at_low"], r["usd_at_high"]) for r in d["drivers"]]
    tornado = (
        ranges("drivers", "What moves owning minus renting", drivers, d["own_minus_rent_usd"], format_usd) if drivers else ""
    )
    body = [
        f"<h2>{escape(d['accelerator'].text)}: {escape(labels.get(best, best))}</h2>",
        f'<dl class="tiles">{figures}</dl>',
        table("Options", head, rows),
        f'<div class="figures">{_over_time(d)}{tornado}</div>',
    ]
    assumed = [TableRow(a["label"].text, [TableCell(a["value"].text, a["source"].text, "words")]) for a in d["assumptions"]]
    return [*body, heading("Assumed"), table("Assumed", ["what", "value"], assumed), notes(sentences(d["notes"]))]


def _over_time(d: At) -> str:
    """The expected sums, month by month."""
    series = [Line(o["label"].text, [(float(m), p.number) for m, p in enumerate(o["cumulative_usd"][1])]) for o in d["options"]]
    series = [s for s in series if len(s.points) > 2]
    if not series:
        return ""
    x = around("month", [a for s in series for a, _ in s.points], "{:.0f}".format, zero=True)
    y = around("spent", [b for s in series for _, b in s.points], format_usd, zero=True)
    return lines("spent", "Spent over time", x, y, series)
