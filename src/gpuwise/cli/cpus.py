"""``gpuwise cpus``: the catalogue of processors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from gpuwise.facts.hardware.cpus import Cpu

GIVES_WAY = ("fp32", "family", "year", "W", "clock")
"""Columns left out, in this order, until the others stand whole."""
_MANY = 100
"""Beyond so many lines families are listed, not processors."""


def cpus(*query: str, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """List the known processors (CPUs) by family; with a name or words: each, with its memory.

    Parameters
    ----------
    query
        A name (Ryzen 7 5700G, EPYC 9654), with its memory (i5-12400 ddr4-3200x2), or words to search for (xeon gold, zen 4).
    json
        One JSON document on the last line of stdout.
    """
    matches = _search(" ".join(query))
    if json:
        from gpuwise.cli.out import print_json

        print_json({"processors": [_document(c) for c in matches]})
    elif len(matches) > _MANY:
        _families(matches)
    else:
        _list(matches)
    return 0


def _search(query: str) -> list[Cpu]:
    """The processor so named, or all that have its words. Raises UnknownNameError, InputError."""
    from gpuwise.errors import AmbiguousNameError, UnknownNameError
    from gpuwise.facts.hardware.cpus import cpus as catalogue
    from gpuwise.facts.hardware.cpus import find_cpu

    if not query:
        return [*catalogue().values()]
    try:
        return [find_cpu(query)]
    except (UnknownNameError, AmbiguousNameError):
        words = query.lower().split()
        matches = [c for c in catalogue().values() if words and all(w in _text(c) for w in words)]
        if not matches:
            raise
        return matches


def _text(c: Cpu) -> str:
    return f"{c.id} {c.name} {c.vendor} {c.family} {c.kind} {c.memory_type} {c.year}".lower()


def _families(matches: list[Cpu]) -> None:
    from gpuwise.cli.out import console, table_of

    to = console()
    table = table_of(["vendor", "family", "years", "processors", "like"], left=("vendor", "family", "like"), wrap=("like",))
    by_family: dict[tuple[str, str], list[Cpu]] = {}
    for c in sorted(matches, key=lambda c: (c.vendor, c.year)):
        by_family.setdefault((c.vendor, c.family), []).append(c)
    for (vendor, family), members in by_family.items():
        first, last = members[0].year, members[-1].year
        years = str(first) if first == last else f"{first}-{last}"
        table.add_row(vendor, family, years, str(len(members)), members[len(members) // 2].name)
    to.print(table)
    to.print(f"{len(matches)} processors; `gpuwise cpus zen 4` or `gpuwise cpus xeon gold` lists some", style="dim")


def _list(matches: list[Cpu]) -> None:
    from gpuwise.cli.out import console, table_of
    from gpuwise.units import GIGA, format_rate

    to = console()
    columns = ["name", "family", "year", "cores", "clock", "memory", "bandwidth", "fp32", "W"]
    table = table_of(columns, left=("name", "family", "memory"), wrap=("name", "memory"), gives_way=GIVES_WAY)
    for c in sorted(matches, key=lambda c: (c.vendor, c.year, c.name)):
        table.add_row(
            c.name,
            c.family,
            str(c.year),
            f"{c.cores}+{c.efficiency_cores}" if c.efficiency_cores else str(c.cores),
            "-" if c.allcore_hz is None else f"{c.allcore_hz / GIGA:.2g} GHz",
            c.memory,
            format_rate(c.memory_bandwidth_bytes_per_s, "B/s"),
            format_rate(c.peak("fp32"), "FLOP/s"),
            "-" if c.tdp_w is None else f"{c.tdp_w:.0f}",
        )
    to.print(table)
    notes = [f"{len(matches)} processors", "clock: all cores busy", "memory: type-MT/s x channels of 64 bits, the fastest stated"]
    if len(matches) == 1:
        c = matches[0]
        notes = [c.assumption, c.notes, f"source: {c.source}", f"weak: {', '.join(c.weak)} (no vendor source)" if c.weak else ""]
    for note in filter(None, notes if len(matches) == 1 else ["; ".join(notes)]):
        to.print(note, style="dim")


def _document(c: Cpu) -> dict[str, object]:
    from dataclasses import asdict, fields

    out: dict[str, object] = {f.name: getattr(c, f.name) for f in fields(c)}
    rental = None if c.rental is None else {**asdict(c.rental), "as_of": c.rental.as_of.isoformat()}
    return out | {"peak_flop_per_s": dict(c.peak_flop_per_s), "rental": rental}
