"""Which GPU: ranked for a job, side by side, rented or owned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from gpuwise.interval import P80
from gpuwise.pick.compare.rows import say, say_span
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
    plain,
    span,
)
from gpuwise.report.answers.drawings import Dot, Line, around, bars, lines, si
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import BASIS, At
from gpuwise.text import capital
from gpuwise.units import count_word, format_bytes, format_duration, format_kwh, format_number, format_usd, probability

PICK, COMPARE = PARTS["pick"], PARTS["compare"]
WAYS = {"rent": "rent", "buy": "buy", "notebook": "notebook"}
ROWS = 3
"""Of the first table, as many as a first screen has lines for."""
NAMED = 3
"""Number of examples of exclusions for one reason."""
COUNTS_AS = "counts as: what they are ranked by (--order)"
BEHIND = "p4m?ofib"
"""Letters of what puts a row behind those without, the gravest first; ``?ofib`` are alike."""
BEST, WEAK = "*", "~"
MARKS = {
    "4": "done with a change (4-bit weights, lighter states)",
    "p": "software partial or unknown",
    "l": "list price without a date",
    "?": "no known offer of that many in one machine",
    "o": "an old price",
    "m": "little memory",
    "f": "may not fit",
    "i": "sessions end before the work does",
    "b": "several systems for less than a day",
    "+": "with the machine around it",
    WEAK: "no measurement of such a GPU: from its family or its specification",
}
"""What the marks of the notes column mean; fitted and measured predictions have none."""


def pick_answer(document: Mapping[str, Any]) -> Answer:
    """The answer of a pick: for a job, for learning, or a budget split over roles."""
    d = At(document)
    return _split(d) if d["roles"].value is not None else _learning(d) if d["exercises"] else _picked(d)


def _texts(place: At) -> list[str]:
    return [str(s.value) for s in place]


def _picked(d: At) -> Answer:
    job, ranked, (first, *others) = d["job"], list(d["ranked"]), _texts(d["verdict"])
    best = ranked[0] if ranked else None
    groups = [
        (g["heading"], g["accelerators"], [(n["name"].text, n["why"].text) for n in g["named"]]) for g in d["left_out_groups"]
    ]
    return Answer(
        "pick",
        first,
        "yes" if best is not None else "no",
        capital(job["name"].text),
        [] if best is None else list(_best(d, best)),
        [
            *([Section("ways", PICK["ways"], [_ranking(d, _of_each_way(ranked), "ways")], first=True)] if ranked else []),
            *([Section("otherwise", PICK["otherwise"], [Notes(others)], first=True)] if others else []),
            *([Section("table", PICK["table"], [_ranking(d, _with_headings(ranked), "table")])] if ranked else []),
            *([Section("how", PICK["how"], [_how(ranked)])] if ranked else []),
            *_why_not(groups, first=best is None),
            Section("order", PICK["order"], [Notes(list(_order(d)))]),
        ],
        _next(d, ranked),
        assumed=_texts(d["assumed"]),
    )


def _best(d: At, best: At) -> Iterator[Figure]:
    """Speed, cost and memory of the first."""
    if _is_serving(d["job"]):
        yield Figure("speed", best["tokens_per_s"], span(best["tokens_per_s"]), f"{d['job']['unit'].value or 'tokens'} a second")
    else:
        yield Figure("time", best["time_s"], span(best["time_s"]))
    hours = d["job"]["hours"]
    over: Phrase = ("over ", hours, " hours") if hours else ""
    budget, power = d["limits"]["budget_usd"], best["electricity_usd"]
    if budget.value is None:
        yield Figure("cost", best["cost_usd"], span(best["cost_usd"]), over)
    else:
        bill: Phrase = ("; electricity ", power, " ", over) if power.number else ("; " if over else "", over)
        yield Figure("to pay", best["outlay_usd"], "", ("of ", budget, bill))
    yield Figure("memory", best["memory_bytes"], "", ("of ", best["device_bytes"]))


def _is_serving(job: At) -> bool:
    """Whether a load is served, for which a rate counts, and not a job done once."""
    return bool(job["hours"])


def _of_each_way(ranked: list[At]) -> list[At | str]:
    """The best of each way and the next best, :data:`ROWS` in all, in the order of the ranking."""
    best = [o for how in WAYS for o in [o for o in ranked if o["way"].text == how][:1]]
    chosen = {o.pointer: o for o in (*best, *ranked)}
    shown = list(chosen)[:ROWS]
    return [o for o in ranked if o.pointer in shown]


def _with_headings(ranked: list[At]) -> list[At | str]:
    """All, under what each way is called."""
    made: list[At | str] = []
    for how in WAYS:
        rows = [o for o in ranked if o["way"].text == how]
        made += [how, *rows] if rows else []
    return made


def _ranking(d: At, rows: list[At | str], name: str) -> Table:
    serving, made = _is_serving(d["job"]), list[Row]()
    speed, title = ("tokens_per_s", "tokens/s") if serving else ("time_s", "time")
    unit, within = d["job"]["unit"].value, d["limits"]["budget_usd"].value is not None
    for o in rows:
        if isinstance(o, str):
            made.append(Row([Cell(o)], heading=True))
            continue
        rate = o[speed]
        made.append(
            Row(
                [
                    Cell(f"{o['count'].text}x {_name(o)}"),
                    Cell(o["way"].text),
                    Cell(_price(o)),
                    Cell(Number(rate, format_number) if serving else rate),
                    Cell(span(rate, format_number if serving else None)),
                    Cell(o["outlay_usd"]),
                    Cell(o["electricity_usd"] if o["electricity_usd"].number else ""),
                    *([] if within else [Cell(o["cost_usd"], span(o["cost_usd"]))]),
                    Cell(_counts_as(d, o)),
                    Cell(Number(o["usd_per_pflop"], lambda v: format_usd(1000 * v))),
                    Cell(o["usd_per_gb"] if o["way"].text != "notebook" else ""),
                    Cell(o["usd_per_gb_per_s"] if o["way"].text != "notebook" else ""),
                    Cell(o["board_w"]),
                    Cell(o["tokens_per_joule"]),
                    Cell(o["memory_bytes"]),
                    Cell("".join(_marks(o))),
                ]
            )
        )
    columns = [
        Column("GPUs", words=True),
        Column("how", words=True, leaves=9),
        Column("price each" if any(not isinstance(o, str) and o["count"].number > 1 for o in rows) else "price"),
        Column(f"{unit}/s" if serving and unit else title),
        Column(P80, leaves=6),
        Column("to pay", leaves=0 if within else 8),
        Column("electricity", leaves=10 if within else 3),
        *([] if within else [Column("cost")]),
        Column("counts as", leaves=11),
        Column("$/EFLOP", leaves=5),
        Column("$/GB", leaves=3),
        Column("$/(GB/s)", leaves=2),
        Column("power", leaves=7),
        Column("tokens/J", leaves=1),
        Column("memory", leaves=4),
        Column("notes", words=True),
    ]
    letters = [m for m in MARKS if any(m in plain(r.cells[-1].value) for r in made if not r.heading)]
    behind = [m for m in BEHIND if m in letters]
    after = [f"rows with {' or '.join(behind)} come after the others"] if behind else []
    below = "; ".join([COUNTS_AS, *(f"{m} {MARKS[m]}" for m in letters), *after])
    return Table(PICK[name], columns, made, below)


def _counts_as(d: At, o: At) -> Number:
    """What a row is ranked by, in words of the objective; a time of a load as its rate."""
    serving = _is_serving(d["job"])
    words: dict[str, Callable[[float], str]] = {
        "cost": format_usd,
        "value": lambda v: format_usd(1000 * v),
        "energy": format_kwh,
        "time": (lambda v: f"{format_number(1 / v)}/s") if serving else format_duration,
    }
    return Number(o["counts_as"], words.get(d["objective"].text, format_number))


def _name(o: At) -> str:
    """A product name without what the table need not repeat."""
    name = str(o["name"].value or o["accelerator"].value)
    return name.replace(" Blackwell", "").replace("Radeon ", "").replace("Workstation", "WS").replace(" (DGX Spark)", "")


def _price(o: At) -> Phrase:
    """``$0.39/h``, ``$750 used``, ``free, colab``."""
    price = o["price"]
    if price["usd_per_gpu_hour"]:
        return (price["usd_per_gpu_hour"], "/h")
    if price["usd"]:
        return (Number(price["usd"]["median"], format_usd), " ", o["condition"])
    fee = price["usd_per_month"]
    return (fee, "/mo, ", o["provider"]) if fee.number else ("free, ", o["provider"])


def _marks(o: At) -> Iterator[str]:
    """The letters of a row, in the order of :data:`MARKS`."""
    notes, basis, behind = _texts(o["notes"]), o["basis"].text, _texts(o["behind_for"])
    holds = {
        "4": o["as_asked"].value is False,
        "p": o["software"]["level"].text != "full" or "software" in behind,
        "l": any("undated" in n for n in notes),
        "?": "no offer" in behind,
        "o": "old price" in behind,
        "m": "small" in behind,
        "f": "memory" in behind,
        "i": "sessions" in behind,
        "b": "brief" in behind,
        "+": o["box_usd"].number > 0,
        WEAK: basis in ("derived", "specified", "extrapolated"),
    }
    return (m for m in MARKS if holds[m])


def _how(ranked: list[At]) -> Notes:
    """How the best of each way does it."""
    items: list[Phrase] = []
    for o in [o for how in WAYS for o in [o for o in ranked if o["way"].text == how][:1]]:
        free = o["device_bytes"].number - o["memory_bytes"].number
        room = f"{format_bytes(free)} free" if free > 0 else "memory full"
        fits = o["fit_probability"]
        words = [o["layout"].text, *(c for c in _texts(o["changes"]) if c not in o["layout"].text), room]
        words += [f"fits with {probability(fits.number)}"] if fits.value is not None else []
        words += [*_texts(o["notes"]), f"software {o['software']['level'].text}: {o['software']['reason'].text}"]
        items.append(f"{o['way'].text} {o['count'].text}x {_name(o)}: {'; '.join(words)}")
    return Notes(items)


def _why_not(groups: Iterable[tuple[Phrase, Phrase, list[tuple[str, str]]]], *, first: bool = False) -> Iterator[Section]:
    """Why the others are left out, nearest misses first."""
    rows: list[Row] = []
    for title, count, named in groups:
        more = "; ".join(f"{name} ({why})" for name, why in named[:NAMED])
        rows.append(Row([Cell(title), Cell(count), Cell(more)]))
    if rows:
        columns = [Column("why", words=True), Column("GPUs"), Column("for example", under=True)]
        yield Section("why-not", PICK["why-not"], [Table(PICK["why-not"], columns, rows)], first=first)


def _order(d: At) -> Iterator[Phrase]:
    if d["order"]:
        yield capital(d["order"].text)
    names = {o["accelerator"].text for name in ("ranked", "left_out") for o in d[name]}
    counts = (d["considered"], f" ways to have {len(names):,} accelerators; ", d["predicted"], " predicted exactly")
    yield (*counts, ", the others ruled out by limits or bounds")
    yield "$/EFLOP: useful work, busy all the time; a purchase is spread over its years. Cost: a purchase with electricity"


def _next(d: At, ranked: list[At]) -> Command | None:
    """The first in detail: as a server, as a plan, or beside the second."""
    if not ranked:
        return None
    job, best = d["job"], ranked[0]
    on, model = f"{best['count'].text}x{best['accelerator'].text}", job["model"].text
    if job["purpose"].text == "infer" and job["users"].value == 1:
        return Command("How it runs", words=["gpuwise", "fit", model, "--on", on, "--for", "run"])
    if job["purpose"].text == "infer" and job["users"]:
        return Command("How it serves", words=["gpuwise", "capacity", model, "--on", on, "--users", f"{job['users'].value}"])
    if job["tokens"] and job["purpose"].text in ("train", "finetune"):
        method = str(job["method"].value or "")
        flags = [f"--{method}"] if method in ("lora", "qlora") else ["--for", job["task"].text] if job["task"] else []
        flags += ["--teacher", job["teacher"].text] if job["teacher"] else []
        length = ["--steps", str(job["steps"].value)] if job["steps"] else ["--tokens", count_word(job["tokens"].number)]
        return Command("How it trains", words=["gpuwise", "plan", model, "--on", on, *length, *flags])
    if job["unit"].value == "samples":
        method = "qlora" if best["changes"].value else job["method"].text
        length = ["--samples", count_word(job["items"].number)]
        return Command("How it trains", words=["gpuwise", "plan", model, "--for", method, "--on", on, *length])
    second = next((o for o in ranked if o["accelerator"].text != best["accelerator"].text), None)
    names = [best["accelerator"].text, second["accelerator"].text] if second is not None else []
    return Command("The first two side by side", words=["gpuwise", "compare", *names]) if names else None


def _learning(d: At) -> Answer:
    """The ranking for learning."""
    first, *others = _texts(d["verdict"])
    n = len(d["exercises"].value)
    rows = [
        Row(
            [
                Cell(f"{o['count'].text}x {o['accelerator'].text}"),
                Cell(o["way"].text),
                Cell(o["provider"] if o["way"].text == "notebook" else ""),
                Cell((o["done"], f" of {n}")),
                Cell(o["time_s"]),
                Cell(o["cost_usd"]),
                Cell(o["outlay_usd"]),
                Cell("; ".join(f"{name}: {why.text}" for name, why in o["missing"].items())),
            ]
        )
        for o in d["ranked"]
    ]
    columns = [
        Column("GPU", words=True),
        Column("how", words=True),
        Column("at", words=True),
        Column("does"),
        Column("time"),
        Column("cost"),
        Column("to pay", leaves=1),
        Column("missing", under=True),
    ]
    exercises: list[Phrase] = [(e["name"], ": ", e["what"]) for e in d["exercises"]]
    reasons: dict[str, list[tuple[str, str]]] = {}
    for o in d["left_out"]:
        reasons.setdefault(o["reason"].text, []).append((o["name"].text, o["why"].text))
    return Answer(
        "pick",
        first,
        "yes" if rows else "no",
        ("To learn: ", ", ".join(e["name"].text for e in d["exercises"])),
        [],
        [
            *([Section("ways", PICK["table"], [Table(PICK["table"], columns, rows)], first=True)] if rows else []),
            *([Section("otherwise", PICK["otherwise"], [Notes(others)], first=True)] if others else []),
            Section("how", "The exercises", [Notes(exercises)]),
            *_why_not([(r, f"{len(names):,}", names) for r, names in reasons.items()]),
            Section("order", PICK["order"], [Notes(list(_order(d)))]),
        ],
        Command("Begin with the first exercise", ["gpuwise", "lab", "exercise", "1"]),
        assumed=_texts(d["assumed"]),
    )


def _split(d: At) -> Answer:
    """A budget split over roles."""
    first, *others = _texts(d["verdict"])
    rows = [
        Row([Cell(r["role"]), Cell(r["hardware"]), Cell(r["price"]), Cell(r["cost_usd"]), Cell(r["does"])]) for r in d["roles"]
    ]
    columns = [
        Column("role", words=True),
        Column("GPUs", words=True),
        Column("price"),
        Column("cost"),
        Column("does", words=True),
    ]
    near = [
        Row([Cell(o["cost_usd"]), Cell(Number(o["relative_speed"], _percent)), *(Cell(name.text) for name in o["names"])])
        for o in d["others"]
    ]
    names = [Column("cost"), Column("speed"), *(Column(role, words=True) for role in ("train", "serve", "develop"))]
    title = "The next-best splits"
    return Answer(
        "pick",
        first,
        "yes" if rows else "no",
        d["name"],
        [Figure("cost", d["cost_usd"], "", ("of ", d["budget_usd"]))] if rows else [],
        [
            *([Section("ways", "Who gets what", [Table("Who gets what", columns, rows)], first=True)] if rows else []),
            *([Section("otherwise", PICK["otherwise"], [Notes(others)], first=True)] if others else []),
            *([Section("table", title, [Table(title, names, near)])] if near else []),
        ],
        assumed=_texts(d["assumed"]),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


SHORT = {
    "decode_one": "writes tok/s",
    "decode_batch": "full batch tok/s",
    "train_full": "trains tok/s",
    "train_lora": "LoRA tok/s",
    "train_qlora": "QLoRA tok/s",
    "train_usd": "1M trained",
    "serve_usd": "1M written",
    "reached_bf16": "bf16 reached",
    "reached_stream": "reads memory",
    "memory": "memory",
    "rent": "rent",
    "tdp": "power",
}
"""Figures of the first table by their key, the most telling first, and their short names."""
FIRST = 5
"""Of those, how many."""


def compare_answer(document: Mapping[str, Any]) -> Answer:
    """The answer of a comparison."""
    d = At(document)
    names = _distinct([s["name"].text for s in d["subjects"]])
    first, *others = [*_texts(d["verdict"]), ""]
    sections = list(dict.fromkeys(r["section"].text for r in d["rows"]))
    sources = d["sources"]
    return Answer(
        "compare",
        first or " and ".join(names),
        "",
        "",
        [],
        [
            Section("short", COMPARE["short"], [_short(d, names), *_drawn(d, names)], first=True),
            *([Section("also", COMPARE["also"], [Notes([s for s in others if s])], first=True)] if any(others) else []),
            Section("rows", COMPARE["rows"], [_rows(d, names, sections), Notes(list(_signs(d)))]),
            Section("sources", COMPARE["sources"], [*_titles(d, names), _sources(d, names, sources)]),
        ],
        Command("Every figure with its source", sets={"rows": "yes", "sources": "yes"}),
        warnings=_texts(d["notes"]),
    )


WORK = ("train_full", "train_light", "train_lora", "decode_one", "decode_batch", "prefill", "train_usd", "serve_usd")
PLAIN = ("reached_fp32", "reached_bf16", "reached_fp8", "reached_stream", "rent", "usd_per_reached_pflop_hour")
"""Rows that are drawn, with a model and without."""
COMMON = ("bf16", "fp16", "fp32")
"""Formats of a roofline, the first that all have."""


def _drawn(d: At, names: list[str]) -> Iterator[Picture]:
    """Bars of what each does or reaches, and the rooflines."""
    by_key = {r["key"].text: r for r in d["rows"]}
    for key in WORK if d["work"] else PLAIN:
        cells = list(by_key[key]["cells"]) if key in by_key else []
        rows = [(n, c["value"], c["interval"]) for n, c in zip(names, cells, strict=False) if c["value"].value is not None]
        if rows:
            title, unit = by_key[key]["title"].text, by_key[key]["unit"].text
            section = by_key[key]["section"].text.partition(",")[0]
            yield Picture(bars(key, f"{section}: {title}", rows, partial(say, unit)))
    yield from _rooflines(by_key, names)


def _rooflines(rows: Mapping[str, At], names: list[str]) -> Iterator[Picture]:
    """Attainable FLOP/s = min(peak, FLOP a byte x bandwidth) of the data sheets; a dot: reached in long runs."""
    if "bandwidth" not in rows:
        return
    bandwidth = rows["bandwidth"]["cells"]

    def known(dtype: str) -> bool:
        return f"peak_{dtype}" in rows and all(c["value"].number for c in rows[f"peak_{dtype}"]["cells"])

    dtype = next((t for t in COMMON if known(t)), None)
    if dtype is None or not all(c["value"].number for c in bandwidth):
        return
    series, dots = list[Line](), list[Dot | None]()
    low, high = math.log10(0.5), 4.0
    for i, name in enumerate(names):
        peak, speed = rows[f"peak_{dtype}"]["cells"][i]["value"].number, bandwidth[i]["value"].number
        top, ridge = math.log10(peak), math.log10(peak / speed)
        series.append(Line(name, [(low, top + low - ridge), (ridge, top), (high, top)]))
        reached = rows[f"reached_{dtype}"]["cells"][i]["value"] if f"reached_{dtype}" in rows else At(None)
        words = f"{name} reaches {si(reached.number)}FLOP/s"
        dots.append(Dot(ridge, math.log10(reached.number), words) if reached.number else None)
    x = around("FLOP a byte of memory", [low, high], format_number, logarithmic=True)
    y = around("FLOP/s", [b for s in series for _, b in s.points], si, logarithmic=True)
    below = [f"{dtype}; dot: large products as they are reached"]
    yield Picture(lines("roofline", "Rooflines", x, y, series, dots=dots, below=below))


def _distinct(names: list[str]) -> list[str]:
    """``names``, those that repeat with a number."""
    return [n if names.index(n) == i else f"{n} ({i + 1})" for i, n in enumerate(names)]


def _short(d: At, names: list[str]) -> Table:
    """A row for each GPU with the figures that tell most."""
    by_key = {r["key"].text: r for r in d["rows"]}
    telling = [k for k in SHORT if k in by_key and any(c["value"].value is not None for c in by_key[k]["cells"])][:FIRST]
    rows = [Row([Cell(name), *(_compared(by_key[k], i, second=False) for k in telling)]) for i, name in enumerate(names)]
    columns = [Column("GPU", words=True), *(Column(SHORT[k], leaves=FIRST - n) for n, k in enumerate(telling))]
    return Table(COMPARE["short"], columns, rows)


def _compared(row: At, i: int, *, second: bool = True) -> Cell:
    """A figure with its marks; ``second`` with what goes with it: its interval, an age, the ratio to the first."""
    c, best = row["cells"][i], i in (row["best"].value or ())
    value, unit, note = c["value"], row["unit"].text, c["words"].text
    if value.value is None:
        return Cell(note if note and (second or not unit) else "-", mark="dim" if unit else "")
    signs = BEST * best + WEAK * bool(c["weak"].value)
    small: list[str] = []
    interval, ratio = c["interval"], c["ratio_to_first"]
    if interval and interval["high"].number > interval["low"].number:
        small.append(say_span(unit, interval["low"].number, interval["high"].number))
    if i and ratio.value is not None and row["section"].text.endswith("predicted"):
        small.append(f"{ratio.number:.2f}x the first")
    small += [note] if note else []
    mark: Mark = "best" if best else "weak" if c["weak"].value else ""
    written = partial(say, unit) if second else partial(_short_words, unit)
    return Cell((Number(value, written), signs), "; ".join(small) if second else "", mark)


def _short_words(unit: str, value: float) -> str:
    """A value without the unit that its column names."""
    return say(unit, value).removesuffix(" tokens/s")


def _rows(d: At, names: list[str], sections: list[str]) -> Table:
    rows: list[Row] = []
    for section in sections:
        rows.append(Row([Cell(section)], heading=True))
        for r in d["rows"]:
            if r["section"].text == section:
                rows.append(Row([Cell(r["title"]), *(_compared(r, i) for i in range(len(names)))]))
    return Table(COMPARE["rows"], [Column("", words=True), *(Column(n, small=True) for n in names)], rows, split=True)


def _signs(d: At) -> Iterator[str]:
    yield f"{BEST} best of the row; {WEAK} weak: not from the vendor, inferred, old, or not measured"
    kinds = sorted({c["kind"].text for r in d["rows"] for c in r["cells"]} & BASIS.keys())
    yield from (f"{capital(kind)}: {BASIS[kind]}" for kind in kinds)


def _titles(d: At, names: list[str]) -> Iterator[Notes]:
    """For each GPU, what its figures are from."""
    items: list[Phrase] = []
    for i, name in enumerate(names):
        keys = dict.fromkeys(r["cells"][i]["source"].text for r in d["rows"])
        known = [d["sources"][k] for k in keys if d["sources"][k]]
        items.append(f"{name}: " + "; ".join(f"{s['title'].text} ({s['kind'].text})" for s in known if s["kind"].text != "rule"))
    yield Notes(items)


def _sources(d: At, names: list[str], sources: At) -> Table:
    """The source of every figure."""
    rows: list[Row] = []
    for r in d["rows"]:
        for i, name in enumerate(names):
            c = r["cells"][i]
            key = c["source"].value
            if key:
                source = sources[str(key)]
                words = f"{source['title'].text} {source['url'].value or ''}".strip() if source else str(key)
                kind = c["kind"].text + (f" {WEAK}" if c["weak"].value else "")
                rows.append(Row([Cell(r["title"]), Cell(name), Cell(kind), Cell(words)]))
    columns = [Column("figure", words=True), Column("of", words=True), Column("kind", words=True), Column("source", under=True)]
    return Table(COMPARE["sources"], columns, rows)
