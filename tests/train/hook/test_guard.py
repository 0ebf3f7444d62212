"""What watching a run from outside costs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwise.train.hook import launch
from gpuwise.train.hook.launch import MEMORY_LOOK_SHARE, Limits
from gpuwise.train.hook.settings import Settings, write_settings


class Alone:
    """A process with a number."""

    pid = os.getpid()


@pytest.mark.parametrize(("limit", "looks"), [(None, 2), (1 << 40, 80)], ids=["for nobody's limit", "for a limit"])
def test_memory_is_looked_at_rarely_where_no_limit_depends_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None, looks: int
) -> None:
    """A look of 60 ms, as on a crowded machine, in 40 s of a run."""
    clock, seen = [0.0], list[float]()

    def look(pid: int) -> int:
        seen.append(clock[0])
        clock[0] += 0.06
        return 1 << 20

    monkeypatch.setattr(launch, "resident_bytes", look)
    monkeypatch.setattr("gpuwise.train.hook.launch.time.monotonic", lambda: clock[0])
    guard = _guard(Alone(), tmp_path / "journal.jsonl", Limits(memory_bytes=limit))
    for _ in _ticks(clock, 40.0):
        assert guard.look() is None
    assert 0.75 * looks <= len(seen) <= looks
    if limit is None:
        assert 0.06 * (len(seen) - 1) <= MEMORY_LOOK_SHARE * (seen[-1] - seen[0]) + 1e-9
    assert guard.peak_bytes == 1 << 20


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system tells no one of the end of a process")
def test_the_end_is_waited_for_and_not_asked_for_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept = list[float]()
    doze = time.sleep
    monkeypatch.setattr(time, "sleep", lambda s: slept.append(s) or doze(s))
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1.2)"])
    n_looks = [0]

    class Unlimited:
        is_limited = False

        def look(self) -> None:
            n_looks[0] += 1

    launch._wait(process, Unlimited(), None, 30.0)  # type: ignore[arg-type]
    assert process.returncode == 0
    assert not slept and 1 <= n_looks[0] <= 3 + 2


def test_a_start_and_a_run_import_nothing_that_they_do_not_use(tmp_path: Path) -> None:
    """What the watching process and the watched one import is processor time beside the script's."""
    heavy = {
        "gpuwise.facts.models.architecture",
        "gpuwise.facts.hardware.accelerators",
        "gpuwise.machine.telemetry.monitor",
        "gpuwise.machine.devices.cpu",
        "gpuwise.workload.changes.registry",
        "gpuwise.train.hook.parity",
        "numpy",
        "rich",
        "torch",
    }
    code = "import gpuwise.cli.run.command, gpuwise.cli.run.view, gpuwise.train.run.run, sys; print(*sys.modules)"
    watching = set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())
    assert "gpuwise.train.hook.launch" in watching
    assert not heavy & watching
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text("import sys\nopen('modules', 'w').write(' '.join(sys.modules))\n")
    settings = Settings(str(script), [], str(tmp_path / "journal.jsonl"), live=True)
    write_settings(settings, tmp_path / "settings.json")
    child = [sys.executable, "-m", "gpuwise.train.hook.child", str(tmp_path / "settings.json")]
    subprocess.run(child, check=True, cwd=tmp_path)
    watched = set((tmp_path / "modules").read_text().split())
    assert "gpuwise.train.hook.watch" in watched
    assert not (heavy - {"torch", "numpy"}) & watched


@pytest.mark.thorough
def test_a_short_run_has_the_memory_that_it_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(launch, "resident_bytes", lambda pid: 1 << 20)
    script = tmp_path / "train.py"
    script.write_text("block = bytearray(150 << 20)\nblock[::4096] = b'x' * len(block[::4096])\n")
    outcome = launch.launch(Settings(str(script), [], str(tmp_path / "journal.jsonl"), live=True), tmp_path / "place")
    assert outcome.peak_memory_bytes is not None and outcome.peak_memory_bytes > 150 << 20


def _guard(process: Any, journal: Path, limits: Limits) -> Any:
    return launch._Guard(process, journal, limits, 0.0)


def _ticks(clock: list[float], until_s: float) -> Iterator[None]:
    while clock[0] < until_s:
        yield
        clock[0] += 0.1
