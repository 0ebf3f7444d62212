"""What a person can do with a model on a machine, on one screen: run it, adapt it, train it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuwise.report.answers.answer import Answer, Cell, Column, Command, Figure, Number, Phrase, Row, Section, Table, brief, span
from gpuwise.report.answers.jobs import job_figures, job_words
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.running import first_program, program_figure, program_title, running
from gpuwise.report.answers.training import held
from gpuwise.report.answers.values import At

TITLES = PARTS["fit"]
NAMES = {"run": "run it", "finetune": "adapt it", "train": "train it"}
VERBS = {"run": "runs", "finetune": "adapts", "train": "trains"}


def uses_answer(document: Mapping[str, Any]) -> Answer:
    """The answer of ``fit`` without ``--for``."""
    d = At(document)
    run, fitting = d["run"], [name for name in VERBS if d[name]["fits"].value]
    state = "yes" if d["fits"].value else "maybe" if run["offload"] or fitting else "no"
    first = "run" if not run["error"] else fitting[0] if fitting else "train"
    return Answer(
        "fit",
        (d["model"]["name"], " on ", d["machine"]["label"], ": ", _verdict(d)),
        state,
        (
            d["model"]["parameters"],
            " parameters, ",
            d["model"]["active_parameters"],
            " active; a program can have ",
            d["machine"]["device_bytes"],
            " of the GPU" if d["machine"]["gpus"].number else " of RAM",
            " now" if d["machine"]["here"].value else "",
        ),
        _figures(run),
        [Section("uses", TITLES["uses"], [_table(d)], first=True)],
        Command("In full", command="fit", sets={"for": first}),
        assumed=list(_assumed(d)),
    )


def _verdict(d: At) -> Phrase:
    """``runs in Q8_0; adapts with QLoRA; does not train``."""
    names = [name for name in VERBS if name != "run" or not d["run"]["error"]]
    return [part for name in names for part in ("" if name == names[0] else "; ", *_one(name, d[name]))]


def _one(name: str, d: At) -> Iterator[Phrase]:
    if d["items"]:
        yield from job_words(d)
    elif d["fits"].value:
        if name == "run":
            yield running(d, _speed(d)["tokens_per_s"].expected)
        else:
            yield VERBS[name] + (f" with {_adapters(d)}" if name == "finetune" else "")
    elif d["offload"]:
        yield ("runs with a part in RAM, ", d["offload"]["tokens_per_s"], " tokens/s")
    else:
        yield "does not " + {"run": "run", "finetune": "adapt", "train": "train"}[name]


def _adapters(d: At) -> str:
    return "QLoRA" if d["strategy"]["quantized_base"].value else "LoRA"


def _speed(run: At) -> At:
    """At the context that was asked for."""
    return next((s for s in run["speeds"] if s["context"].value == run["context"].value), run["speeds"][0])


def _figures(run: At) -> list[Figure]:
    """How fast it writes and how far."""
    if not run["fits"].value:
        return []
    if run["items"]:
        return list(job_figures(run))
    speed = _speed(run)
    rate, first = speed["tokens_per_s"], speed["first_token_s"]
    after: Phrase = ("; first token after ", first.expected) if first else ""
    best = first_program(run, rate.expected.number)
    name = "writes" if best is None else program_title(run["commands"][0])
    return [
        *([] if best is None else [program_figure(best)]),
        Figure(name, (rate, " tokens/s"), span(rate), ("with ", speed["context"], " tokens of context", after)),
        Figure("context", ("up to ", Number(run["longest_context"], lambda n: f"{n:,.0f}"), " tokens")),
    ]


def _table(d: At) -> Table:
    columns = [
        Column("use", words=True),
        Column("how", words=True),
        Column("memory"),
        Column("fits"),
        Column("tokens/s"),
    ]
    return Table(TITLES["uses"], columns, [_row(name, d[name]) for name in NAMES])


def _row(name: str, d: At) -> Row:
    use = Cell(NAMES[name], sets={"for": name})
    if d["error"]:
        return Row([use, Cell((d["error"], ": ", d["hint"]), mark="dim"), Cell("-"), Cell("-"), Cell("-")])
    fits = bool(d["fits"].value)
    if name == "run" and d["items"]:
        return _job_row(use, d)
    mark = "good" if fits else "bad"
    if name == "run":
        if not fits and d["offload"]:
            o = d["offload"]
            how: Phrase = (o["weights"], ", ", o["host_bytes"], " of it in RAM")
            return Row([use, Cell(how), Cell("-"), Cell("in part"), Cell(o["tokens_per_s"], span(o["tokens_per_s"]))])
        f = next(f for f in d["formats"] if fits is False or f["weights"].value == d["weights"].value)
        if not fits:
            f = d["formats"][len(d["formats"].value) - 1]
        rate = f["tokens_per_s"]
        return Row(
            [
                use,
                Cell((f["weights"], " weights in llama.cpp, loss: ", f["loss"])),
                Cell(f["memory_bytes"]),
                Cell(f["fits"], mark=mark),
                Cell(rate, span(rate)) if fits else Cell("-"),
            ]
        )
    at, rate = held(d, d["device_bytes"].number), d["tokens_per_s"]
    return Row(
        [
            use,
            Cell(_way(name, d)),
            Cell(at.expected, span(at)),
            Cell(d["fit_probability"], mark=mark),
            Cell(rate, span(rate)) if fits else Cell("-"),
        ]
    )


def _job_row(use: Cell, d: At) -> Row:
    """A model that does not write text."""
    at = d["best"] or d["ways"][0]
    mark = "good" if d["fits"].value else "bad"
    return Row([use, Cell(at["way"].text or "16-bit weights"), Cell(at["needed_bytes"]), Cell(at["fits"], mark=mark), Cell("-")])


def _way(name: str, d: At) -> str:
    """``QLoRA, full recompute, chunked loss``."""
    s = d["strategy"]
    parts = [_adapters(d) if name == "finetune" else str(s["optimizer"].value)]
    parts += [f"{s['sharding'].value}"] if s["sharding"].value != "none" else []
    parts += [f"{s['recompute'].value} recompute"] if s["recompute"].value != "none" else []
    parts += ["chunked loss"] if s["fused_loss"].value else []
    return ", ".join(parts)


def _assumed(d: At) -> Iterator[str]:
    """What each use takes for granted, once."""
    sentences = [str(s.value) for name in VERBS for s in d[name]["assumed"]]
    yield from dict(zip(brief(sentences), sentences, strict=True)).values()


__all__ = ["uses_answer"]
