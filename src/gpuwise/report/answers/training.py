"""Plans and fits of a model of the catalogue: whether it fits, how long it takes, what it costs, what would change it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from gpuwise.export.job import writes_model
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import models
from gpuwise.interval import P80
from gpuwise.report.answers.answer import (
    Answer,
    Block,
    Cell,
    Column,
    Command,
    Figure,
    Notes,
    Number,
    Phrase,
    Points,
    Row,
    Section,
    Stack,
    Table,
    plain,
    span,
)
from gpuwise.report.answers.drawings import Dot, Part, around
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.strategy import differences, in_host_memory, layout_words, option_query, plain_words
from gpuwise.report.answers.values import BASIS, At
from gpuwise.units import GIGA, format_bytes, format_count, format_duration, probability
from gpuwise.workload.adapters import DEFAULT_TARGETS, targets_text
from gpuwise.workload.changes.registry import SAME
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.tasks import tasks

TIGHT = "*"
"""Marks memory that is enough only because torch gives cached blocks back."""
TIGHT_WORDS = f"{TIGHT} fits because PyTorch gives cached memory back; the number is what it needs then"
TITLES, PLAN = PARTS["fit"], PARTS["plan"]


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
        f"{d['model']['name'].text} {verb} on {d['cluster']['label'].text} to train {trains}{odds}{_unless(d)}",
        state,
        (d["model"]["parameters"], " parameters; ", plain_words(d["strategy"]), "; ", d["seq_len"], " tokens a sequence"),
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


def _unless(d: At) -> str:
    """What makes it fit on the same GPUs and still trains the same weights."""
    way = None if d["fits"].value else _same_training(d)
    return "" if way is None else f", but does with {_short(way['name'].text)}"


def _same_training(d: At) -> At | None:
    """The fastest change that surely makes it fit and still trains the same weights, with the same numbers where one does."""
    adapts, least = bool(d["strategy"]["lora_rank"].value), 1 - d["risk"].number
    alike = [r for r in d["combinations"] if bool(r["strategy"]["lora_rank"].value) == adapts]
    sure = [r for r in alike if r["fit_probability"].number >= least]
    return next((r for r in sure if r["kind"].value == UNCHANGED), next(iter(sure), None))


def held(place: At, limit: float) -> At:
    """Its memory on a GPU with ``limit`` bytes: with the allocator's usual slack, or its minimum if only that fits."""
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
        limit = d["host_limit_bytes"]
        yield ("In the host's memory: ", d["host_bytes"], (" of the ", limit, " that it can give") if limit else "")


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


UNCHANGED = "same training"
"""Kind of the changes that leave the numbers of a training as they are."""
PLAN_TOO = "How long and how much"


def _next(d: At) -> Command | None:
    """The first way that options give, at best one that trains the same weights; of what fits, its plan."""
    if d["fits"].value:
        return Command(PLAN_TOO, command="plan")
    same = _same_training(d)
    for r in (*([] if same is None else [same]), *d["combinations"]):
        sets = differences(d["strategy"], r["strategy"])
        if sets:
            return Command(f"Take {_short(r['name'].text)}", sets=sets)
    for name in ("more", "bigger"):
        for o in d[name]:
            return Command(f"On {o['cluster']['label'].text}", command="plan", sets={"on": _on(o["cluster"])})
    return None


def _on(cluster: At) -> str:
    """The cluster as ``--on`` takes it."""
    n, name = cluster["accelerators"].value, cluster["accelerator"].text
    systems = cluster["systems"].value
    return f"{n}x{name}" if systems == 1 else f"{systems}x{n // systems}x{name}"


def plan_answer(document: Mapping[str, Any]) -> Answer:
    """The answer of a plan."""
    d = At(document)
    return _planned(d, d["best"]) if d["best"] else _nothing_fits(d)


