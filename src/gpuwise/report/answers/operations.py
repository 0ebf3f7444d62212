"""One operation on GPUs and processors: how long it takes, at which rate, and what bounds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuwise.facts.models.catalogue import models
from gpuwise.interval import P80
from gpuwise.report.answers.answer import Answer, Cell, Column, Command, Number, Phrase, Row, Section, Table, span
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import At
from gpuwise.units import format_bytes, format_number, format_rate

TITLES = PARTS["op"]
RATES = {
    "stream": "rates count bytes read and bytes written",
    "copy": "rates of links count one direction, of memory reading and writing; host copies from pinned memory",
    "allreduce": "rates are bus bandwidth, one direction: 2 (n - 1) / n x size / time",
}
"""What a rate counts."""
LEVEL = 1.05
"""Times of two devices that differ by less are called level."""


def op_answer(document: Mapping[str, Any], text: str = "") -> Answer:
    """The answer of ``op``; ``text`` are the sizes of a kernel in words."""
    d = At(document)
    rows = [*d["rows"], *([d["against"]] if d["against"] else [])]
    made = _model(d, rows) if d["operation"]["model"] else _kernel(d, rows, text)
    title, lead, table = made
    first = min((r for r in d["rows"] if r["time_s"]), key=lambda r: r["time_s"].number, default=None)
    verdict: Phrase = (title, ": does not fit")
    if first is not None:
        rate: Phrase = ()
        if first["tokens_per_s"]:
            rate = (", ", Number(first["tokens_per_s"], format_number), " tokens/s")
        elif first["share_of_peak"]:
            rate = (", ", Number(first["share_of_peak"], _percent), " of the peak rate")
        path = f" ({first['path'].value})" if first["path"].value else ""
        verdict = (title, f" on {first['device'].text}{path}: ", first["time_s"].expected, rate, f", bound by {_bound(first)}")
    return Answer(
        "op",
        verdict,
        "yes" if first is not None else "no",
        lead,
        [],
        [Section("devices", TITLES["devices"], [table], first=True)],
        _next(d, rows),
        assumed=[*_notes(rows), *_meaning(d["operation"], rows)],
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _bound(row: At) -> str:
    return "L2 cache" if row["bound"].text == "cache" else row["bound"].text


def _kernel(d: At, rows: list[At], text: str) -> tuple[str, Phrase, Table]:
    """A kernel's title, what it does, and each device on each path."""
    w, kind, dtype = d["operation"], d["operation"]["kind"].text, d["operation"]["dtype"].text
    flop, unit = bool(w["flop"].number), "OP" if dtype.startswith("int") else "FLOP"
    half = 2 if kind == "stream" else 1
    title = f"{kind} {text}, {dtype}" if flop else f"{kind} of {_size(w['bytes'].number / half)}"
    intensity: Phrase = (", ", Number(w["flop_per_byte"], format_number), f" {unit} per byte") if w["flop_per_byte"] else ()
    work = Number(w["flop"], lambda n: format_rate(n, unit))
    lead: Phrase = (work, ", ", Number(w["bytes"], _size), " to move", intensity) if flop else RATES.get(kind, "")

    def rate(row: At) -> Phrase:
        if row["flop_per_s"].value is not None:
            return Number(row["flop_per_s"], lambda n: format_rate(n, f"{unit}/s"))
        return Number(row["bytes_per_s"], lambda n: format_rate(n, "B/s"))

    columns = [Column("device", words=True)]
    paths, faster = any(r["path"].value for r in rows), any(r["speedup"] for r in rows)
    columns += [Column("path", words=True)] if paths else []
    columns += [
        Column("time"),
        Column(P80, leaves=2),
        Column("rate"),
        Column("of peak"),
        Column("bound by", words=True, leaves=1),
    ]
    columns += [Column("against CPU")] if faster else []
    made = [
        Row(
            [
                Cell(r["device"]),
                *([Cell(r["path"].value or "")] if paths else []),
                Cell(r["time_s"].expected),
                Cell(span(r["time_s"])),
                Cell(rate(r)),
                Cell(Number(r["share_of_peak"], _percent)),
                Cell(_bound(r)),
                *([_times(r)] if faster else []),
            ]
        )
        for r in rows
    ]
    return title, lead, Table(TITLES["devices"], columns, made)


