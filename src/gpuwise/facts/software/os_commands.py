"""How a family of Linux distributions installs a driver, rebuilds its modules, and lets containers use GPUs.

``data/os_commands.toml``: one table is one family, with the page its commands are described on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.facts.loading import Field
from gpuwise.facts.sources import cited_tables

OS_COMMAND_SCHEMA: dict[str, Field] = {
    "ids": Field("names"),
    "driver_open": Field("names"),
    "driver_closed": Field("names"),
    "rebuild": Field("names"),
    "initramfs": Field("names"),
    "install": Field("text"),
    "key": Field("text"),
    "toolkit": Field("names"),
    "source": Field("text"),
}


@dataclass(frozen=True, slots=True)
class OsCommands:
    """The commands of one family of distributions; ``{branch}``, ``{version}`` and ``{arch}`` are still to be filled in."""

    family: str
    ids: tuple[str, ...]
    driver_open: tuple[str, ...]
    driver_closed: tuple[str, ...]
    rebuild: tuple[str, ...]
    initramfs: tuple[str, ...]
    install: str
    key: str
    toolkit: tuple[str, ...]
    source_key: str


def os_commands_for(ids: Iterable[str]) -> OsCommands | None:
    """The commands for the first of ``ids`` (ID, then ID_LIKE of os-release) that a family claims; None when none does."""
    for name in ids:
        for family in os_commands().values():
            if name.lower() in family.ids:
                return family
    return None


@cache
def os_commands() -> Mapping[str, OsCommands]:
    """Every family by name. Raises DataError when the file is corrupt."""
    records = cited_tables("os_commands.toml", OS_COMMAND_SCHEMA)
    return MappingProxyType(
        {
            name: OsCommands(
                family=name,
                ids=r.names("ids"),
                driver_open=r.names("driver_open"),
                driver_closed=r.names("driver_closed"),
                rebuild=r.names("rebuild"),
                initramfs=r.names("initramfs"),
                install=r.text("install"),
                key=r.text("key"),
                toolkit=r.names("toolkit"),
                source_key=r.text("source"),
            )
            for name, r in records.items()
        }
    )
