"""Files and lines that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from gpuwise.errors import InputError


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
