"""Files: the one reader of what a person names, and writers of files and lines that appear whole or not at all."""

from __future__ import annotations

import io
import math
import os
import re
import stat
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar, cast

from gpuwise.errors import FieldError, FileError, InputError

MIB, GIB = 1 << 20, 1 << 30
MOST_BYTES = 64 * MIB
"""Default maximum bytes of a file that is read at once; plans, configurations and tables have a thousandth."""
BLOCK = 4 * MIB
MOST_DEPTH = 100
"""Objects and lists inside one another in JSON. Plans have 8, configurations of models 5."""
MOST_READ_S = 120.0
"""Time to read a file: a network's file system may deliver a byte a minute."""
CHECK = "check the path"
KINDS = {stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFCHR: "device", stat.S_IFBLK: "device", stat.S_IFSOCK: "socket"}
T = TypeVar("T")


def open_file(path: Path, *, most: int = MOST_BYTES, hint: str = CHECK) -> BinaryIO:
    """A regular file (or a link to one) of at most ``most`` bytes, open for reading. Raises FileError with ``hint``.

    A pipe would be waited for, a device never ends, and opening one may change it: neither is opened.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            kind = KINDS.get(stat.S_IFMT(found.st_mode), "special file")
            raise FileError(f"is a {kind}, not a regular file", file=str(path), hint=hint)
        # it may be another by now: O_NONBLOCK opens a pipe without a writer
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        file = io.BufferedReader(_Named(os.open(path, flags), path, hint))
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        _unreadable(path, error, hint)
    found = os.fstat(file.fileno())
    if stat.S_ISREG(found.st_mode) and found.st_size <= most:
        return file
    file.close()
    _refuse_size(str(path), most)


class _Named(io.FileIO):
    """A file whose failing reads (a damaged disk, a network that is gone) are FileErrors that name it."""

    def __init__(self, descriptor: int, path: Path, hint: str) -> None:
        super().__init__(descriptor)
        self._path, self._hint = path, hint

    def readinto(self, buffer: Any, /) -> int | None:
        try:
            return super().readinto(buffer)
        except OSError as error:
            _unreadable(self._path, error, self._hint)

    def readall(self) -> bytes:
        try:
            return super().readall()
        except OSError as error:
            _unreadable(self._path, error, self._hint)


def check_file(path: Path, *, most: int = MOST_BYTES, hint: str = CHECK) -> Path:
    """``path``, for a library that opens it by its name. Raises FileError as :func:`open_file` does."""
    with open_file(path, most=most, hint=hint) as file:
        file.read(1)
    return path


def read_bytes(path: Path, *, most: int = MOST_BYTES, hint: str = CHECK, text: bool = False) -> bytes:
    """The content of a regular file of at most ``most`` bytes; ``text`` has no zero bytes. Raises FileError with ``hint``."""
    end = time.monotonic() + MOST_READ_S
    parts: list[bytes] = []
    n = 0
    with open_file(path, most=most, hint=hint) as file:
        while True:
            part = file.read(min(most + 1 - n, BLOCK))
            if not part:
                return b"".join(parts)
            if not parts and len(part) == BLOCK and not part.strip(b"\0"):
                raise FileError("begins with zero bytes without end", file=str(path), hint=hint)
            n += len(part)
            if n > most:  # /proc reports 0 bytes for every file
                _refuse_size(str(path), most)
            if time.monotonic() > end:
                raise FileError(f"was not read within {MOST_READ_S:g} s", file=str(path), hint="copy it to this machine")
            if text and b"\0" in part:
                at = n - len(part) + part.index(b"\0")
                raise FileError(f"is not UTF-8 text (byte {at} is zero)", file=str(path), hint=hint)
            parts.append(part)


def read_text(path: Path, *, most: int = MOST_BYTES, hint: str = CHECK) -> str:
    """The text of a regular file in UTF-8. Raises FileError with ``hint``."""
    return decode(read_bytes(path, most=most, hint=hint, text=True), str(path))


def read_stdin(*, most: int = MOST_BYTES) -> str:
    """The text of standard input, as :func:`read_text` reads a file. Raises FileError."""
    stream = getattr(sys.stdin, "buffer", None)
    content = cast("str | bytes", (sys.stdin if stream is None else stream).read(most + 1))
    if len(content) > most:
        _refuse_size("stdin", most)
    return content if isinstance(content, str) else decode(content, "stdin")


def decode(content: bytes, file: str) -> str:
    """``content`` as text, without a byte order mark. Raises FileError."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"is not UTF-8 text (byte {error.start})", file=file, hint="save it as UTF-8 text") from None


def read_json(path: Path, *, most: int = MOST_BYTES, hint: str = CHECK, finite: bool = True) -> object:
    """The JSON document of a file, by :func:`read_text` and :func:`parse_json`."""
    return parse_json(read_text(path, most=most, hint=hint), str(path), hint=hint, finite=finite)


