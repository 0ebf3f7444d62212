"""The words of the field, each in two sentences: ``words.toml``. Its figures are values of commands, asked for when shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from gpuwise.errors import UnknownNameError
from gpuwise.facts.loading import shipped_text

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_EXPONENT = re.compile(r"e\+?(-?)0*(\d)")


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """How a number is written: Python's format, its unit, and the shown number over the SI value."""

    show: str
    unit: str = ""
    scale: float = 1.0

    def text(self, value: float) -> str:
        """``"8.37 ms"``."""
        shown = _EXPONENT.sub(r"e\1\2", f"{value * self.scale:{self.show}}").replace("%", " %")
        if self.unit.startswith("$"):
            return f"${shown}{self.unit[1:]}"
        return f"{shown} {self.unit}".strip()


@dataclass(frozen=True, slots=True)
class Figure:
    """A number in a text: the value at ``path`` of the JSON document of ``command``."""

    command: str
    path: str
    written: NumberFormat


@dataclass(frozen=True, slots=True)
class Term:
    """A word with what it means; ``see`` is a page of the docs, ``aliases`` are other ways to write it."""

    name: str
    group: str
    says: str
    see: str = ""
    aliases: tuple[str, ...] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict[str, Figure])

    @property
    def names(self) -> tuple[str, ...]:
        """The name for lists, then all others: ``TPOT, ITL`` and ``Streaming multiprocessor (SM)`` are two names each."""
        parts = re.split(r"\s*[,()]\s*", self.name)
        return (self.name.partition(",")[0], *filter(None, parts), self.name, *self.aliases)

    def text(self, ask: Callable[[str], Any]) -> str:
        """``says`` with its figures; ``ask`` gives the document of a command. Raises KeyError for a name that is no figure."""

        def shown(match: re.Match[str]) -> str:
            figure = self.figures[match[1]]
            return figure.written.text(at_path(ask(figure.command), figure.path))

        return _PLACEHOLDER.sub(shown, self.says)


@cache
def terms() -> tuple[Term, ...]:
    """All words, in the order of the glossary."""
    import tomllib

    return tuple(_term(entry) for entry in tomllib.loads(shipped_text("words.toml"))["term"])


def _term(entry: dict[str, Any]) -> Term:
    figures = {
        f.pop("name"): Figure(f.pop("command"), f.pop("path"), NumberFormat(**f))
        for f in map(dict[str, Any], entry.pop("figures", ()))
    }
    return Term(entry["name"], entry["group"], entry["says"], entry.get("see", ""), tuple(entry.get("aliases", ())), figures)


def find_term(word: str) -> Term:
    """The term that ``word`` names, by any of its names, in any case. Raises UnknownNameError."""
    by_name = {_plain(name): term for term in reversed(terms()) for name in term.names}
    found = by_name.get(_plain(word)) or by_name.get(_plain(word).removesuffix("s"))
    if found is None:
        raise UnknownNameError("word", word, [n for t in terms() for n in t.names], otherwise="`gpuwise explain` lists the words")
    return found


def _plain(name: str) -> str:
    return re.sub(r"[\s_/-]+", "", name.lower())


def at_path(document: Any, path: str) -> float:
    """The number at ``rows.0.time_s.expected``; ``rows[path=host to GPU].bytes_per_s`` takes the first entry whose field has that
    value. Raises KeyError, ValueError."""
    here: Any = document
    for part in re.findall(r"\[[^\]]+\]|[^.\[\]]+", path):
        if part.startswith("["):
            key, _, wanted = part[1:-1].partition("=")
            found: list[Any] = [entry for entry in here if str(entry.get(key)) == wanted]
            if not found:
                raise KeyError(f"no entry with {part} in {path}")
            here = found[0]
        else:
            try:
                here = here[int(part) if isinstance(here, list) else part]
            except (KeyError, IndexError, TypeError) as error:
                raise KeyError(f"no {part!r} in {path}") from error
    if isinstance(here, bool) or not isinstance(here, int | float):
        raise ValueError(f"{path} is {here!r}, not a number")
    return float(here)
