"""A file or stdout to which lines are appended: whole lines or none, also while the disk is full."""

from __future__ import annotations

import os
import sys
from collections import deque
from pathlib import Path
from typing import BinaryIO

from gpuwise.errors import InputError

N_PENDING = 3600
"""Maximum writes to buffer while the disk is full."""


class LineFile:
    """A new file, or with ``append`` one that may exist, or stdout for ``-``. Where the disk is full the file is cut back to its
    last whole write, and what waits is written when there is room again. ``unit``: what one write holds, for notices. Raises
    InputError where the file cannot be opened."""

    def __init__(self, name: str, first: bytes = b"", *, append: bool = False, unit: str = "frames") -> None:
        self._name, self._unit, self._failure, self._dropped = name, unit, "", 0
        self._waiting: deque[bytes] = deque([first] if first else [])
        self._n_first = len(self._waiting)
        self._file: BinaryIO | None = None
        if name != "-":
            try:
                self._file = Path(name).open("ab" if append else "xb", buffering=0)  # noqa: SIM115 - held until close
            except FileExistsError as error:
                raise InputError(f"{name} already exists", hint="give another name, or remove it") from error
            except OSError as error:
                raise InputError(f"{name} cannot be written: {error.strerror}", hint="check the folder") from error
        self._closed = False

    @property
    def notices(self) -> tuple[str, ...]:
        """An error of the disk with the writes that wait, or how many were lost."""
        if self._failure:
            return (f"{self._name} is not written ({self._failure}): {len(self._waiting)} {self._unit} wait",)
        return (f"{self._dropped} {self._unit} are not in {self._name}",) if self._dropped else ()

    def put(self, data: bytes) -> None:
        """Write what waits, then ``data``."""
        self._waiting.append(data)
        if len(self._waiting) > N_PENDING:
            del self._waiting[self._n_first]  # the first may be the header
            self._dropped += 1
        self._flush()

    def close(self) -> None:
        """Write what waits, and close."""
        if self._closed:
            return
        self._closed = True
        self._flush()
        self._dropped += len(self._waiting)
        if self._file is not None:
            self._file.close()

    def _flush(self) -> None:
        while self._waiting:
            if self._file is None:
                # a closed pipe ends the program: there is no reader left
                sys.stdout.write(self._waiting[0].decode())
                sys.stdout.flush()
            elif not self._written(self._file, self._waiting[0]):
                return
            self._waiting.popleft()

    def _written(self, file: BinaryIO, data: bytes) -> bool:
        # asked anew at each write: another program may have rotated the file
        whole_bytes = file.seek(0, os.SEEK_END) if file.seekable() else None
        try:
            n_written = 0
            while n_written < len(data):
                n_written += file.write(data[n_written:])
        except OSError as error:
            self._failure = error.strerror or type(error).__name__
            if whole_bytes is not None:
                os.ftruncate(file.fileno(), whole_bytes)
                file.seek(whole_bytes)
            return False
        self._failure = ""
        return True
