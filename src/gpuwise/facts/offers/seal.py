"""A checksum in the last line of a price file.

A changed digit still parses; only a checksum detects it.

After adding a price run ``python -m gpuwise.facts.offers.seal``. A user's own price file needs none.
"""

from __future__ import annotations

import hashlib
import re

from gpuwise.errors import DataError
from gpuwise.facts.loading import shipped_path, shipped_text

SEALED_FILES = ("offers.csv", "purchases.csv", "price_history.csv", "compatibility.csv")
_SEAL = re.compile(r"^# sha256 ([0-9a-f]{64})\n?\Z", re.MULTILINE)


def check_seal(text: str, file: str) -> str:
    """``text`` itself when its last line is the checksum of the lines before it. Raises DataError."""
    match = _SEAL.search(text)
    if match is None or match[1] != _digest(text[: match.start()]):
        raise DataError(
            f"{file} does not match the checksum in its last line",
            hint="reinstall gpuwise; if the change was meant, run `python -m gpuwise.facts.offers.seal`",
        )
    return text


def add_seal(text: str) -> str:
    """``text`` with its checksum as the last line."""
    body = _SEAL.sub("", text).rstrip("\n") + "\n"
    return f"{body}# sha256 {_digest(body)}\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    for name in SEALED_FILES:
        shipped_path(name).write_text(add_seal(shipped_text(name)), encoding="utf-8")
