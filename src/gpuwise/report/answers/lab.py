"""A simulated kernel beside a CPU, and an exercise with its judgement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from gpuwise.report.answers.drawings import (
    LEFT,
    RIGHT,
    WIDTH,
    Dot,
    Grid,
    Line,
    Part,
    around,
    axis_below,
    bar,
    colour,
    figure,
    heat,
    lines,
    mark,
    si,
)
from gpuwise.report.answers.race import race
from gpuwise.report.answers.values import At, button, cell, coded, sentences, shown, tiles
from gpuwise.report.page import Markup, TableCell, TableRow, heading, notes, table
from gpuwise.text import capital, escape
from gpuwise.units import format_duration, format_number

LIMITS = (("warps", "warps"), ("blocks", "blocks"), ("regs", "registers"), ("smem", "shared memory"), ("barriers", "barriers"))
"""Fields of what limits the blocks of a multiprocessor, and their names."""
WARPS = 16
"""Rows of the timeline: the first warps of one multiprocessor."""
ROW, GAP = 9.0, 3.0
ISSUING = "issuing"
LEVEL = 1.05
"""Times of two devices that differ by less are called level."""
EXAMPLE_GPU = "A100-80GB"
"""What a task is shown on that was picked from the list."""
_WIDE = WIDTH - LEFT - RIGHT


COUNTERS = {
    "int": "integer instructions",
    "active_lanes": "lanes at work",
    "issue_share": "cycles in which schedulers issue",
    "sectors": "sectors of 32 bytes",
    "useful_share": "useful bytes of what is fetched",
    "bank_conflicts": "extra passes by bank conflicts",
    "dram_bytes": "from memory",
    "l2_bytes": "from the L2",
    "l1_hit_share": "found in the L1",
}
"""Names of counters; of the others, kinds of instructions, their own."""


def simulation(document: Mapping[str, Any]) -> list[str]:
    """Where the warps' time went, warp by warp, beside the CPU; or the tasks there are."""
    d = At(document)
    if d["tasks"]:
        rows = [
            TableRow(
                button(t["task"].text, {"task": t["task"].text, "on": EXAMPLE_GPU}),
                [TableCell(t["text"].text, mark="words"), cell(t["size"])],
            )
            for t in d["tasks"]
        ]
        return ["<h2>Choose a task</h2>", table("Tasks", ["task", "what it does", "usual size"], rows)]
    beside, counters = d["beside"], d["counters"]
    stalls = [Part(s["reason"].text, s["share"]) for s in d["stalls"]]
    values = {True: "its values are numpy's", False: "its values are not numpy's"}.get(
        d["checked"].value, "its values were not checked"
    )
    findings = [f"{f['kind'].text}, line {f['line'].text}: {f['text'].text}" for f in d["findings"]]
    good = d["checked"].value is not False and not findings
    size = f", size {int(beside['size'].number):,}" if beside else ""
    body = [f"<h2>{escape(capital(d['task'].text))} on {escape(d['device'].text)}{size}</h2>"]
    if beside:
        body += [f'<p class="layout">{escape(beside["text"].text)}</p>', _sides(d), race(d)]
    body.append(notes([*findings, *([beside["cache"].text] if beside["cache"] else ())]))
    warps = [
        f'<p class="{"yes" if good else "no"}">Bound by {escape(d["bound"].text)}; {values}.</p>',
        notes([f"Line {n['line'].text}: {n['text'].text}" for n in d["notes"]]),
        tiles((("The kernel", d["time_s"]), ("Its launch", beside["launch_s"]), ("Warps, of the most", d["occupancy"]["share"]))),
        '<div class="figures">',
        _timeline(d),
        bar("stalls", "Where the time of warps went", stalls, d["time_s"], rest="issuing, or at its end"),
        _roofline(beside["roofline"]) if beside else "",
        _crossover(beside["crossover"]) if beside else "",
        "</div>",
        heading("Counters of one multiprocessor"),
        f'<p class="layout">One of {shown(d["multiprocessors"]).html}. Blocks timed: {shown(d["blocks_timed"]).html} of its '
        f"{shown(d['blocks_of_one']).html}, of {shown(d['threads']).html} threads each.</p>",
        table(
            "Counters",
            ["counter", "value"],
            [TableRow(COUNTERS.get(n, n.replace("_", " ")), [cell(p)]) for n, p in counters.items()],
        ),
    ]
    by_line = [
        TableRow(
            Markup(f"{r['line'].text} <code>{escape(r['text'].text)}</code>"),
            [cell(r["instructions"]), cell(r["sectors"]), cell(r["bank_conflicts"])],
        )
        for r in d["lines"]
    ]
    if by_line:
        warps += [heading("By line"), table("By line", ["line", "instructions", "sectors", "bank conflicts"], by_line)]
    if not beside:
        return [*body, *warps]
    return [*body, "<details><summary>Why: the GPU warp by warp, and the rooflines</summary>", *warps, "</details>"]