def estimate_answer(document: Mapping[str, Any]) -> Answer:
    """One layout: what a step takes, and what fills the memory."""
    d = At(document)
    limit, fits = d["device_bytes"], bool(d["fits"].value)
    at = held(d, limit.number)
    rates = [
        Figure(words, d[name], span(d[name]))
        for words, name in (("a step", "step_time_s"), ("tokens/s", "tokens_per_s"), ("MFU", "mfu"))
    ]
    return Answer(
        "fit",
        f"{d['head'].text}: " + ("it fits" if fits else "it does not fit"),
        "yes" if fits else "no",
        layout_words(d["strategy"]),
        [*(rates if fits else []), Figure("memory", at, span(at), ("of ", limit, ", fits with ", d["fit_probability"]))],
        [
            Section("memory", TITLES["memory"], [memory_stack(d, limit), Notes(list(_memory_notes(d)))], first=True),
            *([Section("step", TITLES["step"], [step_stack(d)], first=True)] if fits else []),
        ],
    )


def _planned(d: At, best: At) -> Answer:
    """The best layout: how long, how much, how."""
    goal, limit = d["goal"], d["cluster"]["usable_bytes"]
    cost: Phrase = (" and cost ", best["cost_usd"].expected) if best["cost_usd"] else ""
    misses = [f", later than the deadline of {goal['deadline_s'].text}"] if d["on_time"].value is False else []
    misses += [f", over the budget of {goal['budget_usd'].text}"] if d["in_budget"].value is False else []
    task = tasks().get(goal["task"].text)
    tuned = f", {task.title}" if task is not None and task.checkpoint else ""
    names = f"{d['model']['name'].text}{tuned} on {d['cluster']['label'].text}"
    price, mfu, goodput = best["price"], best["mfu"], best["goodput"]
    paid: Phrase = ""
    if price:
        day = f", {price['as_of'].text}" if price["as_of"] else ""
        paid = (price["usd_per_gpu_hour"], " a GPU-hour, ", price["provider"], day)
    at = held(best, limit.number)
    figures = [
        Figure("time", best["time_s"], span(best["time_s"]), (goodput["share"], " of it is training") if goodput else ""),
        *([Figure("cost", best["cost_usd"], span(best["cost_usd"]), paid)] if best["cost_usd"] else []),
        Figure("memory", at, span(at), ("of ", limit, " a GPU, fits with ", best["fit_probability"])),
        Figure("tokens/s", best["tokens_per_s"], span(best["tokens_per_s"]), (mfu, f" of the {_peak(best)} peak (MFU)")),
    ]
    state = "no" if misses else "yes" if best["fit_probability"].number >= SURE else "maybe"
    hardware = _hardware(d)
    changes = _neighbours(d["neighbours"], limit.number)
    return Answer(
        "plan",
        (names, ": ", _amount(d), " take ", best["time_s"].expected, cost, *misses),
        state,
        (
            _size(d["model"]),
            "; ",
            plain_words(best["strategy"]),
            "; ",
            goal["global_batch"],
            " x ",
            goal["seq_len"],
            " tokens a step",
        ),
        figures,
        [
            *([Section("gpus", PLAN["gpus"], [hardware], first=True)] if hardware is not None else []),
            Section("why", PLAN["why"], [Notes(_reasons(d))], first=True),
            Section("step", PLAN["step"], [step_stack(best)]),
            Section("memory", PLAN["memory"], [memory_stack(best, limit), Notes(list(_memory_notes(best)))]),
            *([Section("changes", PLAN["changes"], [changes])] if changes is not None else []),
            Section("layout", PLAN["layout"], [_pairs(PLAN["layout"], [*_layout_rows(best["strategy"], goal), *_links(d)])]),
            Section("numbers", PLAN["numbers"], [_numbers(d, best), Notes(list(_basis(d, best)))]),
            *_levels(best),
            *_layouts(d, best, limit),
            Section("run", PLAN["run"], list(_run(d, best))),
        ],
        _export(d, best),
        warnings=[str(s.value) for s in d["warnings"]],
        assumed=[str(s.value) for s in goal["assumed"]],
    )


def _reasons(d: At) -> list[str]:
    """The bottleneck, what an option of yours would change, the rest."""
    first, *rest = [str(s.value) for s in d["reasons"]] or [""]
    published = [str(s.value) for s in d["published"]]
    return [s for s in (first, *sorted(rest, key=lambda s: "--" not in s), *published) if s]


SURE = 0.9
"""Probability of fitting from which a plan is a yes."""


