"""What the commands of the laboratory print: an occupancy, a simulated task, a product on CPU and GPUs, an exercise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuwise.report.answers.answer import (
    Answer,
    Cell,
    Column,
    Command,
    Figure,
    Mark,
    Notes,
    Number,
    Phrase,
    Picture,
    Row,
    Section,
    Table,
)
from gpuwise.report.answers.lab import COUNTERS
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import At, sentences
from gpuwise.text import capital
from gpuwise.units import format_bytes, format_duration, format_rate

WHAT = "What there is"
OCCUPANCY, SIMULATE = PARTS["lab occupancy"], PARTS["lab simulate"]
LETTERS = {
    "memory latency": ".",
    "memory bandwidth": ".",
    "L2 bandwidth": ".",
    "shared memory": "s",
    "barrier": "b",
    "load unit": "u",
}
"""Of what a warp waited for, on the line of a warp."""
WARPS, CYCLES = 16, 60
"""Lines and characters of a timeline."""
GOOD, WEAK = 0.75, 0.4
"""Occupancies from which a cell of the chart is green, and yellow."""


def lab_answer(document: Mapping[str, Any]) -> Answer:
    """The commands of the laboratory."""
    rows = [Row([Cell(c["command"]), Cell(c["answers"])]) for c in At(document)["commands"]]
    columns = [Column("command", words=True), Column("answers", words=True)]
    return Answer(
        "lab",
        "Learn how a GPU runs a kernel: four commands, and an exercise for each lesson",
        parts=[Section("commands", WHAT, [Table(WHAT, columns, rows)], first=True)],
        next=Command("Begin with the exercises", ["gpuwise", "lab", "exercise"]),
    )


# --- occupancy ---


def occupancy_answer(document: Mapping[str, Any]) -> Answer:
    """Blocks of a kernel on one multiprocessor, what limits them and what to change."""
    d = At(document)
    blocks, binding = d["active_blocks"], " and ".join(str(b) for b in d["binding"].value)
    plural = "" if blocks.value == 1 else "s"
    verdict: Phrase = (blocks, f" block{plural}, ", _percent(d["occupancy"]), f" of {d['device'].text}: ", d["active_warps"])
    simple = d["naive_blocks"]
    forgets = "it forgets that each sub-partition has its own registers, or what the driver takes of every block"
    kernel, smem = d["kernel"], d["static_smem"].number + d["dynamic_smem"].number
    named: Phrase = (
        (f"{kernel['name'].text}: ", d["regs_per_thread"], f" registers a thread, {smem:,.0f} bytes of shared memory; ")
        if kernel
        else ""
    )
    return Answer(
        "lab occupancy",
        (*verdict, " of ", d["max_warps"], " warps"),
        "",
        (named, f"limited by {binding}"),
        [],
        [
            Section("limits", OCCUPANCY["limits"], [_limits(d)], first=True),
            *_changes(d["changes"]),
            *_chart(d),
        ],
        Command("Other blocks and registers", sets={"chart": "yes"})
        if not d["chart"]
        else Command("Try what you know", ["gpuwise", "lab", "exercise"]),
        assumed=[f"a simpler sum says {simple.text} blocks ({forgets})"] if simple.value != blocks.value else [],
    )


def _percent(place: At) -> Number:
    return Number(place, lambda share: f"{_whole(share)} %")


def _limits(d: At) -> Table:
    bytes_a_block = f"{d['smem_allocated_per_block'].number:,.0f} bytes a block, as they are allocated"
    reasons = {
        "warps": ("warps", f"{d['warps_per_block'].text} a block, of {d['max_warps'].text}"),
        "regs": ("registers", f"{d['regs_allocated_per_block'].number:,.0f} a block, as they are allocated"),
        "smem": ("shared memory", bytes_a_block),
        "blocks": ("blocks", "what one multiprocessor tracks"),
        "barriers": ("barriers", f"{d['block_barriers'].text} a block"),
    }
    rows = [
        Row([Cell(name), Cell(d[f"limit_{key}"]), Cell("binds" if name in d["binding"].value else ""), Cell(why)])
        for key, (name, why) in reasons.items()
        if d[f"limit_{key}"].value is not None
    ]
    columns = [Column("limit", words=True), Column("blocks"), Column("", words=True, leaves=1), Column("why", words=True)]
    return Table(OCCUPANCY["limits"], columns, rows)


def _changes(changes: At) -> Iterator[Section]:
    rows = [Row([Cell(c["what"]), Cell(c["active_blocks"]), Cell(_percent(c["occupancy"]))]) for c in changes]
    columns = [Column("change", words=True), Column("blocks"), Column("occupancy")]
    if rows:
        more = Notes(["More warps hide more latency; where none is left to hide they bring nothing"])
        yield Section("changes", OCCUPANCY["changes"], [Table(OCCUPANCY["changes"], columns, rows), more], first=True)


def _chart(d: At) -> Iterator[Section]:
    """Percent by registers and block size; what is nearest is marked."""
    if not d["chart"]:
        return
    blocks, registers = d["chart"]["blocks"].value, d["chart"]["registers"].value
    here = (_nearest(registers, d["regs_per_thread"].number), _nearest(blocks, d["block_threads"].number))
    rows: list[Row] = []
    for regs, shares in zip(registers, d["chart"]["occupancy"], strict=True):
        cells = [
            Cell(Number(s, lambda share: f"{math.floor(100 * share + 0.5)}"), mark=_mark(s.number, (regs, b) == here))
            for b, s in zip(blocks, shares, strict=True)
        ]
        rows.append(Row([Cell(f"{regs}"), *cells]))
    columns = [Column("regs", words=True), *(Column(f"{b}", leaves=(i + 1) * (i % 2 == 0)) for i, b in enumerate(blocks))]
    yield Section("chart", OCCUPANCY["chart"], [Table(OCCUPANCY["chart"], columns, rows)], first=True)


def _whole(share: float) -> str:
    """A share in percent, halves up."""
    return f"{math.floor(100 * share + 0.5)}"


def _mark(share: float, here: bool) -> Mark:
    return "best" if here else "good" if share >= GOOD else "weak" if share >= WEAK else "bad"


def _nearest(values: Sequence[int], to: float) -> int:
    return min(values, key=lambda v: abs(v - to))


# --- a simulated task ---


def tasks_answer(document: Mapping[str, Any]) -> Answer:
    """The tasks there are."""
    tasks = list(At(document)["tasks"])
    rows = [Row([Cell(t["task"]), Cell(t["text"]), Cell(Number(t["size"], "{:,.0f}".format))]) for t in tasks]
    columns = [Column("task", words=True), Column("what", words=True), Column("size", leaves=1)]
    return Answer(
        "lab simulate",
        f"{len(tasks)} tasks can be simulated, and any kernel of yours",
        parts=[Section("tasks", SIMULATE["tasks"], [Table(SIMULATE["tasks"], columns, rows)], first=True)],
        next=Command("The first of them", ["gpuwise", "lab", "simulate", tasks[0]["task"].text]),
    )


VALUES = {True: "values equal numpy's", None: "values not checked"}


def simulation_answer(document: Mapping[str, Any]) -> Answer:
    """Where the warps' time went, beside the CPU."""
    d = At(document)
    beside, right = d["beside"], d["checked"].value
    values = VALUES.get(right, f"WRONG values (off by {d['worst_error'].number:.1g})")
    timed = f"{d['blocks_timed'].number:,.0f} of the {d['blocks_of_one'].number:,.0f} blocks of one multiprocessor timed"
    wrong = [f"{f['kind'].text}, line {f['line'].text}: {f['text'].text}" for f in d["findings"]]
    cache = beside["cache"]
    return Answer(
        "lab simulate",
        (f"{d['task'].text}: ", d["time_s"], f" on {d['device'].text}, bound by {d['bound'].text}"),
        "no" if wrong or right is False else "yes",
        (Number(d["blocks"], "{:,.0f}".format), " blocks of ", d["threads"], f" threads; {values}; {timed}"),
        list(_sides(d)) if beside else [],
        [
            Section("warps", SIMULATE["warps"], [_stalls(d)], first=True),
            *([Section("lines", SIMULATE["lines"], [Notes(_said(d["notes"]))], first=True)] if d["notes"] else []),
            Section("counters", SIMULATE["counters"], [_counters(d)]),
            *(_roofline(beside["roofline"]) if beside["roofline"] else ()),
            *(_crossing(beside["crossover"]) if beside["crossover"] else ()),
            Section("timeline", SIMULATE["timeline"], [Picture("", _timeline(d["timeline"]))]),
        ],
        Command("From which size on the GPU wins", sets={"crossover": "yes"})
        if beside and not beside["crossover"]
        else Command("Try what you know", ["gpuwise", "lab", "exercise"]),
        wrong,
        [
            *([f"a first call takes {beside['first_call_s'].text} more on either (code from memory)"] if beside else []),
            *([cache.text] if beside and cache.value else []),
        ],
    )


