"""The header of a GGUF file, in one part or several: what it says of the model, and every tensor with its type and its bytes.

Format: ggml-org/ggml docs/gguf.md, versions 2 and 3. Only the header is read: strings of a vocabulary are stepped over, and no
tensor's content is touched. A header that lies (lengths beyond the file, tensors that overlap or end outside it) is refused.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from math import prod
from pathlib import Path
from typing import BinaryIO

from gpuwise.errors import FileError
from gpuwise.facts.models.safetensors import whole_size
from gpuwise.files import MIB, open_file

BLOCKS: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}
"""Types of tensors: name, numbers of a block, bytes of a block (ggml/src/ggml.c type_traits, ggml-common.h). Of a type that is
not here the bytes are what the offsets say."""
FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
}
"""``general.file_type`` (llama.cpp include/llama.h, llama_ftype)."""
MOST_HEADER = 256 * MIB
"""Headers have 5 to 30 MiB, most of it the vocabulary."""
MOST_ITEMS = 1 << 24
MOST_TENSORS = 1 << 20
MOST_FILE = 1 << 50
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SIZES = {code: struct.calcsize("<" + letter) for code, letter in _SCALARS.items()}
_STRING, _ARRAY = 8, 9
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_HINT = "download it again, or give a file of llama.cpp (.gguf)"
_KEPT_ITEMS = 4096
"""Longer lists are vocabularies, of which only the length is kept."""

Value = int | float | bool | str | list[int | float | bool | str]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its dimensions from the innermost on, the name of its type, and its bytes."""

    name: str
    shape: tuple[int, ...]
    kind: str
    n_bytes: int

    @property
    def elements(self) -> int:
        """Numbers in it."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says. ``lengths`` has the number of items of lists too long to keep."""

    metadata: Mapping[str, Value]
    lengths: Mapping[str, int]
    tensors: tuple[Tensor, ...]


class _Reader:
    """Little-endian values of the beginning of a file, of which ``size`` bytes are there."""

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self.file, self.path, self.size = file, path, size
        self.buffer, self.at = b"", 0

    def error(self, message: str) -> FileError:
        return FileError(message, file=str(self.path), hint=_HINT)

    def need(self, n: int) -> None:
        """Read on until ``n`` bytes are in the buffer behind ``at``. Raises FileError where file or header end before."""
        while len(self.buffer) - self.at < n:
            if self.at + n > min(self.size, MOST_HEADER):
                beyond = "the file" if self.at + n > self.size else "what a header can have"
                raise self.error(f"its header goes on beyond {beyond}")
            part = self.file.read(max(4 * MIB, self.at + n - len(self.buffer)))
            if not part:
                raise self.error("ends within its header")
            self.buffer += part

    def scalar(self, letter: str) -> int | float | bool:
        n = struct.calcsize("<" + letter)
        self.need(n)
        (value,) = struct.unpack_from("<" + letter, self.buffer, self.at)
        self.at += n
        return value

    def count(self, letter: str, most: int, what: str) -> int:
        value = int(self.scalar(letter))
        if value > most:
            raise self.error(f"has {value:,} {what}")
        return value

    def text(self) -> str:
        n = self.count("Q", MIB, "bytes in a text")
        self.need(n)
        found = self.buffer[self.at : self.at + n]
        self.at += n
        return found.decode("utf-8", "replace")

    def value(self, kind: int) -> tuple[Value | None, int]:
        """A value of type ``kind`` (None: a list too long to keep) and how many items it has."""
        if kind == _STRING:
            return self.text(), 1
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind]), 1
        if kind != _ARRAY:
            raise self.error(f"has a value of unknown type {kind}")
        inner, n = int(self.scalar("I")), self.count("Q", MOST_ITEMS, "items in a list")
        if inner == _STRING:
            if n > _KEPT_ITEMS:
                self.skip_texts(n)
                return None, n
            return [self.text() for _ in range(n)], n
        if inner not in _SCALARS:
            raise self.error(f"has a list of unknown type {inner}")
        self.need(n * _SIZES[inner])
        items = None if n > _KEPT_ITEMS else list(struct.unpack_from(f"<{n}{_SCALARS[inner]}", self.buffer, self.at))
        self.at += n * _SIZES[inner]
        return items, n

    def skip_texts(self, n: int) -> None:
        length = struct.Struct("<Q").unpack_from
        for _ in range(n):
            if len(self.buffer) - self.at < 8:
                self.need(8)
            (size,) = length(self.buffer, self.at)
            if size > MIB:
                raise self.error(f"has {size:,} bytes in a text")
            self.at += 8 + size
            if self.at > len(self.buffer):
                self.at -= size
                self.need(size)
                self.at += size