def _nothing_fits(d: At) -> Answer:
    """How far away the smallest layout is."""
    e, limit, tried = d["smallest"], d["cluster"]["usable_bytes"], d["search"]["strategies"]
    ways: Phrase = (tried, " layouts were tried") if tried.number > 1 else "the layout asked for was tried"
    on_host = bool(e) and e["needed_bytes"].number <= limit.number
    figures: list[Figure] = []
    if on_host:
        figures = [Figure("needs", e["host_bytes"], "", "of the host's memory, more than it can give")]
    elif e:
        figures = [Figure("needs", e["needed_bytes"], span(e["needed_bytes"]), ("the GPU has ", limit, " for a process"))]
    return Answer(
        "plan",
        f"{d['model']['name'].text} does not fit on {d['cluster']['label'].text}",
        "no",
        (ways, "; the one with the least memory: ", layout_words(e["strategy"])) if e else ways,
        figures,
        [Section("memory", PLAN["memory"], [memory_stack(e, limit), Notes(list(_memory_notes(e)))], first=True)] if e else [],
        _smaller(d, e) or Command("What would make it fit", command="fit", drops=(*ONLY_PLAN, *BILLED)),
        warnings=[str(s.value) for s in d["warnings"]],
        assumed=[str(s.value) for s in d["goal"]["assumed"]],
    )


def _smaller(d: At, e: At) -> Command | None:
    """Experts over tensor ranks, where the stack has that and they are not."""
    arch, s = _arch(d), e["strategy"]
    if arch is None or arch.moe is None or not s or s["tp"].number <= s["etp"].number:
        return None
    if not find_stack(s["stack"].text).layout.expert_tensor:
        return None
    return Command("Divide each expert over the tensor ranks", sets={"etp": s["tp"].text})


ONLY_PLAN = ("tokens", "samples", "deadline", "budget", "price", "provider", "exhaustive")
"""Options of ``plan`` that ``fit`` does not take."""
BILLED = ("country", "rent-price", "provider", "spot", "pue", "storage-price", "egress-gb", "eval-share", "html", "svg")
"""Options of a bill that a plan does not have."""


def _arch(d: At) -> Architecture | None:
    """The model as the catalogue has it."""
    return models().get(d["model"]["id"].text)


def _images(d: At) -> int | None:
    """Tokens of an image, of a model that reads images."""
    arch = _arch(d)
    return None if arch is None or arch.patches is None else arch.patches.n_tokens


def _amount(d: At) -> Phrase:
    """``15.0B tokens``; of a model of images ``1.28M images``; a billion tokens where none are given."""
    tokens, a_piece = d["goal"]["tokens"], _images(d)
    n = tokens.number or GIGA
    if a_piece is not None:
        images = Number(tokens, lambda _: format_count(n / a_piece)) if tokens else format_count(n / a_piece)
        return (images, " images (", Number(tokens, format_count) if tokens else format_count(n), " tokens)")
    return (Number(tokens, format_count) if tokens else format_count(n), " tokens")


def _size(model: At) -> list[Phrase]:
    active = model["active_parameters"]
    return [model["parameters"], " parameters", (", ", active, " active") if active.value != model["parameters"].value else ""]


def _peak(best: At) -> str:
    return str(best["strategy"]["precision"].value)


def _hardware(d: At) -> Table | None:
    """The best of each cluster compared."""
    if not d["hardware"]:
        return None
    late, dear = d["goal"]["deadline_s"], d["goal"]["budget_usd"]
    rows: list[Row] = []
    for o in d["hardware"]:
        time, usd, price = o["time_s"], o["cost_usd"], o["price"]
        misses = (late and time.number > late.number, dear and usd and usd.number > dear.number)
        rows.append(
            Row(
                [
                    Cell(o["cluster"].text),
                    Cell((time.expected, MISSES) if misses[0] else time.expected, span(time), "bad" if misses[0] else ""),
                    Cell((usd.expected, MISSES) if misses[1] else usd.expected, span(usd), "bad" if misses[1] else ""),
                    Cell(o["mfu"]),
                    Cell(price["usd_per_gpu_hour"] if price else ""),
                    Cell(price["as_of"].text if price and price["as_of"] else ""),
                ],
                mark="best" if o["cluster"].text == d["cluster"]["label"].text else "",
            )
        )
    columns = [
        Column("GPUs", words=True),
        Column("time"),
        Column("cost"),
        Column("MFU", leaves=2),
        Column("a GPU-hour", leaves=3),
        Column("price of", leaves=1),
    ]
    missed = any(MISSES in plain(c.value) for r in rows for c in r.cells)
    return Table(PLAN["gpus"], columns, rows, f"{MISSES.strip()} beyond the deadline or the budget" if missed else "")


