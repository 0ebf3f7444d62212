"""Systems (accelerators in one host with their links) and clusters (systems with their network).

Every rate is one direction, per accelerator unless the name differs. The tables are ``data/systems.toml``,
``data/networks.toml`` (between hosts) and ``data/links.toml`` (inside a host).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType

from gpuwise.errors import DataError, FieldError, InputError, UnknownNameError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators, check_accelerator
from gpuwise.facts.loading import Field, Record, ShippedData, parse_toml, shipped_text
from gpuwise.facts.sources import check_source, sources
from gpuwise.units import GIB, GIGA


@dataclass(frozen=True, slots=True)
class System:
    """One scale-up domain as it is sold: a DGX H100, an NVL72 rack, a PCIe box, a workstation."""

    id: str
    name: str
    accelerator: Accelerator
    count: int
    """Accelerators in one host (for collectives: the scale-up domain is ``domain_size``)."""
    topology: str
    """``switch`` (NVSwitch: every pair at full link rate), ``mesh`` (xGMI or NVLink without switch),
    ``torus`` (TPU, Trainium), ``pcie`` (through the host's PCIe tree), ``single`` (no link: over the
    network)."""
    link_kind: str
    link_bytes_per_s: float
    """Per accelerator, one direction, inside the domain."""
    domain_size: int
    """Accelerators that reach each other at ``link_bytes_per_s``: 8 in an HGX, 72 in an NVL72, 2 for a
    bridge."""
    network_bytes_per_s: float
    """Scale-out network per accelerator, one direction (an 8x400 Gb/s node: 50e9)."""
    network_kind: str
    """``infiniband``, ``roce``, ``ethernet``, ``efa``, ``none``."""
    host_memory_bytes: float
    """Memory of one host; identical to its accelerators' when they have ``unified_memory``."""
    source: str
    aliases: tuple[str, ...] = ()
    host_aliases: tuple[str, ...] = ()
    """Names of one host of a rack (a cloud's instance type); the others mean the ``rack``."""
    rack: int = 0
    """Accelerators of a name that is a rack of hosts: 72 of a GB200 NVL72."""
    network_id: str = ""
    """The row of ``data/networks.toml``."""
    max_power_w: float | None = None
    """The most one host draws, accelerators included; None when unpublished."""
    assumed: tuple[str, ...] = ()
    """Unpublished fields with typical values. Results that depend on one say so."""
    stated_host_memory_bytes: float | None = None
    """Memory of one host as stated by the user; None: the system's."""

    @property
    def linked(self) -> bool:
        """Whether its accelerators have a link of their own, beside the host's PCIe."""
        return not self.topology.startswith("pcie")


