"""Entries of a shipped TOML file, each with a source, and the one that a person means by a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from gpuwise.errors import UnknownNameError
from gpuwise.facts.loading import shipped_text


class Named(Protocol):
    """What is asked for by its id, its name or an alias."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...


Entry = TypeVar("Entry", bound=Named)


def find_named(entries: Iterable[Entry], text: str) -> Entry | None:
    """The entry that ``text`` is the id, the name or an alias of, in any case; None where it is of none."""
    spelling = text.strip().lower()
    return next((e for e in entries if spelling in (e.id, e.name.lower(), *e.aliases)), None)


def named(entries: Mapping[str, Entry], text: str, kind: str) -> Entry:
    """:func:`find_named`. Raises UnknownNameError, which calls them ``kind`` and lists them."""
    found = find_named(entries.values(), text)
    if found is None:
        raise UnknownNameError(kind, text, list(entries), hint="it is one of " + ", ".join(entries))
    return found


def find_shipped(file: str, entries: Callable[[], Mapping[str, Entry]], text: str) -> Entry | None:
    """:func:`find_named` in the ``entries`` of a shipped ``file``, which are read for no ``text`` that it does not have."""
    if text.strip().lower() not in shipped_text(file).lower():
        return None
    return find_named(entries().values(), text)