MISSES = " !"
"""Marks a time beyond the deadline and a cost beyond the budget."""


def _neighbours(place: At, limit: float) -> Table | None:
    """What one change to the layout would do, the fastest first."""
    if not place:
        return None
    rows: list[Row] = []
    for n in sorted(place, key=lambda n: n["slower"].number):
        memory, fits = n["memory_bytes"], bool(n["fits"].value)
        tight = fits and memory.number > limit
        rows.append(
            Row(
                [
                    Cell(n["change"]),
                    Cell(n["slower"]),
                    Cell(n["step_time_s"] if fits else "", span(n["step_time_s"]) if fits else ""),
                    Cell(f"all of it{TIGHT}" if tight else memory, "" if tight else span(memory)),
                    chance_cell(n),
                ]
            )
        )
    columns = [Column("change", words=True), Column("speed"), Column("a step"), Column("memory"), Column("fits")]
    tight = any(n["fits"].value and n["memory_bytes"].number > limit for n in place)
    return Table(PLAN["changes"], columns, rows, f"{TIGHT} fits because PyTorch gives cached memory back" if tight else "")


def _pairs(title: str, rows: Iterable[tuple[str, Phrase]]) -> Table:
    return Table(title, [Column("what", words=True), Column("value", words=True)], [Row([Cell(n), Cell(v)]) for n, v in rows])


SHARDED = {
    "none": "none",
    "zero1": "zero1 (optimizer states)",
    "zero2": "zero2 (and gradients)",
    "zero3": "zero3 / FSDP (and weights)",
    "hybrid": "hybrid (FSDP inside a system)",
}


def _links(d: At) -> Iterator[tuple[str, Phrase]]:
    """The links of a host with several GPUs."""
    if words := d["cluster"]["links"].text:
        yield "links", words


def _layout_rows(s: At, goal: At) -> Iterator[tuple[str, Phrase]]:
    """The strategy, a choice a row."""
    degrees = (("data", "dp"), ("tensor", "tp"), ("pipeline", "pp"), ("context", "cp"), ("expert", "ep"))
    yield "parallel", ", ".join(f"{words} {s[n].value}" for words, n in degrees if s[n].number > 1 or n == "dp")
    if s["pp"].number > 1:
        virtual = s["virtual_stages"]
        yield "schedule", (s["schedule"].text, (", ", virtual, " virtual stages") if virtual.number > 1 else "")
    if s["tp"].number > 1:
        yield "sequence parallel", s["sequence_parallel"].text
    if s["cp"].number > 1:
        yield "context exchange", s["context_parallel"].text
    if s["ep"].number > 1 and find_stack(s["stack"].text).layout.chooses_dispatch:
        behind = ", behind other work" if s["overlap_ep"].value else ""
        yield "expert exchange", f"{s['expert_dispatch'].text}{behind}; CUDA graphs: {s['cuda_graphs'].text}"
    if s["etp"].number > 1:
        yield "each expert", ("over ", s["etp"], " tensor ranks")
    sizes = (s["micro_batch"], s["accumulation"], s["dp"], s["global_batch"])
    yield "batch", ("micro ", sizes[0], " x accumulation ", sizes[1], " x data ", sizes[2], " = ", sizes[3], " sequences")
    yield "tokens a step", (s["global_batch"], " x ", goal["seq_len"])
    group = s["shard_group"]
    yield "sharding", (SHARDED.get(s["sharding"].text, s["sharding"].text), (", over groups of ", group) if group.number else "")
    every = s["recompute_every"]
    yield "recompute", (s["recompute"].text, (", one layer in ", every) if every.number > 1 else "")
    offloaded = in_host_memory(s)
    if offloaded:
        yield "in host memory", " and ".join(offloaded)
    gradients = f", gradients {s['gradient_dtype'].text}" if s["precision"].text not in ("fp32", "tf32") else ""
    masters = "" if s["master_weights"].value or s["lora_rank"].number else ", no fp32 weights"
    yield "precision", s["precision"].text + gradients + masters
    if s["lora_rank"].number:
        targets = tuple(str(t.value) for t in s["lora_targets"])
        where = "" if targets == tuple(DEFAULT_TARGETS) else f" of {targets_text(targets)}"
        yield "adapters", ("rank ", s["lora_rank"], where, " on 4-bit weights" if s["quantized_base"].value else "")
    yield "optimizer", s["optimizer"].text + (", each update in the backward pass" if s["step_in_backward"].value else "")
    yield "stack", s["stack"].text


