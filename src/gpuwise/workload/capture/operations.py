"""Lists of PyTorch's operations (aten) by schema name, from ``operations.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path


@cache
def operations() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Section -> list -> names."""
    return tomllib.loads(Path(__file__).with_name("operations.toml").read_text(encoding="utf-8"))
