"""What a load takes: the fleet, latency against load, a simulated minute, what single changes would bring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuwise.facts.models.catalogue import models
from gpuwise.report.answers.drawings import Dot, Line, around, lines, points
from gpuwise.report.answers.values import At, cell, sentences, shown
from gpuwise.report.page import TableCell, TableRow, heading, notes, table
from gpuwise.text import escape
from gpuwise.units import format_duration

MEASURES = (("ttft", "p95", "first token, 95th"), ("itl", "p99", "between tokens, 99th"), ("e2e", "p95", "whole answer, 95th"))


def _named(model: str) -> str:
    """What the catalogue calls a model by its id; the id where it does not stand there."""
    arch = models().get(model)
    return model if arch is None else arch.name


def capacity(document: Mapping[str, Any]) -> list[str]:
    """A capacity as the body of a page."""
    d = At(document)
    served = d["served"]
    body = [f"<h2>{escape(_named(d['model'].text))} on {escape(d['on'].text)}</h2>"]
    if d["ranked"]:
        body += [heading("By price"), _ranked(d["ranked"])]
    if not served:
        return [*body, '<p class="no">The targets are not met.</p>', *_nearest(d["nearest_miss"]), notes(sentences(d["notes"]))]
    fleet = served["fleet"]
    figures = (
        ("GPUs at the peak", fleet["accelerators_peak"]),
        ("Dollars an hour", fleet["usd_per_hour"]),
        ("A million tokens written", fleet["usd_per_million_output_tokens"]),
        ("Requests a second of a replica", served["requests_per_s_of_a_copy"]),
        ("Queues grow from, requests a second", served["knee_requests_per_s_of_a_copy"]),
        ("Average requests a second", fleet["requests_per_s"]),
    )
    items = "".join(f"<div><dt>{escape(t)}</dt><dd>{shown(p).html}</dd></div>" for t, p in figures if p.value is not None)
    body += [
        f'<dl class="tiles">{items}</dl>',
        f'<p class="layout">Each replica: {escape(served["words"].text)}; first gives out: '
        f"{escape(served['saturates_first']['words'].text)}</p>",
        f'<div class="figures">{_curve(served)}{_minute(served["timeline"])}{_front(d["pareto"])}</div>',
        heading("The fleet"),
        _fleet(fleet),
        heading("As the rate of one replica rises"),
        _rates(served["curve"]),
    ]
    body += [heading("One change"), _changes(d["changes"])] if d["changes"] else []
    body += [heading("Notes"), notes(sentences(d["notes"]))] if d["notes"] else []
    commands = "".join(_command(c) for c in (*served["start_all"], *served["load_tests"]))
    return [*body, heading("Start it, measure it"), commands]


def _command(place: At) -> str:
    """A command under what it is for, with the file it reads."""
    note, file = place["note"], place["file"]
    words = f"# {place['for'].text}" + (f": {note.text}" if note else "")
    text = f"{words}\n{place['command'].text}" + (f"\n# {file['name'].text}\n{file['text'].text}" if file else "")
    return f"<pre>{escape(text)}</pre>"


def _nearest(miss: At) -> list[str]:
    """Why the targets are not met, and near ones that are."""
    if not miss:
        return []
    feasible = miss["feasible"]
    words = [miss["why"].text, feasible["sentence"].text if feasible else ""]
    return [f"<p>{escape(w)}</p>" for w in words if w]


FLEET = (
    ("requests a second, on average", "requests_per_s"),
    ("requests a second, at the peak", "peak_requests_per_s"),
    ("replicas, now", "copies_now"),
    ("replicas, at the peak", "copies_peak"),
    ("GPUs, at the peak", "accelerators_peak"),
    ("systems, at the peak", "systems_peak"),
    ("GPUs, following the day", "mean_accelerators"),
    ("dollars an hour", "usd_per_hour"),
    ("a million tokens written", "usd_per_million_output_tokens"),
    ("the same, following the day", "usd_per_million_output_tokens_following_the_day"),
    ("watt-hours a million tokens written", "wh_per_million_output_tokens"),
    ("power", "power_w"),
)


def _fleet(place: At) -> str:
    rows = [TableRow(words, [cell(place[name])]) for words, name in FLEET if place[name].value is not None]
    price = place["price"]
    rows += [TableRow("price of a GPU-hour", [cell(price["usd_per_gpu_hour"], small=price["provider"].text)])] if price else []
    return table("The fleet", ["what", "value"], rows)


def _rate(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _curve(served: At) -> str:
    curve = [p for p in served["curve"] if not p["saturated"].value]
    series = [
        Line(name, [(p["requests_per_s"].number, p["latency_s"][m][q].number) for p in curve if p["latency_s"][m][q]])
        for m, q, name in MEASURES[:2]
    ]
    series = [s for s in series if len(s.points) > 1]
    if not series:
        return ""
    knee = served["knee_requests_per_s_of_a_copy"].number
    x = around("requests a second of one replica", [0.0, knee, *(a for s in series for a, _ in s.points)], _rate, zero=True)
    y = around("latency", [b for s in series for _, b in s.points], format_duration, zero=True)
    return lines("latency", "Latency against load", x, y, series, [(knee, "queues grow")])


def _minute(place: At) -> str:
    moments = list(place)
    if len(moments) < 2:
        return ""
    series = [
        Line(name, [(m["s"].number, m[key].number) for m in moments])
        for key, name in (("running", "decoding"), ("waiting", "waiting"))
    ]
    x = around("seconds", [m["s"].number for m in moments], _rate, zero=True)
    y = around("requests", [b for s in series for _, b in s.points], _rate, zero=True)
    return lines("minute", "A simulated minute", x, y, series)


def _front(place: At) -> str:
    front = list(place)
    if len(front) < 2:
        return ""
    user, gpu = "output_tokens_per_s_of_a_user", "output_tokens_per_s_per_accelerator"
    x = around("tokens a second of a user", [p[user].number for p in front], _rate, zero=True)
    y = around("tokens a second of a GPU", [p[gpu].number for p in front], _rate, zero=True)
    dots = [
        Dot(p[user].number, p[gpu].number, f"{p[user].text} a user, {p[gpu].text} a GPU: {p['configuration'].text}")
        for p in front
    ]
    return points("front", "Throughput against interactivity", x, y, dots)


def _rates(place: At) -> str:
    rows = [
        TableRow(
            shown(p["requests_per_s"]),
            [
                *(cell(p["latency_s"][m][q]) for m, q, _ in MEASURES),
                cell(p["output_tokens_per_s_per_accelerator"]),
                cell(p["kv_fill"]),
            ],
        )
        for p in place
    ]
    head = ["requests a second", *(name for _, _, name in MEASURES), "tokens/s of a GPU", "cache"]
    return table("As the rate of one replica rises", head, rows)


def _changes(place: At) -> str:
    rows = [
        TableRow(
            c["change"].text,
            [TableCell(c["why_not"].text, mark="words") if c["why_not"] else cell(c["requests_per_s"]), cell(c["gain"])],
        )
        for c in place
    ]
    return table("One change", ["change", "as many GPUs carry, requests/s", "gain"], rows)


def _ranked(place: At) -> str:
    keys = [k for k, v in place[0].items() if not isinstance(v.value, dict | list)][:6]
    return table(
        "By price",
        [k.replace("_", " ") for k in keys],
        [TableRow(r[keys[0]].text, [cell(r[k]) for k in keys[1:]]) for r in place],
    )
