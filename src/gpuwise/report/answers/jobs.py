"""A model of passes on your own device: the time of an image, a video, an hour of audio, a passage; each way to run it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuwise.report.answers.answer import Answer, Cell, Column, Command, Figure, Number, Phrase, Row, Section, Table, span
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import At
from gpuwise.units import HOUR_S, format_duration, format_number

TITLES = PARTS["fit"]
MADE, SOUND = ("images", "videos"), "windows"
DOES = {"passages": "embeds", "pairs": "ranks", "images": "reads"}
PICKED = {"images": "image", "videos": "video", "windows": "speech", "passages": "embed", "pairs": "rerank"}
"""What ``pick --for`` calls them; images that are read are ``vision``."""


def job_answer(document: Mapping[str, Any]) -> Answer:
    """The answer of ``fit --for run`` for a model that does not write text."""
    d = At(document)
    best = d["best"]
    verdict: Phrase = (d["model"]["name"], " on ", d["machine"]["label"], ": ", *job_words(d))
    state = "yes" if best else "maybe" if d["fits"].value else "no"
    lead: Phrase = (d["model"]["parameters"], " parameters", *_made(d))
    purpose = PICKED[d["items"].text] if d["made"].value or d["items"].text not in MADE else "vision"
    return Answer(
        "fit",
        verdict,
        state,
        lead,
        list(job_figures(d)),
        [Section("run-ways", TITLES["run-ways"], [_table(d)], first=True)],
        Command("Which GPUs do it", ["gpuwise", "pick", d["model"]["id"].text, "--for", purpose]),
        assumed=[str(s.value) for s in d["assumed"]],
    )


def job_words(d: At) -> Iterator[Phrase]:
    """``an image in 50 s, with 8-bit weights``; ``does not fit``."""
    best, items = d["best"], d["items"].text
    if not best:
        yield "fits, its speed is not predicted" if d["fits"].value else "does not fit"
        return
    if d["made"].value:
        yield (f"makes {'an image' if items == 'images' else 'a video'} in ", best["alone_s"].expected)
    elif items == SOUND:
        yield ("writes down an hour of audio in ", Number(best["real_time"].expected, lambda x: format_duration(HOUR_S / x)))
    else:
        yield (f"{DOES[items]} ", Number(best["per_s"].expected, format_number), f" {items}/s")
    if best["way"].text:
        yield (", ", "with " if d["made"].value else "under ", best["way"])


def _made(d: At) -> Iterator[Phrase]:
    if d["made"].value:
        yield ("; ", d["made"])
    elif d["tokens_each"].number and d["items"].text != SOUND:
        yield ("; ", d["items"], " of ", d["tokens_each"], " tokens")


def job_figures(d: At) -> Iterator[Figure]:
    """Its times and its memory."""
    if not d["best"]:
        return
    best, items = d["best"], d["items"].text
    if d["made"].value:
        yield Figure("an image" if items == "images" else "a video", best["alone_s"].expected, span(best["alone_s"]))
    elif items == SOUND:
        rate = best["real_time"]
        value: Phrase = (Number(rate.expected, format_number), "x real time")
        yield Figure("long audio", value, span(rate, format_number), ("in batches of ", best["batch"]))
        yield Figure("30 s alone", best["alone_s"].expected, span(best["alone_s"]))
    else:
        rate = best["per_s"]
        yield Figure(
            "in batches", (Number(rate.expected, format_number), "/s"), span(rate, format_number), ("of ", best["batch"])
        )
        yield Figure("one alone", best["alone_s"].expected, span(best["alone_s"]))
    yield Figure("memory", best["needed_bytes"], "", ("for one at a time, of ", d["machine"]["device_bytes"]))


def _table(d: At) -> Table:
    sound, drawn = d["items"].text == SOUND, bool(d["made"].value)
    last = "each" if drawn else "x real time" if sound else f"{d['items'].text}/s"
    columns = [Column("way", words=True), Column("memory"), Column("fits"), Column("one alone" if not drawn else last)]
    columns += [] if drawn else [Column(last)]
    return Table(TITLES["run-ways"], columns, [_row(way, sound=sound, drawn=drawn) for way in d["ways"]])


def _row(way: At, *, sound: bool, drawn: bool) -> Row:
    fits = bool(way["fits"].value)
    cells = [
        Cell(way["way"].text or "16-bit weights"),
        Cell(way["needed_bytes"]),
        Cell(way["fits"], mark="good" if fits else "bad"),
        Cell(way["alone_s"].expected, span(way["alone_s"])) if way["alone_s"] else Cell("-"),
    ]
    if not drawn:
        rate = way["real_time"] if sound else way["per_s"]
        cells.append(Cell(Number(rate.expected, format_number), span(rate, format_number)) if rate else Cell("-"))
    return Row(cells)
