"""A person's own step, and a kernel on a multiprocessor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlencode

from gpuwise.report.answers.drawings import Axis, Grid, Layer, Part, around, bar, heat, layers
from gpuwise.report.answers.values import At, cell, shown
from gpuwise.report.page import Markup, TableCell, TableRow, heading, notes, table
from gpuwise.text import escape
from gpuwise.units import format_bytes

LIMITS = (("warps", "warps"), ("blocks", "blocks"), ("regs", "registers"), ("smem", "shared memory"), ("barriers", "barriers"))
"""Fields of what limits the blocks of a multiprocessor, and their names."""
MOST = 12
"""Rows of a list that is as long as a person's model."""


def tiles(figures: tuple[tuple[str, At], ...]) -> str:
    """Figures with their names, side by side."""
    items = "".join(f"<div><dt>{escape(t)}</dt><dd>{shown(p).html}</dd></div>" for t, p in figures if p.value is not None)
    return f'<dl class="tiles">{items}</dl>\n'


def code_fit(document: Mapping[str, Any]) -> list[str]:
    """The fit of one's own code: what fills the memory, and where in the code."""
    d = At(document)
    memory = d["memory"]
    peak = [Part(_category(n), p) for n, p in memory["peak_bytes_by_category"].items()]
    names = [_category(name) for name, _ in memory["timeline"]["bytes_by_category"].items()]
    rows = [TableRow(name, [cell(place)]) for name, place in d["parameter_bytes_by_module"].items()[:MOST]]
    where = memory["peak"]
    return [
        f"<h2>{escape(d['target'].text)} on {escape(d['cluster']['label'].text)}</h2>",
        '<p class="yes">It fits.</p>' if d["fits"].value else '<p class="no">It does not fit.</p>',
        tiles(
            (
                ("A step", d["step_time_s"]),
                ("The process", memory["process_bytes"]),
                ("Room", d["headroom_bytes"]),
                ("Chance to fit", d["fit_probability"]),
                ("Parameters", d["parameters"]),
                ("Batch", d["batch"]),
            )
        ),
        f'<p class="layout">Fullest in {escape(where["phase"].text)} at {escape(where["line"].text)}: '
        f"{escape(where['operation'].text)}</p>",
        '<div class="figures">',
        bar("memory", "At the fullest moment", peak, memory["steady_step"]["allocated_bytes"], colours=names),
        _over_the_step(memory["timeline"]),
        "</div>",
        notes([f["what"].text for f in d["findings"] if f["what"]]),
        *_remedies(d),
        heading("Largest tensors at that moment"),
        table("Largest tensors", ["held as", "how many", "size", "made by"], _largest(memory["largest"])),
        heading("Parameters"),
        table("Parameters", ["module", "size"], rows),
    ]


def _remedies(d: At) -> list[str]:
    """Changes that save memory, each to be ticked, how they are written, and larger GPUs."""
    body = list[str]()
    for title, name in (("Remedies", "remedies"), ("Together", "combinations")):
        if not d[name]:
            continue
        rows = list[TableRow]()
        for i, r in enumerate(d[name]):
            at, sets = f"{title.lower()}-{i}", urlencode({"change": " ".join(map(_change, r["changes"].value))})
            tick = f'<input type="checkbox" id="{at}" data-tick="{escape(sets)}">'
            change = Markup(f'<label for="{at}">{tick} {escape(r["name"].text)}</label><small>{escape(r["kind"].text)}</small>')
            fits = TableCell("fits" if r["fits"].value else "does not fit", mark="best" if r["fits"].value else "weak")
            rows.append(
                TableRow(change, [fits, *(cell(r[k]) for k in ("saved_bytes", "process_bytes", "slower", "step_time_s"))])
            )
        body += [heading(title), table(title, ["change", "then", "saves", "memory", "speed", "a step"], rows)]
    for r in [*d["combinations"], *d["remedies"]]:
        if r["fits"].value and r["lines"]:
            lines = "\n".join(line.text for line in r["lines"])
            body.append(
                f"<details><summary>How {escape(r['name'].text)} is written</summary><pre>{escape(lines)}</pre></details>"
            )
    if d["bigger"]:
        rows = [
            TableRow(
                o["cluster"]["label"].text,
                [cell(p) for p in (o["price"]["usd_per_gpu_hour"], o["step_time_s"], o["process_bytes"])],
            )
            for o in d["bigger"]
        ]
        body += [heading("A bigger GPU"), table("A bigger GPU", ["GPUs", "a GPU-hour", "a step", "memory"], rows)]
    return body


