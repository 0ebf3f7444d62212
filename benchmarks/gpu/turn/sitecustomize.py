"""Turns on the card, as ``sitecustomize`` of processes that are started side by side; nothing happens where no variable is set.

``GPU_TURN=FILE``  the process holds a lock on the file from its first optimizer step until its trace is made or it ends, at the
                   most :data:`LONGEST_S`: what it imports, builds and loads before is done beside the others, its steps are
                   alone on the card.
``GPU_TRACES=FILE``  what ``gpuwise profile`` traced is copied there before its folder is removed, and its journal beside it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

LONGEST_S = 12.0
HELD = "GPU_TURN_HELD"
"""Children of the one that has its turn do not wait for it."""
held: list[Any] = []


class _After(importlib.abc.MetaPathFinder):
    """Does something with a module once it is there."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self.name, self.act = name, act

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            self.act(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def wait_in_step(module: ModuleType) -> None:
    """``torch.optim.optimizer``: the first step waits."""

    seen: list[bool] = []

    def before(*_: Any) -> None:
        if not seen:
            seen.append(True)
            take_turn()

    module.register_optimizer_step_pre_hook(before)  # type: ignore[attr-defined]


def end_with_trace(module: ModuleType) -> None:
    """``torch.profiler.profiler``: the turn is over when the trace is written."""
    write = module._KinetoProfile.export_chrome_trace

    def written(self: Any, path: str) -> Any:
        give_back()
        return write(self, path)

    module._KinetoProfile.export_chrome_trace = written  # type: ignore[attr-defined]


def take_turn() -> None:
    """Waits for the lock and keeps it; at once where it is held already, or by a process above this one."""
    path = os.environ.get("GPU_TURN")
    if not path or os.environ.get(HELD):
        return
    import fcntl
    import threading

    file = Path(path).open("a")  # noqa: SIM115 - held until the turn is over
    fcntl.flock(file, fcntl.LOCK_EX)
    os.environ[HELD] = "1"
    held.append(file)
    timer = threading.Timer(LONGEST_S, give_back)
    timer.daemon = True
    timer.start()


def give_back() -> None:
    import fcntl

    while held:
        fcntl.flock(held.pop(), fcntl.LOCK_UN)


def keep_traces(path: str) -> None:
    import shutil
    import tempfile

    remove = tempfile.TemporaryDirectory.cleanup

    def copied(self: Any) -> None:
        for name, end in (("trace.json.gz", ".json.gz"), ("journal.jsonl", ".jsonl")):
            found = Path(self.name) / name
            if "gpuwise-profile-" in self.name and found.exists():
                shutil.copy(found, path + end)
        remove(self)

    tempfile.TemporaryDirectory.cleanup = copied  # type: ignore[method-assign]


if os.environ.get("GPU_TURN"):
    sys.meta_path[:0] = [_After("torch.optim.optimizer", wait_in_step), _After("torch.profiler.profiler", end_with_trace)]
if os.environ.get("GPU_TRACES") and "gpuwise" in sys.orig_argv:
    keep_traces(os.environ["GPU_TRACES"])
