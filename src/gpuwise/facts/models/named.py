"""Entries of a shipped TOML file, each with a source, and the one that a person means by a name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from gpuwise.errors import DataError, FieldError
from gpuwise.facts.loading import Field, Record, parse_toml, shipped_text
from gpuwise.facts.sources import check_source


class Named(Protocol):
    """What is asked for by its id, its name or an alias."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...


Entry = TypeVar("Entry", bound=Named)


def cited_entries(file: str, schema: Mapping[str, Field]) -> Iterator[tuple[str, Record]]:
    """(key, record) of every entry of ``file``. Raises DataError for a broken file or a source that sources.csv lacks."""
    try:
        for key, record in parse_toml(shipped_text(file), schema, file).items():
            check_source(record)
            yield key, record
    except FieldError as error:
        raise DataError(error.message, hint=error.hint) from error


def find_named(entries: Iterable[Entry], text: str) -> Entry | None:
    """The entry that ``text`` is the id, the name or an alias of, in any case; None where it is of none."""
    spelling = text.strip().lower()
    return next((e for e in entries if spelling in (e.id, e.name.lower(), *e.aliases)), None)
