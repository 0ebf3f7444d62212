"""Contents of one folder: the user's own code, run only when a button of the page is pressed, never because of an address; and
runs on ranks, whose journals are read by their listed names."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, cast

from gpuwise.errors import InputError
from gpuwise.ui.questions import GPUS, Field, checked

BATCH, CHANGES = Field("batch", "Batch"), Field("change", "Changes")
MOST = 200
"""Files that are listed."""


def own_files(folder: Path) -> list[str]:
    """The Python files directly in ``folder``, by name, without links that lead out of it."""
    inside = folder.resolve()
    names = (p.name for p in sorted(folder.glob("*.py")) if p.is_file() and p.resolve().parent == inside and p.name.isprintable())
    return list(names)[:MOST]


def own_runs(folder: Path) -> dict[str, str]:
    """Runs on ranks with their journals in ``folder`` or in a folder of it: name to absolute path, the newest first."""
    from gpuwise.train.ranks.report import SETTINGS, is_run

    inside = folder.resolve()
    places = [folder, *(p for p in folder.glob("*") if p.is_dir() and p.resolve().parent == inside)]
    runs = [p for p in places if p.name.isprintable() and is_run(p)]
    runs.sort(key=lambda p: -(p / SETTINGS).stat().st_mtime)
    return {p.name: str(p.absolute()) for p in runs[:MOST]}


NEEDED, OPTIONAL = ("file", "on"), ("function", "arguments", "batch", "change", "remedies")
"""Fields of a question about own code: without a function the whole script is used, ``change`` has the values of --change,
separated by spaces, and ``remedies`` is yes if they are tried although it fits."""
LONGEST_LINE = 1000
"""Characters of a script's own arguments."""


def words_of_file(body: bytes, folder: Path) -> list[str]:
    """Command line for a page's question about own code. Raises InputError."""
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    return words_of_fields(document, folder)


def words_of_fields(document: Any, folder: Path) -> list[str]:
    """The same of its fields. Raises InputError."""
    values = cast("dict[str, Any]", document) if isinstance(document, dict) else {}
    is_complete = set(values) <= {*NEEDED, *OPTIONAL} and set(values) >= set(NEEDED)
    if not is_complete or not all(isinstance(value, str) for value in values.values()):
        raise InputError("the question is not complete", hint="give a file and the GPUs")
    if values["file"] not in own_files(folder):
        raise InputError(f"{values['file']!r} is not one of the files listed", hint="pick one of the list")
    function = values.get("function", "").strip()
    if function and not function.isidentifier():
        raise InputError(f"{function!r} is not the name of a function", hint="for example make_step; none for the whole script")
    if not values["on"].strip() or values["on"].startswith("-"):
        raise InputError("no GPUs are given", hint="for example 4090")
    subject = f"{folder / values['file']}" + (f":{function}" if function else "")
    words = ["fit", subject, "--on", checked(GPUS, values["on"].strip())]
    if values.get("batch", "").strip():
        words.append(f"--batch={checked(BATCH, values['batch'].strip())}")
    words += [f"--change={change}" for change in checked(CHANGES, values.get("change", "").strip()).split()]
    if values.get("remedies") == "yes" and not values.get("change", "").strip():
        words.append("--remedies")
    return [*words, *_arguments(values.get("arguments", ""))]


def _arguments(line: str) -> list[str]:
    """A script's own command line, as a shell parts it, after ``--``. Raises InputError."""
    if len(line) > LONGEST_LINE or not line.isprintable():
        raise InputError("Arguments: too long, or control characters", hint=f"at most {LONGEST_LINE:,} characters in one line")
    try:
        parts = shlex.split(line)
    except ValueError as error:
        raise InputError(f"Arguments: {str(error).lower()}", hint="close what is quoted") from None
    return ["--", *parts] if parts else []
