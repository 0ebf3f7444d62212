"""The two files that the library reads: the script as text, and a shared page with its version and the call counts."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from gpuwise.testing.fake_nvml.build import function_names

_GENERATION = struct.Struct("=Q")
_SLOT = struct.Struct("=64sQ")


class Board:
    """A folder with ``state`` and ``board``; the form is described in ``library/state.c``."""

    def __init__(self, folder: Path) -> None:
        self._state = folder / "state"
        path = folder / "board"
        size = _GENERATION.size + _SLOT.size * len(function_names())
        path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), size)
        self._generation = 0

    def write(self, text: str) -> None:
        """Replace the script as a whole; the next call of any process sees it."""
        fresh = self._state.with_suffix(".new")
        fresh.write_text(text, encoding="ascii")
        fresh.replace(self._state)
        self._generation += 1
        _GENERATION.pack_into(self._page, 0, self._generation)

    def calls(self) -> dict[str, int]:
        """Function -> how often it was called by all processes; those never called are absent."""
        made: dict[str, int] = {}
        for i, name in enumerate(function_names()):
            _, calls = _SLOT.unpack_from(self._page, _GENERATION.size + i * _SLOT.size)
            if calls:
                made[name] = calls
        return made

    def reset_calls(self) -> None:
        """Set all call counts to 0."""
        for i in range(len(function_names())):
            offset = _GENERATION.size + (i + 1) * _SLOT.size - _GENERATION.size
            _GENERATION.pack_into(self._page, offset, 0)

    def close(self) -> None:
        """Close the shared page."""
        self._page.close()


def encode(text: str) -> str:
    """Encoding that the library decodes: %XX for anything but plain ASCII. Bytes that are not UTF-8 are given as surrogates
    (``os.fsdecode``)."""
    return "".join(chr(b) if 0x21 <= b < 0x7F and b != 0x25 else f"%{b:02X}" for b in text.encode("utf-8", "surrogateescape"))
