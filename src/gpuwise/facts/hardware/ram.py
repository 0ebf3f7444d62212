"""Memory of a host as people write it: ``ddr4-3200x2``, ``2x ddr5-5600``, ``64GB DDR4 3200 dual channel``, ``lpddr5x-8533``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuwise.errors import InputError
from gpuwise.units import GIB

CHANNEL_BYTES = 8
"""A channel is 64 bits wide here: LPDDR5X on 256 bits is four of them."""
FASTEST_MT_S = {
    "DDR2": 1066,
    "DDR3": 2933,
    "DDR4": 5333,
    "DDR5": 10000,
    "LPDDR2": 1066,
    "LPDDR3": 2133,
    "LPDDR4": 4267,
    "LPDDR4X": 4267,
    "LPDDR5": 10667,
    "LPDDR5X": 10667,
}
"""The fastest that is sold, overclocked modules included."""
_WORDS = {"single": 1, "dual": 2, "quad": 4, "six": 6, "octa": 8, "eight": 8, "twelve": 12}
_SIZE = re.compile(r"\b(\d{1,5})\s*(gi?b|ti?b)\b", re.IGNORECASE)
_CHANNELS = re.compile(rf"\b(?:(\d{{1,2}})\s*-?|({'|'.join(_WORDS)})[\s-]*)ch(?:annels?|\b)", re.IGNORECASE)
_TYPE = re.compile(
    r"\b(?:(\d{1,2})\s*[x×]\s*)?(lp)?ddr\s?([2-5])(?:\s?([xl])\b)?(?:[\s-]+(\d{3,5})(?:\s*mt/s|\s*mhz)?(?:\s*[x×]\s*(\d{1,2})\b)?)?",
    re.IGNORECASE,
)
_BESIDE = re.compile(r"[\s,;/@()+-]|\b(?:of|ram|memory|ecc|unbuffered|registered|so-?dimm|[ru]?dimms?|mt/s|mhz)\b", re.IGNORECASE)
_HINT = "write type-rate, with x and the channels if you know them: ddr4-3200x2, ddr5-5600, lpddr5x-8533x2, 64GB ddr5-6000x2"


@dataclass(frozen=True, slots=True)
class Ram:
    """A host's memory as stated in a text; None for missing values."""

    type: str | None = None
    """``DDR4``, ``LPDDR5X``."""
    mt_s: float | None = None
    channels: float | None = None
    """Channels of one socket, 64 bits each."""
    size_bytes: float | None = None

    @property
    def text(self) -> str:
        """``DDR4-3200 x 2``."""
        return memory_text(self.type or "", self.mt_s, self.channels)


def memory_text(type_: str, mt_s: float | None, channels: float | None) -> str:
    """``DDR4-3200 x 2``: type, MT/s and channels of 64 bits; half a channel is 32 bits."""
    rate = "" if mt_s is None else f"-{mt_s:.0f}"
    count = "" if channels is None else " on 32 bits" if channels == 0.5 else f" x {channels:g}"
    return f"{type_}{rate}{count}"


def take_ram(text: str) -> tuple[Ram | None, str]:
    """The memory that ``text`` names, and the text without it; None where it names none. Raises InputError on a rate or a count
    that no memory has."""
    found = _TYPE.search(text)
    if found is None:
        return None, text
    before, low_power, generation, letter, rate, after = found.groups()
    type_ = f"{'LP' if low_power else ''}DDR{generation}{'X' if (letter or '').lower() == 'x' else ''}".upper()
    rest = text[: found.start()] + " " + text[found.end() :]
    counts = [int(n) for n in (before, after) if n]
    if several := _CHANNELS.search(rest):
        counts.append(int(several[1]) if several[1] else _WORDS[several[2].lower()])
        rest = rest[: several.start()] + " " + rest[several.end() :]
    size, rest = take_size(rest)
    if type_ not in FASTEST_MT_S:
        raise InputError(f"there is no {type_}", hint=_HINT)
    mt_s = float(rate) if rate else None
    if mt_s is not None and not 200 <= mt_s <= FASTEST_MT_S[type_]:
        raise InputError(f"no {type_} runs at {mt_s:.0f} MT/s", hint=f"it runs at up to {FASTEST_MT_S[type_]} MT/s")
    if len(set(counts)) > 1:
        raise InputError(f"{text.strip()!r} states {counts[0]} and {counts[1]} channels", hint=_HINT)
    if counts and not 1 <= counts[0] <= 16:
        raise InputError(f"{counts[0]} memory channels on one processor", hint="from 1 to 16 for each socket")
    return Ram(type_, mt_s, float(counts[0]) if counts else None, size), rest


def take_size(text: str) -> tuple[float | None, str]:
    """The bytes that ``text`` states (``64GB`` is 64 GiB), and the text without them. Raises InputError."""
    found = _SIZE.search(text)
    if found is None:
        return None, text
    gib = int(found[1]) * (1024 if found[2].lower().startswith("t") else 1)
    if not 1 <= gib <= 65536:
        raise InputError(f"{found[0]} of memory", hint="from 1GB to 64TB")
    return gib * GIB, text[: found.start()] + " " + text[found.end() :]


def read_ram(text: str) -> Ram:
    """The memory that ``text`` states, all of which must be about memory. Raises InputError."""
    ram, rest = take_ram(text)
    if ram is None:
        size, rest = take_size(text)
        ram = None if size is None else Ram(size_bytes=size)
    if ram is None or _BESIDE.sub("", rest):
        raise InputError(f"{text.strip()[:60]!r} does not name memory", hint=_HINT)
    return ram
