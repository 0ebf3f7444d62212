"""Writing a report: the target is checked before anything is computed, and appears whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuwise.errors import InputError, require
from gpuwise.files import write_whole

PAGE_SUFFIXES = (".html", ".htm")
FIGURE_SUFFIXES = (".svg",)


def check_target(path: Path | None, suffixes: Sequence[str]) -> None:
    """Raises InputError when a file with one of ``suffixes`` cannot be written at ``path``, MissingExtraError
    when it holds figures and matplotlib is not installed; None is no target."""
    if path is None:
        return
    suffixes_text = " or ".join(suffixes)
    if path.is_dir():
        raise InputError(f"{path} is a directory", hint=f"name a file in it, for example {path / ('report' + suffixes[0])}")
    if path.suffix.lower() not in suffixes:
        what = f"{path.suffix!r} is" if path.suffix else f"{path} has no suffix: it is"
        raise InputError(f"{what} not a kind of file this writes", hint=f"end the name in {suffixes_text}")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a directory", hint="make it first")
    if path.suffix.lower() in (*PAGE_SUFFIXES, *FIGURE_SUFFIXES):
        require("matplotlib", "a figure")


def write_text(path: Path, text: str, suffixes: Sequence[str]) -> None:
    """Write ``text`` to ``path`` in one step: a reader sees the old file or the new one. Raises InputError."""
    check_target(path, suffixes)
    write_whole(path, text)
