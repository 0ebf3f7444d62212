"""A server as ``gpuwise capacity`` chose it: the command that its answer prints (``serve.capacity.commands``). Tests read it by
the parsers of vllm and sglang where these are installed; the versions are those whose options it was written for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from gpuwise.errors import FieldError, InputError
from gpuwise.export.written import Written, wrapped
from gpuwise.files import convert
from gpuwise.serve.engines.engine import ENGINES

HINT = "give what `gpuwise capacity MODEL .. --json` printed"
_Line = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=10_000)]
"""One line of text: it is written into a script."""
_VARIABLE = re.compile(r"[\w${}/.:=,-]*", re.ASCII)
"""A word with a variable of the shell, which is written in double quotes."""


class _Start(msgspec.Struct, frozen=True):
    engine: _Line = msgspec.field(name="for")
    command: _Line
    note: str | None = None


class _Service(msgspec.Struct, frozen=True):
    start: _Start
    copies: Annotated[int, msgspec.Meta(ge=1, le=10**6)]


class _Answer(msgspec.Struct, frozen=True):
    """The fields read from an answer of capacity."""

    model: _Line
    on: _Line
    served: _Service | None


def served(document: Mapping[str, Any], wanted: str | None, file: str = "the answer") -> tuple[str, Written]:
    """The engine's name and ``serve.sh`` for one copy. Raises FieldError for a document of another form, InputError where nothing
    is served, or by another engine."""
    answer = convert(document, _Answer, file, hint=HINT)
    if answer.served is None:
        raise InputError("no configuration meets the targets", hint="`gpuwise capacity` shows what comes nearest")
    start, copies, name = answer.served.start, answer.served.copies, answer.served.start.engine
    version = ENGINES[name].script if name in ENGINES else ""
    if not version:
        hint = f"ask for {' or '.join(e.name for e in ENGINES.values() if e.script)}"
        raise FieldError(f"served.start.for: no server {name[:40]!r} is written", file=file, hint=hint)
    try:
        words = shlex.split(start.command)
    except ValueError as error:
        raise FieldError(f"served.start.command: {str(error).lower()}", file=file, hint=HINT) from None
    for word in words:
        if "$" in word and not _VARIABLE.fullmatch(word):
            raise FieldError(f"served.start.command: {word[:60]!r} is more than a variable", file=file, hint=HINT)
    text = f"{version}: {answer.model} on {answer.on}, one copy of {copies}."
    if wanted not in (None, name):
        again = f"leave --to out, or ask for it: gpuwise capacity .. --engine {wanted}"
        raise InputError(f"the answer is for {name}, not for {wanted}", hint=again)
    notes = [note for note in (start.note,) if note]
    notes += [f"{copies} copies are needed for the load: start that many, behind a balancer"] if copies > 1 else []
    lines = ["#!/usr/bin/env bash", f"# {text}", "set -euo pipefail", *wrapped(["exec", *words])]
    return name, Written(tuple(words), {"serve.sh": "\n".join(lines) + "\n"}, notes=tuple(notes))
