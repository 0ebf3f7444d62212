"""What ``gpuwise run`` takes beyond the script that it runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuwise.train.config import TunedConfig, write

START_LIMIT_S = 30.0
"""Levers that save more than this are worth any start: it is not measured. Rule of this project."""
TURNS = 2


def start_of_run(folder: Path, levers: Mapping[str, object]) -> float | None:
    """Processor seconds that ``gpuwise run`` with these levers adds to a script that imports torch and ends: the minimum of
    ``TURNS`` each. None if the system does not report it, or it does not run."""
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
    return max(min(b for _, b in found) - min(a for a, _ in found), 0.0)


def _processor_s(command: Sequence[str], folder: Path) -> float | None:
    try:
        import resource
    except ImportError:
        return None
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run(command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return None if ran.returncode else after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