def _sides(d: At) -> str:
    """Who is faster, the copies counted and not."""
    beside = d["beside"]
    cpu = beside["cpu"]["time_s"].number
    bare = d["time_s"].number + beside["launch_s"].number
    whole = bare + beside["copy_s"].number

    def against(gpu: float) -> str:
        ahead, times = ("the GPU", cpu / gpu) if cpu > gpu else ("the CPU", gpu / cpu)
        return f"{ahead} is first, {times:.2g} times as fast" if times >= LEVEL else "both take as long"

    words = f"{against(whole)}: {format_duration(whole)} on the GPU, {format_duration(cpu)} on the CPU"
    if whole > bare:
        words = f"With the data copied to the GPU and back, {words}. With the data on the GPU already, {against(bare)}"
        words += f" ({format_duration(bare)} with the launch)"
    return f'<p class="yes">{escape(capital(words))}.</p>'


def _roofline(place: At) -> str:
    """Both devices' roofs over FLOP a byte, logarithmic, and what was reached under each."""
    if not place:
        return ""
    here = math.log10(place["flop_per_byte"].number)
    devices = list(place["devices"])
    ridges = [math.log10(v["ridge_flop_per_byte"].number) for v in devices]
    low, high = min(here, *ridges) - 0.7, max(here, *ridges) + 0.7
    series, dots = list[Line](), list[Dot | None]()
    for v, ridge in zip(devices, ridges, strict=True):
        top = math.log10(v["peak_flop_per_s"].number)
        series.append(Line(v["device"].text, [(low, top + low - ridge), (ridge, top), (high, top)]))
        words = f"{v['device'].text} reaches {v['flop_per_s'].text} of {v['roof_flop_per_s'].text} under its roof"
        dots.append(Dot(here, math.log10(max(v["flop_per_s"].number, 1.0)), words))
    rates = [*(b for s in series for _, b in s.points), *(p.y for p in dots if p)]
    x = around("FLOP a byte of memory", [low, high], format_number, logarithmic=True)
    y = around("FLOP/s", rates, si, logarithmic=True)
    return lines("roofline", "Rooflines", x, y, series, [(here, "this task")], dots)


def _crossover(place: At) -> str:
    """Times over size, both logarithmic."""
    if not place:
        return ""
    sizes = list(place["sizes"])

    def log(value: float) -> float:
        return math.log10(max(value, 1e-9))

    def gpu(at: At) -> float:
        return at["kernel_s"].number + at["launch_s"].number

    series = [
        Line("CPU", [(log(s["size"].number), log(s["cpu_s"].number)) for s in sizes]),
        Line("GPU", [(log(s["size"].number), log(gpu(s))) for s in sizes]),
        Line(
            "GPU, with copies",
            [(log(s["size"].number), log(gpu(s) + s["copy_s"].number)) for s in sizes],
        ),
    ]
    x = around("size", [a for a, _ in series[0].points], "{:,.0f}".format, logarithmic=True)
    y = around("time", [b for s in series for _, b in s.points], format_duration, logarithmic=True)
    marks = [(log(place["crossover"].number), "the GPU wins")] if place["crossover"].value else []
    from gpuwise.lab.beside_cpu import crossing_sentences  # which takes time to load, and seldom

    return lines(
        "crossover", "From which size on", x, y, series, marks, below=[capital(s) for s in crossing_sentences(place.value)]
    )


