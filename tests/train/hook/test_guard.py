"""What watching a run from outside costs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwise.train.hook import launch
from gpuwise.train.hook.launch import MEMORY_LOOK_SHARE, Limits


class Alone:
    """A process with a number."""

    pid = os.getpid()


@pytest.mark.parametrize(("limit", "looks"), [(None, 2), (1 << 40, 40)], ids=["for nobody's limit", "for a limit"])
def test_memory_is_looked_at_rarely_where_no_limit_depends_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None, looks: int
) -> None:
    """A look of 60 ms, as on a crowded machine, in 20 s of a run."""
    clock, seen = [0.0], list[float]()

    def look(pid: int) -> int:
        seen.append(clock[0])
        clock[0] += 0.06
        return 1 << 20

    monkeypatch.setattr(launch, "resident_bytes", look)
    monkeypatch.setattr("gpuwise.train.hook.launch.time.monotonic", lambda: clock[0])
    guard = _guard(Alone(), tmp_path / "journal.jsonl", Limits(memory_bytes=limit))
    for _ in _ticks(clock, 20.0):
        assert guard.look() is None
    assert 0.75 * looks <= len(seen) <= looks
    if limit is None:
        assert 0.06 * (len(seen) - 1) <= MEMORY_LOOK_SHARE * (seen[-1] - seen[0]) + 1e-9
    assert guard.peak_bytes == 1 << 20


def _guard(process: Any, journal: Path, limits: Limits) -> Any:
    return launch._Guard(process, journal, limits, 0.0)


def _ticks(clock: list[float], until_s: float) -> Iterator[None]:
    while clock[0] < until_s:
        yield
        clock[0] += 0.1
