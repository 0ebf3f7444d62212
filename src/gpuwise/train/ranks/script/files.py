# pyright: basic
"""File output of all ranks but the first, so that the script's files are written once.

Their prints go to a separate file. Files that they open for writing are redirected to a folder of the rank; the same program
can read or rename them there. ``torch.save`` is done by the first rank, and all wait for it.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gpuwise.train.ranks.wrap import control_group
from gpuwise.workload.capture.device.patching import Patches

WRITES = frozenset("wax+")
CACHES = ("torchinductor", "triton", "__pycache__")
"""In paths of files that other programs read: compilers' own."""
COMPILERS = ("torch._inductor", "torch._dynamo", "triton")
"""Modules that write such files in folders for a moment too (a header for the C++ compiler)."""


def save_once(patches: Patches, before: Any) -> None:
    """``torch.save`` to a path is the first rank's."""
    save, rank = torch.save, dist.get_rank()

    @functools.wraps(save)
    def saving(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(f, str | os.PathLike):
            if hasattr(f, "name"):
                before()
            # else into memory, as a tensor is pickled too
            return save(obj, f, *args, **kwargs)
        before()
        try:
            return save(obj, f, *args, **kwargs) if rank == 0 else None
        finally:
            dist.barrier(group=control_group())

    patches.set(torch, "save", saving)


def print_aside(path: Path) -> None:
    """Standard output and error of this process into a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


class OwnFiles:
    """Files that this process opens for writing, in a separate folder."""

    def __init__(self, patches: Patches, folder: Path) -> None:
        self._folder = folder
        self._moved: dict[str, str] = {}
        self._open = builtins.open
        for owner in (builtins, io):
            patches.set(owner, "open", self._opening)
        for name in ("rename", "replace"):
            patches.set(os, name, self._renaming(getattr(os, name)))
        for name in ("remove", "unlink", "rmdir"):
            patches.set(os, name, self._removing(getattr(os, name)))
        patches.set(os, "mkdir", self._making(os.mkdir))
        patches.set(shutil, "rmtree", self._removing(shutil.rmtree))

    def path_of(self, file: Any) -> str | None:
        """Path of a redirected file."""
        try:
            return self._moved.get(os.path.abspath(os.fspath(file)))  # noqa: PTH100 - of what may be bytes
        except TypeError:
            return None

    def _opening(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, str | os.PathLike):
            writes = WRITES & set(mode) and not _caller().startswith(COMPILERS)
            file = self._aside(file, mode) if writes else self.path_of(file) or file
        return self._open(file, mode, *args, **kwargs)

    def _aside(self, file: Any, mode: str) -> Any:
        path = os.path.abspath(os.fspath(file))  # noqa: PTH100 - as above
        if not isinstance(path, str) or path.startswith(("/dev/", "/proc/")) or any(c in path for c in CACHES):
            return file
        if path not in self._moved:
            self._folder.mkdir(parents=True, exist_ok=True)
            there = str(self._folder / f"{len(self._moved)}-{Path(path).name}")
            if not {"w", "x"} & set(mode) and Path(path).exists():
                shutil.copyfile(path, there)
            self._moved[path] = there
        return self._moved[path]

    def _renaming(self, original: Any) -> Any:
        def renaming(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
            there = self.path_of(source)
            if there is None:
                original(source, target, *args, **kwargs)
                return
            del self._moved[os.path.abspath(os.fspath(source))]  # noqa: PTH100 - as above
            self._moved[os.path.abspath(os.fspath(target))] = there  # noqa: PTH100 - as above

        return renaming

    def _removing(self, original: Any) -> Any:
        def removing(path: Any, *args: Any, **kwargs: Any) -> None:
            there = self.path_of(path)
            if there is not None:
                del self._moved[os.path.abspath(os.fspath(path))]  # noqa: PTH100 - as above
            elif _is_temporary():
                original(path, *args, **kwargs)

        return removing

    def _making(self, original: Any) -> Any:
        def making(path: Any, *args: Any, **kwargs: Any) -> None:
            # folders are created by the first rank; only those for redirected files, and a library's temporary ones, are created
            # here
            if _is_temporary() or str(path).startswith(str(self._folder)) or any(c in str(path) for c in CACHES):
                original(path, *args, **kwargs)

        return making


def _is_temporary() -> bool:
    """Whether a library requests a temporary file."""
    return _caller().partition(".")[0] in ("tempfile", "multiprocessing", "torch", "weakref", "gpuwise")


def _caller() -> str:
    """The module that called the replacement of a system function."""
    own = ("os", "pathlib", __name__)
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "") in own:
        frame = frame.f_back  # type: ignore[assignment]
    return "" if frame is None else frame.f_globals.get("__name__", "")