def _said(notes: At) -> list[str]:
    return [f"line {n['line'].text}: {n['text'].text}" for n in notes]


def _sides(d: At) -> Iterator[Figure]:
    """The CPU, and the GPU with what comes before and after its kernel."""
    beside = d["beside"]
    flop, moved = beside["flop"].number, beside["copied_bytes"].number
    amount, unit = (flop, "FLOP/s") if flop > 4 * moved else (moved, "B/s")
    launched = d["time_s"].number + beside["launch_s"].number
    copied = launched + beside["copy_s"].number
    rows = (
        (f"{beside['cpu']['device'].text}, {beside['cpu']['cores'].text} cores", beside["cpu"]["time_s"].number),
        ("the kernel", d["time_s"].number),
        ("with its launch", launched),
        (f"with {format_bytes(moved)} copied too", copied),
    )
    for name, seconds in rows:
        yield Figure(name, format_duration(seconds), format_rate(amount / seconds, unit))


def _stalls(d: At) -> Table:
    stalls = list(d["stalls"])
    rest = max(0.0, 1 - sum(s["share"].number for s in stalls))
    rows = [Row([Cell(s["reason"]), Cell(Number(s["share"], lambda x: f"{100 * x:.0f} %"))]) for s in stalls]
    rows.append(Row([Cell("issuing, or at its end"), Cell(f"{100 * rest:.0f} %")]))
    rows.sort(key=lambda r: -(r.cells[1].value.place.number if isinstance(r.cells[1].value, Number) else rest))
    return Table(SIMULATE["warps"], [Column("the warps waited for", words=True), Column("share")], rows)


