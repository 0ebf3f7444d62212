"""Lines of the user's code that make a change: one writer for the diff of ``tune`` and for ``fit`` and ``plan`` with own code.

A writer returns edits of the script if a reader can check the change at a glance: arguments of ``DataLoader(...)``, of an
optimizer of torch and of ``zero_grad()``; settings of one line after the imports; lines on the model, behind the optimizer
that takes its parameters; a ``with`` around the forward pass. If the place is unknown, or the change is larger, it returns a
sketch: the lines to write, under their place.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuwise.files import read_text
from gpuwise.workload.changes.change import Change, Sites
from gpuwise.workload.changes.registry import BY_NAME
from gpuwise.workload.changes.script import Arguments, Code, Edit, Script, edited, hunks
from gpuwise.workload.changes.writers import WRITERS, Written


@dataclass(frozen=True, slots=True)
class Patch:
    """A unified diff, and the changes that it covers; the others are more than a diff of this script."""

    text: str
    covers: tuple[str, ...]


def diff_of(script: Path, changes: Mapping[str, object], *, device: str = "cuda") -> Patch:
    """Changes by name with their arguments, written into ``script``, which trains on a ``device`` of this kind. Empty where
    nothing can be changed safely; the changed script is parsed again before the diff is given."""
    parsed = Script.parse(str(script), read_text(script))
    if parsed is None:
        return Patch("", ())
    edits: list[Edit | Arguments] = []
    covers: list[str] = []
    for name, argument in changes.items():
        writer = WRITERS.get(name)
        result = Written() if writer is None else writer(Code(script=parsed, device=device), argument)
        if result.edits and result.is_complete:
            edits += result.edits
            covers.append(name)
    new_source = edited(parsed, edits)
    if new_source is None:
        return Patch("", ())
    name = str(script)
    text = "".join(difflib.unified_diff(parsed.rows, new_source.splitlines(keepends=True), f"a/{name}", f"b/{name}"))
    return Patch(text, tuple(covers) if text else ())


def by_hand(name: str, argument: object, *, device: str, optimizers: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Lines that make a change in a script of which nothing is known: a place (``# where the loader is made``), then Python; of a
    change that has no writer its registered code."""
    writer = WRITERS.get(name)
    if writer is None:
        return (BY_NAME[name].put_on.code.replace("{value}", str(argument)),)
    marks = {"+ ": "", "- ": "# out: ", "@ ": "# "}
    code = Code(Sites([], optimizers=optimizers), device=device)
    return tuple(marks[line[:2]] + line[2:] for line in writer(code, argument).sketch)


def snippet(changes: Sequence[Change], sites: Sites) -> tuple[str, ...]:
    """Lines for all of ``changes`` where a capture saw the code; those of a diff begin with ``- `` or ``+ ``, a place with
    ``@ ``."""
    for code in (Code(sites), Code(sites, is_blind=True)):
        results = [WRITERS[change.name](code, change.argument) for change in changes]
        edits = [e for w in results for e in w.edits]
        new_sources = {e.script: edited(e.script, edits) for e in edits}
        if None not in new_sources.values():
            break
    lines = [line for script, source in new_sources.items() for line in hunks(script, source or "")]
    return (*lines, *(line for w in results for line in w.sketch))
