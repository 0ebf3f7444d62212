"""The user's own prices and those of feeds: dated files that are never overwritten.

    $GPUWISE_HOME/prices/own-acme/2026-11-21.csv        a contract that was imported
    $GPUWISE_HOME/prices/skypilot-aws/2026-11-21.csv    what a feed listed on that day

A file is written whole or not at all, so a killed process loses nothing. The newest file of a feed has today's offers and the
older ones are its history; of the user's own files all count.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gpuwise.errors import DataError, FieldError, InputError, UnknownNameError
from gpuwise.facts.loading import user_folder
from gpuwise.facts.offers.table import Offer, format_offers, parse_offers
from gpuwise.facts.plugins import plugin_folders
from gpuwise.files import read_text

OWN = "own-"
"""Sources of this prefix are a person's; all others are feeds."""
_SOURCE = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}", re.ASCII)
_FILE = re.compile(r"(\d{4}-\d{2}-\d{2})(?:\.(\d{1,6}))?\.csv", re.ASCII)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of the store. ``number`` counts the files of one day from 1."""

    path: Path
    source: str
    day: datetime.date
    number: int
    stamp: tuple[int, int]
    """Time of change and size: what a cache may go by."""

    @property
    def is_own(self) -> bool:
        return self.source.startswith(OWN)


def store_dir() -> Path:
    """The folder of the price files: ``$GPUWISE_HOME/prices``, or the platform's folder for user data."""
    home = os.environ.get("GPUWISE_HOME")
    if home:
        return Path(home) / "prices"
    return user_folder("data") / "prices"


def stored_files() -> tuple[StoredFile, ...]:
    """Every file of the store by source, oldest first; empty where there is no store. Other files in the
    folder are not ours and are left alone. Raises DataError when the folder cannot be read."""
    try:
        roots = (store_dir(), *plugin_folders("prices"))
        files = [file for root in roots for folder in _folders(root) for file in _files_in(folder)]
    except OSError as error:
        raise DataError(
            f"the price store {store_dir()} cannot be read: {error.strerror or error}",
            hint="check the folder, or set GPUWISE_HOME to another",
        ) from error
    return tuple(sorted(files, key=lambda f: (f.source, f.day, f.number)))


def current_files() -> tuple[StoredFile, ...]:
    """The files that count today: the newest of each feed and all of a person's own."""
    files = stored_files()
    newest = {file.source: file for file in files}
    return tuple(f for f in files if f.is_own or newest[f.source] is f)


def offers_in(file: StoredFile, accelerator_id: str | None = None) -> tuple[Offer, ...]:
    """The offers of one stored file, of one accelerator or of all. Raises DataError."""
    listed = _read(str(file.path), file.stamp, None if file.is_own else accelerator_id, file.source)
    return listed if accelerator_id is None else tuple(o for o in listed if o.accelerator_id == accelerator_id)


def save_offers(offers: Sequence[Offer], source: str, day: datetime.date) -> Path:
    """Write ``offers`` as the newest file of ``source`` and return its path.

    A file is never overwritten: a second one of the same day is numbered, unless it would repeat the first
    word for word. Raises InputError for a source that is no file name or when there is nothing to save, and
    DataError when the folder cannot be written.
    """
    if not _SOURCE.fullmatch(source):
        raise InputError(f"{source[:80]!r} cannot name a source of prices", hint="use small letters, digits, dots and dashes")
    if not offers:
        raise InputError(f"no offers to save for {source}", hint="nothing was changed")
    folder = store_dir() / source
    text = format_offers(offers)
    parse_offers(text, source)  # what is written can be read back, or is not written
    try:
        folder.mkdir(parents=True, exist_ok=True)
        same_day = sorted((f for f in _files_in(folder) if f.day == day), key=lambda f: f.number)
        if same_day and same_day[-1].path.read_text(encoding="utf-8") == text:
            return same_day[-1].path
        return _write(folder, text, day, same_day[-1].number + 1 if same_day else 1)
    except OSError as error:
        raise DataError(
            f"the prices cannot be saved in {folder}: {error.strerror or error}",
            hint="check the folder, or set GPUWISE_HOME to another",
        ) from error


def remove(source: str) -> tuple[Path, ...]:
    """Delete every file of ``source`` and return their paths. Raises UnknownNameError when the store has no
    such source."""
    files = tuple(f.path for f in stored_files() if f.source == source and f.path.is_relative_to(store_dir()))
    if not files:
        names = sorted({f.source for f in stored_files()})
        hint = "it holds " + ", ".join(names) if names else "the store is empty"
        raise UnknownNameError("source of prices", source, names, hint=hint)
    for path in files:
        path.unlink()
    with contextlib.suppress(OSError):  # a file that is not ours keeps the folder
        files[0].parent.rmdir()
    return files


def _write(folder: Path, text: str, day: datetime.date, number: int) -> Path:
    """Write to a temporary file and give it the first free name: never half a file, never over another."""
    import tempfile

    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        while True:
            path = folder / (f"{day.isoformat()}.csv" if number == 1 else f"{day.isoformat()}.{number}.csv")
            try:
                _name(temporary, path)
                return path
            except FileExistsError:
                number += 1
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()


def _name(temporary: str, path: Path) -> None:
    """Give a written file its name. Raises FileExistsError when the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if path.exists():
            raise FileExistsError(path) from None
        Path(temporary).rename(path)


def _folders(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        return
    for entry in os.scandir(root):
        if entry.is_dir() and _SOURCE.fullmatch(entry.name):
            yield Path(entry.path)


def _files_in(folder: Path) -> Iterator[StoredFile]:
    for entry in os.scandir(folder):
        name = _FILE.fullmatch(entry.name)
        if name is None or not entry.is_file():
            continue
        with contextlib.suppress(ValueError):  # 2026-02-31.csv is not ours
            status = entry.stat()
            day = datetime.date.fromisoformat(name[1])
            stamp = (status.st_mtime_ns, status.st_size)
            yield StoredFile(Path(entry.path), folder.name, day, int(name[2] or 1), stamp)


@lru_cache(maxsize=256)
def _read(path: str, stamp: tuple[int, int], accelerator_id: str | None, source: str) -> tuple[Offer, ...]:
    """The offers of a file; ``stamp`` only keys the cache."""
    try:
        text = read_text(Path(path))
        if accelerator_id is None:
            return parse_offers(text, path)
        head, *rows = text.split("\n")
        some = "\n".join([head, *(row for row in rows if f",{accelerator_id}," in row)])
        try:
            return parse_offers(some, path)
        except FieldError:
            return parse_offers(text, path)  # the same error with its true line
    except FieldError as error:
        raise _corrupt(error.message, source) from error


def _corrupt(message: str, source: str) -> DataError:
    return DataError(f"the stored prices are damaged: {message}", hint=f"fix it, or remove it: gpuwise prices --remove {source}")
