"""Numbers in the output of other programs, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

from gpuwise.errors import FileError

HINT = "give the program's output as it printed it"


def refuse(where: str, what: str) -> NoReturn:
    """Raises FileError."""
    raise FileError(f"{where}: {what}", hint=HINT)


def number(row: Mapping[str, Any], field: str, where: str) -> float:
    """A finite number of at least 0, or text that is one. Raises FileError."""
    value = row.get(field)
    try:
        found = math.nan if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not 0.0 <= found < math.inf:
        refuse(where, f"{field} is missing" if value is None else f"{field} is {str(value)[:40]!r}, not a number")
    return found


def count(row: Mapping[str, Any], field: str, where: str) -> int:
    """A whole number of at least 0; 0 where it is left out. Raises FileError."""
    if row.get(field) is None:
        return 0
    found = number(row, field, where)
    if found != int(found):
        refuse(where, f"{field} is {found}, not a whole number")
    return int(found)
