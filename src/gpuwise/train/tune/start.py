"""What ``gpuwise run`` takes beyond the script that it runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuwise.train.config import TunedConfig, write

START_LIMIT_S = 30.0
"""A start takes less than this: it is not measured where it can change neither the decision nor 1 % of the training. Rule of
this project."""
TURNS = 2


@dataclass(frozen=True, slots=True)
class Start:
    """Processor seconds at the start of a process."""

    import_s: float
    """Of Python and torch, with and without ``gpuwise run``."""
    added_s: float
    """By ``gpuwise run`` with the levers."""


def start_of_run(folder: Path, levers: Mapping[str, object]) -> Start | None:
    """Start of a script that imports torch and ends: the minimum of ``TURNS`` each. None if the system does not report it, or it
    does not run."""
    place = (folder / "start").resolve()
    place.mkdir(parents=True, exist_ok=True)
    script, config = place / "start.py", place / "gpuwise.toml"
    script.write_text("import torch\n", "utf-8")
    write(TunedConfig(script.name, dict(levers)), config, {})
    run = [sys.executable, "-m", "gpuwise", "run", "--no-record", f"--config={config}", str(script)]
    found: list[tuple[float, float]] = []
    for _ in range(TURNS):
        plain_s, run_s = (_processor_s(command, place) for command in ([sys.executable, str(script)], run))
        if plain_s is None or run_s is None:
            return None
        found.append((plain_s, run_s))
    import_s, run_s = (min(side) for side in zip(*found, strict=True))
    return Start(import_s, max(run_s - import_s, 0.0))


def _processor_s(command: Sequence[str], folder: Path) -> float | None:
    try:
        import resource
    except ImportError:
        return None
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run(command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return None if ran.returncode else after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
