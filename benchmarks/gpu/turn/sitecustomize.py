"""Turns on the card, as ``sitecustomize`` of processes that are started side by side; nothing happens where no variable is set.

``GPU_TURN=FILE``  the process holds a lock on the file from its first use of CUDA to its end, at the most :data:`LONGEST_S`:
                   what it imports and builds before is done beside the others, its steps are alone on the card.
``GPU_TRACES=FILE``  what ``gpuwise profile`` traced is copied there before its folder is removed, and its journal beside it.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

LONGEST_S = 30.0
HELD = "GPU_TURN_HELD"
"""Children of the one that has its turn do not wait for it."""


class _Cuda(importlib.abc.MetaPathFinder):
    """Lets ``torch.cuda`` wait before it starts."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch.cuda":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            start = module._lazy_init

            def wait_and_start() -> None:
                take_turn()
                module._lazy_init = start  # type: ignore[attr-defined]
                start()

            module._lazy_init = wait_and_start  # type: ignore[attr-defined]

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def take_turn() -> None:
    """Waits for the lock and keeps it; at once where it is held already, or by a process above this one."""
    path = os.environ.get("GPU_TURN")
    if not path or os.environ.get(HELD):
        return
    import fcntl
    import threading

    file = Path(path).open("a")  # noqa: SIM115 - held to the end of the process
    fcntl.flock(file, fcntl.LOCK_EX)
    os.environ[HELD] = "1"
    timer = threading.Timer(LONGEST_S, lambda: fcntl.flock(file, fcntl.LOCK_UN))
    timer.daemon = True
    timer.start()


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
    sys.meta_path.insert(0, _Cuda())
if os.environ.get("GPU_TRACES") and "gpuwise" in sys.orig_argv:
    keep_traces(os.environ["GPU_TRACES"])
