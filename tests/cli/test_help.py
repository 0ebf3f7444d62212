"""Help pages: what a value is stands beside each option, and the parser prints every default."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console

from gpuwise.cli.app import build, every_command
from gpuwise.cli.examples import EXAMPLES, QUESTIONS
from gpuwise.cli.needs import EXPERTS
from gpuwise.workload.strategy import OPTIONS

COMMANDS = [name for name, _ in every_command(build())]
BY_HAND = re.compile(r"\(usual|\busual:|[Ll]eft out[,:]|[Nn]othing is said|by default|\(default|^default", re.MULTILINE)
"""Other ways to say what is taken where an option is not given."""


def _page(name: str, *, help_all: bool = True) -> str:
    page = io.StringIO()
    build(help_all=help_all).help_print(name.split(), console=Console(file=page, width=100))
    return page.getvalue()


def _options(name: str) -> list[Any]:
    app = build()
    command: Any = dict(every_command(app))[name]
    found = command.assemble_argument_collection(default_parameter=app.default_parameter, parse_docstring=True)
    return [option for option in found if option.show]


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_shows_a_type_for_what_it_takes(name: str) -> None:
    page = _page(name)
    assert page.startswith(f"Usage: gpuwise {name}")
    assert not re.findall(r"--\S+ (?:STR|INT|FLOAT|BOOL|LIST|CHOICE)\b.*", page)


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_are_the_parsers_to_print(name: str) -> None:
    for option in _options(name):
        found = BY_HAND.search(option.parameter.help or "")
        assert found is None, f"{option.name}: {found and found[0]!r} in its text; give the default to show_default"


def test_a_default_is_printed() -> None:
    text = " ".join(_page("plan").replace("│", " ").split())
    assert "--recompute none|selective|full" in text and "[default: adamw]" in text and "--tp RANKS" in text


# --- what is shown first ---

NOT_RUN = re.compile(r"(check|mcp|share|ui|top|profile|memory|tune|run|bench|doctor)\b")
"""Commands that go on, need a script or a recording, or look at this machine: their examples are parsed."""
FEW = 1
"""Examples of a command that run by default; thorough runs have all."""


def _examples() -> Iterator[Any]:
    for lines in (*EXAMPLES.values(), tuple(line for _, line in QUESTIONS)):
        for i, line in enumerate(lines):
            yield pytest.param(line, id=line, marks=[pytest.mark.thorough] if i >= FEW else [])


def test_each_command_has_examples() -> None:
    assert set(EXAMPLES) == set(COMMANDS)
    for name, lines in EXAMPLES.items():
        assert len(set(lines)) == 3 and all(line == name or line.startswith(f"{name} ") for line in lines)
        assert all(f"gpuwise {line}" in _page(name) for line in lines)


@pytest.mark.parametrize("line", list(_examples()))
def test_an_example_works(line: str, gpuwise: Callable[..., Any]) -> None:
    build().parse_args(shlex.split(line), exit_on_error=False, print_error=False)
    if not NOT_RUN.match(line):
        ran = gpuwise(*shlex.split(line))
        assert ran.code in (0, 1) and ran.out and not ran.err


def test_the_help_begins_with_questions(gpuwise: Callable[..., Any]) -> None:
    first = gpuwise("--help").out.partition("╭")[0]
    assert len(QUESTIONS) == 5 and all(f"gpuwise {line}" in first for _, line in QUESTIONS)
    assert len(first.splitlines()) <= 25 and max(map(len, first.splitlines())) <= 80


@pytest.mark.parametrize("name", ["plan", "fit", "export"])
def test_options_for_experts_are_shown_where_they_are_asked_for(name: str, gpuwise: Callable[..., Any]) -> None:
    short, whole = gpuwise(*name.split(), "--help").out, gpuwise(*name.split(), "--help-all").out
    shown = {field: o for field, o in OPTIONS.items() if o.help}
    assert {o.often for o in shown.values()} == {"common", "sometimes", "expert"}
    for field, o in shown.items():
        flag = re.compile(rf"--{(o.name or field).replace('_', '-')}\b(?!-)")
        assert flag.search(whole) and bool(flag.search(short.partition("Examples")[0])) == (o.often != "expert"), field
    assert "options for experts: --help-all" in short and EXPERTS.name in whole
    place = [short.index(words) for words in ("--optimizer", "Sometimes", "--sharding")]
    assert place == sorted(place)