def _timeline(d: At) -> str:
    """Each warp from one instruction to the next, coloured by what it waited for. A page that can play draws its veil away."""
    by_warp: dict[int, list[At]] = {}
    for event in d["timeline"]:
        if event["warp"].number < WARPS:
            by_warp.setdefault(int(event["warp"].number), []).append(event)
    if not by_warp:
        return ""
    end = max(events[-1]["cycle"].number for events in by_warp.values()) + 1
    named = [s["reason"].text for s in d["stalls"] if s["share"].number > 0]  # in the colours of their bar
    reasons = list(dict.fromkeys([*named, *(e["after"].text or ISSUING for events in by_warp.values() for e in events)]))
    y, body = 6.0, ""
    for warp in sorted(by_warp):
        before = 0.0
        body += f'<text x="{LEFT - 6}" y="{y + ROW:g}" text-anchor="end">warp {warp}</text>' if warp % 4 == 0 else ""
        for event in by_warp[warp]:
            at, after = event["cycle"].number, event["after"].text or ISSUING
            words = f"warp {warp}, line {event['line'].text}: {event['op'].text} at cycle {at:,.0f}, after {after}"
            body += _box(before / end, at / end, y, colour(reasons.index(after)), words)
            before = at
        y += ROW + GAP
    body += axis_below(end, "{:,.0f}".format, y)
    body += f'<rect class="veil" visibility="hidden" x="{LEFT:g}" y="0" width="{_WIDE:g}" height="{y:g}"/>'
    legend = "".join(f"<li>{mark(i)} {escape(name)}</li>" for i, name in enumerate(reasons))
    caption = f"Timeline of {len(by_warp)} warps of one multiprocessor over {end:,.0f} cycles"
    whole = d["cycles"].number
    over = f"the first {end:,.0f} of {whole:,.0f} cycles" if whole > 1.1 * end else "cycles"
    chart = figure("timeline", f"Warp by warp, {over}", body, caption, y + 30, f'<ul class="legend">{legend}</ul>')
    played = f'<figure id="timeline" data-play="Time of the simulation" data-end="{end:g}"'
    return chart.replace('<figure id="timeline"', played, 1)


def _box(start: float, stop: float, y: float, ink: str, words: str, high: float = ROW) -> str:
    """A stretch between two shares of the axis."""
    size = max((stop - start) * _WIDE, 0.4)
    place = f'x="{LEFT + start * _WIDE:.2f}" y="{y:g}" width="{size:.2f}" height="{high:g}"'
    return f'<rect class="{ink}" {place}><title>{escape(words)}</title></rect>'


def exercise(document: Mapping[str, Any]) -> list[str]:
    """A question with the hints asked for, what is said of an answer, and the solution; or the list of all."""
    d = At(document)
    if d["exercises"]:
        rows = [
            TableRow(
                button(f"{e['number'].text}. {e['title'].text}", {"number": e["number"].text}),
                [TableCell(Markup(coded(e["question"].text)), mark="words long")],
            )
            for e in d["exercises"]
        ]
        return [table("Exercises", ["exercise", "question"], rows)]
    body = [f"<h2>{shown(d['number']).html}. {escape(d['title'].text)}</h2><p>{coded(d['question'].text)}</p>"]
    body += [notes([f"Hint {n}: {words}" for n, words in enumerate(sentences(d["hints"]), start=1)])] if d["hints"] else []
    given = len(list(d["hints"]))
    if given < d["hint_count"].number:
        body.append(f"<p>{button('Another hint' if given else 'A hint', {'hint': str(given + 1)}).html}</p>")
    if d["says"]:
        body.append(f'<p class="{"yes" if d["right"].value else "no"}">{escape(capital(d["says"].text))}</p>')
    if d["solution"]:
        solution = d["solution"]
        body.append(
            f"<p><b>{shown(solution['value']).html} {escape(d['unit'].text)}</b></p>{notes(sentences(solution['steps']))}"
        )
        body.append(f"<pre>{escape(solution['command'].text)}</pre>")
    return body


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
