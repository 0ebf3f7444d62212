"""An answer where it was asked to go: the terminal, JSON, and pages and pictures beside them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwise.cli.asked import give

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.report.answers.answer import Answer


def check_reports(html: Path | None, svg: Path | None = None) -> None:
    """Raises InputError where a page or a picture cannot be written; None: not requested."""
    if html is not None or svg is not None:
        from gpuwise.files import FIGURE_SUFFIXES, PAGE_SUFFIXES, check_target

        check_target(html, PAGE_SUFFIXES)
        check_target(svg, FIGURE_SUFFIXES)


def report(
    document: dict[str, Any],
    answer: Callable[[dict[str, Any]], Answer],
    shown: Shown | None,
    *,
    json: bool,
    html: Path | None = None,
    svg: Path | None = None,
    after_script: bool = False,
) -> None:
    """Show a document: as JSON, or as the ``answer`` made from it; and write the answer to the files asked for. ``after_script``:
    a script wrote to stdout before."""
    if give(document, answer):
        return
    made = None if json and html is None and svg is None else answer(document)
    if made is not None and (html is not None or svg is not None):
        from gpuwise.cli.asked import asked
        from gpuwise.report.answers.exported import write_page, write_pictures

        write_report(html, lambda path: write_page(made, path, asked()))
        write_report(svg, lambda path: write_pictures(made, path))
    if json:
        from gpuwise.cli.out import print_json

        print_json(document, after_script=after_script)
    elif made is not None:
        from gpuwise.cli.answer import show

        show(made, shown)


def write_report(path: Path | None, write: Callable[[Path], object]) -> None:
    """``write`` to ``path``, where one was asked for, and print on stderr where it is."""
    if path is not None:
        write(path)
        sys.stderr.write(f"wrote {path}\n")