def parse_json(text: str, file: str, *, line: int | None = None, hint: str = CHECK, finite: bool = True) -> Any:
    """The value of a JSON text, whose objects name each field once, with at most ``MOST_DEPTH`` of them inside one another and
    no number beyond 64 bits; with ``finite`` NaN and infinity are refused too. Raises FileError."""
    import json

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise FileError(f"has the field {twice[:60]!r} twice in one object", file=file, line=line, hint="leave one out")
        return found

    def constant(name: str) -> float:
        if finite:
            raise FileError(f"has {name}, which is not a number in JSON", file=file, line=line, hint=hint)
        return float(name.replace("Infinity", "inf"))

    try:
        value = json.loads(text, object_pairs_hook=once, parse_constant=constant)
    except json.JSONDecodeError as error:
        at = error.lineno if line is None else line
        raise FileError(f"is not JSON: {error.msg} (column {error.colno})", file=file, line=at, hint=hint) from None
    except ValueError as error:  # a number of thousands of digits
        raise FileError(f"is not JSON: {str(error)[:80]}", file=file, line=line, hint=hint) from None
    except RecursionError:
        _refuse_depth(file, line)
    todo: list[tuple[object, int]] = [(value, 0)]
    while todo:
        one, depth = todo.pop()
        if isinstance(one, dict | list):
            if depth == MOST_DEPTH:
                _refuse_depth(file, line)
            inner = cast("dict[str, object]", one).values() if isinstance(one, dict) else cast("list[object]", one)
            todo += [(part, depth + 1) for part in inner if not isinstance(part, str)]
        elif isinstance(one, float) and finite and not math.isfinite(one):
            raise FileError("has a number too large to be one", file=file, line=line, hint=hint)
        elif isinstance(one, int) and abs(one) >= 1 << 64:
            raise FileError("has a whole number of more than 64 bits", file=file, line=line, hint=hint)
    return value


def parse_toml(text: str, file: str, *, hint: str = "see https://toml.io") -> dict[str, Any]:
    """The tables of a TOML text. Raises FileError."""
    import tomllib

    try:
        return tomllib.loads(text)
    except ValueError as error:  # int() of a very long number is a bare one
        found = re.search(r"at line (\d+)", str(error))
        line = None if found is None else int(found[1])
        raise FileError(f"is not TOML: {str(error)[:200]}", file=file, line=line, hint=hint) from None
    except RecursionError:
        raise FileError("is not TOML: lists inside lists without end", file=file, hint=hint) from None


def csv_rows(text: str, file: str, *, strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV text with the lines they end in, the header too. Raises FileError."""
    import csv
    import io

    reader = csv.reader(io.StringIO(text, newline=""), strict=strict)
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise FileError(f"is not CSV: {error}", file=file, line=reader.line_num, hint="check the quotes") from None
        if row is None:
            return
        yield reader.line_num, row


def convert(value: object, kind: type[T], file: str, *, at: str = "", hint: str = CHECK) -> T:
    """``value``, read from ``file``, as ``kind`` (a class of msgspec or a dataclass). Raises FieldError that names the path in
    the document, which begins with ``at``, and what is expected there."""
    import msgspec

    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        where = f"{at}{path.strip('`').lstrip('$')}".lstrip(".")
        what = what[:1].lower() + what[1:200].replace("`", "")
        if "matching regex" in what:
            what = "has a character that is not allowed there"
        raise FieldError(f"{where}: {what}" if where else what, file=file, field=where or None, hint=hint) from None
    except RecursionError:
        _refuse_depth(file, None)


def _unreadable(path: Path, error: OSError | ValueError, hint: str) -> NoReturn:
    reason = (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
    raise FileError(f"cannot be read: {reason}", file=str(path), hint=hint) from None


def _refuse_size(file: str, most: int) -> NoReturn:
    size = f"{most / GIB:g} GiB" if most >= GIB else f"{most / MIB:g} MiB"
    raise FileError(f"is larger than {size}", file=file, hint="is it the right file? only this much of one is read")


def _refuse_depth(file: str, line: int | None) -> NoReturn:
    hint = "is it the right file? a program wrote this one by mistake"
    raise FileError(f"is nested more than {MOST_DEPTH} deep", file=file, line=line, hint=hint)


PAGE_SUFFIXES = (".html", ".htm")
FIGURE_SUFFIXES = (".svg",)


def write_whole(path: Path, content: bytes | str) -> None:
    """Write ``content`` (text as UTF-8) to ``path`` in one step: a reader sees the old file or the new one, after a loss of
    power too.

    Raises InputError where it cannot be written there.
    """
    import tempfile  # with shutil and its compressions, 5 ms that few commands need

    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
            sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}", hint="choose another place") from None


def sync_folder(folder: Path) -> None:
    """Its entries on the disk for certain; no effect where the system opens no folders (Windows)."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def alone_in(folder: Path, what: str) -> Generator[None]:
    """Exclusive lock on ``folder`` for the context: two runs of ``what`` (a tuning, a training) would take each other's files
    for their own. Raises InputError while there is another. No effect if the system or the file system has no locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f"{what}.lock").open("ab")
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}", hint="give another folder with --out") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another {what} is running in {folder}", hint="--out names another folder") from None
        except OSError:
            # a file system without locks
            pass
        yield


def drop_torn_line(path: Path) -> None:
    """Cut what a dead process left after the last whole line of ``path``, so that what is appended next starts a line. A kill
    can end a write where a page of the file does."""
    try:
        with path.open("r+b") as file:
            content = file.read()
            if not content.endswith(b"\n"):
                file.truncate(content.rfind(b"\n") + 1)
    except FileNotFoundError:
        pass


def check_target(path: Path | None, suffixes: Sequence[str]) -> None:
    """Raises InputError when a file with one of ``suffixes`` cannot be written at ``path``; None is no target."""
    if path is None:
        return
    suffixes_text = " or ".join(suffixes)
    if path.is_dir():
        raise InputError(f"{path} is a directory", hint=f"name a file in it, for example {path / ('report' + suffixes[0])}")
    if path.suffix.lower() not in suffixes:
        what = f"{path.suffix!r} is" if path.suffix else f"{path} has no suffix: it is"
        raise InputError(f"{what} not a kind of file this writes", hint=f"end the name in {suffixes_text}")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not a directory", hint="make it first")


def write_text(path: Path, text: str, suffixes: Sequence[str]) -> None:
    """Write ``text`` to ``path`` in one step: a reader sees the old file or the new one. Raises InputError."""
    check_target(path, suffixes)
    write_whole(path, text)