def _change(change: Mapping[str, Any]) -> str:
    """A change as ``--change`` takes it."""
    argument = change["argument"]
    if argument is None:
        return str(change["kind"])
    text = ",".join(map(str, cast("list[object]", argument))) if isinstance(argument, list) else str(argument)
    return f"{change['kind']}={text.lower() if isinstance(argument, bool) else text}"


def _over_the_step(timeline: At) -> str:
    """What is in use and what is reserved, from event to event."""
    at = [float(e.number) for e in timeline["event"]]
    stack = [Layer(_category(name), [v.number for v in row]) for name, row in timeline["bytes_by_category"].items()]
    if len(at) < 2 or not stack:
        return ""
    reserved = Layer("reserved", [v.number for v in timeline["reserved_bytes"]]) if timeline["reserved_bytes"] else None
    most = max(map(sum, zip(*(s.heights for s in stack), strict=True)))
    x = Axis("allocations and frees, in order", 0.0, timeline["events"].number, "{:,.0f}".format)
    y = around("", [0.0, most, *(reserved.heights if reserved else ())], format_bytes, zero=True)
    phases = [(p["first_event"].number, p["name"].text) for p in timeline["phases"]]
    return layers("timeline", "Memory over the step", x, y, at, stack, reserved, phases)


def _category(field: str) -> str:
    """A category of memory in words."""
    from gpuwise.predict.memory.timeline import CATEGORY_WORDS, Category  # which takes time to load, and seldom

    return CATEGORY_WORDS[Category[field.upper()]]


def _largest(tensors: At) -> list[TableRow]:
    """Those that are alike in a row, with how many there are."""
    alike: dict[tuple[str, ...], list[At]] = {}
    for t in tensors:
        maker = t["made_by"]
        key = (t["category"].text, t["dtype"].text, t["bytes"].text, maker["operation"].text, maker["line"].text)
        alike.setdefault(key, []).append(t)
    rows = list[TableRow]()
    for (category, dtype, _, operation, line), same in list(alike.items())[:MOST]:
        cells = [TableCell(str(len(same))), cell(same[0]["bytes"]), TableCell(operation, line, mark="words")]
        rows.append(TableRow(f"{_category(category)} {dtype}", cells))
    return rows


def occupancy(document: Mapping[str, Any]) -> list[str]:
    """How many blocks live on a multiprocessor, and what limits them."""
    d = At(document)
    allowed = [(words, d[f"limit_{name}"]) for name, words in LIMITS]
    limits = [TableRow(words, [cell(p) if p.value is not None else TableCell("no limit")]) for words, p in allowed]
    changes = [TableRow(c["what"].text, [cell(c["active_blocks"]), cell(c["occupancy"])]) for c in d["changes"]]
    binding = ", ".join(str(b) for b in d["binding"].value or ())
    warps = [Part("active warps", d["active_warps"])]
    body = [
        f"<h2>{escape(d['device'].text)}, compute capability {escape(d['compute_capability'].text)}</h2>",
        tiles(
            (
                ("Occupancy", d["occupancy"]),
                ("Blocks", d["active_blocks"]),
                ("Warps", d["active_warps"]),
                ("A simpler sum says, blocks", d["naive_blocks"]),
            )
        ),
        f'<p class="layout">Limited by {escape(binding)}</p>',
        f'<div class="figures">{bar("warps", "Warps of a multiprocessor", warps, d["active_warps"], d["max_warps"])}',
        f"{_chart(d)}</div>",
        heading("Blocks that each limit allows"),
        table("Blocks that each limit allows", ["limit", "blocks"], limits),
    ]
    if changes:
        body += [heading("What to change"), table("What to change", ["change", "blocks", "occupancy"], changes)]
    return body


def _chart(d: At) -> str:
    """Occupancy in percent over registers of a thread and threads of a block; a cell asks for itself."""
    chart = d["chart"]
    if not chart:
        return ""
    blocks, registers = [int(b.number) for b in chart["blocks"]], [int(r.number) for r in chart["registers"]]

    def nearest(values: list[int], to: float) -> int:
        return min(range(len(values)), key=lambda i: abs(values[i] - to))

    grid = Grid(
        [str(r) for r in registers],
        [str(b) for b in blocks],
        [[*row] for row in chart["occupancy"]],
        lambda regs, block: urlencode({"regs": regs, "block": block}),
        (nearest(registers, d["regs_per_thread"].number), nearest(blocks, d["block_threads"].number)),
    )
    return heat("chart", "Occupancy, percent: registers of a thread down, threads of a block across", "threads of a block", grid)
