"""The disk that holds the temporary folder (TMPDIR): writing, reading in order, reading 4 KiB blocks at random.

Before a read the file is dropped from the system's page cache, where the system lets one (``posix_fadvise``, F_NOCACHE).
What the drive itself, a RAID controller or a virtual machine's host still holds cannot be dropped from here: a rate
above the drive's own says so.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
from pathlib import Path

from gpuwise.errors import InputError
from gpuwise.machine.bench.cases import Case
from gpuwise.machine.bench.subjects import Subject
from gpuwise.machine.bench.work import Check, NotHereError, Work
from gpuwise.records.record import Value

BLOCK = 2**20
PAGE = 4096
READS = 64
"""At random, in one sample."""
WRITE_S = 1.5
"""The file ends at its full size or after writing for this long: slow disks are measured too, in finite time."""


def make_disk(case: Case, subject: Subject) -> Work:
    """``write``, ``read`` or ``random-read`` of ``bytes``. Raises NotHereError where there is no room for the file."""
    size = int(case.parameters["bytes"])
    folder = Path(tempfile.gettempdir())
    free = _free(folder)
    if free is not None and free < 4 * size:
        raise NotHereError(f"{folder} has {free:,} bytes free; a file of {size:,} would crowd it", hint="set TMPDIR")
    handle, name = tempfile.mkstemp(prefix="gpuwise-bench-", dir=folder)
    path = Path(name)
    pattern = os.urandom(BLOCK)

    def close() -> None:
        with contextlib.suppress(OSError):
            os.close(handle)
        path.unlink(missing_ok=True)

    def write(blocks: int, limit_s: float = float("inf")) -> tuple[float, int]:
        os.lseek(handle, 0, os.SEEK_SET)
        start, done = time.perf_counter(), 0
        for done in range(1, blocks + 1):
            _write_all(handle, pattern)
            if done % 8 == 0:
                os.fsync(handle)
                if time.perf_counter() - start > limit_s:
                    break
        os.fsync(handle)
        return time.perf_counter() - start, done

    try:
        _, written = write(size // BLOCK, WRITE_S)
    except OSError as error:
        close()
        raise InputError(f"{folder} cannot be written: {error.strerror}", hint="set TMPDIR to another folder") from None
    size = written * BLOCK
    dropped = _drop(handle)
    read_back: list[bool] = []

    def read() -> float:
        _drop(handle)
        os.lseek(handle, 0, os.SEEK_SET)
        same, seconds = True, 0.0
        while True:
            start = time.perf_counter()
            block = os.read(handle, BLOCK)
            seconds += time.perf_counter() - start
            if not block:
                break
            same = same and block == pattern[: len(block)]
        read_back.append(same)
        return seconds

    rng = random.Random(20261122)

    def random_read() -> float:
        _drop(handle)
        offsets = [rng.randrange(size // PAGE) * PAGE for _ in range(READS)]
        blocks: list[bytes] = []
        start = time.perf_counter()
        for offset in offsets:
            blocks.append(_read_at(handle, offset))
        seconds = time.perf_counter() - start
        read_back.append(all(b == pattern[o % BLOCK : o % BLOCK + PAGE] for b, o in zip(blocks, offsets, strict=True)))
        return seconds / READS

    def check() -> Check:
        if case.variant == "write":
            read()
        same = bool(read_back) and all(read_back)
        return Check(same, 0.0 if same else float("inf"), f"{size:,} bytes of a known pattern")

    def rewrite() -> float:
        return write(written)[0]

    sample, amount = {"write": (rewrite, float(size)), "read": (read, float(size)), "random-read": (random_read, 1.0)}[
        case.variant
    ]
    cache = "dropped" if dropped else "could not be dropped"
    how: dict[str, Value] = {"timed by": "host clock", "page cache": cache, "file_bytes": size}
    return Work(sample, amount, check, close, how)


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

        if hasattr(fcntl, "F_NOCACHE"):
            fcntl.fcntl(handle, fcntl.F_NOCACHE, 1)
            return True
    return False


def _free(folder: Path) -> int | None:
    try:
        import shutil

        return shutil.disk_usage(folder).free
    except OSError:
        return None
