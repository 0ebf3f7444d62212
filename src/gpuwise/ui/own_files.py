"""What lies in one folder: a person's own code, run when a button of the page says so, never because of an address; and runs on
ranks, whose journals are read by the names that are listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from gpuwise.errors import InputError
from gpuwise.ui.questions import GPUS, checked

MOST = 200
"""Files that are listed."""


def own_files(folder: Path) -> list[str]:
    """The Python files that lie in ``folder`` itself, by name; links that lead out of it are left out."""
    inside = folder.resolve()
    found = (p.name for p in sorted(folder.glob("*.py")) if p.is_file() and p.resolve().parent == inside and p.name.isprintable())
    return list(found)[:MOST]


def own_runs(folder: Path) -> dict[str, str]:
    """Runs on ranks with their journals in ``folder`` or in a folder of it: name to absolute path, the newest first."""
    from gpuwise.train.ranks.report import SETTINGS, is_run

    inside = folder.resolve()
    places = [folder, *(p for p in folder.glob("*") if p.is_dir() and p.resolve().parent == inside)]
    found = [p for p in places if p.name.isprintable() and is_run(p)]
    found.sort(key=lambda p: -(p / SETTINGS).stat().st_mtime)
    return {p.name: str(p.absolute()) for p in found[:MOST]}


def words_of_file(body: bytes, folder: Path) -> list[str]:
    """The command line of what a page asks of one's own code. Raises InputError."""
    try:
        given: Any = json.loads(body)
    except ValueError:
        given = None
    return words_of_fields(given, folder)


def words_of_fields(given: Any, folder: Path) -> list[str]:
    """The same of its fields. Raises InputError."""
    names = ("file", "function", "on")
    asked = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    if set(asked) != set(names) or not all(isinstance(asked[n], str) for n in names):
        raise InputError("the question is not complete", hint="give a file, a function and the GPUs")
    if asked["file"] not in own_files(folder):
        raise InputError(f"{asked['file']!r} is not one of the files listed", hint="pick one of the list")
    if not asked["function"].isidentifier():
        raise InputError(f"{asked['function']!r} is not the name of a function", hint="for example make_step")
    if not asked["on"].strip() or asked["on"].startswith("-"):
        raise InputError("no GPUs are given", hint="for example 4090")
    return ["fit", f"{folder / asked['file']}:{asked['function']}", "--on", checked(GPUS, asked["on"].strip())]
