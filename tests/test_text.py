"""Text of other people's making, shown."""

from __future__ import annotations

import io

import pytest

from gpuwise.cli.out import printing_console, table_of
from gpuwise.text import brief, broken_command, escape, message_line, printable, single_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("layers.3.weight", "layers.3.weight"),
        ("a\x1b]0;owned\x07b", "a\\x1b]0;owned\\x07b"),
        ("right\u202eleft", "right\\u202eleft"),
        ("\x9b31m", "\\x9b31m"),
        ("two\nlines\tof a table", "two\nlines\tof a table"),
        ("5\u202f000 b\u00f6ses \u00d7", "5\u202f000 b\u00f6ses \u00d7"),
    ],
)
def test_control_characters_become_codes_and_letters_stay(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_pages_and_single_lines_hold_no_control_characters() -> None:
    assert escape("<b>\x1b[31m") == "&lt;b&gt;\\x1b[31m"
    assert single_line("a\r\nb\x1bc") == "a  b c"


def test_a_name_with_an_escape_code_reaches_no_terminal() -> None:
    out = io.StringIO()
    to = printing_console(file=out, width=60)
    table = table_of(["name"])
    table.add_row("evil\x1b[2Jname")
    to.print(table)
    to.print("\x1b]0;title\x07")
    assert "\x1b" not in out.getvalue()
    assert "evil\\x1b[2J" in out.getvalue()


def test_a_foreign_message_is_one_line_without_escapes() -> None:
    assert message_line("bad \x1b[31mred\x1b[0m\n  \x1b]0;title\x07end\u202e") == "bad red end"
    assert len(message_line("x" * 1500)) == 300 and message_line("x" * 1500).endswith("...")


def test_a_long_piece_is_cut_and_counted() -> None:
    assert brief("no model " + "x" * 10_000) == "no model " + "x" * 60 + "...(10,000 characters)"
    sentence = "a sentence of many words " * 40
    assert brief(sentence) == sentence


COMMANDS = (
    "/a/venv/bin/python -m pip install torch==2.13.0 torchvision --index-url https://download.pytorch.org/whl/cu130",
    """python -c "import torch, torchvision" && echo 'it is there' | tee "$HOME/a file" > /dev/null""",
    "short",
    "echo 'open",
    "",
)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("width", [20, 51, 71, 200])
def test_a_shell_reads_a_broken_command_as_the_whole(command: str, width: int) -> None:
    lines = broken_command(command, width)
    assert all(line.endswith(" \\") for line in lines[:-1])
    joined = " ".join(line.removesuffix(" \\").strip() if len(lines) > 1 else line for line in lines)
    assert joined == command
    assert width < 70 or all(len(line) <= width for line in lines)
