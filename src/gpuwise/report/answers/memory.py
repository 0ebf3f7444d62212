"""Memory over time: a recorded history with its gaps and other settings, and the timeline of a captured step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwise.files import FIGURE_SUFFIXES, PAGE_SUFFIXES, check_target
from gpuwise.report.answers.answer import (
    Answer,
    Area,
    Cell,
    Column,
    Command,
    Figure,
    Notes,
    Number,
    Phrase,
    Row,
    Section,
    Table,
)
from gpuwise.report.answers.drawings import Axis, Layer, around
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import At
from gpuwise.units import format_bytes, format_duration

if TYPE_CHECKING:
    from gpuwise.predict.memory.timeline import MemoryTimeline

TITLES = PARTS["memory"]
SUFFIXES = (*FIGURE_SUFFIXES, *PAGE_SUFFIXES)
WORTH = 0.02
"""Share of the reserved memory from which gaps are shown and a setting is worth a try."""
GAPS = (
    ("requested_bytes", "asked for", ""),
    ("rounding_bytes", "rounding", "sizes rounded up"),
    ("unsplit_bytes", "unsplit remainders", "large blocks are split only where more than 1 MiB is left"),
    ("small_pool_bytes", "gaps in small segments", "for requests up to 1 MiB"),
    ("split_bytes", "gaps in large segments", "for requests that fit; they cannot be given back"),
    ("cached_bytes", "cached segments", "empty: given back when memory runs out"),
)
"""Field, name and meaning of what reserved memory is."""
DEFAULTS = "PyTorch's defaults"


def memory_answer(document: Mapping[str, Any], name: str, timeline: Area | None = None) -> Answer:
    """What a recorded history of the file ``name`` needed, and what other settings would change."""
    d = At(document)
    oom, r = d["out_of_memory"], d["recorded"]
    verdict: Phrase = (name, ": at most ", d["peak_reserved_bytes"], " reserved, ", d["peak_allocated_bytes"], " allocated")
    if oom:
        where = f", {oom['where'].value}" if oom["where"].value else ""
        asked: Phrase = (": ", oom["requested_bytes"], " asked for", where)
        verdict = (name, ": out of memory at event ", Number(oom["event"], "{:,.0f}".format), asked)
    settings = d["settings"].value or DEFAULTS
    return Answer(
        "memory",
        verdict,
        "no" if oom else "",
        ("Device ", d["device"], ", ", r["allocations"], f" allocations, {settings}"),
        [
            Figure("reserved", d["peak_reserved_bytes"], "", "from the device, at most"),
            Figure("allocated", d["peak_allocated_bytes"], "", "by PyTorch, rounding included"),
            Figure("asked for", d["peak_requested_bytes"], "", "by the program"),
        ],
        [
            *([Section("step", TITLES["step"], [timeline], first=True)] if timeline is not None else []),
            Section("settings", TITLES["settings"], [_settings(d)], first=True),
            Section("gaps", TITLES["gaps"], [_gaps(d["at_peak"])], first=True),
            *_pinned(d["at_peak"]),
        ],
        _next(d),
        warnings=[str(oom["reason"].value)] if oom else [],
        assumed=[*_agreement(r), *(str(n.value) for n in d["notes"])],
    )


def _agreement(r: At) -> Iterator[str]:
    """How far the simulated allocator does what the real one did."""
    exact, same = bool(r["replay_exact"].value), f"{r['same_address'].text} of {r['allocations'].text} blocks"
    if exact and r["same_address"].value == r["allocations"].value:
        yield "the simulated allocator puts every block where the real one did"
    elif exact:
        yield f"the simulated allocator reserves exactly what the real one did; {same} are at the recorded address"
    else:
        yield f"the real allocator reserved {r['peak_reserved_bytes'].text}; {same} are at the recorded address"
    if r["lived_before_history"].number:
        yield f"{r['lived_before_history'].text} blocks lived before the history begins"
    if r["out_of_memory"].number:
        yield f"it ran out of memory {r['out_of_memory'].text} times"


def _gaps(place: At) -> Table:
    rows = [Row([Cell(name), Cell(place[field]), Cell(why)]) for field, name, why in GAPS if place[field].number]
    return Table(TITLES["gaps"], [Column("part", words=True), Column("memory"), Column("why", words=True)], rows)


def _pinned(place: At) -> Iterator[Section]:
    """Segments with room that live blocks keep."""
    free = place["split_bytes"].number + place["small_pool_bytes"].number
    if not place["pinned"] or free < WORTH * max(place["reserved_bytes"].number, 1):
        return
    rows: list[Row] = []
    for s in place["pinned"]:
        places = [*dict.fromkeys(p.value or "unknown place" for p in s["held_by"])]
        more = f" and {len(places) - 2} more place{'s' * (len(places) > 3)}" if len(places) > 2 else ""
        rows.append(Row([Cell(s["free_bytes"]), Cell(s["size_bytes"]), Cell("; ".join(places[:2]) + more)]))
    columns = [Column("free"), Column("of"), Column("kept by", under=True)]
    yield Section("pinned", TITLES["pinned"], [Table(TITLES["pinned"], columns, rows)])


def _settings(d: At) -> Table:
    reserved = d["recorded"]["peak_reserved_bytes"]
    rows = [Row([Cell("as recorded"), Cell(reserved), Cell(""), Cell("")])]
    for t in d["trials"]:
        change = t["peak_reserved_bytes"].number - reserved.number
        words = f"{'+' if change > 0 else '-'}{format_bytes(abs(change))}" if change else "none"
        words = "out of memory" if t["oom_event"].value is not None else words
        name = t["settings"].value or DEFAULTS
        rows.append(Row([Cell(name), Cell(t["peak_reserved_bytes"]), Cell(words), Cell(t["segments"])]))
    columns = [
        Column("PYTORCH_CUDA_ALLOC_CONF", words=True),
        Column("reserved"),
        Column("change"),
        Column("cudaMallocs", leaves=1),
    ]
    return Table(TITLES["settings"], columns, rows)


def _next(d: At) -> Command:
    """The setting that reserves least; the page of the history where none helps."""
    reserved = d["recorded"]["peak_reserved_bytes"].number
    good = [t for t in d["trials"] if t["settings"].value and t["oom_event"].value is None]
    best = min(good, key=lambda t: t["peak_reserved_bytes"].number, default=None)
    if best is not None and best["peak_reserved_bytes"].number < (1 - WORTH) * reserved:
        return Command("Set it", [f"export PYTORCH_CUDA_ALLOC_CONF={best['settings'].text}"])
    return Command("As a page", sets={"timeline": "memory.html"})


# --- a timeline ---


def area_of(timeline: MemoryTimeline) -> Area:
    """Memory by what it holds, from below, what is reserved over it, and where it runs out."""
    from gpuwise.predict.memory.timeline import thin

    at, values, reserved = thin(timeline)
    times = timeline.time_s
    x = [float(times[i]) if times is not None else float(i) for i in at]
    stack = [Layer(name, list(map(float, values[i]))) for i, name in enumerate(timeline.categories)]
    over = None if reserved is None else Layer("reserved", list(map(float, reserved)))
    most = max(map(sum, zip(*(s.heights for s in stack), strict=True)), default=0.0)
    name, say = ("seconds", format_duration) if times is not None else ("allocations and frees, in order", "{:,.0f}".format)
    across = Axis(name, x[0], max(x[-1], x[0] + 1e-9), say)
    up = around("", [0.0, most, *(over.heights if over else ())], format_bytes, zero=True)
    marks = [(float(times[p.first] if times is not None else p.first), p.name) for p in timeline.phases]
    if timeline.oom_row is not None:
        at_oom = float(times[timeline.oom_row] if times is not None else timeline.oom_row)
        marks = sorted([*marks, (at_oom, "out of memory")])
    return Area("timeline", "Memory over the step", across, up, x, stack, over, marks)


def timeline_answer(timeline: MemoryTimeline) -> Answer:
    """The timeline, what holds the memory at the peak, and every category at its own most."""
    peak, values, total = timeline.peak, timeline.bytes_by_category, timeline.total_bytes
    whole = float(total[peak.row]) or 1.0
    rows: list[Row] = []
    for i, name in reversed(list(enumerate(timeline.categories))):
        then, most = float(values[i, peak.row]), float(values[i].max())
        rows.append(Row([Cell(name), Cell(format_bytes(then)), Cell(f"{100 * then / whole:.1f} %"), Cell(format_bytes(most))]))
    columns = [Column("what", words=True), Column("at the peak"), Column("share"), Column("most at any time")]
    blocks = [area_of(timeline), Table("At the peak", columns, rows)]
    if peak.largest:
        largest = [Row([Cell(name), Cell(format_bytes(n))]) for name, n in peak.largest]
        blocks.append(Table("Largest at the peak", [Column("largest at the peak", words=True), Column("size")], largest))
    notes = [Notes(list(timeline.notes))] if timeline.notes else []
    at = f", at {peak.words}" if peak.words else ""
    verdict = f"{timeline.title}: most in use {format_bytes(peak.requested_bytes)}{at}"
    warning = "the device runs out of memory before the end; what follows is what it would have needed"
    return Answer(
        "memory",
        verdict,
        "no" if timeline.oom_row is not None else "",
        "",
        list(_limits(timeline)),
        [Section("step", TITLES["step"], [*blocks, *notes], first=True)],
        warnings=[warning] if timeline.oom_row is not None else [],
    )


def _limits(timeline: MemoryTimeline) -> Iterator[Figure]:
    reserved, capacity = timeline.reserved_bytes, timeline.capacity_bytes
    if reserved is None or not reserved.size:
        return
    most = int(reserved.max())
    more = max(most - timeline.peak.requested_bytes, 0)
    yield Figure("reserved", format_bytes(most), "", f"{format_bytes(more)} for rounding and gaps")
    if capacity is not None and timeline.oom_row is None:
        yield Figure("free", format_bytes(max(capacity - most, 0)), "", f"of {format_bytes(capacity)} open to the process")


def write_timeline(timeline: MemoryTimeline, path: Path) -> None:
    """Write a picture (.svg) or a page (.html). Raises InputError when it cannot be written there."""
    from gpuwise.report.answers.exported import write_page, write_pictures

    check_target(path, SUFFIXES)
    write = write_pictures if path.suffix.lower() in FIGURE_SUFFIXES else write_page
    write(timeline_answer(timeline), path)
