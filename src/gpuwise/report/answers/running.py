"""A model on your own device: which format fits, how fast it generates, how long a context, and the commands that start it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuwise.report.answers.answer import (
    Answer,
    Cell,
    Column,
    Command,
    Figure,
    Notes,
    Number,
    Phrase,
    Row,
    Section,
    Stack,
    Table,
    span,
)
from gpuwise.report.answers.drawings import Part
from gpuwise.report.answers.jobs import job_answer
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import At

TITLES = PARTS["fit"]
PRICED = "Price: of the cards to add, new or used, whichever costs less."


def run_answer(document: Mapping[str, Any]) -> Answer:
    """The answer of ``fit --for run``."""
    d = At(document)
    if d["items"]:
        return job_answer(document)
    fits, offload, names = bool(d["fits"].value), d["offload"], f"{d['model']['name'].text} on {d['cluster']['label'].text}"
    verdict: Phrase = f"{names}: does not fit"
    if fits:
        rate = _at(d, "context")["tokens_per_s"].expected
        verdict = (names, ": ", running(d, rate))
    elif offload:
        verdict = (names, ": fits only with a part of it in RAM, ", offload["tokens_per_s"].expected, " tokens/s")
    return Answer(
        "fit",
        verdict,
        "yes" if fits else "maybe" if offload else "no",
        (
            d["model"]["parameters"],
            " parameters, ",
            d["model"]["active_parameters"],
            " active; ",
            d["context"],
            " tokens of context",
        ),
        _fitting(d) if fits else _part_in_ram(d),
        [
            *([Section("measured", TITLES["measured"], list(_measured(d)), first=True)] if d["measured"] else []),
            Section("formats", TITLES["formats"], [_formats(d)], first=fits),
            *([Section("speeds", TITLES["speeds"], [_speeds(d)], first=True)] if d["speeds"] else []),
            *([Section("memory", TITLES["memory"], [_memory(d), Notes(list(_memory_notes(d)))], first=True)] if fits else []),
            *([Section("changes", _title(fits), [_changes(d)], first=not fits)] if d["changes"] or offload else []),
            *([Section("start", TITLES["start"], [_command(c) for c in d["commands"]])] if d["commands"] else []),
        ],
        _next(d),
        assumed=[str(s.value) for s in d["assumed"]],
    )


MUCH_FASTER = 1.5
"""Times as fast as llama.cpp, from which another program is in the first line."""


def running(d: At, rate: At) -> Phrase:
    """``runs in Q8_0, 45.1 tokens/s``, and the fastest other program where it is much faster."""
    if (best := first_program(d, rate.number)) is not None:
        other = (best["tokens_per_s"].expected, " tokens/s with ", program_title(best), " in ", best["weights"])
        return ("runs at ", *other, ", ", rate, " with llama.cpp in ", d["weights"])
    own = ("runs in ", d["weights"], ", ", rate, " tokens/s")
    best = _faster(d, rate.number)
    return (
        own
        if best is None
        else (*own, "; ", best["tokens_per_s"].expected, " with ", program_title(best), " in ", best["weights"])
    )


def first_program(d: At, rate: float) -> At | None:
    """The program that goes before llama.cpp: much faster, with the weights as they are published (a checkpoint of AWQ or GPTQ
    may not exist). None where a format of llama.cpp was asked for."""
    best = None if d["weights_asked"].value else _faster(d, rate)
    return None if best is None or "," in best["name"].text else best


def program_figure(c: At) -> Figure:
    """Tokens a second of one conversation under the program of a command."""
    rate = c["tokens_per_s"]
    return Figure(program_title(c), (rate, " tokens/s"), span(rate), ("in ", c["weights"], ", one conversation"))


def _faster(d: At, rate: float) -> At | None:
    """The fastest other program, where it is much faster."""
    others = [c for c in d["commands"] if c["tokens_per_s"] and c["tokens_per_s"].expected.number >= MUCH_FASTER * rate]
    return max(others, key=lambda c: c["tokens_per_s"].expected.number, default=None)


def program_title(c: At) -> str:
    """The name of the program that a command starts."""
    return c["name"].text.partition(",")[0]


def _tokens(place: At) -> Number:
    """A length in tokens, written out."""
    return Number(place, lambda n: f"{n:,.0f}")


def _at(d: At, name: str) -> At:
    """The speed at the context that ``name`` has."""
    return next((s for s in d["speeds"] if s["context"].value == d[name].value), d["speeds"][0])


def _fitting(d: At) -> list[Figure]:
    speed = _at(d, "context")
    rate, prompt, first = speed["tokens_per_s"], speed["prompt_tokens_per_s"], speed["first_token_s"]
    first_one = first_program(d, rate.expected.number)
    figures = [
        Figure(
            "writes" if first_one is None else program_title(d["commands"][0]),
            (rate, " tokens/s"),
            span(rate),
            ("with ", speed["context"], " tokens of context"),
        ),
        Figure("memory", d["memory_bytes"], "", ("of ", d["device_bytes"], " that a program can have")),
    ]
    if (found := _nearest(d)) is not None:
        beside: Phrase = (_difference(found), " of predicted; ") if found["difference"].value is not None else ""
        how: Phrase = (beside, found["program"], " in ", found["weights"], " after ", _tokens(found["before"]), " tokens")
        figures.insert(1, Figure("measured", (found["measured_tokens_per_s"], " tokens/s"), "", how))
    if prompt:
        figures.insert(
            1, Figure("reads", (prompt, " tokens/s"), span(prompt), ("first token of that many after ", first.expected))
        )
    longest: Phrase = ("up to ", _tokens(d["longest_context"]), " tokens")
    more: Phrase = ""
    if d["longest_context_q8_cache"].number > d["longest_context"].number:
        more = ("with --cache-type-k/v q8_0 up to ", _tokens(d["longest_context_q8_cache"]))
    figures.append(Figure("context", longest, "", more))
    others = [program_figure(c) for c in d["commands"] if c["tokens_per_s"]]
    figures = [*figures, *others] if first_one is None else [*others, *figures]
    if d["users"].number > 1:
        each: Phrase = (d["at_once"]["users"], " at once write ", d["at_once"]["tokens_per_s_each"], " tokens/s each")
        users: Phrase = ("up to ", d["users"], " at once")
        figures.append(Figure("users", users, ("with ", d["context"], " tokens each"), each if d["at_once"] else ""))
    return figures


def _nearest(d: At) -> At | None:
    """What was measured of writing nearest to the format and the context of the answer; None without that."""
    wrote = [m for m in d["measured"] if m["kind"].value == "decode" and m["sequences"].number == 1] if d["measured"] else []
    context = d["context"].number
    return min(wrote, key=lambda m: (m["weights"].value != d["weights"].value, abs(m["before"].number - context)), default=None)


def _difference(m: At) -> Number:
    return Number(m["difference"], lambda x: f"{x:+.0%}")


def _part_in_ram(d: At) -> list[Figure]:
    smallest, o = d["formats"][len(d["formats"].value) - 1], d["offload"]
    several = (d["cluster"]["accelerators"].number or 0) > 1
    has = " on each, which has " if several else ", the device has "
    needs = Figure("needs", smallest["memory_bytes"], "", ("in ", smallest["weights"], has, d["device_bytes"]))
    if not o:
        return [needs]
    rate, reads = o["tokens_per_s"], o["prompt_tokens_per_s"]
    experts = o["host_expert_layers"]
    where: Phrase = ("experts of ", experts, " layers") if experts.number else (o["device_layers"], " layers stay on the device")
    return [
        needs,
        Figure("in RAM", o["host_bytes"], where, ("in ", o["weights"])),
        Figure("writes", (rate, " tokens/s"), span(rate), ("RAM with a ", o["processor"])),
        *([Figure("reads", (reads, " tokens/s"), span(reads), "weights in RAM are copied over PCIe")] if reads else []),
    ]


def _formats(d: At) -> Table:
    columns = [
        Column("format", words=True),
        Column("bits", leaves=1),
        Column("loss", words=True),
        Column("memory"),
        Column("fits"),
        Column("tokens/s"),
        Column("longest context"),
    ]
    rows = [
        Row(
            [
                Cell(f["weights"], mark="best" if f["weights"].value == d["weights"].value else ""),
                Cell(f["bits"]),
                Cell(f["loss"]),
                Cell(f["memory_bytes"]),
                Cell(f["fits"], mark="good" if f["fits"].value else "bad"),
                Cell(f["tokens_per_s"], span(f["tokens_per_s"])) if f["fits"].value else Cell("-"),
                Cell(_tokens(f["longest_context"])) if f["longest_context"].value else Cell("-"),
            ]
        )
        for f in d["formats"]
    ]
    best = next((i for i, f in enumerate(d["formats"]) if f["weights"].value == d["weights"].value), len(rows))
    first = max(min(best - 1, len(rows) - 5), 0)  # the first screen has five: those around the best, or the smallest
    return Table(TITLES["formats"], columns, rows[first:] + rows[:first] if first else rows)


def _speeds(d: At) -> Table:
    columns = [Column("tokens of context"), Column("writes, tokens/s"), Column("reads, tokens/s"), Column("first token after")]
    rows = [
        Row(
            [
                Cell(_tokens(s["context"])),
                Cell(s["tokens_per_s"], span(s["tokens_per_s"])),
                Cell(s["prompt_tokens_per_s"], span(s["prompt_tokens_per_s"])),
                Cell(s["first_token_s"], span(s["first_token_s"])),
            ]
        )
        for s in d["speeds"]
    ]
    return Table(TITLES["speeds"], columns, rows)


KINDS = {"decode": "writes", "prompt": "reads", "total": "reads and writes"}


def _measured(d: At) -> Iterator[Table | Notes]:
    """What was measured beside what a device of its kind is predicted to have, and what the other speeds have of it."""
    columns = [
        Column("format", words=True),
        Column("", words=True),
        Column("tokens", leaves=2),
        Column("after", leaves=2),
        Column("measured, tokens/s"),
        Column("predicted"),
        Column("difference"),
        Column("with", words=True, leaves=1),
    ]
    rows = [
        Row(
            [
                Cell(m["weights"]),
                Cell(KINDS[str(m["kind"].value)] + _how(m)),
                Cell(_tokens(m["tokens"])),
                Cell(_tokens(m["before"])),
                Cell(m["measured_tokens_per_s"]),
                Cell(m["predicted_tokens_per_s"], span(m["predicted_tokens_per_s"])),
                Cell(_difference(m)) if m["difference"].value is not None else Cell("-"),
                Cell(m["program"]),
            ]
        )
        for m in d["measured"]
    ]
    yield Table(TITLES["measured"], columns, rows)
    if d["factor"]:
        times = Number(d["factor"], lambda x: f"{x:.2f}")
        yield Notes(
            [("Predicted: of a device of this kind. Speeds below are corrected by ", times, ", from what was measured here")]
        )


def _how(m: At) -> str:
    at_once = f", {m['sequences'].text} at once" if m["sequences"].number > 1 else ""
    return at_once + ("" if m["whole"].value else ", offloaded")


def _memory(d: At) -> Stack:
    parts = [Part(n, p) for n, p in d["memory_parts_bytes"].items() if p.number]
    return Stack("memory", TITLES["memory"], parts, d["memory_bytes"], d["device_bytes"], d["headroom_bytes"])


def _memory_notes(d: At) -> Iterator[Phrase]:
    """What the driver takes beside, and the cache in other types."""
    if d["driver_bytes"]:
        yield ("The driver, its context and other programs take ", d["driver_bytes"], " more")
    by_type = d["cache_bytes"].items()
    if by_type and by_type[0][1].number:
        yield [
            "Cache and states of ",
            d["context"],
            " tokens: ",
            *(x for n, p in by_type for x in (", " * (n != "fp16"), p, f" in {n}")),
        ]


def _title(fits: bool) -> str:
    return TITLES["changes"] if fits else "What makes it fit"


def _changes(d: At) -> Table:
    """Each change with what it brings; a place in RAM first."""
    columns = [
        Column("change", words=True),
        Column("format", words=True, leaves=2),
        Column("memory", leaves=1),
        Column("tokens/s"),
        Column("longest context"),
        Column("price"),
    ]
    rows: list[Row] = []
    o = d["offload"]
    if o:
        experts = o["host_expert_layers"]
        where: Phrase = ("experts of ", experts, " layers in RAM") if experts.number else (_host_layers(o), " layers in RAM")
        rate = o["tokens_per_s"]
        rows.append(
            Row([Cell(where), Cell(o["weights"]), Cell("-"), Cell(rate, span(rate)), Cell(_tokens(d["context"])), Cell("-")])
        )
    for c in d["changes"]:
        rate, day = c["tokens_per_s"], c["as_of"].value
        price: Phrase = c["usd"] if c["usd"] else "-"
        rows.append(
            Row(
                [
                    Cell(c["name"], sets={k: str(v.value) for k, v in c["sets"].items() if k in ("on", "weights", "context")}),
                    Cell(c["weights"]),
                    Cell(c["memory_bytes"]) if c["memory_bytes"] else Cell("-"),
                    Cell(rate, span(rate)) if rate else Cell("same"),
                    Cell(_tokens(c["longest_context"])),
                    Cell(price, f"observed {day}" if day else ""),
                ]
            )
        )
    below = PRICED if any(c["usd"] for c in d["changes"]) else ""
    return Table(_title(bool(d["fits"].value)), columns, rows, below)


def _host_layers(o: At) -> Phrase:
    return Number(o["host_layers"], lambda n: f"{n:.0f}")


def _command(c: At) -> Command:
    file = [str(part.value) for part in c["file"]] if c["file"] else None
    return Command(c["name"].text, [str(w.value) for w in c["words"]], file=None if file is None else (file[0], file[1]))


def _next(d: At) -> Command | None:
    """What starts it; where nothing does, a change that makes it fit, else which devices are there for it."""
    best = first_program(d, _at(d, "context")["tokens_per_s"].expected.number) if d["fits"].value else None
    for c in d["commands"] if best is None else [best]:
        return Command(f"Start it with {c['name'].text}", [str(w.value) for w in c["words"]])
    for c in d["changes"]:
        sets = {k: str(v.value) for k, v in c["sets"].items()}
        if "cache_type" not in sets:
            return Command(f"With {c['name'].text}", command="fit", sets=sets)
    words = ["gpuwise", "pick", d["model"]["id"].text, "--for", "infer"]
    return Command("Which devices run it", words)


__all__ = ["first_program", "program_figure", "program_title", "run_answer", "running"]
