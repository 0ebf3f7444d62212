"""What a person chose on the screen and finds again next time: the theme and the columns' order. A file that cannot be read or
written is no reason to complain on a screen that works without it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Chosen:
    """The choices."""

    theme: str = "textual-dark"
    sort: str = "memory"
    falling: bool = True
    tree: bool = False


def place() -> Path:
    """Where they are kept."""
    home = os.environ.get("GPUWISE_HOME")
    if home:
        return Path(home) / "top.json"
    from platformdirs import user_config_path

    return user_config_path("gpuwise", appauthor=False) / "top.json"


def recall(path: Path | None = None) -> Chosen:
    """The choices of last time; where there are none, the ones we begin with."""
    try:
        told = json.loads((path or place()).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Chosen()
    if not isinstance(told, dict):
        return Chosen()
    begin = Chosen()
    fit = {f.name: told[f.name] for f in fields(Chosen) if type(told.get(f.name)) is type(getattr(begin, f.name))}
    return replace(begin, **fit)


def remember(chosen: Chosen, path: Path | None = None) -> bool:
    """Keep the choices; whether they could be kept."""
    to = path or place()
    beside = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(asdict(chosen)), encoding="utf-8")
        beside.replace(to)
    except OSError:
        return False
    return True
