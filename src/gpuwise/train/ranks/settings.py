"""Settings of one rank: task, layout, length, and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from gpuwise.errors import InputError
from gpuwise.files import read_bytes
from gpuwise.train.ranks.layout import Layout


class RankSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of one training, the same on every rank."""

    target: str
    """``train.py:make_step``, or a script."""
    layout: Layout
    out: str
    """The folder of journals and checkpoints."""
    settings: list[str] = []
    """Other keywords of the function, as ``key=value``."""
    steps: int | None = None
    """Updates in all; without it ``epochs`` of them."""
    epochs: float = 1.0
    workers: int = 0
    """Workers of each rank's loader."""
    seed: int = 0
    save_every: int | None = None
    """Steps between checkpoints; without it ``save_every_s`` seconds."""
    save_every_s: float = 600.0
    """Rule of this project; ``gpuwise plan`` reports the optimum for a machine's failure rate."""
    keep: int = 2
    """Checkpoints, the newest."""
    whole: bool = False
    """Whether the target is a script that runs as a whole, and saves what it saves itself."""
    own: bool = False
    """Whether such a script divides its work over ranks itself."""
    arguments: list[str] = []
    """Arguments of the script."""
    predicted_step_s: float | None = None
    """Predicted step time, by the plan or earlier runs; written beside the measured ones."""
    time_exchanges: bool = False
    """Whether collectives are timed on two payloads before the first step."""
    prune: str | None = None
    """Share of the weights that become zeros, or ``2:4``."""
    levers: dict[str, Any] = {}
    """Levers of a script, applied by each rank."""
    teacher: str | None = None
    """``teacher.py:make_teacher`` or ``hf:folder``: whose logits the model is drawn to."""


def write_settings(settings: RankSettings, path: Path) -> None:
    """Write the settings as JSON."""
    path.write_bytes(msgspec.json.encode(settings))


def read_settings(path: Path) -> RankSettings:
    """Read settings. Raises InputError where the file was not written by :func:`write_settings`."""
    try:
        return msgspec.json.decode(read_bytes(path), type=RankSettings)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"{path}: no settings of ranks: {error}") from None
