"""A fit of a model of the catalogue: yes or no, what makes it fit, what fills the memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpuwise.plan.explain import probability
from gpuwise.report.answers.answer import Answer, Cell, Column, Command, Figure, Notes, Phrase, Row, Section, Stack, Table, span
from gpuwise.report.answers.drawings import Part
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.plan import differences, layout_words
from gpuwise.report.answers.values import At
from gpuwise.workload.changes.registry import SAME

TIGHT = "*"
"""Marks memory that is enough only because torch gives cached blocks back."""
TIGHT_WORDS = f"{TIGHT} fits because PyTorch gives cached memory back; the number is what it needs then"
TITLES = PARTS["fit"]


def fit_answer(document: Mapping[str, Any]) -> Answer:
    """The answer of a fit."""
    d = At(document)
    fits, sure = bool(d["fits"].value), d["fit_probability"].number >= 1 - d["risk"].number
    state = ("yes" if sure else "maybe") if fits else "no"
    verb = {"yes": "fits", "maybe": "may fit", "no": "does not fit"}[state]
    odds = f", with a probability of {probability(d['fit_probability'].number)}" if state == "maybe" else ""
    trains = "adapters (QLoRA)" if d["strategy"]["quantized_base"].value else "adapters (LoRA)"
    trains = trains if d["strategy"]["lora_rank"].value else "every weight"
    ways = _ways(d)
    return Answer(
        "fit",
        f"{d['model']['name'].text} {verb} on {d['cluster']['label'].text} to train {trains}{odds}",
        state,
        (d["model"]["parameters"], " parameters; ", layout_words(d["strategy"]), "; ", d["seq_len"], " tokens a sequence"),
        _fitting(d) if fits else _missing(d),
        [
            *([] if ways is None else [Section("ways", _title(d), [ways], first=True)]),
            Section("memory", TITLES["memory"], [memory_stack(d, d["device_bytes"]), Notes(list(_memory_notes(d)))], first=True),
            *([Section("step", TITLES["step"], [step_stack(d)])] if fits else []),
            *_tried(d, fits),
            *_gpus(d),
        ],
        _next(d),
        assumed=[str(s.value) for s in d["assumed"]],
    )


def held(place: At, limit: float) -> At:
    """Its memory on a GPU with ``limit`` bytes: with the allocator's usual slack, or what it needs at the least where only that
    fits."""
    return place["needed_bytes"] if is_tight(place, limit) else place["memory_bytes"]


def is_tight(place: At, limit: float) -> bool:
    """Whether it fits without the allocator's usual slack alone."""
    return place["needed_bytes"].number <= limit <= place["memory_bytes"].number


def memory_cell(place: At, limit: float) -> Cell:
    """Memory of a row, marked where it fits tightly."""
    at = held(place, limit)
    return Cell((at.expected, TIGHT) if is_tight(place, limit) else at.expected, span(at))


def chance_cell(place: At) -> Cell:
    """The probability that it fits."""
    return Cell(place["fit_probability"], mark="good" if place["fits"].value else "bad")


def _fitting(d: At) -> list[Figure]:
    """Memory, speed and what else fits."""
    at = held(d, d["device_bytes"].number)
    return [
        Figure("memory", at.expected, span(at), ("of ", d["device_bytes"], ", fits with ", d["fit_probability"])),
        Figure("tokens a second", d["tokens_per_s"], span(d["tokens_per_s"]), (d["mfu"], " of the GPU's peak (MFU)")),
        Figure("micro-batch", ("up to ", d["largest_micro_batch"]), "", ("or sequences up to ", d["longest_seq_len"], " tokens")),
    ]


def _missing(d: At) -> list[Figure]:
    """What it needs, on the GPU or on the host."""
    if d["needed_bytes"].number <= d["device_bytes"].number:
        return [
            Figure("needs", d["host_bytes"], "", ("of the host's memory, which can give ", d["host_limit_bytes"])),
            Figure("GPU", d["needed_bytes"], span(d["needed_bytes"]), ("of ", d["device_bytes"])),
        ]
    note: Phrase = ("the GPU has ", d["device_bytes"], " for a process")
    return [Figure("needs", d["memory_bytes"], span(d["memory_bytes"]), note)]


def _title(d: At) -> str:
    if d["fits"].value:
        return "To free more memory"
    sure = any(
        r["fit_probability"].number >= 1 - d["risk"].number for name in ("combinations", "bigger", "more") for r in d[name]
    )
    return TITLES["ways"] if sure else "What may make it fit"


def _ways(d: At) -> Table | Notes | None:
    """What makes it fit, ranked: changes to the training, then other GPUs."""
    if d["fits"].value:
        return None
    limit = d["device_bytes"].number
    changes = [_way(_short(r["name"].text), r, limit, differences(d["strategy"], r["strategy"])) for r in d["combinations"]]
    gpus = [_way(_hired(o), o, o["cluster"]["usable_bytes"].number, {}) for name in ("more", "bigger") for o in list(d[name])[:1]]
    rows = [*changes[:3], *gpus, *changes[3:]]
    if not rows:
        return Notes(["Nothing that was tried, on these GPUs or on more of them."])
    columns = [Column("change", words=True), Column("memory"), Column("fits"), Column("tokens/s"), Column("trains", words=True)]
    tight = any(is_tight(r, limit) for r in d["combinations"])
    return Table(TITLES["ways"], columns, rows, TIGHT_WORDS if tight else "")


