"""What every rank does now, in a small file each: who is silent is seen from outside."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PHASES = ("start", "load", "data", "forward", "backward", "exchange", "update", "save", "end")
"""In the order of a step."""
_ROOM = 64


class Beat:
    """Heartbeat written by the rank itself at each change of activity, so it stops when the rank does."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = os.open(folder / f"beat-{rank}", os.O_WRONLY | os.O_CREAT, 0o644)
        self._stack = (folder / f"stack-{rank}.txt").open("w")
        if hasattr(signal, "SIGUSR2"):
            # request for the current line
            faulthandler.register(signal.SIGUSR2, file=self._stack, all_threads=False)

    def at(self, step: int, part: int, phase: str) -> None:
        """Record the rank's activity, with the time: without news a launcher treats the rank as stuck."""
        text = f"{step} {part} {phase} {time.time():.3f}"
        os.pwrite(self._file, text.ljust(_ROOM).encode(), 0)

    def close(self) -> None:
        """Stop listening for the signal that requests the stack."""
        if hasattr(signal, "SIGUSR2"):
            faulthandler.unregister(signal.SIGUSR2)
        self._stack.close()
        os.close(self._file)


@dataclass(frozen=True, slots=True)
class Place:
    """Activity of a rank, and its start."""

    rank: int
    step: int
    part: int
    """Micro-batch."""
    phase: str
    at_s: float

    @property
    def order(self) -> tuple[int, int, int]:
        """Ranks further on have a larger one."""
        # an exchange after the last micro-batch belongs to all of them
        return self.step, self.part, PHASES.index(self.phase)


def places(folder: Path, n_ranks: int) -> list[Place]:
    """Activities of the ranks that have begun."""
    found: list[Place] = []
    for rank in range(n_ranks):
        try:
            step, part, phase, at = (folder / f"beat-{rank}").read_text("ascii").split()
            found.append(Place(rank, int(step), int(part), phase, float(at)))
        except (OSError, ValueError):
            continue
    return found


def silent(now: Sequence[Place], n_ranks: int, still_s: float, at_s: float) -> list[Place] | None:
    """The straggling ranks that all others wait for, once no rank has progressed for ``still_s``; None while one does. If all
    are at the same point, no rank is behind: empty."""
    if len(now) < n_ranks or any(at_s - p.at_s < still_s for p in now):
        return None
    last = min(p.order for p in now)
    behind = [p for p in now if p.order == last]
    return [] if len(behind) == len(now) else behind


def stack_of(folder: Path, rank: int) -> str | None:
    """The innermost line of the rank's own program, as it wrote it when asked."""
    try:
        text = (folder / f"stack-{rank}.txt").read_text()
    except OSError:
        return None
    return next((line.strip() for line in text.splitlines() if line.strip().startswith("File")), None)
