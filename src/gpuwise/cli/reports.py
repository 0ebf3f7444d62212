"""Reports with figures that a command writes beside its answer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path


def check_reports(html: Path | None, svg: Path | None = None) -> None:
    """Raises InputError and MissingExtraError where a page or a figure cannot be written; None is none asked for."""
    if html is not None or svg is not None:
        from gpuwise.files import FIGURE_SUFFIXES, PAGE_SUFFIXES, check_target

        check_target(html, PAGE_SUFFIXES)
        check_target(svg, FIGURE_SUFFIXES)


def write_report(path: Path | None, write: Callable[[Path], object]) -> None:
    """``write`` to ``path``, where one was asked for, and where it is on stderr."""
    if path is not None:
        write(path)
        sys.stderr.write(f"wrote {path}\n")
