"""Text of other people's making (names in files, processes, feeds, code) made fit to show."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable

LONGEST, SHOWN = 300, 60
"""Characters in one piece that an error may repeat, and how many of longer ones are shown."""

_CONTROL = frozenset({"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"})
"""Invisible Unicode categories with effects: controls (escape codes), directions and joiners, lone surrogates, unassigned
characters (of undefined width in a terminal), line separators."""


def printable(text: str, keep: str = "\n\t") -> str:
    """``text`` with its control characters as ``\\x1b``, those in ``keep`` left as they are."""
    if text.isprintable():
        return text
    return "".join(_code(c) if c not in keep and unicodedata.category(c) in _CONTROL else c for c in text)


def _code(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def brief(text: str) -> str:
    """``text`` in which what is longer than :data:`LONGEST` characters without a break, or blank, is cut: `` xxx...(10,000
    characters)``."""
    return re.sub(
        rf"\S{{{LONGEST},}}|\s{{{LONGEST},}}", lambda found: f"{found[0][:SHOWN]}...({len(found[0]):,} characters)", text
    )


def single_line(text: str) -> str:
    """``text`` without line ends, tabs and control characters, a space for each."""
    return "".join(" " if unicodedata.category(c) in _CONTROL else c for c in text)


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
MOST_MESSAGE = 300


def message_line(text: str, most: int = MOST_MESSAGE) -> str:
    """A message of another program, on one line: terminal escape codes removed, cut to ``most`` characters."""
    line = " ".join(single_line(_ESCAPES.sub("", text[: 20 * most])).split())
    return line if len(line) <= most else line[: most - 3] + "..."


_WORDS = re.compile(r"(?:[^\s'\"\\]|\\.|'[^']*'|\"(?:\\.|[^\"\\])*\")+")


def broken_command(command: str, width: int) -> list[str]:
    """``command`` over lines of ``width`` as a POSIX shell reads them as one: broken between words, each left as it is
    written. One line where its quotes do not close."""
    if len(command) <= width or "\n" in command or _WORDS.sub("", command).strip():
        return [command]
    return shell_lines(_WORDS.findall(command), width)


def shell_lines(words: Iterable[str], width: int) -> list[str]:
    """The quoted words of one command over lines of ``width``, as a shell reads them: broken between words, and in JSON, where
    blanks say nothing, after its commas."""
    lines, now = list[str](), ""
    for word in words:
        if now and len(now) + len(word) + 3 > width:
            lines.append(now + " \\")
            now = "  "
        elif now:
            now += " "
        if word.startswith("'{"):
            *before, word = textwrap.wrap(word, width - 4, break_long_words=False, break_on_hyphens=False)
            lines += [(now if k == 0 else "    ") + part for k, part in enumerate(before)]
            now = "    " if before else now
        now += word
    return [*lines, now]


def capital(text: str) -> str:
    """``text`` with its first letter as a capital one; what is no plain word (vLLM, llama.cpp, my/data) as it is."""
    first = text.split(" ", 1)[0].rstrip(",.:;!?")
    return text[:1].upper() + text[1:] if first.islower() and first.replace("-", "").replace("'", "").isalpha() else text


def escape(text: str) -> str:
    """``text`` for a page: printable, markup as characters."""
    import html  # a table of every entity, which few commands need

    return html.escape(printable(text))
