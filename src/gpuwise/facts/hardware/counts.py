"""How many devices a text names, and what: ``8xH100``, ``2x8xH200``, ``8 H100``, ``H100x8``, ``h100:8``, ``eight H100``,
``dual H100``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuwise.errors import InputError

LONGEST_NAME = 200
"""Characters of a device's or system's name; what is longer is not one."""
MOST_ACCELERATORS = 1_000_000
_HINT = "write it like 8xH100-SXM, 2x8xH200 or dgx-h100"
_TIMES = re.compile(r"\s*([0-9]+)\s*[x×*](?!tx?\b)\s*", re.IGNORECASE)
"""A count and its x, which is not that of "7900 XTX"."""
_BEFORE = re.compile(r"\s*([0-9]{1,9})\s*(?=\S*[a-z0-9])", re.IGNORECASE)
_SPELLED = re.compile(r"\s*([a-z]+)[\s-]+(?=\S)", re.IGNORECASE)
_AFTER = re.compile(
    r"\s*(?:[x×*:]\s*(?P<a>[0-9]{1,9})|\((?:[x×]\s*(?P<b>[0-9]{1,9})|(?P<c>[0-9]{1,9})\s*[x×])\))\s*$", re.IGNORECASE
)
_RESOURCE = re.compile(r"\s*(?:gpus?|gres/gpu)\s*:\s*(?=\S)", re.IGNORECASE)
_NO_COUNT = re.compile(
    r"\s*[-+.]|\s*[0-9.,]+\s*[x×*](?!tx?\b)|\s*[0-9]+[.,][0-9]+\s+\S|.*(?:\s[x×*]|[*:])\s*-\s*[0-9]+\s*$", re.IGNORECASE
)
_SPELLED_COUNTS = {
    "one": 1,
    "single": 1,
    "two": 2,
    "dual": 2,
    "pair": 2,
    "three": 3,
    "triple": 3,
    "four": 4,
    "quad": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "ten": 10,
    "twelve": 12,
    "sixteen": 16,
}


def leading_counts(text: str) -> tuple[list[int], str]:
    """The counts that ``text`` begins with, each followed by an x, and the name after them. Raises InputError on a count
    that cannot be."""
    if len(text) > LONGEST_NAME or not text.strip():
        raise InputError(f"{text[:40]!r} is not the name of a cluster", hint=_HINT)
    counts: list[int] = []
    rest = text
    while (match := _TIMES.match(rest)) is not None:
        if len(match[1]) > 9:
            raise InputError(f"{text!r} is more than {MOST_ACCELERATORS:,} accelerators", hint=_HINT)
        counts.append(int(match[1]))
        rest = rest[match.end() :]
    check_counts(counts, text)
    if _NO_COUNT.match(rest):
        raise InputError(f"{text!r} does not begin with a whole count above zero", hint=_HINT)
    return counts, rest.strip()


def check_counts(counts: list[int], text: str) -> None:
    """Raises InputError where the product of ``counts`` is nothing or absurd."""
    total = 1
    for count in counts:
        total *= count
    if total < 1:
        raise InputError(f"{text!r} has a count of zero", hint=_HINT)
    if total > MOST_ACCELERATORS:
        raise InputError(f"{text!r} is more than {MOST_ACCELERATORS:,} accelerators", hint=_HINT)


def readings(text: str) -> Iterator[tuple[list[int], str]]:
    """The counts and the name that ``text`` may mean, the likeliest first.

    Many device names begin or end in a number too (``RTX 4090``, ``6000 Ada``), so the first reading with a known name counts.
    Raises InputError on an impossible count.
    """
    counts, name = leading_counts(text)
    resource = _RESOURCE.match(name)
    if resource is not None and not counts:
        name = name[resource.end() :]
    if name.isdigit() and len(name) < 4:  # "4090 x 2": what looks like the count is the name
        yield from _count_after(text)
    if not counts and name.endswith(")"):
        yield from _count_after(name)
    spelled = _SPELLED.match(name)
    if spelled is not None and spelled[1].lower() in _SPELLED_COUNTS:
        yield [*counts, _SPELLED_COUNTS[spelled[1].lower()]], name[spelled.end() :]
    before = _BEFORE.match(name)
    if before is not None and _is_mere_number(name[before.end() :]):
        before = None
    if before is not None and len(before[1]) < 3:  # "2 gaudi", though Gaudi 2 has both words
        yield [*counts, int(before[1])], name[before.end() :]
    if not counts:
        yield from _count_after(name)
    if not _is_mere_number(name):
        yield counts, name
    if before is not None:
        yield [*counts, int(before[1])], name[before.end() :]


def _count_after(text: str) -> Iterator[tuple[list[int], str]]:
    match = _AFTER.search(text)
    if match is not None and not _is_mere_number(text[: match.start()]):
        yield [int(match["a"] or match["b"] or match["c"])], text[: match.start()].strip()


def _is_mere_number(text: str) -> bool:
    """Whether ``text`` is nothing, one character, or a number of two digits: no name, though a device's may have it as a
    word (``2`` of Gaudi 2)."""
    return len(text.strip()) < 2 or (len(text.strip()) == 2 and text.strip().isdigit())