def _counters(d: At) -> Table:
    o = d["occupancy"]
    binding = " and ".join(str(b) for b in o["binding"].value)
    rows = [Row([Cell("active warps"), Cell((o["active_warps"], f", limited by {binding}"))])]
    rows += [Row([Cell(COUNTERS.get(n, n.replace("_", " "))), Cell(p)]) for n, p in d["counters"].items()]
    return Table(SIMULATE["counters"], [Column("of one multiprocessor", words=True), Column("value")], rows)


def _roofline(place: At) -> Iterator[Section]:
    """The roof of each device at this task's work for a byte, and what was reached."""
    rows: list[Row] = []
    for v in place["devices"]:
        share = v["flop_per_s"].number / v["roof_flop_per_s"].number
        rows.append(
            Row([Cell(v["device"]), Cell(v["ridge_flop_per_byte"]), Cell(v["roof_flop_per_s"]), Cell(f"{100 * share:.0f} %")])
        )
    columns = [Column("device", words=True), Column("ridge, FLOP a byte", leaves=1), Column("roof here"), Column("reached")]
    title = f"{SIMULATE['roofline']}, at {place['flop_per_byte'].number:.3g} FLOP a byte of memory"
    yield Section("roofline", title, [Table(title, columns, rows)])


def _crossing(place: At) -> Iterator[Section]:
    from gpuwise.lab.beside_cpu import crossing_sentences

    rows: list[Row] = []
    for s in place["sizes"]:
        gpu = s["kernel_s"].number + s["launch_s"].number
        copied = format_duration(gpu + s["copy_s"].number)
        rows.append(Row([Cell(Number(s["size"], "{:,.0f}".format)), Cell(s["cpu_s"]), Cell(format_duration(gpu)), Cell(copied)]))
    columns = [Column("size"), Column("CPU"), Column("GPU"), Column("with copies")]
    sizes = Table(SIMULATE["sizes"], columns, rows)
    yield Section("sizes", SIMULATE["sizes"], [Notes(list(crossing_sentences(place.value))), sizes], first=True)


def _timeline(events: At) -> list[str]:
    """A line for each of the first warps: i where it issues, letters of what it waits for between."""
    end = max((e["cycle"].number for e in events), default=0.0) + 1
    rows, before = dict[int, list[str]](), dict[int, int]()
    for e in events:
        warp, why = int(e["warp"].number), str(e["after"].value or "")
        row, column = rows.setdefault(warp, [" "] * CYCLES), min(int(e["cycle"].number / end * CYCLES), CYCLES - 1)
        for between in range(before.get(warp, column) + 1, column):
            row[between] = LETTERS.get(why, "u" if why else "-")
        row[column] = "i"
        before[warp] = column
    lines = [f"warp {w:>3} {''.join(rows[w])}" for w in sorted(rows)[:WARPS]]
    return [*lines, f"0 to {end:,.0f} cycles; i issue, . memory, s shared memory, u unit, b barrier"]