def parts_of(path: Path) -> list[Path]:
    """All parts of a split file, or ``path`` alone. Raises FileError for a part that is missing."""
    found = _SPLIT.search(path.name)
    if found is None:
        return [path]
    stem, n = path.name[: found.start()], int(found[2])
    parts = [path.with_name(f"{stem}-{i:05d}-of-{n:05d}.gguf") for i in range(1, n + 1)]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise FileError(
            f"is one of {n} parts, and {missing[0]} is missing", file=str(path), hint="download all parts into one folder"
        )
    return parts


def read_header(path: Path) -> Header:
    """The header of a GGUF file with those of its other parts. Raises FileError."""
    metadata: dict[str, Value] = {}
    lengths: dict[str, int] = {}
    tensors: list[Tensor] = []
    for part in parts_of(path):
        found = _read_part(part)
        metadata = {**found.metadata, **metadata}
        lengths = {**found.lengths, **lengths}
        tensors += found.tensors
    names = {tensor.name for tensor in tensors}
    if len(names) < len(tensors) or not tensors:
        why = "names a tensor twice" if tensors else "has no tensors"
        raise FileError(why, file=str(path), hint=_HINT)
    return Header(metadata, lengths, tuple(tensors))


def _read_part(path: Path) -> Header:
    with open_file(path, most=MOST_FILE, hint=_HINT) as file:
        read = _Reader(file, path, whole_size(path))
        metadata, lengths, rows = _parse(read)
        align = metadata.get("general.alignment", 32)
        if not isinstance(align, int) or align < 1:
            raise read.error("has a general.alignment below 1")
        start = -(-read.at // align) * align
        return Header(metadata, lengths, _sized(rows, read.size - start, read))


class _Short(Exception):
    """The header goes on."""


class _Nothing(BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        raise _Short


def header_length(content: bytes) -> int | None:
    """Bytes of the header that ``content`` begins with; None where it goes on beyond that. Raises FileError."""
    read = _Reader(_Nothing(), Path("the file"), MOST_FILE)
    read.buffer = content
    try:
        _parse(read)
    except _Short:
        return None
    return read.at


Rows = list[tuple[str, tuple[int, ...], int, int]]


def _parse(read: _Reader) -> tuple[dict[str, Value], dict[str, int], Rows]:
    """Values, lengths of lists, and name, shape, type and offset of each tensor. Raises FileError."""
    read.need(4)
    if read.buffer[:4] != b"GGUF":
        raise read.error("is not a GGUF file")
    read.at = 4
    version = int(read.scalar("I"))
    if version not in (2, 3):
        big = version & 0xFFFF == 0 and version
        raise read.error("is in big-endian order, which is not read" if big else f"is of GGUF version {version}, not 2 or 3")
    n_tensors, n_values = read.count("Q", MOST_TENSORS, "tensors"), read.count("Q", MOST_TENSORS, "values")
    metadata: dict[str, Value] = {}
    lengths: dict[str, int] = {}
    for _ in range(n_values):
        key = read.text()
        value, n = read.value(int(read.scalar("I")))
        lengths[key] = n
        if value is not None:
            metadata[key] = value
    rows: Rows = []
    for _ in range(n_tensors):
        name, n_dims = read.text(), read.count("I", 8, "dimensions of a tensor")
        shape = tuple(read.count("Q", MOST_FILE, "numbers in a row") for _ in range(n_dims))
        rows.append((name, shape, int(read.scalar("I")), int(read.scalar("Q"))))
    return metadata, lengths, rows


def _sized(rows: Rows, most: int, read: _Reader) -> tuple[Tensor, ...]:
    """Tensors with their bytes: those of their type, which must lie in the file one behind the other. Raises FileError."""
    ends = sorted(offset for *_, offset in rows)
    next_of = dict(zip(ends, [*ends[1:], most], strict=False))
    tensors: list[Tensor] = []
    for name, shape, code, offset in rows:
        room = next_of[offset] - offset
        kind, numbers, size = BLOCKS.get(code, (f"type {code}", 0, 0))
        n_bytes = room if not numbers else -(-prod(shape) // numbers) * size
        if n_bytes > room or offset + n_bytes > most:
            raise read.error(
                f"ends within tensor {name[:60]!r}: it was not downloaded whole"
                if offset + n_bytes > most
                else f"has tensors that overlap at {name[:60]!r}"
            )
        tensors.append(Tensor(name, shape, kind, n_bytes))
    return tuple(tensors)
