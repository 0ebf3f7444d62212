"""Where output goes: tables for people on stdout, one JSON document with ``--json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpuwise.text import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


GAP = 2
"""Blanks between the columns of a table."""


def print_json(document: object) -> None:
    """One document as the last line of stdout; a NaN or infinity in it is our bug and raises."""
    sys.stdout.write(json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n")


def console() -> Console:
    """Stdout as rich sees it: colour only on a terminal and without NO_COLOR, width of the terminal or 80."""
    return printing_console()


def printing_console(**options: Any) -> Console:
    """A console that shows control characters in texts as codes: names come from files and programs of others."""
    from rich.console import Console
    from rich.segment import Segment

    class PrintableConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else printable(text), style, control)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # said once, where the command ends

    from gpuwise.cli.streams import trimmed

    options["file"] = trimmed(options.get("file") or sys.stdout)
    return PrintableConsole(highlight=False, emoji=False, markup=False, **options)


def table_of(columns: Sequence[str], *, left: Sequence[str] = (), wrap: Sequence[str] = ()) -> Table:
    """A borderless table with dim headers; columns are right-aligned but those in ``left``, whole but those
    in ``wrap``."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name not in wrap)
    return table


def keep_what_fits(columns: dict[str, list[str]], gives_way: Sequence[str], width: int) -> None:
    """Take columns (title to cells) out, in the order of ``gives_way``, until the others stand whole in ``width`` characters."""
    for name in gives_way:
        if sum(max(map(len, (title, *cells))) + GAP for title, cells in columns.items()) <= width:
            return
        columns.pop(name, None)


def grid(columns: int, *, pad: int = 2) -> Table:
    """A table without header or lines."""
    from rich.table import Table

    table = Table.grid(padding=(0, pad, 0, 0))
    for _ in range(columns):
        table.add_column()
    return table


def section(to: Console, title: str, body: RenderableType) -> None:
    """A bold title with its body two columns in."""
    from rich.padding import Padding

    to.print()
    to.print(title, style="bold")
    to.print(Padding(body, (0, 0, 0, 2), expand=False))
