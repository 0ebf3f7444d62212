"""``gpuwise cpus``: the catalogue of processors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.cli.reports import report
from gpuwise.cli.shown import options_shown

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.facts.hardware.cpus import Cpu
else:
    Shown = options_shown("cpus")


def cpus(*query: str, shown: Shown | None = None, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """List the known processors (CPUs); with a name or words: each, with its memory.

    Parameters
    ----------
    query
        A name (Ryzen 7 5700G, EPYC 9654), with its memory (i5-12400 ddr4-3200x2), or words to search for (xeon gold, zen 4).
    json
        One JSON document on the last line of stdout.
    """
    from gpuwise.report.answers.catalogue import cpus_answer

    report({"processors": [_document(c) for c in _search(" ".join(query))]}, cpus_answer, shown, json=json)
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


def _document(c: Cpu) -> dict[str, object]:
    from dataclasses import asdict, fields

    out: dict[str, object] = {f.name: getattr(c, f.name) for f in fields(c)}
    rental = None if c.rental is None else {**asdict(c.rental), "as_of": c.rental.as_of.isoformat()}
    return out | {"peak_flop_per_s": dict(c.peak_flop_per_s), "rental": rental}
