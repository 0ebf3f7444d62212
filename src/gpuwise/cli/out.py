"""Where output goes: tables for people on stdout, one JSON document with ``--json``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def print_json(document: object) -> None:
    """One document as the last line of stdout; a NaN or infinity in it is our bug and raises."""
    sys.stdout.write(json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n")


def console() -> Console:
    """Stdout as rich sees it: colour only on a terminal and without NO_COLOR, width of the terminal or 80."""
    from rich.console import Console

    return Console(highlight=False, emoji=False, markup=False)
