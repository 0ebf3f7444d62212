"""Predictions against measurements: by source and GPU, and a run on ranks by its journals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuwise.interval import P80
from gpuwise.report.answers.answer import (
    Answer,
    Block,
    Cell,
    Chart,
    Column,
    Command,
    Figure,
    Notes,
    Number,
    Phrase,
    Picture,
    Row,
    Section,
    State,
    Table,
)
from gpuwise.report.answers.drawings import Line, Part, around, stacks
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import At
from gpuwise.units import format_duration

TITLES = PARTS["validate"]
MEANING = (
    "MAPE: mean absolute percentage error; bias: mean of predicted / measured - 1",
    f"{P80} covers: share of rows inside their {P80} interval; baseline: the MAPE of the simple rule a family is compared with",
)


def scores_answer(document: Mapping[str, Any], *, summary: bool = False) -> Answer:
    """How far predictions are from measurements, without the GPUs in a ``summary``; rows that no fit has seen first."""
    found = list(At(document)["results"])
    sources = [r for r in found if not r["gpu"]]
    held_out = [r for r in sources if r["split"].text == "check"]
    held_out.sort(key=lambda r: (r["mape"].value is None, -r["rows"].number))
    ordered = [*held_out, *(r for r in sources if r["split"].text != "check")]
    rows = f"{sum(int(r['rows'].number) for r in held_out):,}"
    families = ", ".join(dict.fromkeys(r["family"].text for r in sources))
    gpus = [r for r in found if r["gpu"]]
    reasons = [
        (f"{r['family'].text}, {r['source'].text}: {reason}: ", n) for r in sources for reason, n in r["unpredicted"].items()
    ]
    skipped = [line.text for line in At(document)["skipped"]]
    why: list[Phrase] = [*reasons, *skipped]
    blocks: list[Block] = [_scores(ordered, TITLES["sources"])]
    return Answer(
        "validate",
        f"{len(held_out)} sources scored on {rows} rows that no fit has seen",
        "",
        families,
        [],
        [
            Section("sources", TITLES["sources"], blocks, first=True),
            *([Section("gpus", TITLES["gpus"], [_scores(gpus, TITLES["gpus"])])] if gpus and not summary else []),
            *([Section("left-out", TITLES["left-out"], [Notes(why)])] if why else []),
        ],
        Command("On the GPU of this machine", ["gpuwise", "validate", "--local"]),
        warnings=[f"{len(skipped):,} rows cannot be read and are left out (--left-out)"] if skipped else [],
        assumed=MEANING,
    )


def _scores(results: list[At], title: str) -> Table:
    columns = [
        Column("source", words=True),
        Column("split", words=True),
        Column("rows"),
        Column("median", leaves=1),
        Column("MAPE"),
        Column("bias", leaves=4),
        Column(f"{P80} covers"),
        Column("baseline", leaves=2),
        Column("left out", leaves=3),
    ]
    rows: list[Row] = []
    for r in results:
        name = f"{r['family'].text}, {r['source'].text}" + (f", {r['gpu'].text}" if r["gpu"] else "")
        left_out = sum(int(n.number) for _, n in r["unpredicted"].items())
        shares = [_percent(r["median_ape"]), _percent(r["mape"]), _percent(r["bias"], sign="+")]
        shares += [_percent(r["coverage80"], digits=0), _percent(r["baseline_mape"])]
        cells = [Cell(name), Cell(r["split"]), Cell(Number(r["rows"], "{:,.0f}".format)), *map(Cell, shares)]
        rows.append(Row([*cells, Cell(f"{left_out:,}" if left_out else "")]))
    return Table(title, columns, rows)


def _percent(place: At, *, sign: str = "", digits: int = 1) -> Phrase:
    if place.value is None:
        return "-"
    return Number(place, lambda share: f"{100 * share:{sign}.{digits}f} %")


# --- a run on ranks ---

STATES: Mapping[str, tuple[str, State]] = {
    "done": ("trained", "yes"),
    "asked": ("stopped when asked", "maybe"),
    "failed": ("a rank failed", "no"),
    "running": ("under way", "yes"),
    "silent": ("no rank has written for five minutes", "no"),
}
STEP = (
    ("computing", "compute_s"),
    ("waiting for data", "data_s"),
    ("waiting for other ranks", "wait_s"),
    ("waiting for a processor", "queue_s"),
)
"""Of a rank's step."""
MODEL = (
    ("parameters", "parameters"),
    ("trained", "trained"),
    ("zeros that stay", "zeros"),
    ("weights of rank 0", "weight_bytes"),
)


