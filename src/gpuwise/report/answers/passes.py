"""What a load of passes takes (embeddings, images, speech, videos ..): items a second, latency and price by GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.software.encoder_programs import find_encoder_program
from gpuwise.facts.software.speech_programs import find_speech_program
from gpuwise.interval import P80
from gpuwise.report.answers.answer import Answer, Cell, Column, Command, Figure, Number, Phrase, Row, Section, Table, span
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import At
from gpuwise.serve.load.targets import statistic_words
from gpuwise.units import HOUR_S, MEGA, format_duration, format_number, format_usd

TITLES = PARTS["capacity"]
SPEECH = "windows"
TEXTS = ("passages", "pairs")
SLOW = {"videos": ("h", HOUR_S, "1,000", 1000.0)}
"""Items of which few are made: the unit of their rate and its seconds, how many a price is for. Others: a second, a million."""


def passes_answer(document: Mapping[str, Any], name: str = "", assumed: Sequence[str] = ()) -> Answer:
    """The answer for the model of this ``name``; ``assumed`` is how batches form and what is not counted."""
    answers = list(At(document)["forward"])
    able = [a for a in answers if a["items_per_s_of_each"].value is not None]
    if not answers:
        return Answer("capacity", "Nothing that is rented keeps the targets", "no", assumed=assumed)
    first = (able or answers)[0]
    model, items, gpu = name or first["model"].text, first["items"].text, _gpu(first)
    targets = " and ".join(
        f"{statistic_words(t['target'].text)} within {format_duration(t['limit_s'].number)}" for t in first["targets"]
    )
    table = Section("ranked", TITLES["ranked"], [_table(answers)], first=True)
    if not able:
        alone: Phrase = ("one alone takes ", first["alone_s"], ": more GPUs do not help")
        verdict: Phrase = f"{model} on {gpu}: nothing here keeps {targets}"
        return Answer("capacity", verdict, "no", alone, [], [table], Command("On other GPUs", drops=["on"]), assumed=assumed)
    usd: Phrase = (", ", first["usd_per_hour"], " an hour") if first["usd_per_hour"] else ()
    rate = Number(first["items_per_s"], lambda n: f"{format_number(n * _unit(items)[1])} {items}/{_unit(items)[0]}")
    job = () if items != SPEECH else (Number(first["items_per_s"], lambda n: _job(n * first["sound_s_each"].number)), ", ")
    verdict = (model, ": ", *job, rate, " on ", first["accelerators"], f"x {gpu}", usd)
    others = len(able) > 1
    again = Command("In detail", sets={"on": first["accelerator"].text}) if others else Command("On all GPUs", drops=["on"])
    within = f"; {targets}" if targets else ""
    return Answer("capacity", verdict, "yes", (_item(first), within), list(_figures(first)), [table], again, assumed=assumed)


def _job(real_time: float) -> str:
    """A recording as a job."""
    return f"an hour of audio in {format_duration(HOUR_S / real_time)}, {format_number(real_time)}x real time"


def _unit(items: str) -> tuple[str, float, str, float]:
    return SLOW.get(items, ("s", 1.0, "a million", MEGA))


def _gpu(answer: At) -> str:
    known = accelerators().get(answer["accelerator"].text)
    return answer["accelerator"].text if known is None else known.name


def _item(answer: At) -> Phrase:
    """What one item is."""
    items, tokens = answer["items"].text, answer["tokens_each"]
    if items == SPEECH:
        program = find_speech_program(answer["program"].text).name
        return (f"windows of speech under {program}, ", tokens, " tokens written of each")
    if answer["made"].value is not None:
        return (f"{items} of {answer['made'].text}: ", answer["alone_s"], " each")
    if not tokens.number:
        return items
    from gpuwise.serve.engines.engine import DEFAULT_ENGINE  # a page is served without what only answers need

    program = answer["program"].text
    under = f" under {find_encoder_program(program).name}" if program != DEFAULT_ENGINE and items in TEXTS else ""
    return (f"{items} of ", tokens, f" tokens{under}")


def _figures(a: At) -> Iterator[Figure]:
    unit, seconds, many, count = _unit(a["items"].text)

    def rate(value: float) -> str:
        return f"{format_number(value * seconds)}/{unit}"

    full: Phrase = ("full: ", Number(a["full_items_per_s"], rate))
    yield Figure("one GPU carries", Number(a["items_per_s_of_each"], rate), span(a, rate), full)
    over: Phrase = ("over HTTP ", a["alone_over_http_s"]) if a["alone_over_http_s"] else ""
    yield Figure("one alone", a["alone_s"], "", over)
    if a["latency_s"]:
        latency = a["latency_s"]
        yield Figure("p95", latency["p95"], "", ("p50 ", latency["p50"], ", batches of ", a["mean_batch"], " on average"))
    if a["usd_per_million"]:
        yield Figure(many, Number(a["usd_per_million"], lambda usd: format_usd(usd * count / MEGA)), "", a["items"].text)


def _table(answers: Sequence[At]) -> Table:
    unit, seconds, many, count = _unit(answers[0]["items"].text)
    columns = [
        Column("GPU", words=True),
        Column(f"each/{unit}"),
        Column(P80, leaves=1),
        Column("one alone", leaves=5),
        Column("p50", leaves=2),
        Column("p95"),
        Column("batch", leaves=4),
        Column("GPUs"),
        Column("an hour"),
        Column(many),
        Column("Wh", leaves=3),
    ]

    def rate(value: float) -> str:
        return format_number(value * seconds)

    rows = [
        Row(
            [
                Cell(_gpu(a)),
                Cell(Number(a["items_per_s_of_each"], rate) if a["items_per_s_of_each"] else "none"),
                Cell(span(a, rate)),
                Cell(a["alone_s"]),
                Cell(a["latency_s"]["p50"]),
                Cell(a["latency_s"]["p95"]),
                Cell(a["mean_batch"]),
                Cell(a["accelerators"] if a["accelerators"].number else "-"),
                Cell(a["usd_per_hour"]),
                Cell(Number(a["usd_per_million"], lambda usd: format_usd(usd * count / MEGA)) if a["usd_per_million"] else "-"),
                Cell(Number(a["wh_per_million"], lambda wh: f"{wh * count / MEGA:,.0f}") if a["wh_per_million"] else "-"),
            ]
        )
        for a in answers
    ]
    return Table(TITLES["ranked"], columns, rows)
