"""Clouds' instance types: whose each is, and the accelerators in it. The table is ``data/offers/instance_accelerators.csv``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.errors import DataError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.systems import system_key, system_names
from gpuwise.facts.loading import Field
from gpuwise.facts.sources import cited_rows

_text = Field("text")
INSTANCE_SCHEMA: dict[str, Field] = {
    "provider": _text,
    "instance": _text,
    "accelerator": _text,
    "count": Field("integer", required=False),
    "feed_name": Field("text", required=False),
    "source": _text,
}


@dataclass(frozen=True, slots=True)
class Instance:
    """Accelerators of an instance type (or of a pattern of them, with ``*`` and ``?``), from the provider's own documents."""

    provider: str
    name: str
    accelerator_id: str
    count: int | None
    """None: the pattern's types differ."""
    feed_name: str = ""
    """The accelerators in a feed that prices them apart from the machine."""


@cache
def instances() -> tuple[Instance, ...]:
    """Every row of the table. Raises DataError when it is corrupt or names a device that the catalogue lacks."""
    found: list[Instance] = []
    for r in cited_rows("instance_accelerators.csv", INSTANCE_SCHEMA):
        if (device := r.text("accelerator")) not in accelerators():
            raise DataError(f"{r.file}:{r.line}: {device!r} is not an id of the catalogue")
        found.append(Instance(r.text("provider"), r.text("instance"), device, r.maybe_integer("count"), r.text("feed_name")))
    return tuple(found)


@cache
def _by_name() -> Mapping[str, Instance]:
    """By instance type, for Azure's also without ``Standard_``, and by the name of a system that is only one type."""
    table: dict[str, Instance] = {}
    for instance in instances():
        if instance.count is not None and not {"*", "?"} & set(instance.name):
            key = system_key(instance.name)
            table[key] = table[key.removeprefix("standard-")] = instance
    for system_id, (_, *aliases) in system_names().items():
        known = [table[key] for key in map(system_key, aliases) if key in table]
        if known and len(known) == len(aliases):
            table.setdefault(system_key(system_id), known[0])
    return MappingProxyType(table)


def named_instance(name: str) -> Instance | None:
    """The instance type that ``name`` is, or whose system it is (``p4d``); None for others."""
    return _by_name().get(system_key(name))
