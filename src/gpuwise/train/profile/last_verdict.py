"""The last verdict on each script, so that the verdict on an unchanged script is stable between runs."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import cast

from gpuwise.records.store import records_path

MOST = 200
"""Scripts that are remembered; the oldest is forgotten first."""


def _file() -> Path:
    return records_path().parent / "profile_verdicts.json"


def _key(script: str, arguments: tuple[str, ...]) -> str:
    place = script if not Path(script).exists() else str(Path(script).resolve())
    return hashlib.sha256("\0".join((place, *arguments)).encode()).hexdigest()[:24]


def _load() -> dict[str, str]:
    with suppress(OSError, ValueError):
        kept = json.loads(_file().read_text("utf-8"))
        if isinstance(kept, dict):
            return {str(k): str(v) for k, v in cast("dict[object, object]", kept).items()}
    return {}


def verdict_before(script: str, arguments: tuple[str, ...]) -> str | None:
    """Kind of the last verdict on this script with these arguments; None where there is none."""
    return _load().get(_key(script, arguments))


def remember(script: str, arguments: tuple[str, ...], kind: str) -> None:
    """Store the verdict; ignored where the folder cannot be written."""
    key, kept = _key(script, arguments), _load()
    kept.pop(key, None)
    kept[key] = kind
    file = _file()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        part.write_text(json.dumps(dict(list(kept.items())[-MOST:])), "utf-8")
        part.replace(file)
