# pyright: basic
"""Processes that a script starts: steps that run in them are not observed."""

from __future__ import annotations

import multiprocessing.process
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpuwise.train.hook.journal import Writer
from gpuwise.workload.capture.device.patching import Patches

_HELPERS = ("_worker_loop", "_pin_memory_loop")
"""Processes of a ``DataLoader``, which train nothing."""
MOST_TOLD = 16


@contextmanager
def count_children(journal: Writer) -> Iterator[None]:
    """Report every process that the script starts with multiprocessing or ``os.fork``, except workers of a loader."""
    patches, n_children, starting = Patches(), [0], [0]
    start, fork = multiprocessing.process.BaseProcess.start, os.fork
    pid = os.getpid()

    def tell(how: str, what: str) -> None:
        n_children[0] += 1
        if n_children[0] <= MOST_TOLD and os.getpid() == pid:
            journal.event("child", how=how, what=what)

    def started(process: Any) -> None:
        target = getattr(process, "_target", None)
        name = getattr(target, "__qualname__", None) or type(process).__qualname__
        if name not in _HELPERS:
            tell("multiprocessing", _inner_name(name, process))
        starting[0] += 1
        try:
            start(process)
        finally:
            starting[0] -= 1

    def forked() -> int:
        number = fork()
        if number and not starting[0]:
            tell("fork", str(number))
        return number

    patches.set(multiprocessing.process.BaseProcess, "start", started)
    patches.set(os, "fork", forked)
    try:
        yield
    finally:
        patches.undo()


def _inner_name(name: str, process: Any) -> str:
    """torch.multiprocessing.spawn wraps the function that the script gave."""
    first = next(iter(getattr(process, "_args", ()) or ()), None)
    return getattr(first, "__qualname__", name) if name == "_wrap" else name
