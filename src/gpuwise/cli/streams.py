"""Standard output and error of any terminal or file: ASCII where the encoding has no block characters, nothing lost in
silence on a full disk, no blanks at the end of a line that a program reads."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from typing import Any, TextIO, cast

FALLBACK = "gpuwise-ascii"
_TABLE = {
    **dict(zip("█▓▒░▚▞▩", "@%xo\\/&", strict=True)),
    **dict(zip("▉▊▋▌▍▎▏", "@@@=---", strict=True)),
    **dict(zip("▁▂▃▄▅▆▇▔", "__--==@^", strict=True)),
    **dict(zip("─━│├└╭╮╰╯╷╸", "--||`.." + "`'|-", strict=True)),
    **dict(zip("×·•●○▲▼▸→←↑↓✖✕", "x.**o^v>><^vxx", strict=True)),
    **dict(zip("–—‘’“”°\u00a0", "--''\"\"o ", strict=True)),
    "…": ".",
    "µ": "u",
    "²": "2",
    "³": "3",
}
"""One character for one, so that columns stay where they are; glyphs of bars stay apart from one another."""


def _replace(error: UnicodeError) -> tuple[str, int]:
    import unicodedata

    if not isinstance(error, UnicodeEncodeError):
        raise error
    out: list[str] = []
    for character in error.object[error.start : error.end]:
        plain = _TABLE.get(character)
        if plain is None:
            plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode() or "?"
        out.append(plain)
    return "".join(out), error.end


def prepare_streams() -> None:
    """Make stdout and stderr write what their encoding lacks as ASCII; a C locale that was forced (LC_ALL) is ASCII.

    Does nothing to streams that are no text files of Python's own (tests, notebooks), nor to UTF-8.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us: `>&-`
            setattr(sys, name, io.StringIO())
            continue
        if not hasattr(stream, "reconfigure"):
            continue
        encoding = "ascii" if _asks_for_ascii() else None
        if encoding is not None or not _is_utf(stream.encoding):
            codecs.register_error(FALLBACK, _replace)
            stream.reconfigure(encoding=encoding or stream.encoding, errors=FALLBACK)
        elif stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # lone surrogates: file names that are no UTF-8


def _asks_for_ascii() -> bool:
    """Whether the locale was forced to C, which Python would answer with UTF-8 (PEP 540), and no other encoding asked for.

    LANG=C is what containers have by default, and Python takes it for C.UTF-8 (PEP 538).
    """
    if os.environ.get("PYTHONIOENCODING") or os.environ.get("PYTHONUTF8"):
        return False
    return os.environ.get("LC_ALL") in ("C", "POSIX")


def _is_utf(encoding: str | None) -> bool:
    return (encoding or "").lower().replace("_", "-").startswith(("utf-8", "utf8", "utf-16", "utf-32"))


def discard_output() -> None:
    """Point stdout where nothing is written, after it broke: Python flushes it once more at exit."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class TrimmedLines:
    """A text file that drops blanks before the end of a line, as tables leave them; everything else is ``target``'s."""

    def __init__(self, target: TextIO) -> None:
        self._target = target
        self._blanks = ""

    def write(self, text: str) -> int:
        """Write ``text``; blanks at its end are kept until it is known whether the line goes on."""
        lines = (self._blanks + text).split("\n")
        last = lines.pop()
        trimmed = last.rstrip(" ")
        self._blanks = last[len(trimmed) :]
        self._target.write("".join(line.rstrip(" ") + "\n" for line in lines) + trimmed)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def trimmed(target: TextIO) -> TextIO:
    """``target`` as it is on a terminal, else without blanks at line ends."""
    return target if target.isatty() else cast(TextIO, TrimmedLines(target))
