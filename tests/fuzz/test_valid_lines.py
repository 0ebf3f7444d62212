"""Pairs and triples of options that the parser takes: an answer that its schema describes, the same as text, or a refusal with a
hint."""

from __future__ import annotations

import contextlib
import io
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_answers import at, commands, parse, suits
from tests.fuzz.valid_lines import BASES, line
from tools.docs.reference_answers import document_name

from gpuwise.cli import reports
from gpuwise.cli.answer import LINES, text
from gpuwise.cli.app import run
from gpuwise.cli.asked import asking
from gpuwise.report.answers.answer import Answer, places, plain, shows

SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "answers.schema.json"
LONGEST_S = 60.0
"""Processor seconds after which a question hangs: the slowest of some 2,500 took 14."""
N_DEFAULT, N_SLOW = 150, 2000
STEP = 5
SIMULATING = ("capacity", "cost serve", "pick")
"""Commands whose answer takes seconds: in the slow group alone."""


@cache
def validator(name: str) -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    place = f"#/$defs/{name if name == 'refusal' else document_name(name)}"
    return jsonschema.Draft202012Validator({"$ref": place, "$defs": schema["$defs"]})


def faults(words: list[str]) -> list[str]:
    """What is wrong with the answer of a command line; empty for a good one."""
    out, err = io.StringIO(), io.StringIO()
    began = time.process_time()
    makers: list[Callable[[dict[str, Any]], Answer]] = []

    def given(document: dict[str, Any], answer: Callable[[dict[str, Any]], Answer]) -> bool:
        makers.append(answer)
        return False

    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
            patch.setattr(reports, "give", given)
            code = run([*words, "--json"])
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what a person would see as a traceback
        return [f"{type(error).__name__}: {error}"]
    found: list[str] = []
    if time.process_time() - began > LONGEST_S:
        found.append(f"{time.process_time() - began:.0f} s of processor time")
    printed, said = out.getvalue(), err.getvalue()
    if code not in (0, 1, 2):
        found.append(f"exit code {code}")
    if "Traceback" in printed + said:
        found.append("a traceback")
    try:
        document = json.loads(printed.strip().split("\n")[-1])
    except ValueError:
        return [*found, f"no JSON: {printed[-200:]!r} {said[-200:]!r}"]
    refused = code == 2
    if refused and not (said.startswith("error: ") and "\nhint: " in said):
        found.append(f"a refusal without a hint: {said[:200]!r}")
    wrong = next(iter(validator("refusal" if refused else words[0]).iter_errors(document)), None)
    if wrong is not None:
        found.append(f"not by the schema: {wrong.json_path} {wrong.message[:150]}")
    for path, value in numbers(document):
        if not math.isfinite(value):
            found.append(f"{path} is {value}")
    for path, low, middle, high in intervals(document):
        slack = 1e-9 * abs(middle)
        if not low <= middle + slack or not middle <= high + slack:
            found.append(f"{path}: {low} to {high} around {middle}")
    found += [f"{path}: {parts} in parts, {whole} in all" for path, parts, whole in sums(document) if not close(parts, whole)]
    return [*found, *(fault for make in makers if not refused for fault in text_faults(words, document, make(document)))]


ALONE = ("typical",)
"""Figures that JSON does not have: the typical price of `prices`, which is not among the offers asked for."""


def text_faults(words: list[str], document: dict[str, Any], answer: Answer) -> Iterator[str]:
    """What is wrong with the text of an answer: its figures are those of the document, it fits, and its commands can be read."""
    with asking(words):
        screen, whole = text(answer), text(answer, None)
    # the lines of an exported file stay whole
    if words[0] != "export" and (not suits(screen, 80) or not suits(whole, 80)):
        yield "wider than 80 columns"
    if len(screen.splitlines()) > LINES:
        yield f"a first screen of {len(screen.splitlines())} lines"
    for place in shows(answer):
        if place.value is not None and place.value != at(document, place.pointer):
            yield f"{place.pointer}: {place.value} in the text, {at(document, place.pointer)} in JSON"
    for figure in answer.figures:
        if figure.name not in ALONE and any(c.isdigit() for c in plain(figure.value)) and not [*places(figure.value)]:
            yield f"{plain(figure.name)}: {plain(figure.value)} is in the text alone"
    for command in commands(screen):
        try:
            parse(command)
        except Exception as error:  # noqa: BLE001 - whatever a parser raises
            yield f"{command}: {error}"


def close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)


def numbers(value: Any, path: str = "$") -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from numbers(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from numbers(inner, f"{path}[{i}]")


def intervals(value: Any, path: str = "$") -> Iterator[tuple[str, float, float, float]]:
    """Estimates of a document with both ends."""
    if isinstance(value, Mapping):
        ends = [value.get(k) for k in ("low", "expected", "high")]
        if all(isinstance(e, int | float) for e in ends):
            yield path, *ends  # type: ignore[misc]
        for key, inner in value.items():
            yield from intervals(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from intervals(inner, f"{path}[{i}]")


def sums(value: Any, path: str = "$") -> Iterator[tuple[str, float, float]]:
    """What is printed in parts and as a whole: ``X_parts_bytes`` beside ``X_bytes``, a bill beside ``total_usd``."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key.endswith("_parts_bytes") and inner:
                whole = value[key.replace("_parts_bytes", "_bytes")]
                yield f"{path}.{key}", sum(map(middle_of, inner.values())), middle_of(whole)
            elif key == "bill" and inner:
                yield f"{path}.bill", sum(middle_of(line["usd"]) for line in inner), middle_of(value["total_usd"])
            yield from sums(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from sums(inner, f"{path}[{i}]")


def middle_of(value: Any) -> float:
    return value["expected"] if isinstance(value, Mapping) else value


def check(seeds: range, monkeypatch: pytest.MonkeyPatch, home: Path, left_out: Sequence[str] = ()) -> None:
    monkeypatch.setenv("GPUWISE_HOME", str(home))
    monkeypatch.setenv("GPUWISE_RECORDS", str(home / "records.db"))
    commands = [c for c in BASES if c not in left_out]
    found = {" ".join(words): wrong for seed in seeds if (wrong := faults(words := line(seed, commands)))}
    assert not found, json.dumps(found, indent=1)


@pytest.mark.parametrize("first", range(0, N_DEFAULT, STEP))
def test_lines_of_valid_options_are_answered(first: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check(range(first, first + STEP), monkeypatch, tmp_path, SIMULATING)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(N_DEFAULT, N_DEFAULT + N_SLOW, 10 * STEP))
def test_more_lines_of_valid_options_are_answered(first: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check(range(first, first + 10 * STEP), monkeypatch, tmp_path)


def test_every_command_has_options_to_draw() -> None:
    drawn = {word for seed in range(400) for word in line(seed) if word.startswith("--")}
    assert len(drawn) > 150 and {line(i)[0] for i in range(len(BASES))} == {c.split()[0] for c in BASES}
