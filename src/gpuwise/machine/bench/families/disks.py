"""The disk of the temporary folder (TMPDIR): sequential writes, sequential reads, random 4 KiB reads.

Before a read the file is dropped from the system's page cache, if the system allows it (``posix_fadvise``, F_NOCACHE). Caches
of the drive, a RAID controller or a virtual machine's host cannot be dropped: a rate above the drive's own reveals them.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
from pathlib import Path

from gpuwise.errors import InputError
from gpuwise.machine.bench.cases import BenchCase
from gpuwise.machine.bench.prepared_case import Check, NotHereError, PreparedCase
from gpuwise.machine.bench.subjects import Subject
from gpuwise.records.record import Value

BLOCK = 2**20
PAGE = 4096
READS = 64
"""At random, in one sample."""
WRITE_S = 1.5
"""The file ends at its full size or after writing for this long: slow disks are measured too, in finite time."""


class _File:
    """A file of a known pattern in the temporary folder. Raises InputError where it cannot be written."""

    def __init__(self, folder: Path, size: int) -> None:
        self._handle, name = tempfile.mkstemp(prefix="gpuwise-bench-", dir=folder)
        self._path = Path(name)
        self._pattern = os.urandom(BLOCK)
        self._rng = random.Random(20261122)
        self.right: list[bool] = []
        """Whether each reading gave the pattern back."""
        try:
            _, self._blocks = self._write(max(1, size // BLOCK), WRITE_S)
        except OSError as error:
            self.close()
            raise InputError(f"{folder} cannot be written: {error.strerror}", hint="set TMPDIR to another folder") from None
        except BaseException:
            self.close()
            raise
        self.size = self._blocks * BLOCK
        self.dropped = _drop(self._handle)

    def _write(self, blocks: int, limit_s: float = float("inf")) -> tuple[float, int]:
        """Seconds, and how many blocks were written until the limit."""
        os.lseek(self._handle, 0, os.SEEK_SET)
        start, n_blocks = time.perf_counter(), 0
        for n_blocks in range(1, blocks + 1):
            _write_all(self._handle, self._pattern)
            if n_blocks % 8 == 0:
                os.fsync(self._handle)
                if time.perf_counter() - start > limit_s:
                    break
        os.fsync(self._handle)
        return time.perf_counter() - start, n_blocks

    def write(self) -> float:
        """Seconds to write it all and have it on the disk."""
        return self._write(self._blocks)[0]

    def read(self) -> float:
        """Seconds to read it in order; comparing is not counted."""
        _drop(self._handle)
        os.lseek(self._handle, 0, os.SEEK_SET)
        same, seconds = True, 0.0
        while True:
            start = time.perf_counter()
            block = os.read(self._handle, BLOCK)
            seconds += time.perf_counter() - start
            if not block:
                break
            same = same and block == self._pattern[: len(block)]
        self.right.append(same)
        return seconds

    def read_at_random(self) -> float:
        """Seconds of one read of ``PAGE`` bytes, mean of ``READS``."""
        _drop(self._handle)
        offsets = [self._rng.randrange(self.size // PAGE) * PAGE for _ in range(READS)]
        start = time.perf_counter()
        blocks = [_read_at(self._handle, offset) for offset in offsets]
        seconds = time.perf_counter() - start
        self.right.append(all(b == self._pattern[o % BLOCK : o % BLOCK + PAGE] for b, o in zip(blocks, offsets, strict=True)))
        return seconds / READS

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._handle)
        self._path.unlink(missing_ok=True)


def make_disk(case: BenchCase, subject: Subject) -> PreparedCase:
    """``write``, ``read`` or ``random-read`` of ``bytes``. Raises NotHereError where there is no room for the file."""
    size = int(case.parameters["bytes"])
    folder = Path(tempfile.gettempdir())
    free = _free(folder)
    if free is not None and free < 4 * size:
        raise NotHereError(f"{folder} has {free:,} bytes free; a file of {size:,} would crowd it", hint="set TMPDIR")
    file = _File(folder, size)

    def check() -> Check:
        if case.variant == "write":
            file.read()
        same = bool(file.right) and all(file.right)
        return Check(same, 0.0 if same else float("inf"), f"{file.size:,} bytes of a known pattern")

    sample = {"write": file.write, "read": file.read, "random-read": file.read_at_random}[case.variant]
    amount = 1.0 if case.variant == "random-read" else float(file.size)
    cache = "dropped" if file.dropped else "could not be dropped"
    how: dict[str, Value] = {"timed by": "host clock", "page cache": cache, "file_bytes": file.size}
    return PreparedCase(sample, amount, check, file.close, how)


def _write_all(handle: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(handle, view) :]


def _read_at(handle: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(handle, PAGE, offset)
    os.lseek(handle, offset, os.SEEK_SET)
    return os.read(handle, PAGE)


def _drop(handle: int) -> bool:
    """Ask the system to forget the file's pages; whether it has a way to."""
    with contextlib.suppress(OSError):
        os.fsync(handle)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            return True
        import fcntl

        no_cache: int | None = getattr(fcntl, "F_NOCACHE", None)
        if no_cache is not None:
            fcntl.fcntl(handle, no_cache, 1)
            return True
    return False


def _free(folder: Path) -> int | None:
    try:
        import shutil

        return shutil.disk_usage(folder).free
    except OSError:
        return None
