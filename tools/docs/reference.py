"""Writes the reference pages of the documentation, and checks that they are up to date.

    python -m tools.docs.reference docs/reference             write the pages
    python -m tools.docs.reference --check docs/reference     say which are stale (exit code 1)
    python -m tools.docs.reference --examples README.md docs  run the examples, put in what they print

Pages come from the code itself: commands from the application, names from ``gpuwise.__all__``, columns from
the schemas the loaders check, rows from the catalogues. An example is a ``console`` block that begins with
``$ gpuwise ...``, or a block under a comment ``<!-- output: gpuwise ... -->``. Examples are run as on :data:`AS_OF`, for prices
age; move it when they are written again.
"""

from __future__ import annotations

import contextlib
import datetime
import inspect
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import time_machine

from gpuwise.cli.app import build, every_command, run

STAMP = "<!-- Written by `python -m tools.docs.reference docs/reference`. Do not edit. -->"
EXAMPLES = Path(__file__).parents[2] / "examples"
WIDTH = 80
"""Columns of the examples' output."""
AS_OF = datetime.datetime(2026, 11, 27, 12, tzinfo=datetime.UTC)
"""The day of the examples' answers."""
_EXAMPLE = re.compile(
    r"(?P<head>```console\n\$ (?P<shown>gpuwise [^\n]+)\n"
    r"|<!-- output: (?P<said>gpuwise [^\n]+?) -->\n```text\n)"
    r"(?P<body>.*?)(?P<tail>^```$)",
    re.DOTALL | re.MULTILINE,
)


def pages() -> dict[str, str]:
    """Every generated page by file name."""
    from tools.docs.reference_answers import answers_page, llms_page, openapi_page
    from tools.docs.reference_facts import catalogues_page, formats_page
    from tools.docs.reference_plan import plan_schema_page
    from tools.docs.reference_python import python_page

    return {
        "cli.md": cli_page(),
        "python.md": python_page(),
        "files.md": formats_page(),
        "catalogues.md": catalogues_page(),
        "plan.schema.json": plan_schema_page(),
        "answers.schema.json": answers_page(),
        "openapi.json": openapi_page(),
        "../llms.txt": llms_page(),
    }


# --- commands ---


def cli_page() -> str:
    """Every command with every option."""
    import gpuwise.cli.app as app_module

    app = build()
    lines = [STAMP, "", "# Command line", "", f"{app.help}", "", *_paragraphs(app_module.__doc__ or ""), ""]
    lines += ["| exit code | means |", "|---|---|", *(f"| {code} | {words} |" for code, words in app_module.EXIT_CODES), ""]
    lines += [
        "`gpuwise COMMAND --help` prints the same in the terminal; `gpuwise --version` the version. "
        "Data goes to stdout. `NO_COLOR` turns colours off. With `--json` the last line of it is one JSON "
        "document in SI units; every estimate in it is `{low, expected, high, basis}`.",
        "",
    ]
    for name, command in every_command(app):
        lines += _command(name, command, app.default_parameter)
    return "\n".join(lines).rstrip() + "\n"


def _command(name: str, app: Any, defaults: Any) -> list[str]:
    function = app.default_command
    text = inspect.getdoc(function) or ""
    arguments = [a for a in app.assemble_argument_collection(default_parameter=defaults, parse_docstring=True) if a.show]
    lines = [f"## gpuwise {name}", "", *_paragraphs(text.split("\nParameters\n")[0]), ""]
    positional = [a for a in arguments if a.index is not None]
    usage = " ".join(_placeholder(a) for a in positional)
    lines += ["```text", f"gpuwise {name} {usage} [options]".replace("  ", " "), "```", ""]
    lines += ["| option | value | default | |", "|---|---|---|---|"]
    for a in arguments:
        names = f"`{_placeholder(a)}`" if a in positional else ", ".join(f"`{n}`" for n in a.names)
        lines.append(f"| {names} | {_value(a)} | {_default(a)} | {_cell(a.parameter.help or '')} |")
    return [*lines, ""]


def _placeholder(argument: Any) -> str:
    word = argument.name.lstrip("-").upper()
    return word if argument.required else f"[{word}]"


def _value(argument: Any) -> str:
    """What an option takes: its choices or its unit."""
    hint = str(argument.hint).replace(" | None", "")
    if "bool" in hint:
        return "flag"
    return _cell(argument.parameter.metavar or ("PATH" if "Path" in hint else ""))


def _default(argument: Any) -> str:
    default, shown = argument.field_info.default, argument.show_default
    if argument.required:
        return "required"
    if not isinstance(shown, str):
        shown = shown(default) if callable(shown) and default is not inspect.Parameter.empty else None
    return _cell(shown or "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _paragraphs(text: str) -> list[str]:
    """Paragraphs of a docstring, each on one line, with an empty line between."""
    parts = [" ".join(p.split()) for p in text.strip().split("\n\n")]
    return "\n\n".join(p.replace("``", "`") for p in parts).split("\n")


# --- examples ---


def examples(text: str) -> Iterator[tuple[str, str]]:
    """(command, recorded output) of each example of a page."""
    for match in _EXAMPLE.finditer(text):
        yield match["shown"] or match["said"], match["body"]


def refresh_page(text: str) -> str:
    """``text`` with the output of its examples as they are today; one without an answer, or refused where it was not before,
    keeps what it has."""

    def again(match: re.Match[str]) -> str:
        command = match["shown"] or match["said"]
        code, output = outcome(command)
        refused = code == 1 and output.startswith("error:")
        keep = refused or (code == 2 and not match["body"].startswith("error:") and match["body"].strip() != "")
        if keep:
            sys.stderr.write(f"{command}\n{output}")
        return match["head"] + (match["body"] if keep else output) + match["tail"]

    return _EXAMPLE.sub(again, text)


def outcome(command: str) -> tuple[int, str]:
    """Exit code and output of ``gpuwise ...`` on :data:`AS_OF`, errors included, on :data:`WIDTH` columns without colour."""
    out = io.StringIO()
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR", "GPUWISE_HOME")}
    try:
        with (
            tempfile.TemporaryDirectory() as empty,
            tempfile.TemporaryDirectory() as here,
            contextlib.chdir(here),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            time_machine.travel(AS_OF),
        ):
            Path("examples").symlink_to(EXAMPLES, target_is_directory=True)
            # prices of one's own are nobody's example, and what an example writes is nobody's file
            os.environ.update(COLUMNS=str(WIDTH), NO_COLOR="1", GPUWISE_HOME=empty)
            code = run(shlex.split(command)[1:])
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    return code, "\n".join(line.rstrip() for line in out.getvalue().strip("\n").split("\n")) + "\n"


# --- the command ---


def main(arguments: Sequence[str]) -> int:
    """Write, check or refresh; see the module's docstring."""
    paths = [Path(a) for a in arguments if not a.startswith("-")]
    flags = {a for a in arguments if a.startswith("-")}
    if not paths or len(flags) > 1 or not flags <= {"--check", "--examples"}:
        sys.stderr.write((__doc__ or "").strip() + "\n")
        return 2
    if flags == {"--examples"}:
        for path in paths:
            for page in sorted(path.rglob("*.md")) if path.is_dir() else [path]:
                page.write_text(refresh_page(page.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    stale = []
    for name, text in pages().items():
        page = paths[0] / name
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            stale.append(str(page))
            if not flags:
                page.write_text(text, encoding="utf-8")
    if flags and stale:
        sys.stderr.write(f"error: {', '.join(stale)} out of date\nhint: python -m tools.docs.reference {paths[0]}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
