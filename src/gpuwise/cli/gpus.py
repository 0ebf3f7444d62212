"""``gpuwise gpus``: the catalogue of accelerators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuwise.cli.reports import report
from gpuwise.cli.shown import options_shown

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.facts.hardware.accelerators import Accelerator
else:
    Shown = options_shown("gpus")


def gpus(*query: str, shown: Shown | None = None, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """List the known accelerators; with a name: all its figures and their sources.

    Parameters
    ----------
    query
        A name (h100-sxm, 4090), or words to search for (hopper, amd 192).
    json
        One JSON document on the last line of stdout.
    """
    matches = _search(" ".join(query))
    from gpuwise.report.answers.catalogue import gpus_answer

    report({"accelerators": [_document(a) for a in matches]}, gpus_answer, shown, json=json)
    return 0


def _search(query: str) -> list[Accelerator]:
    """The accelerators ``query`` means: the one so named, or all that contain its words. Raises
    UnknownNameError."""
    from gpuwise.errors import AmbiguousNameError, UnknownNameError
    from gpuwise.facts.hardware.accelerators import accelerators
    from gpuwise.facts.hardware.naming import find_accelerator, named_with_count

    catalogue = accelerators()
    if not query:
        return list(catalogue.values())
    try:
        return [find_accelerator(query)]
    except AmbiguousNameError as error:
        return [catalogue[name] for name in error.candidates if name in catalogue] or list(catalogue.values())
    except UnknownNameError:
        words = query.lower().split()
        matches = [a for a in catalogue.values() if words and all(w in _text(a) for w in words)]
        return matches or [catalogue[name] for name in named_with_count(query)]


def _text(a: Accelerator) -> str:
    memory = "" if a.memory_nominal_gb is None else f" {a.memory_nominal_gb:g}gb"
    return f"{a.id} {a.name} {a.vendor} {a.family} {a.memory_type} {a.form} {a.year}{memory}".lower()


def _document(a: Accelerator) -> dict[str, object]:
    from dataclasses import fields

    out: dict[str, object] = {}
    for f in fields(a):
        value: Any = getattr(a, f.name)
        out[f.name] = dict(value) if hasattr(value, "keys") else [*value] if isinstance(value, tuple) else value
    return out
