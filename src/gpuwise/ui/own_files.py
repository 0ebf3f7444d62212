"""A person's own code: files of one folder, run when a button of the page says so, never because of an address."""

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


def words_of_file(body: bytes, folder: Path) -> list[str]:
    """The command line of what a page asks of one's own code. Raises InputError."""
    try:
        given: Any = json.loads(body)
    except ValueError:
        given = None
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