def ranks_answer(document: Mapping[str, Any]) -> Answer:
    """A run on ranks: the time of each, the straggler, what was predicted beside what was counted."""
    d = At(document)
    words, state = STATES[d["state"].text]
    of: Phrase = (" of ", Number(d["steps_asked"], "{:,.0f}".format)) if d["steps_asked"].value is not None else ""
    on = f"{d['target'].text.rpartition('/')[2]} on {d['layout']['words'].text}"
    return Answer(
        "validate",
        (f"{on}: {words}, step ", Number(d["steps"], "{:,.0f}".format), of),
        state,
        _straggler(d),
        list(_figures(d)),
        [
            Section("each-rank", TITLES["each-rank"], [_ranks(d), *_drawn(d), *_curves(d)], first=True),
            *_collectives(d),
        ],
        warnings=[str(e.value) for e in d["errors"]],
    )


def _straggler(d: At) -> Phrase:
    """Which rank the others wait for."""
    slow = d["straggler"]
    if slow:
        lost: Phrase = (slow["lost_s"], " a step (", slow["share"], ")")
        return ("Straggler: rank ", slow["rank"], " is waited for ", lost, f": {slow['cause'].text}")
    several = d["state"].text in ("done", "asked", "running") and len(d["ranks"].value) > 1
    return "No rank is waited for noticeably" if several else ""


def _figures(d: At) -> Iterator[Figure]:
    named = (("a step", "step_s"), ("samples a second", "samples_per_s"), ("loss", "loss"), ("restarts", "restarts"))
    yield from (Figure(name, d[key]) for name, key in named if d[key].value is not None)
    yield from (Figure(name, d["model"][key]) for name, key in MODEL if d["model"] and d["model"][key].value is not None)


def _ranks(d: At) -> Table:
    columns = [Column("rank"), Column("steps", leaves=3), Column("a step"), Column("computing"), Column("data")]
    columns += [Column("other ranks"), Column("processor", leaves=1), Column("memory"), Column("loss", leaves=2)]
    keys = ("rank", "steps", "step_s", *(key for _, key in STEP), "memory_bytes", "loss")
    return Table(TITLES["each-rank"], columns, [Row([Cell(r[key]) for key in keys]) for r in d["ranks"]])


def _drawn(d: At) -> Iterator[Picture]:
    rows = [(f"rank {r['rank'].text}", [Part(n, r[k]) for n, k in STEP]) for r in d["ranks"] if r["step_s"].value is not None]
    if rows:
        yield Picture(stacks("ranks", "A step of each rank", rows, format_duration))


def _curves(d: At) -> Iterator[Chart]:
    """Loss, and the slowest beside the fastest rank, over the newest steps."""
    curve = list(d["curve"])
    if len(curve) < 3:
        return
    x = around("step", [p["step"].number for p in curve], "{:,.0f}".format)
    loss = Line("loss", [(p["step"].number, p["loss"].number) for p in curve if p["loss"].value is not None])
    if len(loss.points) > 2:
        yield Chart("loss", "Loss", x, around("loss", [b for _, b in loss.points], "{:.3g}".format), [loss])
    named = (("slowest rank", "slowest_s"), ("fastest rank", "fastest_s"))
    pace = [Line(name, [(p["step"].number, p[key].number) for p in curve]) for name, key in named]
    y = around("a step", [b for s in pace for _, b in s.points], format_duration, zero=True)
    yield Chart("pace", "The slowest and the fastest rank", x, y, pace)


def _collectives(d: At) -> Iterator[Section]:
    if not d["collectives"]:
        return
    keys = ("kind", "predicted_count", "measured_count", "predicted_bytes", "measured_bytes")
    columns = [Column("collective", words=True), Column("predicted"), Column("counted"), Column("bytes predicted")]
    columns.append(Column("bytes counted"))
    rows = [Row([Cell(c[key]) for key in keys]) for c in d["collectives"]]
    yield Section("collectives", TITLES["collectives"], [Table(TITLES["collectives"], columns, rows)], first=True)