@dataclass(frozen=True, slots=True)
class Cluster:
    """``n_accelerators`` of one kind in equal systems."""

    system: System
    n_accelerators: int
    assumption: str = field(default="", compare=False)
    """Assumption for an ambiguous name, in words; empty for a clear one."""
    parts: tuple[Cluster, ...] = ()
    """Unlike cards of one host (:func:`joined`), whose mean is ``accelerator``; empty for one kind."""
    instance: str = ""
    """The cloud's instance type that was named; empty for others."""
    provider: str = ""
    """Whose ``instance`` it is."""

    @property
    def accelerator(self) -> Accelerator:
        return self.system.accelerator

    @property
    def n_systems(self) -> int:
        """Hosts that the accelerators fill, the last one perhaps in part."""
        return -(-self.n_accelerators // self.system.count)

    @property
    def label(self) -> str:
        """``8x H100 SXM5 80GB`` or ``16x (2 systems of 8) ...``"""
        if self.parts:
            return " + ".join(part.label for part in self.parts)
        one = f"{self.n_accelerators}x {self.accelerator.name}"
        return one if self.n_systems == 1 else f"{one} ({self.n_systems} systems of {self.system.count})"


def joined(clusters: Sequence[Cluster]) -> Cluster:
    """Unlike cards of one host, for a program that holds layers in turn on them by their memory ``M``: as many of one mean card.

    Each holds the share ``s = M / sum(M)`` of the layers and works while the others wait, so that times add up: the mean has
    ``sum(M) / n`` of memory, and every rate ``r`` is ``1 / sum(s / r)``. Cards of one kind are a cluster of it.

    Raises InputError for devices that are no cards of one host (Macs, racks).
    """
    kinds: dict[str, Cluster] = {}
    for c in clusters:
        if c.n_systems > 1 or c.accelerator.unified_memory or c.accelerator.form in ("Superchip", "Cloud"):
            raise InputError(f"{c.label} is not cards of one PC", hint="name cards: 3090+3060")
        same = kinds.get(c.accelerator.typed)
        n = c.n_accelerators + (0 if same is None else same.n_accelerators)
        kinds[c.accelerator.typed] = Cluster(replace(c.system, count=max(n, c.system.count)), n, c.assumption)
    parts = tuple(kinds.values())
    if len(parts) == 1:
        return parts[0]
    n = sum(c.n_accelerators for c in parts)
    total = sum(c.n_accelerators * c.accelerator.memory_bytes for c in parts)
    weighed = [(c.n_accelerators * c.accelerator.memory_bytes / total, c.accelerator) for c in parts]
    largest = max(weighed, key=lambda pair: pair[0])[1]

    def rate(values: Iterable[float | None]) -> float | None:
        """Of the mean card; None where a card has none."""
        found = [*values]
        return None if None in found else 1.0 / sum(s / v for (s, _), v in zip(weighed, found, strict=True) if v)

    def clock(a: Accelerator) -> float | None:
        return a.compute_units * a.boost_hz if a.compute_units and a.boost_hz else None

    clocks = rate(clock(a) for _, a in weighed)
    formats = [f for f in largest.peak_flop_per_s if all(f in a.peak_flop_per_s for _, a in weighed)]
    visible = [a.memory_visible_bytes for _, a in weighed]
    mean = replace(
        largest,
        id="+".join(c.accelerator.id for c in parts),
        name=" + ".join(c.accelerator.name for c in parts),
        memory_bytes=total / n,
        memory_visible_bytes=None
        if None in visible
        else sum(c.n_accelerators * (c.accelerator.memory_visible_bytes or 0.0) for c in parts) / n,
        memory_nominal_gb=None,
        memory_bandwidth_bytes_per_s=rate(a.memory_bandwidth_bytes_per_s for _, a in weighed) or 0.0,
        peak_flop_per_s=MappingProxyType(
            {f: found for f in formats if (found := rate(a.peak_flop_per_s[f] for _, a in weighed)) is not None}
        ),
        compute_units=None if clocks is None or not largest.boost_hz else max(round(clocks / largest.boost_hz), 1),
        aliases=(),
        list_price_usd=None,
    )
    system = next(c.system for c in parts if c.accelerator is largest)
    said = "; ".join(filter(None, (c.assumption for c in parts)))
    split = f"layers are split by memory: {', '.join(f'{100 * s:.0f} % on {a.name}' for s, a in weighed)}"
    return Cluster(replace(system, accelerator=mean, count=n), n, "; ".join(filter(None, (said, split))), parts)


@dataclass(frozen=True, slots=True)
class Network:
    """One generation of a scale-out network."""

    id: str
    name: str
    kind: str
    """``infiniband``, ``roce``, ``ethernet``, ``efa``."""
    port_bytes_per_s: float
    """Data rate of one port, one direction, after line coding."""
    source: str


@dataclass(frozen=True, slots=True)
class LinkGeneration:
    """One generation of links between accelerators, one direction."""

    kind: str
    name: str
    lane_bytes_per_s: float
    link_count: int
    """Links of the largest device of the generation."""
    source: str

    @property
    def most_bytes_per_s(self) -> float:
        """Upper bound for any device of the generation."""
        return self.lane_bytes_per_s * self.link_count


_text, _number, _optional = Field("text"), Field("number"), Field("number", required=False)
_SYSTEM_SCHEMA = {
    "name": _text,
    "accelerators": Field("names"),
    "default": Field("flag", required=False),
    "aliases": Field("names", required=False),
    "host_aliases": Field("names", required=False),
    "rack": Field("integer", required=False, maximum=1024),
    "count": Field("integer", maximum=64),
    "topology": Field("text", choices=("switch", "mesh", "torus", "pcie", "single")),
    "link_kind": Field("text", required=False),
    "link_gb_s": _optional,
    "domain_size": Field("integer", maximum=100_000),
    "network": _text,
    "ports": Field("integer", maximum=64),
    "host_memory_gib": _number,
    "max_power_w": _optional,
    "assumed": Field("names", required=False),
    "source": _text,
}
_NETWORK_SCHEMA = {
    "kind": Field("text", choices=("infiniband", "roce", "ethernet", "efa")),
    "name": _text,
    "data_gbit_s": _number,
    "source": _text,
}
_LINK_SCHEMA = {
    "name": _text,
    "lane_gb_s": _number,
    "link_count": Field("integer", maximum=64),
    "source": _text,
}

_GBIT = GIGA / 8
"""Bytes in a gigabit."""
_CONSUMER_NAMES = (
    "GTX",
    "RTX 20",
    "RTX 30",
    "RTX 40",
    "RTX 50",
    "TITAN",
    "RX ",
    "Radeon VII",
    "Arc A",
    "Arc B",
)
_UNLINKED_FORMS = ("SoC", "Laptop")


@cache
def networks() -> Mapping[str, Network]:
    """Scale-out networks by id. Raises DataError when the shipped file is corrupt."""
    return MappingProxyType(
        {
            r.name: Network(r.name, r.text("name"), r.text("kind"), r.number("data_gbit_s") * _GBIT, r.text("source"))
            for r in _shipped_table("networks.toml", _NETWORK_SCHEMA).values()
        }
    )


@cache
def link_generations() -> Mapping[str, LinkGeneration]:
    """Accelerator links by kind. Raises DataError when the shipped file is corrupt."""
    return MappingProxyType(
        {
            r.name: LinkGeneration(
                r.name,
                r.text("name"),
                r.number("lane_gb_s") * GIGA,
                r.integer("link_count"),
                r.text("source"),
            )
            for r in _shipped_table("links.toml", _LINK_SCHEMA).values()
        }
    )


@cache
def systems() -> Mapping[str, System]:
    """Systems by id, with the device each is usually sold with. Raises DataError."""
    return MappingProxyType({name: usual_system(name) for name in system_names()})


@cache
def usual_system(system_id: str) -> System:
    """The system with the device that it is usually sold with. Raises DataError."""
    record = _system_records()[system_id]
    return _system(record, accelerators()[record.names("accelerators")[0]])


def system_key(text: str) -> str:
    """The spelling under which a system or an instance type is looked up."""
    return re.sub(r"[\s_-]+", "-", text.strip().lower())


@cache
def system_names() -> Mapping[str, Sequence[str]]:
    """Id and aliases, of its hosts too, by the id of each system that is sold with a device. Raises DataError."""
    return MappingProxyType(
        {
            name: (name, *record.names("aliases"), *record.names("host_aliases"))
            for name, record in _system_records().items()
            if record.names("accelerators")
        }
    )


def system_with(system_id: str, accelerator: Accelerator) -> System:
    """The system ``system_id`` built with ``accelerator``. Raises FieldError when it is not sold with it."""
    record = _system_records()[system_id]
    sold_with = record.names("accelerators")
    if accelerator.id not in sold_with:
        raise FieldError(
            f"{record.text('name')} does not come with {accelerator.name}",
            field="accelerator",
            hint="it comes with " + ", ".join(sold_with),
        )
    return _system(record, accelerator)


def systems_of(accelerator: Accelerator) -> tuple[System, ...]:
    """Every system sold with ``accelerator``, its usual one first; never empty."""
    usual = default_system(accelerator)
    others = [_system(r, accelerator) for r in _records_with(accelerator.id) if r.name != usual.id]
    return (usual, *others)


@cache
def default_system(accelerator: Accelerator) -> System:
    """The system a device is usually in: its own if ``systems.toml`` has one, else the box its form goes
    into."""
    for record in _records_with(accelerator.id):
        if record.values.get("default"):
            return _system(record, accelerator)
    if accelerator.form in _UNLINKED_FORMS or accelerator.pcie_bytes_per_s is None:
        return box("single-device", accelerator)
    return box("consumer-box" if accelerator.name.startswith(_CONSUMER_NAMES) else "pcie-server", accelerator)


MOST_HOST_BYTES = 64 * 1024 * GIB
"""The largest of the catalogue has 4 TiB."""


def with_host_memory(cluster: Cluster, host_memory_bytes: float | None) -> Cluster:
    """``cluster`` with that much memory per host (None: the system's). Raises InputError for an impossible size, and if host
    and accelerator share one memory."""
    system = cluster.system
    if host_memory_bytes is None:
        return cluster
    if not 0 < host_memory_bytes <= MOST_HOST_BYTES:
        raise InputError(f"no host has {host_memory_bytes / GIB:,.4g} GiB", hint="up to 64 TiB, like --host-memory 64GB")
    if system.accelerator.unified_memory:
        raise InputError(
            f"{system.accelerator.name} shares its memory with the host", hint="give its size in --on, like 'M3 Max 64GB'"
        )
    stated = replace(
        system,
        stated_host_memory_bytes=host_memory_bytes,
        assumed=tuple(name for name in system.assumed if name != "host_memory_gib"),
    )
    return replace(cluster, system=stated)


def with_count(system: System, count: int) -> System:
    """``system`` with ``count`` accelerators in each host.

    A device takes over the network share of missing ones, up to one port: beyond that it has no lanes.
    """
    port = networks()[system.network_id].port_bytes_per_s
    share = system.network_bytes_per_s * system.count / count
    within_host = system.domain_size <= system.count
    shared_bytes = system.accelerator.memory_bytes * count
    return replace(
        system,
        host_memory_bytes=shared_bytes if system.accelerator.unified_memory else system.host_memory_bytes,
        count=count,
        domain_size=min(system.domain_size, count) if within_host else system.domain_size,
        network_bytes_per_s=max(min(share, port), system.network_bytes_per_s),
    )


def box(name: str, accelerator: Accelerator) -> System:
    """``accelerator`` in a box that is no product: ``pcie-server``, ``consumer-box`` or ``single-device``."""
    return _system(_system_records()[name], accelerator)


def system_named(system_id: str, accelerator: Accelerator, count: int | None = None) -> System:
    """The system ``system_id`` with ``accelerator``, ``count`` of them in each host (default: as it is sold), boxes that are no
    products too. Raises UnknownNameError, FieldError when it is not sold with it, DataError when it cannot be."""
    record = _system_records().get(system_id)
    if record is None:
        raise UnknownNameError("system", system_id, _system_records())
    system = system_with(system_id, accelerator) if record.names("accelerators") else _system(record, accelerator)
    return system if count in (None, system.count) else with_count(system, count)


def _records_with(accelerator_id: str) -> Sequence[Record]:
    return _records_by_accelerator().get(accelerator_id, ())


@cache
def _records_by_accelerator() -> Mapping[str, Sequence[Record]]:
    by_accelerator: dict[str, list[Record]] = {}
    for record in _system_records().values():
        for accelerator_id in record.names("accelerators"):
            by_accelerator.setdefault(accelerator_id, []).append(record)
    return MappingProxyType(by_accelerator)


@cache
def _system_records() -> Mapping[str, Record]:
    records = _shipped_table("systems.toml", _SYSTEM_SCHEMA)
    with ShippedData():
        for record in records.values():
            _check(record)
    return MappingProxyType(records)


def _check(record: Record) -> None:
    """Names that must exist elsewhere, and sizes that must agree. Raises FieldError."""
    check_source(record)
    if record.text("network") not in networks():
        raise record.error(f"network {record.text('network')!r} is not in networks.toml", field="network")
    check_accelerator(record, record.names("accelerators"), field="accelerators")
    for name in record.names("assumed"):
        if name not in _SYSTEM_SCHEMA:
            raise record.error(f"assumed names {name!r}, which is not a field", field="assumed")


def _system(record: Record, accelerator: Accelerator) -> System:
    network = networks()[record.text("network")]
    network_bytes_per_s = network.port_bytes_per_s * record.integer("ports") / record.integer("count")
    topology = record.text("topology")
    link_gb_s = record.maybe("link_gb_s")
    if link_gb_s is not None:
        link_kind, link_bytes_per_s = record.text("link_kind"), link_gb_s * GIGA
    elif topology == "single":
        link_kind, link_bytes_per_s = network.kind, network_bytes_per_s
    elif topology == "pcie":
        link_kind, link_bytes_per_s = "pcie", accelerator.pcie_bytes_per_s
    else:
        link_kind, link_bytes_per_s = accelerator.link_kind, accelerator.link_bytes_per_s
    if link_kind is None or link_bytes_per_s is None:
        raise DataError(f"system {record.name}: {accelerator.id} has no link for topology {topology!r}")
    source = sources()[record.text("source")]
    return System(
        id=record.name,
        name=record.text("name"),
        accelerator=accelerator,
        count=record.integer("count"),
        topology=topology,
        link_kind=link_kind,
        link_bytes_per_s=link_bytes_per_s,
        domain_size=record.integer("domain_size"),
        network_bytes_per_s=network_bytes_per_s,
        network_kind=network.kind,
        host_memory_bytes=accelerator.memory_bytes * record.integer("count")
        if accelerator.unified_memory
        else record.number("host_memory_gib") * GIB,
        source=f"{source.title} <{source.url}>" if source.url else source.title,
        aliases=record.names("aliases"),
        host_aliases=record.names("host_aliases"),
        rack=int(record.maybe("rack") or 0),
        network_id=network.id,
        max_power_w=record.maybe("max_power_w"),
        assumed=record.names("assumed"),
    )


def _shipped_table(name: str, schema: Mapping[str, Field]) -> dict[str, Record]:
    with ShippedData():
        return parse_toml(shipped_text(name), schema, name)
