"""A person's own step: whether it fits and what fills the memory; how long it takes and where the time goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from gpuwise.report.answers.answer import (
    Answer,
    Area,
    Block,
    Cell,
    Code,
    Column,
    Command,
    Figure,
    Notes,
    Number,
    Phrase,
    Row,
    Section,
    Stack,
    State,
    Table,
    span,
)
from gpuwise.report.answers.drawings import Axis, Layer, Part, around
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import BASIS, At
from gpuwise.text import capital
from gpuwise.units import format_bytes, format_rate
from gpuwise.workload.changes.registry import SAME

FIT, PLAN = PARTS["fit"], PARTS["plan"]
LIKELY = 0.9
"""Probability to fit below which the verdict is a maybe: the 80 % interval then touches the memory of the GPU."""
LEAST, WAITING = 0.001, 0.1
"""Shares of a step: a smaller part is left out; from so much waiting for the host on, its phase is named."""
MODULES = 8
VERBS = {"fits": "fits", "borderline": "may or may not fit", "does not fit": "does not fit", "fails": "would fail"}


def step_answer(document: Mapping[str, Any], assumed: str = "") -> Answer:
    """The answer of a plan or a fit of a person's own step; ``assumed`` is how the GPU's name was read."""
    return (plan_answer if "scaling" in document else fit_answer)(document, assumed)


def fit_answer(document: Mapping[str, Any], assumed: str = "") -> Answer:
    """Whether the step fits, and what would change that."""
    d = At(document)
    m, fits, likely = d["memory"], bool(d["fits"].value), d["fit_probability"]
    state: State = "no" if not fits else "yes" if likely.number >= LIKELY else "maybe"
    odds: Phrase = (", with a probability of ", likely) if state == "maybe" else ()
    verb, on = VERBS[m["verdict"].text], d["cluster"]["label"].text
    verdict: Phrase = (d["target"].text, " ", verb, " on ", on, ": ", m["process_bytes"], " of ", m["capacity_bytes"], odds)
    ways = _ways(d, fits)
    return Answer(
        "fit",
        verdict,
        state,
        _head(d),
        list(_fit_figures(d)),
        [
            *ways[:1],
            *_memory(d, FIT["memory"]),
            *_batches(d, FIT["batches"]),
            *ways[1:],
            *_findings(d, FIT["findings"]),
            *_written([*d["combinations"], *(d["remedies"] or ())], FIT["lines"]),
            *_gpus(d["bigger"], FIT["gpus"], "The same on a bigger GPU"),
        ],
        _fit_next(d, fits),
        warnings=list(_failures(d)),
        assumed=[*([assumed] if assumed else []), _captured(d)],
    )


def plan_answer(document: Mapping[str, Any], assumed: str = "") -> Answer:
    """How long the step takes, what it costs, and what would make it faster."""
    d = At(document)
    step, samples, time, on = d["step_time_s"], d["samples"], d["time"], d["cluster"]["label"].text
    verdict: Phrase = (d["target"].text, " on ", on, ": ", step, " a step")
    if samples:
        verdict = (verdict, ", ", samples, " samples in ", d["run_time_s"])
        verdict = (verdict, " for ", d["cost_usd"]) if d["cost_usd"] else verdict
    if not d["fits"].value:
        memory = d["memory"]
        taken: Phrase = (memory["process_bytes"].expected, " of ", memory["capacity_bytes"])
        verdict = (d["target"].text, " does not fit on ", on, ": ", taken, "; a step would take ", step)
    changes = list(d["speedups"] or ())
    return Answer(
        "plan",
        verdict,
        "yes" if d["fits"].value else "no",
        _head(d),
        list(_plan_figures(d)),
        [
            *_time(time),
            *_faster(d["speedups"]),
            *_several(d["scaling"]),
            *_memory(d, PLAN["memory"], first=False),
            *_batches(d, PLAN["batches"]),
            *_findings(d, PLAN["findings"]),
            *_written(changes, PLAN["lines"]),
            *_gpus(d["cards"], PLAN["gpus"], "One of each GPU, cheapest for a step first", first=True),
        ],
        _plan_next(d),
        warnings=list(_failures(d)),
        assumed=[
            *([assumed] if assumed else []),
            f"time: {BASIS[str(step['basis'].value)]}",
            "loading of data, evaluation and checkpoints are not counted",
            _captured(d),
        ],
    )


def _captured(d: At) -> str:
    if d["assumed"]:
        return "; ".join(note.text for note in d["assumed"])
    n = d["captures"].number
    ranks = d["settings"]["world_size"].number
    first = f", as the first of {ranks:.0f} ranks of torchrun" if ranks > 1 else ""
    return f"{n:.0f} capture{'s' * (n > 1)} of two steps without a GPU{first}" + (", one for each change" if n > 1 else "")


def _head(d: At) -> Phrase:
    """What was captured, in a line: parameters, batch, formats, optimizers, torch."""
    s = d["settings"]
    words: list[Phrase] = [(d["parameters"], " parameters")]
    words += [("batch ", d["batch"])] if d["batch"] else []
    words += [("sequence ", d["seq_len"])] if d["seq_len"] else []
    if s["autocast_dtypes"]:
        words.append("autocast " + " ".join(dict.fromkeys(t.text for t in s["autocast_dtypes"])))
    elif d["precision"].text != "as-is":
        words.append(d["precision"].text)
    words += [o.replace("/", " ") for o in dict.fromkeys(t.text for t in s["optimizers"])]
    words += ["torch.compile"] if s["compiled"].value else []
    words += [(d["operations"], " operations a step"), f"torch {s['torch_version'].text.partition('+')[0]}"]
    return [part for i, w in enumerate(words) for part in ((", ", w) if i else (w,))]


def _fit_figures(d: At) -> Iterator[Figure]:
    m, room = d["memory"], d["headroom_bytes"]
    context: Phrase = ("as nvidia-smi counts, with a context of ", m["context_bytes"].expected, "; ", room)
    yield Figure("memory", m["process_bytes"].expected, span(m["process_bytes"]), context)
    yield Figure("reserved", m["reserved_bytes"].expected, span(m["reserved_bytes"]), "by PyTorch, max_memory_reserved")
    yield Figure("allocated", m["allocated_bytes"].expected, span(m["allocated_bytes"]), "max_memory_allocated")
    if d["step_time_s"]:
        yield Figure("a step", d["step_time_s"].expected, span(d["step_time_s"]))


def _plan_figures(d: At) -> Iterator[Figure]:
    step, time = d["step_time_s"], d["time"]
    arithmetic: Phrase = (Number(d["flop"], lambda n: format_rate(n, "FLOP")), " of arithmetic")
    used: Phrase = (", ", time["mfu"], " of the dense ", time["mfu_dtype"].text, " rate (MFU)") if time["mfu"] else ()
    yield Figure("a step", step.expected, span(step), (arithmetic, used))
    if d["samples_per_s"]:
        yield Figure("samples a second", d["samples_per_s"].expected, span(d["samples_per_s"]))
    memory = d["memory"]["process_bytes"]
    yield Figure("memory", memory.expected, span(memory), ("of ", d["memory"]["capacity_bytes"]))
    if d["samples"]:
        yield Figure("the run", d["run_time_s"].expected, span(d["run_time_s"]))
    if d["cost_usd"]:
        yield Figure("cost", d["cost_usd"].expected, span(d["cost_usd"]))
    if d["energy"]:
        yield Figure("energy", d["energy"]["kwh"].expected, span(d["energy"]["kwh"]))
    price = d["price"]
    if price:
        day = f", {price['as_of'].text}" if price["as_of"] else ""
        usd = price["usd_per_gpu_hour"]
        yield Figure("a GPU-hour", usd.expected, span(usd), f"{price['provider'].text}{day}")


def _failures(d: At) -> Iterator[str]:
    """What fails whatever memory there is, where it runs out, and sizes that depend on values."""
    m, oom = d["memory"], d["memory"]["out_of_memory"]
    yield from (f"fails: {f['reason'].text}: {_place(f['at'])}" for f in m["failures"])
    if oom:
        step = "building it" if oom["step"].number < 0 else f"step {oom['step'].number + 1:.0f}"
        yield f"runs out of memory in {step}, asking for {oom['requested_bytes'].text}: {_place(oom['at'])}"
    elif m["retries"].number and d["fits"].value:
        yield f"fits only because PyTorch gives cached memory back ({m['retries'].text} times)"
    if d["at_bound"]:
        bound = d["at_bound"]
        words = "also fits" if bound["fits"].value else "does not fit"
        at_most = f"at their upper bound it takes {bound['memory_bytes'].text} and {words}"
        yield f"sizes that depend on values are a balanced choice; {at_most}"


def _memory(d: At, title: str, *, first: bool = True) -> Iterator[Section]:
    """What fills it at the peak, over the step, and where in the code."""
    m = d["memory"]
    drawn = [name for name, _ in m["timeline"]["bytes_by_category"].items()]  # in the order, and so the colours, of the timeline
    sizes = sorted(m["peak_bytes_by_category"].items(), key=lambda item: [*drawn, item[0]].index(item[0]))
    peak = Stack("memory", title, [Part(_category(n), p) for n, p in sizes], m["allocated_bytes"], m["capacity_bytes"])
    modules = [Row([Cell(name or "the model itself"), Cell(p)]) for name, p in d["parameter_bytes_by_module"].items()[:MODULES]]
    steps: Phrase = ("First step ", m["first_step"]["allocated_bytes"], ", a later one ", m["steady_step"]["allocated_bytes"])
    blocks: list[Block] = [peak, Notes([f"The peak is at {_place(m['peak'])}", steps]), *_over_the_step(m["timeline"])]
    blocks.append(Table("Largest tensors at the peak", LARGEST, list(_largest(m["largest"]))))
    if len(modules) > 1:
        blocks.append(Table("Parameters", [Column("parameters of", words=True), Column("memory")], modules))
    yield Section("memory", title, blocks, first=first)


LARGEST = [Column("tensors at the peak", words=True), Column("how many"), Column("each"), Column("made by", under=True)]


def _over_the_step(timeline: At) -> Iterator[Area]:
    """What is in use and what is reserved, from event to event."""
    at = [float(e.number) for e in timeline["event"]]
    stack = [Layer(_category(name), [v.number for v in row]) for name, row in timeline["bytes_by_category"].items()]
    if len(at) < 2 or not stack:
        return
    reserved = Layer("reserved", [v.number for v in timeline["reserved_bytes"]]) if timeline["reserved_bytes"] else None
    most = max(map(sum, zip(*(s.heights for s in stack), strict=True)))
    x = Axis("allocations and frees, in order", 0.0, timeline["events"].number, "{:,.0f}".format)
    y = around("", [0.0, most, *(reserved.heights if reserved else ())], format_bytes, zero=True)
    phases = [(p["first_event"].number, p["name"].text) for p in timeline["phases"]]
    yield Area("timeline", "Memory over the step", x, y, at, stack, reserved, phases)


def _category(field: str) -> str:
    """A category of memory in words."""
    from gpuwise.predict.memory.timeline import CATEGORY_WORDS, Category  # which takes time to load, and seldom

    return CATEGORY_WORDS[Category[field.upper()]]


def _largest(tensors: At) -> Iterator[Row]:
    """Those that are alike in a row, with how many there are."""
    alike: dict[tuple[str, ...], list[At]] = {}
    for t in tensors:
        of_optimizer = t["category"].text == "optimizer" and bool(t["made_by"]["line"].value)
        maker = f"the optimizer, {t['made_by']['line'].text}" if of_optimizer else _place(t["made_by"], phase=False)
        alike.setdefault((t["category"].text, t["dtype"].text, t["bytes"].text, maker), []).append(t)
    for (category, dtype, _, maker), same in alike.items():
        yield Row([Cell(f"{_category(category)} {dtype}"), Cell(f"{len(same)}"), Cell(same[0]["bytes"]), Cell(maker)])


def _place(place: At, *, phase: bool = True) -> str:
    """``mm in the backward of blocks.3.mlp, train.py:41 in step``."""
    name, when = str(place["operation"].value or ""), str(place["phase"].value or "")
    if not name:
        return "set-up"
    parts = name.split(".")
    words = parts[1] if parts[0] == "aten" and len(parts) > 1 else name.removesuffix(".default")
    words += {"set-up": " while building"}.get(when, f" in the {when}") if phase else ""
    words += f" of {place['module'].value}" if place["module"].value else ""
    return words + (f", {place['line'].value}" if place["line"].value else "")


def _findings(d: At, title: str) -> Iterator[Section]:
    """What the capture noticed."""
    rows = [
        Row([Cell(f["where"].value or "-"), Cell((f["message"].text, *_often(f["count"]))), Cell(f["hint"].value or "")])
        for f in d["findings"]
    ]
    if rows:
        columns = [Column("where", words=True), Column("what", words=True), Column("hint", under=True)]
        yield Section("findings", title, [Table(title, columns, rows)], first=True)


def _often(count: At) -> Sequence[Phrase]:
    return (" (", count, " times a step)") if count.number > 1 else ()


def _batches(d: At, title: str) -> Iterator[Section]:
    """Powers of two and the largest batch that fits, with what each takes."""
    search = d["batches"]
    if not search:
        return
    largest, fastest, knee = (search[n].value for n in ("largest", "fastest", "knee"))
    ladder = {2**i for i in range(32)} | {largest}
    named = {largest: "largest that fits", fastest: "fastest"}
    if knee != fastest:
        named.setdefault(knee, "nearly as fast, with less memory")
    rows = [
        Row(
            [
                Cell(p["batch"]),
                Cell(p["process_bytes"]),
                Cell(p["fits_easily"], mark="good" if p["fits_easily"].value else "bad"),
                Cell(p["step_time_s"]),
                Cell(p["samples_per_s"]),
                Cell(", ".join(words for at, words in named.items() if at == p["batch"].value)),
            ]
        )
        for p in search["tried"]
        if p["batch"].value in ladder and p["batch"].value <= 2 * max(largest, 1)
    ]
    columns = [
        Column("batch"),
        Column("memory"),
        Column("fits"),
        Column("a step"),
        Column("samples/s"),
        Column("which", under=True),
    ]
    how: Phrase = (search["captures"], " captures", ", the largest verified by one" if search["verified"].value else "")
    notes = Notes([(how, f"; {search['note'].text}" if search["note"].value else "")])
    yield Section("batches", title, [Table(title, columns, rows), notes], first=True)


def _ways(d: At, fits: bool) -> list[Section]:
    """Changes with what they save and cost: those that make it fit, least slowdown first, then each alone."""
    if not d["remedies"]:
        return []
    singles = list(d["remedies"])
    good = sorted([*d["combinations"], *(r for r in singles if r["fits"].value)], key=lambda r: r["slower"].number)
    notes = _impossible(d["not_possible"])
    if fits:
        title = "To free more memory, one change at a time"
        return [Section("tried", title, [_changes(title, singles), *notes], first=True)]
    made = [_changes(FIT["ways"], good)] if good else [Notes(["Nothing that was tried"])]
    rest = [r for r in singles if not r["fits"].value]
    found = [Section("ways", FIT["ways"], made, first=True)]
    return [*found, Section("tried", "Helps, but not enough alone", [_changes(FIT["tried"], rest), *notes])] if rest else found


def _impossible(place: At) -> list[Notes]:
    reasons: dict[str, list[str]] = {}
    for name, why in place.items():
        reasons.setdefault(why.text, []).append(name)
    return [Notes([f"Not possible here: {', '.join(names)} ({why})" for why, names in reasons.items()])] if reasons else []


def _changes(title: str, rows: Sequence[At]) -> Table:
    columns = [Column("change", words=True), Column("saves", leaves=1), Column("speed"), Column("then")]
    columns += [Column("a step"), Column("training", under=True)]
    return Table(title, columns, [_change_row(r) for r in rows])


def _change_row(r: At) -> Row:
    tick = {"change": " ".join(map(_change, cast("list[Mapping[str, Any]]", r["changes"].value)))} if r["changes"] else {}
    kind = "" if r["kind"].text == SAME else r["kind"].text
    then = Cell(r["process_bytes"], span(r["process_bytes"]), "" if r["fits"].value else "bad")
    return Row([Cell(r["name"], tick=tick), Cell(r["saved_bytes"]), Cell(r["slower"]), then, Cell(r["step_time_s"]), Cell(kind)])


def _change(change: Mapping[str, Any]) -> str:
    """A change as ``--change`` takes it."""
    argument = change["argument"]
    if argument is None:
        return str(change["kind"])
    text = ",".join(map(str, cast("list[object]", argument))) if isinstance(argument, list) else str(argument)
    return f"{change['kind']}={text.lower() if isinstance(argument, bool) else text}"


def _written(remedies: Iterable[At], title: str) -> Iterator[Section]:
    """The lines that make each change."""
    from gpuwise.workload.changes.registry import BY_NAME

    codes: list[Block] = []
    for r in remedies:
        kinds = (BY_NAME.get(c["kind"].text) for c in r["changes"])
        risks = dict.fromkeys(k.risk for k in kinds if k is not None)
        if r["lines"]:
            codes.append(Code(r["name"].text, [line.text for line in r["lines"]], "; ".join(risks)))
    if codes:
        yield Section("lines", title, codes)


def _gpus(cards: At, name: str, title: str, *, first: bool = False) -> Iterator[Section]:
    """The step on other GPUs."""
    if not cards:
        return
    columns = [Column("GPU", words=True), Column("memory"), Column("room", leaves=1), Column("a step"), Column("a GPU-hour")]
    rows = [
        Row(
            [
                Cell(c["cluster"]["label"]),
                Cell(c["process_bytes"], span(c["process_bytes"])),
                Cell(c["headroom_bytes"] if c["fits"].value else "does not fit"),
                Cell(c["step_time_s"], span(c["step_time_s"])),
                Cell(c["price"]["usd_per_gpu_hour"].expected),
            ]
        )
        for c in cards
    ]
    yield Section("gpus", title, [Table(name, columns, rows)], first=first)


# --- the time of a step ---


def _time(time: At) -> Iterator[Section]:
    """Where the time of the GPU goes: by phase, kind, module, and what bounds it."""
    if not time:
        return
    whole = time["device_s"]
    stacks: list[Block] = [
        Stack(key, title, parts, whole, apart=True) for key, name, title in TIMES if (parts := _parts(time[name], whole.number))
    ]
    yield Section("step", PLAN["step"], [*stacks, Notes([_waits(time)])], first=True)
    columns = [Column("operation", words=True), Column("calls", leaves=2), Column("time"), Column("share")]
    columns += [Column("bound by", words=True, leaves=3), Column("rate", leaves=1), Column("in", under=True)]
    rows = [
        Row(
            [
                Cell(o["op"]),
                Cell(o["count"]),
                Cell(o["time_s"]),
                Cell(o["share"]),
                Cell(o["bound"].text.replace("_", " ")),
                Cell(o["flop_per_s"] if o["flop_per_s"].number else "-"),
                Cell(f"{o['module'].value or '-'}, {o['shapes'].text}"),
            ]
        )
        for o in time["costliest"]
    ]
    yield Section("operations", PLAN["operations"], [Table(PLAN["operations"], columns, rows)])


TIMES = (
    ("step", "families_s", "By kind of operation"),
    ("phases", "phases_s", "By phase"),
    ("modules", "modules_s", "By module"),
    ("bounds", "bounds_s", "By what bounds it"),
)


def _parts(place: At, whole: float) -> list[Part]:
    parts = [Part(n.replace("_", " "), p) for n, p in place.items() if p.number > LEAST * whole]
    return sorted(parts, key=lambda p: -p.place.number)


def _waits(time: At) -> Phrase:
    """Whether the GPU waits for the host, and where."""
    from gpuwise.plan.step.estimates import AROUND  # with NumPy, which a page without an answer does not need

    issue, run, kernels = time["host_s"], time["device_s"], time["kernels"]
    if time["host_bound"].value:
        shorter = ": a larger batch, torch.compile or CUDA graphs shorten the step"
        return ("The GPU waits for the host, which takes ", issue, " to issue ", kernels, " kernels that run in ", run, shorter)
    length: Phrase = "" if AROUND in dict(time["families_s"].items()) else (": ", run)
    busy: Phrase = ("The GPU is busy ", time["gpu_busy_share"], " of the step", length, " for ", kernels, " kernels")
    waited, share = time["waits_s"].items(), time["launch_bound_share"]
    if share.number < WAITING or not waited:
        return (busy, ", which the host issues in ", issue)
    phase = max(waited, key=lambda item: item[1].number)[0]
    fused = "; an update of all parameters in one call (fused=True) shortens it" if phase == "optimizer" else ""
    return (busy, "; it waits for the host ", share, f" of the step, longest in the {phase}{fused}")


def _faster(place: At) -> Iterator[Section]:
    if place.value is None:
        return
    made = [_changes(PLAN["changes"], list(place))] if place else [Notes(["Nothing that was tried"])]
    yield Section("changes", "What makes it faster, one change at a time", made, first=True)


def _several(place: At) -> Iterator[Section]:
    """The same batch on each of several GPUs, those that were asked for first."""
    if len(place.value or ()) < 2:
        return
    columns = [Column("GPUs"), Column("how", words=True, leaves=1), Column("a step"), Column("samples/s"), Column("efficiency")]
    columns += [Column("not hidden", leaves=2), Column("memory")]
    rows = [
        Row(
            [
                Cell(s["n"]),
                Cell(s["how"] if s["n"].number > 1 else ""),
                Cell(s["step_time_s"], span(s["step_time_s"])),
                Cell(s["samples_per_s"]),
                Cell(Number(s["efficiency"], lambda share: f"{100 * share:.0f} %")),
                Cell(s["exposed_s"] if s["exposed_s"].number else "-"),
                Cell(s["memory_bytes"], mark="bad" if s["fits"].value is False else ""),
            ]
        )
        for s in sorted(place, key=lambda s: -s["n"].number)
    ]
    yield Section("scaling", PLAN["scaling"], [Table(PLAN["scaling"], columns, rows)], first=True)


# --- what to do next ---

ASKED_OF_FIT = ("change", "timeline", "snapshot", "trace", "remedies")


def _fit_next(d: At, fits: bool) -> Command | None:
    """The plan of what fits; else the first change that makes it fit, or the search for one."""
    if fits:
        return Command("How long it takes", command="plan", drops=ASKED_OF_FIT)
    if d["remedies"].value is None:
        return Command("What would make it fit", sets={"remedies": "yes"})
    good = [*d["combinations"], *(r for r in d["remedies"] if r["fits"].value)]
    good = [r for r in good if r["changes"] and not r["allocator_conf"]]
    if not good:
        return Command("Which GPUs have the memory", sets={"gpus": "yes"})
    best = min(good, key=lambda r: r["slower"].number)
    words = " ".join(map(_change, cast("list[Mapping[str, Any]]", best["changes"].value)))
    return Command(f"With {best['name'].text}", sets={"change": words}, drops=["remedies"])


def _plan_next(d: At) -> Command | None:
    if not d["fits"].value:
        drops = ("samples", "price", "provider", "timeline", "snapshot", "trace")
        return Command("What would make it fit", command="fit", sets={"remedies": "yes"}, drops=drops)
    if d["speedups"].value is None:
        return Command("What would make it faster", sets={"remedies": "yes"})
    script = d["target"].text
    return Command(capital("try what it would change, on a GPU"), ["gpuwise", "tune", script]) if script.endswith(".py") else None


__all__ = ["fit_answer", "plan_answer", "step_answer"]
