"""Help pages: what a value is stands beside each option, and the parser prints every default."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from gpuwise.cli.app import build, every_command

COMMANDS = [name for name, _ in every_command(build())]
BY_HAND = re.compile(r"\(usual|\busual:|[Ll]eft out[,:]|[Nn]othing is said|by default|\(default|^default", re.MULTILINE)
"""Other ways to say what is taken where an option is not given."""


def _page(name: str) -> str:
    page = io.StringIO()
    build().help_print(name.split(), console=Console(file=page, width=100))
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
