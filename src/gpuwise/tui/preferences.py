"""Preferences of the terminal screen (theme, order of the table), stored as JSON between runs.

A file that cannot be read or written is ignored: the screen works without it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from gpuwise.errors import FileError
from gpuwise.files import read_json


@dataclass(frozen=True, slots=True)
class Preferences:
    """The preferences of one person."""

    theme: str = "textual-dark"
    sort: str = "memory"
    falling: bool = True
    tree: bool = False


def preferences_path() -> Path:
    """The path of the preferences file: in ``GPUWISE_HOME`` or the user's configuration folder."""
    home = os.environ.get("GPUWISE_HOME")
    if home:
        return Path(home) / "top.json"
    from platformdirs import user_config_path

    return user_config_path("gpuwise", appauthor=False) / "top.json"


def recall(path: Path | None = None) -> Preferences:
    """The stored preferences; the defaults if there are none or they are unreadable."""
    try:
        saved = read_json(path or preferences_path())
    except FileError:
        return Preferences()
    if not isinstance(saved, dict):
        return Preferences()
    saved, begin = cast("dict[str, Any]", saved), Preferences()
    fit = {f.name: saved[f.name] for f in fields(Preferences) if type(saved.get(f.name)) is type(getattr(begin, f.name))}
    return replace(begin, **fit)


def remember(preferences: Preferences, path: Path | None = None) -> bool:
    """Store the preferences. Returns whether that succeeded."""
    to = path or preferences_path()
    beside = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(asdict(preferences)), encoding="utf-8")
        beside.replace(to)
    except OSError:
        return False
    return True