def _numbers(d: At, best: At) -> Table:
    """Every number of the best layout, with its interval."""
    a_piece, limit = _images(d), d["cluster"]["usable_bytes"].number

    def images(rate: float) -> str:
        return f"{rate / (a_piece or 1):,.0f}"

    rate = best["tokens_per_s"]
    rows: list[tuple[str, Phrase, Phrase]] = [("a step", best["step_time_s"], span(best["step_time_s"]))]
    rows += [("images/s", Number(rate, images), span(rate, images))] if a_piece is not None else []
    named = (("tokens/s", "tokens_per_s"), ("tokens/s a GPU", "tokens_per_s_per_gpu"), ("MFU", "mfu"))
    rows += [(words, best[name], span(best[name])) for words, name in named]
    if best["hfu"].number > best["mfu"].number:
        rows.append(("HFU: recompute counted too", best["hfu"], span(best["hfu"])))
    at = held(best, limit)
    rows.append(("memory", at, span(at)))
    rows += [(w, best[n], span(best[n])) for w, n in (("time", "time_s"), ("cost", "cost_usd")) if best[n]]
    kwh, price = best["energy"]["kwh"], best["price"]["usd_per_gpu_hour"]
    rows += [("energy", kwh, span(kwh))] if kwh else []
    rows += [("price of a GPU-hour", price, span(price))] if price else []
    columns = [Column("what", words=True), Column("expected"), Column(f"{P80} interval", words=True)]
    return Table(PLAN["numbers"], columns, [Row([Cell(n), Cell(v), Cell(i)]) for n, v, i in rows])


def _basis(d: At, best: At) -> Iterator[Phrase]:
    yield (d["search"]["strategies"], " layouts evaluated, ", d["search"]["fitting"], " fit")
    yield f"Time: {BASIS.get(best['step_time_s']['basis'].text, '')}"
    yield f"Memory: {best['memory_bytes']['basis'].text}"
    yield "Run times include failures, checkpoints and evaluation"


def _levels(best: At) -> Iterator[Section]:
    """What a team can expect, what the stack's authors reach, the rule of thumb; and what the whole time has beside training."""
    tuned, rule, goodput = best["tuned"], best["rule_of_thumb"], best["goodput"]
    if not tuned:
        return
    training = goodput["items_s"]["training"]
    rows: list[tuple[str, Phrase, Phrase]] = [("expected of a team", training, best["mfu"])] if goodput else []
    rows += [("tuned, as the stack's authors reach", tuned["training_s"], tuned["mfu"])]
    rows += [("by the rule of 40 % MFU", rule["training_s"], rule["mfu"])]
    columns = [Column("training alone", words=True), Column("time"), Column("MFU")]
    items: list[Phrase] = (
        [(name, " ", p) for name, p in goodput["items_s"].items() if _counts(name, p, training)] if goodput else []
    )
    more: list[Phrase] = [x for item in items for x in (", ", item)][1:]
    rest = [Notes([(goodput["share"], " of the whole time is training; the rest: ", *more)])] if items else []
    title = PLAN["levels"]
    yield Section("levels", title, [Table(title, columns, [Row([Cell(n), Cell(t), Cell(m)]) for n, t, m in rows]), *rest])


def _counts(name: str, item: At, training: At) -> bool:
    """Whether an item of the whole time is worth a word."""
    return name != "training" and item.number >= LEAST / 2 * training.number


