"""A file of checks, read and judged: each asks a command line and compares the figures of its answer with limits."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from gpuwise.cli.asked import answer_of
from gpuwise.errors import FieldError, GpuwiseError
from gpuwise.files import convert, parse_toml, read_text
from gpuwise.report.answers.values import At
from gpuwise.units import parse_bytes, parse_count, parse_duration

COMMANDS = ("fit", "plan", "capacity", "cost")
"""Commands whose answers have the figures of limits."""
HINT = "see the guide for continuous integration; `gpuwise check --template` prints a file"
Document: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Limit:
    """A figure that may not be larger: its name in the file, where answers have it, how a limit is written."""

    name: str
    words: str
    places: tuple[str, ...]
    """In the order in which they are looked for."""
    parse: Callable[[str], float]
    example: str


LIMITS = (
    Limit(
        "max_memory",
        "memory of a GPU",
        ("memory.process_bytes", "memory_bytes", "best.memory_bytes"),
        parse_bytes,
        "22GiB",
    ),
    Limit("max_step_time", "time of a step", ("step_time_s", "best.step_time_s"), parse_duration, "800ms"),
    Limit("max_time", "time of the run", ("best.time_s", "run_time_s"), parse_duration, "3d"),
    Limit(
        "max_price",
        "price",
        ("best.cost_usd", "cost_usd", "total_usd", "served.fleet.usd_per_hour"),
        lambda text: parse_count(text.strip().removeprefix("$")),
        "$2000",
    ),
)


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One check as the file has it."""

    ask: str
    fits: Literal[True] | None = None
    max_memory: str | None = None
    max_step_time: str | None = None
    max_time: str | None = None
    max_price: str | float | None = None


class ChecksFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of checks."""

    version: Literal[1]
    checks: dict[str, dict[str, object]]


@dataclass(frozen=True, slots=True)
class Ready:
    """A check whose words and limits have been read."""

    name: str
    line: int
    words: tuple[str, ...]
    must_fit: bool
    limits: tuple[tuple[Limit, float], ...]


TEMPLATE = """\
version = 1

# Each check asks a command line, without --json, and fails where its answer is over a limit. All limits are optional.
[checks.fine-tune]
ask = "fit llama-3.1-8b --on 4090 --for train --qlora"
fits = true
max_memory = "23GiB"
max_step_time = "10min"

[checks.training-run]
ask = "plan gpt2 --on 8xA100-80GB --tokens 10B"
max_time = "1d"
max_price = "$400"
"""


def read_checks(path: Path) -> list[Ready]:
    """The checks of a file, in its order. Raises FieldError on an unknown key, and on a limit or question that cannot be read."""
    text, file = read_text(path, hint=HINT), str(path)
    made = convert(parse_toml(text, file), ChecksFile, file, hint=HINT)
    if not made.checks:
        raise FieldError("there is no check", file=file, hint=HINT)
    return [_ready(file, text, name, given) for name, given in made.checks.items()]


def _ready(file: str, text: str, name: str, given: Mapping[str, object]) -> Ready:
    line = _line(text, name)
    check = convert(given, Check, f"{file}:{line}", at=f"checks.{name}", hint=HINT)

    def refuse(field: str, what: str, hint: str) -> FieldError:
        return FieldError(f"checks.{name}.{field}: {what}", file=file, line=line, field=field, hint=hint)

    try:
        words = shlex.split(check.ask)
    except ValueError as error:
        raise refuse("ask", str(error).lower(), "close what is quoted") from None
    words = words[1:] if words[:1] == ["gpuwise"] else words
    if not words or words[0] not in COMMANDS:
        raise refuse("ask", f"{check.ask[:80]!r} asks none of {', '.join(COMMANDS)}", HINT)
    limits: list[tuple[Limit, float]] = []
    for limit in LIMITS:
        written = getattr(check, limit.name)
        if written is not None:
            try:
                limits.append((limit, limit.parse(str(written))))
            except GpuwiseError as error:
                raise refuse(limit.name, error.message, f'write it like {limit.name} = "{limit.example}"') from None
    if not limits and check.fits is None:
        raise refuse("fits", "the check has no limit", "add fits = true, or a limit")
    return Ready(name, line, tuple(words), check.fits is True, tuple(limits))


def _line(text: str, name: str) -> int:
    """The line on which a check begins; 1 where it is written in another form."""
    head = re.compile(rf"\s*\[\s*checks\s*\.\s*[\"']?{re.escape(name)}[\"']?\s*\]")
    return next((i for i, line in enumerate(text.splitlines(), 1) if head.match(line)), 1)


def judge(check: Ready) -> dict[str, Any]:
    """The document of one check: what was asked, each limit with the figure found, and whether all hold."""
    made: dict[str, Any] = {"name": check.name, "line": check.line, "command": shlex.join(["gpuwise", *check.words])}
    try:
        code, (document, _) = answer_of(check.words)
    except GpuwiseError as error:
        return {**made, "passed": False, "limits": [], "error": error.message, "hint": error.hint or ""}
    limits = [*_fits(check, code, document), *(_held(limit, most, document) for limit, most in check.limits)]
    return {**made, "passed": all(one["passed"] for one in limits), "limits": limits}


def _fits(check: Ready, code: int, document: Document) -> Iterator[dict[str, Any]]:
    if check.must_fit:
        found = document.get("fits", code == 0)
        yield {"limit": "fits", "words": "fits", "most": None, "found": None, "passed": bool(found)}


def _held(limit: Limit, most: float, document: Document) -> dict[str, Any]:
    place, found = next(((p, v) for p in limit.places if (v := _number(document, p)) is not None), ("", None))
    unit = next((end for end in ("_bytes", "_s", "_usd") if place.endswith(end)), "_usd_per_hour")
    key = "" if found is None else unit
    return {
        "limit": limit.name,
        "words": limit.words,
        f"most{key}": most,
        f"found{key}": found,
        "passed": found is not None and found <= most,
    }


def _number(document: Document, place: str) -> float | None:
    """The (expected) figure at a place, or None."""
    at = At(document)
    for step in place.split("."):
        at = at[step]
    return at.number if isinstance(at.expected.value, int | float) else None
