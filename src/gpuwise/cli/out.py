"""Where output goes: tables for people on stdout, one JSON document with ``--json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpuwise.cli.asked import give
from gpuwise.text import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from gpuwise.cli.fitted_table import FittedTable


def print_json(document: dict[str, Any], *, after_script: bool = False) -> None:
    """One document as the last line of stdout; a NaN or infinity in it is our bug and raises.

    ``after_script``: a script wrote to stdout before, and may have been stopped within a line.
    """
    if give(document):
        return
    if after_script:
        sys.stdout.write("\n")
    sys.stdout.write(json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n")


def console() -> Console:
    """Stdout as rich sees it: colour only on a terminal and without NO_COLOR, width of the terminal or 80."""
    return printing_console()


def printing_console(**options: Any) -> Console:
    """A console that shows control characters in texts as codes (names come from files and programs of others), and
    indents the further lines of a text as its first."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.segment import Segment
    from rich.text import Text

    class PrintableConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):  # every level of a table passes here: most are as they must be
                text, style, control = segment
                is_printable = control or text == "\n" or text.isprintable()
                yield segment if is_printable else Segment(printable(text), style, control)

        def print(self, *objects: Any, **how: Any) -> None:
            (only,) = objects if len(objects) == 1 else (None,)
            if isinstance(only, (str, Text)) and not how.get("soft_wrap"):
                blanks = len(str(only)) - len(str(only).lstrip(" "))
                if blanks and "\n" not in str(only):
                    body = Text(only) if isinstance(only, str) else only
                    super().print(Padding(body[blanks:], (0, 0, 0, blanks), expand=False), **how)
                    return
            super().print(*objects, **how)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # said once, where the command ends

    from gpuwise.cli.streams import trimmed

    options["file"] = trimmed(options.get("file") or sys.stdout)
    # in a notebook rich would show it in the cell, past `file`
    return PrintableConsole(highlight=False, emoji=False, markup=False, force_jupyter=False, **options)


def table_of(
    columns: Sequence[str],
    *,
    left: Sequence[str] = (),
    wrap: Sequence[str] = (),
    gives_way: Sequence[str] = (),
    under: str | None = None,
) -> FittedTable:
    """A borderless table with dim headers that suits the width it is printed in; columns are right-aligned but those in
    ``left``, whole but those in ``wrap``. Where it is narrow, ``under`` goes under its row, and ``gives_way`` out in turn."""
    from gpuwise.cli.fitted_table import FittedTable

    return FittedTable(tuple(columns), left, wrap, gives_way, under)


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