def _layouts(d: At, best: At, limit: At) -> Iterator[Section]:
    """The next-best layouts, and those that are slower with more memory to spare."""
    front = [o for o in d["pareto"] if o["time_s"].number > best["time_s"].number]
    rows = [_layout_row("best", best, limit), *(_layout_row("", o, limit) for o in d["alternatives"])]
    if front:
        rows += [Row([Cell("slower, with more memory to spare")], heading=True), *(_layout_row("", o, limit) for o in front)]
    columns = [
        Column("layout", under=True),
        Column("time"),
        Column("cost"),
        Column("a step", leaves=1),
        Column("MFU", leaves=2),
        Column("free"),
        Column("fits"),
        Column("", words=True),
    ]
    tight = any(is_tight(o, limit.number) for o in (best, *d["alternatives"], *front))
    blocks: list[Block] = [Table(PLAN["layouts"], columns, rows, f"{TIGHT_WORDS}; free is what is left then" if tight else "")]
    blocks += [_front(d)]
    if d["alternatives"] or front:
        yield Section("layouts", PLAN["layouts"], blocks)


def _layout_row(name: str, o: At, limit: At) -> Row:
    free = o["headroom_bytes"]
    return Row(
        [
            Cell(layout_words(o["strategy"]), sets=option_query(o["strategy"])),
            Cell(o["time_s"], span(o["time_s"])),
            Cell(o["cost_usd"], span(o["cost_usd"])),
            Cell(o["step_time_s"], span(o["step_time_s"])),
            Cell(o["mfu"], span(o["mfu"])),
            Cell((Number(free, format_bytes), TIGHT) if is_tight(o, limit.number) else Number(free, format_bytes)),
            chance_cell(o),
            Cell(name),
        ]
    )


def _front(d: At) -> Points:
    """Time against memory, to choose from."""
    front = list(d["pareto"])
    if len(front) < 2:
        front = []
    strategy = d["best"]["strategy"].value
    x = around("memory of the fullest GPU", [p["memory_bytes"].number for p in front], format_bytes)
    y = around("a step", [p["step_time_s"].number for p in front], format_duration)
    dots = [
        Dot(
            p["memory_bytes"].number,
            p["step_time_s"].number,
            f"{p['step_time_s'].text} with {p['memory_bytes'].text}: {layout_words(p['strategy'])}",
            urlencode(option_query(p["strategy"])),
            p["strategy"].value == strategy,
        )
        for p in front
    ]
    return Points("front", "Time against memory", x, y, dots)


def _run(d: At, best: At) -> Iterator[Block]:
    """The command of the stack's tool, and what it lacks."""
    flags, lacks = [str(f.value) for f in best["flags"]], [str(g.value) for g in best["tool_lacks"]]
    if not flags:
        stack = best["strategy"]["stack"].text
        why = (
            f"they are for GPUs of NVIDIA, AMD and Intel, and for TPUs, not for {'; '.join(lacks)}"
            if lacks
            else f"none for {stack}"
        )
        yield Notes([f"gpuwise has no files for it: {why}"])
        return
    arch = _arch(d)
    if lacks and arch is not None and not writes_model(arch):
        yield Notes([f"gpuwise writes files for decoders of text only. {arch.name} takes a training script of its own"])
        return
    yield Command("", words=flags)
    if lacks:
        yield Notes([f"{best['tool'].text} has no setting for: {'; '.join(lacks)}"], "weak")
    else:
        yield Notes([f"All files (model, data, checkpoints) for {best['tool'].text} and other tools: gpuwise export"])


def _export(d: At, best: At) -> Command | None:
    """What writes the files of the plan."""
    if best["flags"] and best["stack_instead"]:
        return Command(f"{best['tool'].text} does not run this model; one that does", sets={"stack": best["stack_instead"].text})
    if not best["flags"] or best["tool_lacks"]:
        return None
    sets = {"on": _on(d["cluster"])} if d["hardware"] else {}
    drops = [*(n for n in ONLY_PLAN if n != "tokens"), "reference", "no-reference"]
    return Command("Write the files that run it", command="export", sets=sets, drops=drops)
