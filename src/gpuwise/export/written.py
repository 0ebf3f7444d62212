"""Result of an exporter: files, the command that starts them, gaps."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuwise.errors import InputError
from gpuwise.text import shell_lines


@dataclass(frozen=True, slots=True)
class Written:
    """``command`` is the words of one command, run in the folder of ``files``; ``environment`` is set for it."""

    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    unset: tuple[str, ...] = ()
    """Variables that must not be set."""
    notes: tuple[str, ...] = ()
    """Values that the user must fill in or know."""


def wrapped(words: Sequence[str], width: int = 100) -> list[str]:
    """The words of a command as lines of a shell script."""
    return shell_lines(together(words), width)


def together(words: Sequence[str]) -> list[str]:
    """Options with their values, quoted for a shell; ``$NAME`` stays a variable."""
    out: list[str] = []
    for word in words:
        quoted = f'"{word}"' if "$" in word else shlex.quote(word)
        if out and not word.startswith("-") and out[-1].startswith("-") and " " not in out[-1]:
            out[-1] += f" {quoted}"
        else:
            out.append(quoted)
    return out


def write_files(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write all or nothing, and over nothing. Raises InputError where one of the names is taken."""
    existing = [name for name in files if (folder / name).exists()]
    if existing:
        raise InputError(
            f"{folder / existing[0]} already exists" + (f", and {len(existing) - 1} more" if len(existing) > 1 else ""),
            hint="give another --out, or move the old files: existing files are not overwritten",
        )
    paths: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755 if text.startswith("#!") else 0o644)
            paths.append(path)
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
    except OSError as error:
        for path in paths:
            path.unlink(missing_ok=True)
        raise InputError(
            f"cannot write {error.filename or folder}: {error.strerror}", hint="give another folder with --out"
        ) from None
    return paths
