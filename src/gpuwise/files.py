"""Files and lines that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpuwise.errors import InputError, require

PAGE_SUFFIXES = (".html", ".htm")
FIGURE_SUFFIXES = (".svg",)


def write_whole(path: Path, content: bytes | str) -> None:
    """Write ``content`` (text as UTF-8) to ``path`` in one step: a reader sees the old file or the new one.

    Raises InputError where it cannot be written there.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}", hint="choose another place") from None


def drop_torn_line(path: Path) -> None:
    """Cut what a dead process left after the last whole line of ``path``, so that what is appended next starts a line. A kill
    can end a write where a page of the file does."""
    try:
        with path.open("r+b") as file:
            content = file.read()
            if not content.endswith(b"\n"):
                file.truncate(content.rfind(b"\n") + 1)
    except FileNotFoundError:
        pass


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