# --- a product on CPU and GPUs ---


def versus_answer(document: Mapping[str, Any]) -> Answer:
    """One product, measured on this CPU and predicted on GPUs."""
    d = At(document)
    here, *others = d["rows"]
    size, flop = int(d["size"].number), d["flop"].number
    best = min(others or [here], key=lambda r: r["with_copies_s"].number)
    times = here["time_s"].number / best["with_copies_s"].number
    ahead = f"is {times:.3g} times as fast as" if times >= 1 else f"takes {1 / times:.3g} times as long as"
    rows = [
        Row(
            [
                Cell(r["device"]),
                Cell(r["basis"]),
                Cell(r["time_s"]),
                Cell(format_rate(flop / r["time_s"].number, "FLOP/s")),
                Cell("" if r["copy_s"].value is None else r["with_copies_s"]),
                Cell(f"{here['time_s'].number / r['with_copies_s'].number:.3g}x"),
            ]
        )
        for r in (here, *others)
    ]
    columns = [Column("device", words=True), Column("how", words=True, leaves=1), Column("time"), Column("rate")]
    columns += [Column("with copies"), Column("faster")]
    title = PARTS["lab cpu-vs-gpu"]["devices"]
    why = [f"{r['device'].text}: {r['why'].text}" for r in (here, *others)]
    words = ["gpuwise", "op", "matmul", *[f"{size}"] * 3, "--dtype", "fp32", "--on", "4090"]
    return Answer(
        "lab cpu-vs-gpu",
        f"{best['device'].text} {ahead} this CPU, copies included",
        "",
        f"two fp32 matrices of {size:,} x {size:,}: {format_rate(flop, 'FLOP')}, {format_rate(12 * size * size, 'B')} to move",
        [],
        [
            Section("devices", title, [Table(title, columns, rows)], first=True),
            Section("why", PARTS["lab cpu-vs-gpu"]["why"], [Notes(why)], first=True),
        ],
        Command("The same without a measurement", words),
    )


# --- exercises ---


def exercises_answer(document: Mapping[str, Any]) -> Answer:
    """The list of exercises."""
    rows = [Row([Cell(f"{e['number'].value}"), Cell(e["title"])]) for e in At(document)["exercises"]]
    questions = [f"{e['number'].value}. {e['question'].text}" for e in At(document)["exercises"]]
    titles, columns = PARTS["lab exercise"], [Column("exercise"), Column("lesson", words=True)]
    return Answer(
        "lab exercise",
        f"{len(rows)} exercises, one for each lesson",
        parts=[
            Section("list", titles["list"], [Table(titles["list"], columns, rows)], first=True),
            Section("questions", titles["questions"], [Notes(questions)]),
        ],
        next=Command("The first one", ["gpuwise", "lab", "exercise", "1"]),
    )


def exercise_answer(document: Mapping[str, Any]) -> Answer:
    """A question with the hints asked for, the judgement of an answer, and the solution."""
    d = At(document)
    number, titles, solution = int(d["number"].number), PARTS["lab exercise"], d["solution"]
    hints = sentences(d["hints"])
    again = ["gpuwise", "lab", "exercise", f"{number}"]
    right = d["right"].value
    state = "" if right is None else "yes" if right else "no"
    if solution:
        after = Command("The same asked of gpuwise", [solution["command"].text])
    elif right:
        from gpuwise.lab.exercises import exercises

        after = Command("The next one", [*again[:3], f"{number % len(exercises()) + 1}"])
    elif len(hints) < d["hint_count"].number:
        after = Command("A hint", [*again, "--hint", f"{len(hints) + 1}"])
    else:
        after = Command("The answer and the way to it", [*again, "--solution"])
    steps = [Notes([str(s) for s in solution["steps"].value])] if solution else []
    return Answer(
        "lab exercise",
        capital(d["says"].text) if d["says"] else d["question"].text,
        state,
        d["question"].text
        if d["says"]
        else f"{d['title'].text}. Answer in {d['unit'].text}: gpuwise lab exercise {number} NUMBER",
        [Figure("answer", (solution["value"], f" {d['unit'].text}"))] if solution else [],
        [
            *([Section("hints", titles["hints"], [Notes(hints)], first=True)] if hints else []),
            *([Section("steps", titles["steps"], steps, first=True)] if steps else []),
        ],
        after,
    )
