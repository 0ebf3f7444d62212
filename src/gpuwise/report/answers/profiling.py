"""A profile of a training step: what it waits for, its parts, what to fix and what each fix saves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuwise.report.answers.answer import (
    Answer,
    Block,
    Cell,
    Code,
    Column,
    Command,
    Number,
    Phrase,
    Picture,
    Row,
    Section,
    Stack,
    Table,
)
from gpuwise.report.answers.drawings import Dot, Line, Part, around, lanes, lines, si
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import At
from gpuwise.units import format_number

if TYPE_CHECKING:
    from gpuwise.train.profile.result import Profile

TITLES = PARTS["profile"]
LEAST = 0.002
"""Of the step: smaller parts are not shown."""
MOST_PIECES, MOST_POINTS = 1500, 40
"""Of a lane of the timeline: neighbours nearer than a screen shows are drawn as one; operations of the roofline."""
RANK_PARTS = ("compute", "communication", "data wait", "host gaps", "sync points")


def profile_answer(document: Mapping[str, Any], drawn: Sequence[Picture] = ()) -> Answer:
    """The answer of a profile; ``drawn`` are pictures of the trace."""
    d = At(document)
    healthy, device = d["verdict"]["kind"].text == "healthy", d["device"].text
    rate: Phrase = (", ", Number(d["samples_per_s"], format_number), " samples/s") if d["samples_per_s"] else ()
    used: Phrase = ("; products reach ", d["utilisation"], " of the peak") if d["utilisation"] else ()
    watts: Phrase = (", ", d["power_w"]) if d["power_w"] else ()
    busy: Phrase = (d["name"].text, ": ", d["wall_s"], " a step", rate, f"; {device} busy ", d["busy_share"], used, watts)
    findings = list(d["findings"])
    return Answer(
        "profile",
        d["verdict"]["sentence"].text,
        "yes" if healthy else "maybe",
        busy,
        [],
        [
            Section("parts", TITLES["parts"], [_parts(d), *drawn], first=True),
            *_findings(findings),
            *_slower(d),
            *_ranks(d),
        ],
        _next(d["name"].text),
        assumed=[str(n.value) for n in d["notes"]],
    )


def _next(name: str) -> Command:
    script = name if name.endswith(".py") else "train.py"
    return Command("Try the fixes, each with its gain", ["gpuwise", "tune", script])


def _parts(d: At) -> Stack:
    """Where the time goes, computing by family, largest first."""
    every = [(n, p) for n, p in d["parts"].items() if n != "compute"] + d["families"].items()
    parts = [Part(n, p) for n, p in every if p.number >= LEAST * d["wall_s"].number]
    return Stack("parts", TITLES["parts"], sorted(parts, key=lambda p: -p.place.number), d["wall_s"], apart=True)


def _findings(findings: Sequence[At]) -> Iterator[Section]:
    """What to fix, by what it saves: their savings overlap."""
    if not findings:
        return
    columns = [Column("what", words=True), Column("saves a step"), Column("share"), Column("sure", words=True)]
    columns.append(Column("evidence", under=True))
    rows = [
        Row(
            [
                Cell(f["title"]),
                Cell(f["saved_s"]),
                Cell(Number(f["share"], lambda share: f"{100 * min(share, 1):.0f} %")),
                Cell(f["confidence"]),
                Cell([part for i, e in enumerate(f["evidence"]) for part in ("; " if i else "", _seen(e))]),
            ]
        )
        for f in findings
    ]
    yield Section("findings", TITLES["findings"], [Table(TITLES["findings"], columns, rows)], first=True)
    codes: list[Block] = [Code(f["title"].text, [line.text for line in f["mend"]], f["note"].text) for f in findings if f["mend"]]
    if codes:
        yield Section("fixes", TITLES["fixes"], codes, first=True)


def _seen(e: At) -> Phrase:
    """One observation with its number and time in a step."""
    times: Phrase = (", ", e["count"], " a step") if e["count"].value is not None else ""
    takes: Phrase = (", ", e["seconds"]) if e["seconds"].value is not None else ""
    return (e["what"].text, times, takes, f", {e['where'].value}" if e["where"].value else "")


def _slower(d: At) -> Iterator[Section]:
    rows = [
        Row(
            [
                Cell(f"{s['op'].text} {s['shape'].text} {s['dtype'].text}"),
                Cell(s["count"]),
                Cell(s["measured_s"]),
                Cell(s["expected_s"]),
                Cell(s["lost_s"]),
                Cell(s["basis"]),
            ]
        )
        for s in d["slower"]
    ]
    columns = [Column("operation", words=True), Column("calls", leaves=1), Column("takes"), Column("could take")]
    columns += [Column("lost"), Column("basis", words=True, leaves=2)]
    if rows:
        yield Section("slower", TITLES["slower"], [Table(TITLES["slower"], columns, rows)])


def _ranks(d: At) -> Iterator[Section]:
    def share(part: At, whole: At) -> Phrase:
        return Number(part, lambda n: f"{100 * n / whole.number:.0f} %") if part else "-"

    rows: list[Row] = []
    for r in d["ranks"]:
        parts = (Cell(share(r["parts"][n], r["wall_s"])) for n in RANK_PARTS)
        rows.append(Row([Cell(r["rank"]), Cell(r["wall_s"]), Cell(r["busy_share"]), *parts]))
    columns = [Column("rank"), Column("step"), Column("busy", leaves=2), *(Column(n) for n in RANK_PARTS)]
    if rows:
        yield Section("ranks", TITLES["ranks"], [Table(TITLES["ranks"], columns, rows)])


def pictures_of(profile: Profile) -> list[Picture]:
    """One step of the trace, each part in a lane of its own; its products by intensity and rate."""
    return [*_timeline(profile), *_roofline(profile)]


def _timeline(profile: Profile) -> Iterator[Picture]:
    import numpy as np

    from gpuwise.train.profile.spans import intersection, spans

    data = profile.data
    if data.traced is None or data.steps is None:
        return
    lengths = data.steps.windows[:, 1] - data.steps.windows[:, 0]
    window = data.steps.windows[int(np.argsort(lengths)[len(lengths) // 2])]
    start, wide = float(window[0]), float(window[1] - window[0])
    least, named = wide / MOST_PIECES, list[tuple[str, list[tuple[float, float]]]]()
    for name, layer in data.traced.layers:
        inside = intersection(layer, window.reshape(1, 2)) if len(layer) else layer
        if len(inside):
            joined = spans(inside[:, 0], np.maximum(inside[:, 1], inside[:, 0] + least / 2) + least)
            pieces = [(float(a) - start, float(b) - least - start) for a, b in joined]
            if sum(b - a for a, b in pieces) >= LEAST * wide:
                named.append((name, pieces))
    if named:
        named.sort(key=lambda item: item[1][0][0])
        yield Picture(lanes("timeline", "One step as it was traced", named, wide))


def _roofline(profile: Profile) -> Iterator[Picture]:
    """Each operation from the rate at which it ran to that at which this device should run it."""
    import math

    found = [s for s in profile.slower if s.measured_s >= LEAST * profile.split.wall_s and s.moved_bytes > 0 and s.flop > 0]
    if not found:
        return
    series, dots = list[Line](), list[Dot | None]()
    for s in found[:MOST_POINTS]:
        x, ran, could = (math.log10(v) for v in (s.flop / s.moved_bytes, s.flop_per_s, s.flop / s.expected_s))
        words = f"{s.op} {s.shape} {s.dtype}"
        series.append(Line(words, [(x, ran), (x, could)]))
        dots.append(Dot(x, ran, f"{words}: {si(s.flop_per_s)}FLOP/s, could be {si(s.flop / s.expected_s)}FLOP/s"))
    across = around("FLOP a byte of memory", [a for line in series for a, _ in line.points], format_number, logarithmic=True)
    up = around("FLOP/s", [b for line in series for _, b in line.points], si, logarithmic=True)
    below = ["dot: as it ran; end of its line: as this device should run it"]
    yield Picture(lines("roofline", "Operations against this device", across, up, series, dots=dots, below=below))
