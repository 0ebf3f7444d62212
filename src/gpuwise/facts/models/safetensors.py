"""The header of a safetensors file: every tensor with its type, its shape and its bytes.

Format: huggingface/safetensors README: eight bytes with the length of a JSON text, the text, the tensors one behind the other.
Only the header is read. One that lies (a length beyond the file, tensors that overlap, leave gaps or end outside it) is refused.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO, cast

from gpuwise.errors import FileError
from gpuwise.files import MIB, open_file, parse_json, read_json, read_text

BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 8),
    "F4": 4,
}
"""Of a number of each type (safetensors/src/tensor.rs, Dtype)."""
MOST_HEADER = 100_000_000
"""As the library itself allows."""
MOST_FILE = 1 << 50
INDEX = "model.safetensors.index.json"
SIZE_SUFFIX = ".size"
"""Of the file beside a header that was fetched alone: the bytes of the whole file."""
_HINT = "download it again, or give a safetensors file"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its dimensions from the outermost on, the name of its type, and its bytes."""

    name: str
    shape: tuple[int, ...]
    kind: str
    n_bytes: int

    @property
    def elements(self) -> int:
        """Numbers in it, as its type counts them (a packed format has several weights in one)."""
        return prod(self.shape)


def whole_size(path: Path) -> int:
    """Bytes of the file that ``path`` is, or is the fetched header of."""
    beside = path.with_name(path.name + SIZE_SUFFIX)
    if beside.is_file():
        text = read_text(beside, most=MIB).strip()
        if text.isdigit():
            return int(text)
    return path.stat().st_size


def read_tensors(path: Path) -> tuple[Tensor, ...]:
    """The tensors of one file. Raises FileError."""
    with open_file(path, most=MOST_FILE, hint=_HINT) as file:
        return parse_header(file, path, whole_size(path))


def parse_header(file: BinaryIO, path: Path, size: int) -> tuple[Tensor, ...]:
    """The tensors of a file of ``size`` bytes, open at its beginning. Raises FileError."""

    def wrong(message: str) -> FileError:
        return FileError(message, file=str(path), hint=_HINT)

    first = file.read(8)
    if len(first) < 8:
        raise wrong("is no safetensors file")
    (length,) = struct.unpack("<Q", first)
    if length > MOST_HEADER or 8 + length > size:
        raise wrong("ends within its header" if length <= MOST_HEADER else "is no safetensors file")
    text = file.read(length)
    if len(text) < length:
        raise wrong("ends within its header")
    try:
        header = parse_json(text.decode("utf-8"), str(path), hint=_HINT)
    except UnicodeDecodeError:
        raise wrong("is no safetensors file") from None
    if not isinstance(header, dict):
        raise wrong("is no safetensors file")
    tensors: list[tuple[int, int, Tensor]] = []
    for name, value in cast("dict[str, object]", header).items():
        if name != "__metadata__":
            tensors.append(_tensor(name, value, wrong))
    if not tensors:
        raise wrong("has no tensors")
    at = 0
    for begin, end, tensor in sorted(tensors, key=lambda t: t[:2]):
        if begin != at:
            raise wrong(f"has tensors that {'overlap' if begin < at else 'leave a gap'} at {tensor.name[:60]!r}")
        at = end
    if 8 + length + at != size:
        lost = 8 + length + at > size
        raise wrong("was not downloaded whole" if lost else f"has {size - 8 - length - at:,} bytes behind its last tensor")
    return tuple(tensor for *_, tensor in tensors)


def _tensor(name: str, value: object, wrong: Callable[[str], FileError]) -> tuple[int, int, Tensor]:
    """Where a tensor begins and ends, and itself. Raises FileError."""
    fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    kind, shape, offsets = fields.get("dtype"), _whole(fields.get("shape")), _whole(fields.get("data_offsets"))
    if not isinstance(kind, str) or shape is None or offsets is None or len(offsets) != 2:
        raise wrong(f"has no dtype, shape or data_offsets of {name[:60]!r}")
    begin, end = offsets
    bits = BITS.get(kind.upper(), 0)
    if end < begin or (bits and -(-prod(shape) * bits // 8) != end - begin):
        raise wrong(f"has {end - begin:,} bytes of {name[:60]!r}, which is {kind} of {'x'.join(map(str, shape))}")
    return begin, end, Tensor(name, tuple(shape), kind.upper(), end - begin)


def _whole(value: object) -> list[int] | None:
    items = cast("list[object]", value) if isinstance(value, list) else None
    if items is None or not all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < MOST_FILE for v in items):
        return None
    return cast("list[int]", items)


def read_folder(folder: Path) -> tuple[Tensor, ...]:
    """The tensors of all parts in a folder; empty where it has none. Raises FileError for parts that are missing."""
    index = folder / INDEX
    if index.is_file():
        document = read_json(index, most=64 * MIB, hint=_HINT)
        table = cast("dict[str, object]", document).get("weight_map") if isinstance(document, dict) else None
        if not isinstance(table, dict) or not table:
            raise FileError("has no weight_map", file=str(index), hint=_HINT)
        names = sorted({str(name) for name in cast("dict[str, object]", table).values()})
        if any("/" in name or "\\" in name or name.startswith(".") for name in names):
            raise FileError("names parts outside its folder", file=str(index), hint=_HINT)
        files = [folder / name for name in names]
        missing = [f.name for f in files if not f.is_file()]
        if len(missing) == len(files):
            return ()  # an index alone
        if missing:
            hint = "download all parts into one folder"
            raise FileError(f"names {len(files)} parts, and {missing[0]} is missing", file=str(index), hint=hint)
    else:
        files = sorted(folder.glob("*.safetensors"))
        _check_parts(files, folder)
    tensors = [tensor for file in files for tensor in read_tensors(file)]
    if len({t.name for t in tensors}) < len(tensors):
        raise FileError("has a tensor in two files", file=str(folder), hint="give the folder of one model")
    return tuple(tensors)


_PART = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors$")


def _check_parts(files: list[Path], folder: Path) -> None:
    """Raises FileError where one of several parts is missing."""
    parts = [(int(found[1]), int(found[2])) for f in files if (found := _PART.search(f.name)) is not None]
    if parts and len(parts) < parts[0][1]:
        missing = next(i for i in range(1, parts[0][1] + 1) if i not in {n for n, _ in parts})
        hint = "download all parts into one folder"
        raise FileError(f"has {len(parts)} of {parts[0][1]} parts, not the {missing}th", file=str(folder), hint=hint)


__all__ = ["INDEX", "SIZE_SUFFIX", "Tensor", "parse_header", "read_folder", "read_tensors", "whole_size"]