def _way(name: Phrase, place: At, limit: float, sets: Mapping[str, str] | None) -> Row:
    ticked, rate = Cell(name, tick=sets or {}), place["tokens_per_s"]
    trained = "adapters" if place["strategy"]["lora_rank"].value else "every weight"
    return Row([ticked, memory_cell(place, limit), chance_cell(place), Cell(rate, span(rate)), Cell(trained)])


_DETAILS = re.compile(r" \([^()]*\)|, rank \d+( on 4-bit weights)?| without fp32 copies")
"""What a name of a change has beyond its main words."""


def _short(name: str) -> str:
    """``LoRA + full recompute`` of ``LoRA, rank 16 + full recompute (stack trainer)``."""
    return _DETAILS.sub("", name).replace("host memory", "RAM")


def _hired(other: At) -> Phrase:
    """``8x RTX 4090, $0.449 a GPU-hour``."""
    usd = other["usd_per_gpu_hour"]
    return (other["cluster"]["label"], ", ", usd, " a GPU-hour") if usd else other["cluster"]["label"]


def memory_stack(place: At, limit: At) -> Stack:
    """What fills the fullest GPU; without the cached blocks that torch gives back where it fits only so."""
    whole, parts = held(place, limit.number), [Part(n, p) for n, p in place["memory_parts_bytes"].items()]
    if is_tight(place, limit.number):
        parts = [p for p in parts if p.name != "reserve"]
        if sum(p.place.number for p in parts) > limit.number:  # paged states leave the device
            parts = [p for p in parts if p.name != "optimizer"]
    return Stack("memory", "Memory of the fullest GPU", parts, whole, limit, place["headroom_bytes"])


def step_stack(place: At) -> Stack:
    """Where the time of a step goes, longest first."""
    whole = place["step_time_s"]
    parts = [Part(n, p) for n, p in place["breakdown_s"].items() if p.number > LEAST * whole.number]
    return Stack("step", "A step", sorted(parts, key=lambda p: -p.place.number), whole, apart=True)


LEAST = 0.001
"""Share of a step below which a part is not shown."""


def _memory_notes(d: At) -> Iterator[Phrase]:
    needed, usual, allocated = d["needed_bytes"], d["memory_bytes"], d["allocated_bytes"]
    yield ("Fits on the GPU with a probability of ", d["fit_probability"])
    yield ("With the memory that PyTorch usually keeps in its cache: ", usual, " (", span(usual), ")")
    yield ("With an empty cache, the least it needs: ", needed, " (", span(needed), ")")
    yield ("PyTorch's own count, max_memory_allocated: ", allocated, " (", span(allocated), ")")
    if d["host_bytes"].number:
        yield ("In the host's memory: ", d["host_bytes"], " of the ", d["host_limit_bytes"], " that it can give")


def _tried(d: At, fits: bool) -> Iterator[Section]:
    """Each change alone: of what fits, those that fit too."""
    limit = d["device_bytes"].number
    tried = [r for r in d["remedies"] if r["fits"].value or not fits]
    if not tried:
        return
    rows = [
        Row(
            [
                Cell(r["name"], tick=differences(d["strategy"], r["strategy"]) or {}),
                Cell(r["saved_bytes"]),
                Cell(r["slower"]),
                memory_cell(r, limit),
                chance_cell(r),
                Cell("" if r["kind"].text == SAME else r["kind"]),
            ]
        )
        for r in tried
    ]
    columns = [
        Column("change", words=True),
        Column("saves", leaves=1),
        Column("speed"),
        Column("memory"),
        Column("fits"),
        Column("", under=True),
    ]
    tight = any(is_tight(r, limit) for r in tried)
    title = "To free more memory, one change at a time" if fits else TITLES["tried"]
    yield Section("tried", title, [Table(title, columns, rows, TIGHT_WORDS if tight else "")], first=fits)


def _gpus(d: At) -> Iterator[Section]:
    """The same on other GPUs."""
    rows: list[Row] = []
    for name, title in (("bigger", "bigger"), ("more", "more of the same")):
        if d[name]:
            rows.append(Row([Cell(title)], heading=True))
        for o in d[name]:
            limit = o["cluster"]["usable_bytes"].number
            rows.append(
                Row(
                    [
                        Cell(o["cluster"]["label"]),
                        memory_cell(o, limit),
                        chance_cell(o),
                        Cell(o["tokens_per_s"], span(o["tokens_per_s"])),
                        Cell(o["usd_per_gpu_hour"]),
                        Cell(layout_words(o["strategy"])),
                    ]
                )
            )
    if rows:
        columns = [
            Column("GPUs", words=True),
            Column("memory"),
            Column("fits"),
            Column("tokens/s"),
            Column("a GPU-hour"),
            Column("how", under=True),
        ]
        yield Section("gpus", TITLES["gpus"], [Table(TITLES["gpus"], columns, rows)])


PLAN_TOO = "How long and how much"


def _next(d: At) -> Command | None:
    """The first way that options give; of what fits, its plan."""
    if d["fits"].value:
        return Command(PLAN_TOO, command="plan")
    for r in d["combinations"]:
        sets = differences(d["strategy"], r["strategy"])
        if sets:
            return Command(f"Take {_short(r['name'].text)}", sets=sets)
    for name in ("more", "bigger"):
        for o in d[name]:
            cluster = o["cluster"]
            on = f"{cluster['accelerators'].text}x{cluster['accelerator'].text}"
            return Command(f"On {cluster['label'].text}", command="plan", sets={"on": on})
    return None