def _model(d: At, rows: list[At]) -> tuple[str, Phrase, Table]:
    """A token of a model or its training: title, what it takes, and each device."""
    w, trains = d["operation"], d["operation"]["kind"].text == "train"
    arch = models().get(w["model"].text)
    name = w["model"].text if arch is None else arch.name
    cache: Phrase = (", ", Number(w["cache_bytes"], _size), " of cache") if w["cache_bytes"] else ()
    weights: Phrase = () if trains else (", ", Number(w["weight_bytes"], _size), " of weights", cache)
    lead: Phrase = (w["text"].text, ": ", Number(w["flop"], lambda n: format_rate(n, "FLOP")), weights)
    cost, faster = any(r["cost_usd"] for r in rows), any(r["speedup"] for r in rows)
    columns = [Column("device", words=True), Column("tokens/s"), Column(P80, leaves=2), Column("time")]
    columns += [Column("cost")] if cost else []
    columns += [Column("bound by", words=True)]
    columns += [Column("against CPU")] if faster else []
    made = [
        Row(
            [
                Cell(r["device"]),
                Cell(Number(r["tokens_per_s"], format_number) if r["tokens_per_s"] else "-"),
                Cell(span(r["tokens_per_s"], format_number) if r["tokens_per_s"] else ""),
                Cell(r["time_s"].expected),
                *([Cell(r["cost_usd"].expected)] if cost else []),
                Cell(_bound(r)),
                *([_times(r)] if faster else []),
            ],
            mark="" if r["fits"].value else "bad",
        )
        for r in rows
    ]
    return f"{name}, {'training' if trains else 'one more token'}", lead, Table(TITLES["devices"], columns, made)


def _times(row: At) -> Cell:
    """How many times as fast as the processor."""
    if not row["speedup"]:
        return Cell("")
    return Cell(Number(row["speedup"], _factor), span(row["speedup"], _factor))


def _factor(value: float) -> str:
    return f"{value:,.0f}x" if value >= 10 else f"{value:.2g}x"


def _size(n: float) -> str:
    """Decimal bytes: what a person types as 1GB comes back as 1 GB."""
    return format_rate(n, "B") if n >= 1000 else format_bytes(n)


def _notes(rows: list[At]) -> Iterator[str]:
    """What is known of each device, those that share a note together."""
    devices: dict[str, list[str]] = {}
    for r in rows:
        for note in r["notes"]:
            devices.setdefault(note.text, []).append(r["device"].text)
    for note, names in devices.items():
        yield note if len(rows) == 1 else f"{', '.join(dict.fromkeys(names))}: {note}"


def _meaning(w: At, rows: list[At]) -> Iterator[str]:
    """What times, peaks and rates are."""
    bases = sorted({str(r["time_s"]["basis"].value) for r in rows if r["time_s"]})
    yield f"device times; basis: {', '.join(bases) or 'none'}"
    if not w["model"]:
        peak = f"the dense {w['dtype'].text} rate" if w["flop"].number else "the bandwidth"
        yield f"peak: {peak} of the data sheet, or of the cache that is named"


def _next(d: At, rows: list[At]) -> Command:
    """More about the model on the first device, or the devices side by side."""
    w, first = d["operation"], d["rows"][0]
    n, several, _ = first["device"].text.partition("x ")
    on = f"{n}x{first['id'].text}" if several and n != "1" else first["id"].text
    if w["kind"].text == "train" and first["kind"].text == "gpu":
        tokens = f"{float(w['text'].text.partition(' ')[0]):.0f}"
        return Command("The plan of it", ["gpuwise", "plan", w["model"].text, "--on", on, "--tokens", tokens])
    if w["kind"].text == "decode" and first["kind"].text == "gpu":
        return Command("Run it", ["gpuwise", "fit", w["model"].text, "--on", on, "--for", "run"])
    gpus = [*dict.fromkeys(r["id"].text for r in rows if r["kind"].text == "gpu")]
    if len(gpus) > 1:
        return Command("Side by side", ["gpuwise", "compare", *gpus[:8]])
    kind, name = ("gpus", gpus[0]) if gpus else ("cpus", first["id"].text)
    return Command("Its figures and their sources", ["gpuwise", kind, name])
