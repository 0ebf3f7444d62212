"""Which source files are libraries and which are a person's own. No torch here."""

from __future__ import annotations

import os
import site
import sysconfig
from functools import cache
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep


@cache
def _libraries() -> tuple[str, ...]:
    paths = [sysconfig.get_path(n) for n in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")]
    places = {str(Path(p).resolve()) + os.sep for p in (*site.getsitepackages(), site.getusersitepackages(), *paths)}
    return (_PACKAGE, *sorted(places))


@cache
def is_library(filename: str) -> bool:
    """Whether a source file belongs to Python, an installed package, or gpuwise itself."""
    if filename.startswith("<"):
        return True
    path = os.path.realpath(filename)
    return path.startswith(_libraries()) or f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path


@cache
def is_standard(filename: str) -> bool:
    """Whether a source file belongs to Python's own library, or to gpuwise."""
    if filename.startswith("<"):
        return True
    path = os.path.realpath(filename)
    if f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path:
        return False
    own = (str(Path(sysconfig.get_path(n)).resolve()) + os.sep for n in ("stdlib", "platstdlib"))
    return path.startswith((_PACKAGE, *own))
