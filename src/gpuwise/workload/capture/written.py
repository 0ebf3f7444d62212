# pyright: basic
"""Files that a program writes while it is only looked at: kept aside, and gone afterwards.

Their numbers are not those of a real run (tensors without values, steps that were not computed), so a cache, a checkpoint or a
log of a capture would spoil the run that reads it later. A file opened for writing is another one, in a temporary folder; the
program finds it under its own name, also when it lists, renames or removes it. What is there already is never changed, not even
for a moment: another run may be using it, and a capture may be killed. Downloads, compilers' files and temporary ones are
written as they are. A library that opens files in C (``h5py``, ``pyarrow``, ``cv2``) is not seen.
"""

from __future__ import annotations

import builtins
import errno
import importlib.util
import io
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gpuwise.workload.capture.device.patching import Patches

_BETWEEN = (
    "os",
    "tempfile",
    "genericpath",
    "posixpath",
    "pathlib",
    "io",
    "shutil",
    "zipfile",
    "tarfile",
    "gzip",
    "bz2",
    "lzma",
    "codecs",
    "fsspec",
)
"""Modules that open a file for whoever calls them."""
_TRUE = (
    *("gpuwise", "multiprocessing", "subprocess", "filelock"),
    *("urllib", "requests", "wget", "gdown", "pooch", "kagglehub", "huggingface_hub", "datasets"),
    *("torch.hub", "torchvision.datasets.utils", "torchaudio._internal", "torch_geometric.data.download", "sklearn.datasets"),
    *("torch._inductor", "torch._dynamo", "torch.utils.cpp_extension", "triton", "transformers.dynamic_module_utils"),
)
"""Modules whose files have their true contents: downloads, what compilers make, what is temporary. The cache of ``datasets``
holds what was downloaded, and is read in C."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class _Entries:
    """What ``os.scandir`` gives, of folders and files aside together."""

    def __init__(self, entries: list[Any]) -> None:
        self._rest = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._rest

    def __next__(self) -> Any:
        return next(self._rest)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._rest = iter(())


class Aside:
    """Where each file is that the program has written, and what it has removed."""

    def __init__(self) -> None:
        self._folder, self._n = "", 0
        self._moved: dict[str, str | None] = {}
        """Path -> the file in its place; None: removed."""
        self._own = ["/dev", "/proc"]
        """Folders where all is written as it is."""
        self._made: list[str] = []
        """Folders that the program made; empty ones of them go at the end."""
        self.original = {name: getattr(os, name) for name in (*_LOOKS, *_CHANGES, *_LINKS, *_OTHERS, "open")}
        self._open, self._rename = builtins.open, os.replace

    def view(self, path: Any) -> Any:
        """The path to read for ``path``."""
        if not self._moved or (key := self._key(path)) is None or key not in self._moved:
            return path
        there = self._moved[key]
        if there is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        return there

    def to_write(self, path: Any, *, keeps: bool = True, new: bool = False) -> Any:
        """The path to write for ``path``, with what was in it if that ``keeps``; ``new``: it may not exist."""
        key = self._key(path)
        if key is None or self._is_own(key):
            return path
        there = self._moved.get(key, "")
        if there and not new:
            return there
        exists = os.path.exists(key)  # noqa: PTH110
        if (exists and (new or not os.path.isfile(key))) or not os.path.isdir(os.path.dirname(key)):  # noqa: PTH112, PTH113, PTH120
            return there or path  # as it fails; or a pipe, which holds nothing
        self._n += 1
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="gpuwise-written-")
        aside = f"{self._folder}{os.sep}{self._n}-{os.path.basename(key)[-100:]}"  # noqa: PTH119
        if exists and keeps:
            shutil.copyfile(key, aside)
        self._moved[key] = aside
        return aside

    def open(self, file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
        """As the built-in one."""
        if isinstance(file, (str, bytes, os.PathLike)) and not named.get("opener") and len(args) < 6:
            writes = bool(set("wax+") & set(mode)) and not self._is_true(file)
            if writes and mode[0] == "r":
                self.original["stat"](self.view(file))  # it is not made
            file = self.to_write(file, keeps="w" not in mode, new="x" in mode) if writes else self.view(file)
        return self._open(file, mode, *args, **named)

    def os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            return self.original["open"](path, flags, mode, dir_fd=dir_fd)
        if flags & _WRITING and not self._is_true(path):
            if not flags & os.O_CREAT:
                self.original["stat"](self.view(path))  # it is not made
            path = self.to_write(path, keeps=not flags & os.O_TRUNC, new=bool(flags & os.O_CREAT and flags & os.O_EXCL))
        else:
            path = self.view(path)
        return self.original["open"](path, flags, mode)

    def through(self, name: str) -> Callable[..., Any]:
        """``os.name`` of the file that is in the place of its path."""
        original = self.original[name]

        def of(path: Any, *args: Any, **named: Any) -> Any:
            return original(path if named.get("dir_fd") is not None else self.view(path), *args, **named)

        return of

    def access(self, path: Any, *args: Any, **named: Any) -> bool:
        with suppress(FileNotFoundError):
            return self.through("access")(path, *args, **named)
        return False

    def changing(self, name: str) -> Callable[..., Any]:
        """``os.name``, which changes what is at its path."""
        original = self.original[name]

        def of(path: Any, *args: Any, **named: Any) -> Any:
            if named.get("dir_fd") is not None or isinstance(path, int) or self._is_true(path):
                return original(path, *args, **named)
            self.original["lstat"](self.view(path))
            return original(self.to_write(path), *args, **named)

        return of

    def linking(self, name: str) -> Callable[..., Any]:
        """``os.name``, which links: here it copies a file, and nothing else."""
        original = self.original[name]

        def of(source: Any, target: Any, *args: Any, **named: Any) -> None:
            key = self._key(target)
            if key is None or named or self._is_own(key) or self._is_true(target):
                original(source, target, *args, **named)
                return
            start = os.path.dirname(key) if name == "symlink" else ""  # noqa: PTH120
            there = self.view(os.path.join(start, os.fsdecode(source)))  # noqa: PTH118
            if os.path.lexists(key):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(target))
            if os.path.isfile(there):  # noqa: PTH113
                shutil.copyfile(there, self.to_write(target, keeps=False))

        return of

    def remove(self, path: Any, *, dir_fd: int | None = None) -> None:
        key = None if dir_fd is not None else self._key(path)
        if key is None or (key not in self._moved and (self._is_own(key) or self._is_true(path))):
            self.original["remove"](path, dir_fd=dir_fd)
            return
        self.original["lstat"](self.view(path))
        self._moved[key] = None

    def rename(self, source: Any, target: Any, *args: Any, **named: Any) -> None:
        """``os.rename`` and ``os.replace``: a file from outside is copied, a folder of the program moved."""
        key, to = self._key(source), self._key(target)
        if (
            named
            or key is None
            or to is None
            or (key not in self._moved and (self._is_true(source) or (self._is_own(key) and self._is_own(to))))
        ):
            self._rename(source, target, *args, **named)
        elif os.path.isdir(key) and key not in self._moved:  # noqa: PTH112
            if not any(_within(key, folder) for folder in self._made):
                raise PermissionError(errno.EPERM, "a capture moves no folder that was there before", os.fspath(source))
            self._rename(source, target)
            self._made = [to + f[len(key) :] if _within(f, key) else f for f in self._made]
            self._moved = {to + f[len(key) :] if _within(f, key) else f: there for f, there in self._moved.items()}
        else:
            there = self.view(source)
            self.original["stat"](there)
            goal = self.to_write(target, keeps=False)
            (self._rename if key in self._moved else shutil.copyfile)(there, goal)
            if self._is_own(key):
                self.original["remove"](source)
            else:
                self._moved[key] = None

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        key = None if dir_fd is not None else self._key(path)
        if key is not None and self._moved.get(key, "") is None and os.path.isdir(os.path.dirname(key)):  # noqa: PTH112, PTH120
            del self._moved[key]
            return
        self.original["mkdir"](path, mode, dir_fd=dir_fd)
        if key is not None and not self._is_own(key) and not self._is_true(path):
            self._made.append(key)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        key = None if dir_fd is not None else self._key(path)
        if key is None or self._is_own(key) or self._is_true(path):
            self.original["rmdir"](path, dir_fd=dir_fd)
        elif os.listdir(key):  # noqa: PTH208
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fspath(path))
        else:
            self._moved[key] = None

    def listdir(self, path: Any = ".") -> list[Any]:
        """Names in a folder, of files aside too."""
        names = self.original["listdir"](self.view(path))
        key = None if isinstance(path, int) else self._key(path)
        if not self._moved or key is None:
            return names
        here = self._in(key)
        seen = [n for n in names if here.get(os.fsdecode(n), "") is not None]
        more = [n for n, there in here.items() if there is not None and n not in {os.fsdecode(s) for s in seen}]
        return seen + [os.fsencode(n) if isinstance(path, bytes) else n for n in more]

    def scandir(self, path: Any = ".") -> Any:
        key = None if isinstance(path, int) else self._key(path)
        if not self._moved or key is None or not (here := self._in(key)):
            return self.original["scandir"](self.view(path))
        with self.original["scandir"](path) as entries:
            found = [e for e in entries if os.fsdecode(e.name) not in here]
        return _Entries(found + [_Entry(path, name) for name, there in here.items() if there is not None])

    def rmtree(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def removed(path: Any, *args: Any, **named: Any) -> None:
            key = self._key(path)
            if key is None or self._is_own(key) or self._is_true(path) or not os.path.isdir(key):  # noqa: PTH112
                original(path, *args, **named)
                return
            for folder, folders, files in os.walk(key):
                self._moved |= dict.fromkeys(folder + os.sep + name for name in (*folders, *files))
            self._moved[key] = None

        return removed

    def temporary(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``tempfile.mkdtemp``: what is in its folder is temporary too."""

        def made(*args: Any, **named: Any) -> Any:
            folder = original(*args, **named)
            self._own.append(os.fsdecode(folder))
            return folder

        return made

    def end(self) -> None:
        """Remove what was written, and the empty folders that the program has made."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        for folder in reversed(self._made):
            with suppress(OSError):
                self.original["rmdir"](folder)

    def _in(self, folder: str) -> dict[str, str | None]:
        """Names in ``folder`` that are aside or removed."""
        start = folder.rstrip(os.sep) + os.sep
        return {
            f[len(start) :]: there for f, there in self._moved.items() if f.startswith(start) and os.sep not in f[len(start) :]
        }

    def _is_own(self, key: str) -> bool:
        return any(_within(key, folder) for folder in self._own)

    def _is_true(self, path: Any) -> bool:
        """Whether the module that wants ``path`` writes what is true; a temporary file is noted."""
        frame = sys._getframe(1)
        while frame is not None:
            name = frame.f_globals.get("__name__") or ""
            if name == "tempfile" and (key := self._key(path)) and _within(key, tempfile.gettempdir()):
                self._own.append(key)
                return True
            if name != __name__ and name.partition(".")[0] not in _BETWEEN:
                return any(name == true or name.startswith(true + ".") for true in _TRUE)
            frame = frame.f_back
        return False

    @staticmethod
    def _key(path: Any) -> str | None:
        try:
            return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - links stay as they are
        except (TypeError, ValueError):  # a descriptor
            return None


class _Entry:
    """A file aside, as ``os.scandir`` describes it."""

    def __init__(self, folder: Any, name: str) -> None:
        self.name: Any = os.fsencode(name) if isinstance(os.fspath(folder), bytes) else name
        self.path: Any = os.path.join(folder, self.name)  # noqa: PTH118

    def __fspath__(self) -> Any:
        return self.path

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return not self.is_dir()

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self.path)  # noqa: PTH112

    def is_symlink(self) -> bool:
        return False

    def is_junction(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path)  # noqa: PTH116

    def inode(self) -> int:
        return self.stat().st_ino


_LOOKS, _CHANGES, _LINKS = ("stat", "lstat"), ("chmod", "utime", "truncate"), ("symlink", "link")
_OTHERS = ("access", "mkdir", "rmdir", "listdir", "scandir", "remove", "rename")


@contextmanager
def written_aside() -> Iterator[Aside]:
    """Keep aside what is written, for the length of the context."""
    tempfile.gettempdir()  # its first call writes a file under a lock that no second call in the meantime can take
    patches, aside = Patches(), Aside()
    owners = [(builtins, "open"), (io, "open"), (tarfile, "bltn_open")]
    if importlib.util.find_spec("_bz2") is not None:
        owners.append((importlib.import_module("bz2"), "_builtin_open"))
    for owner, name in owners:
        patches.set(owner, name, aside.open)
    for names, replaced in ((_LOOKS, aside.through), (_CHANGES, aside.changing), (_LINKS, aside.linking)):
        for name in names:
            patches.set(os, name, replaced(name))
    for name in _OTHERS:
        patches.set(os, name, getattr(aside, name))
    for name, function in (("open", aside.os_open), ("unlink", aside.remove), ("replace", aside.rename)):
        patches.set(os, name, function)
    patches.set(shutil, "rmtree", aside.rmtree(shutil.rmtree))
    patches.set(tempfile, "mkdtemp", aside.temporary(tempfile.mkdtemp))
    try:
        yield aside
    finally:
        patches.undo()
        aside.end()


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
