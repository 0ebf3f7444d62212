"""Commands that hints name: each exists, and has the options that it is named with."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import gpuwise
from gpuwise.cli.app import build, every_command

SOURCE = Path(gpuwise.__file__).parent
NAMED = re.compile(r"gpuwise ((?:cost|lab) [a-z-]+|[a-z]+)((?: (?!and |prints|lists|shows|reads|writes|with |or )[^`;,]+)?)")
"""A command in a text, and what stands behind it."""
NOT_COMMANDS = {"first", "reads", "with", "accepts"}


def hints() -> Iterator[tuple[str, str]]:
    """Every text given as a hint, with its place; what an f-string fills in is ``X``."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                for text in texts(node.value):
                    if "gpuwise " in text:
                        yield f"{path.relative_to(SOURCE)}:{node.value.lineno}", text


def texts(value: ast.expr) -> Iterator[str]:
    """The texts of an expression: both of ``a if b else c``, all of a sum."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in value.values)
    elif isinstance(value, ast.IfExp):
        yield from texts(value.body)
        yield from texts(value.orelse)


@cache
def options() -> dict[str, set[str]]:
    """The names of each command's options."""
    made: dict[str, set[str]] = {}
    for name, command in every_command(build()):
        arguments = command.assemble_argument_collection(parse_docstring=False) if command.default_command else ()
        made[name] = {n for a in arguments for n in a.names} | {"--help", "--help-all"}
    return made


HINTS = list(hints())


@pytest.mark.parametrize(("place", "text"), HINTS, ids=[f"{place} {text[:40]}" for place, text in HINTS])
def test_a_hint_names_a_command_with_its_options(place: str, text: str) -> None:
    for name, rest in NAMED.findall(text):
        if name in NOT_COMMANDS:
            continue
        command = name if name in options() else name.split()[0]
        assert command in options(), f"{place}: gpuwise {name}"
        own = rest.split(" -- ")[0]
        unknown = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", own)) - options()[command] - {"--hours"}
        assert not unknown, f"{place}: gpuwise {name}{rest}"


def test_hints_are_found() -> None:
    assert len(HINTS) > 40
