"""A table that suits its terminal: no figure of it is cut, and no line is wider than the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.measure import Measurement
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text

    Cell = str | Text

GAP = 2
"""Blanks between columns, where there is room."""
LEAST, ROOMY = 16, 24
"""Characters below which a column of words does not shrink, but where its words are fewer; and while there is another way."""
SHORTEST = 8
"""Characters to which a column of words shrinks at last, breaking words."""
UNDER = 4
"""How far a cell is indented that stands under its row."""


@dataclass(frozen=True, slots=True)
class TableLine:
    """Cells of one row, or one text over the whole width."""

    cells: tuple[Cell, ...]
    style: str
    whole: bool = False


@dataclass(slots=True)
class FittedTable:
    """A borderless table with dim headers, laid out for the width it is printed in.

    Where that is too narrow the column ``under`` stands under its row, columns stand closer, and those in ``gives_way``
    are left out, in their order, until what is left fits; columns in ``wrap`` break between words. Columns are named by
    their titles; they are right-aligned but those in ``left``. A column without a word in any row is left out.
    """

    titles: tuple[str, ...]
    left: Sequence[str] = ()
    wrap: Sequence[str] = ()
    gives_way: Sequence[str] = ()
    under: str | None = None
    header: bool = True
    rows: list[TableLine] = field(default_factory=list[TableLine])

    def add_row(self, *cells: Cell, style: str = "") -> None:
        """One row; the cells that are not given are empty."""
        self.rows.append(TableLine((*cells, *[""] * (len(self.titles) - len(cells))), style))

    def add_heading(self, text: Cell, style: str = "") -> None:
        """A line over the whole width."""
        self.rows.append(TableLine((text,), style, whole=True))

    @property
    def row_count(self) -> int:
        """Rows and headings."""
        return len(self.rows)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        whole = sum(self._size(i) + GAP for i in self._nonempty()) - GAP
        headings = max((_longest(row.cells[0]) for row in self.rows if row.whole), default=0)
        widest = min(max(whole, headings, 1), options.max_width)
        return Measurement(min(widest, LEAST), widest)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        from rich.padding import Padding
        from rich.segment import Segment

        sizes, gap, below = self._arrangement(options.max_width)
        fits = sum(sizes.values()) + gap * (len(sizes) - 1) <= options.max_width
        table: Table | None = None  # of rows whose cells take several lines; a row that is one line needs none, and is fast
        if self.header and any(self.titles[i] for i in sizes):
            line = self._line(self.titles, sizes, gap) if fits else None
            if line is None:
                table = self._table(sizes, gap, header=True)
            else:
                yield from (Segment(line, console.get_style("dim")), Segment.line())
        for row in self.rows:
            line = self._line(row.cells, sizes, gap) if fits and not row.whole else None
            if table is not None and (row.whole or line is not None):
                yield table
                table = None
            if row.whole:
                yield _text(row.cells[0], row.style)
                continue
            if line is not None:
                yield from (Segment(line, console.get_style(row.style)), Segment.line())
            else:
                table = table or self._table(sizes, gap, header=False)
                table.add_row(*(_hanging(row.cells[i], size) for i, size in sizes.items()), style=row.style)
            if below is not None:
                yield from () if table is None else (table,)
                table = None
                if _longest(row.cells[below]):
                    yield Padding(_text(row.cells[below], row.style), (0, 0, 0, UNDER), expand=False)
        if table is not None:
            yield table

    def _line(self, cells: Sequence[Cell], sizes: dict[int, int], gap: int) -> str | None:
        """A row that is one line of plain text; None for another."""
        parts: list[str] = []
        for i, size in sizes.items():
            cell = cells[i]
            if not isinstance(cell, str) or len(cell) > size or not _is_plain(cell):
                return None
            parts.append(cell.ljust(size) if self._is_left(i) else cell.rstrip().rjust(size))
        return (" " * gap).join(parts)

    def _table(self, sizes: dict[int, int], gap: int, *, header: bool) -> Table:
        from rich.table import Table

        table = Table(box=None, padding=(0, gap, 0, 0), header_style="dim", pad_edge=False, show_header=header)
        for i, size in sizes.items():
            justify = "left" if self._is_left(i) else "right"
            table.add_column(self.titles[i], justify=justify, width=size, overflow="fold")
        return table

    def _arrangement(self, width: int) -> tuple[dict[int, int], int, int | None]:
        """The width of each column that stays, the blanks between them, and the column that goes under its row: of the
        ways to lay the table out the first that fits, else the last."""
        optional = [i for title in self.gives_way for i in self._nonempty() if self.titles[i] == title]
        under = next((i for i in self._nonempty() if self.titles[i] == self.under), None)
        columns, gap, below = self._nonempty(), GAP, None
        for n_hidden, gap, below in product(range(len(optional) + 1), (GAP, 1), (None,) if under is None else (None, under)):
            columns = [i for i in self._nonempty() if i not in optional[:n_hidden] and i != below]
            least = LEAST if under is None or below is not None else ROOMY
            if sum((self._size(i) if i == under else self._least(i, least)) + gap for i in columns) - gap <= width:
                break
        sizes = {i: self._size(i) for i in columns}
        over = sum(sizes.values()) + gap * (len(sizes) - 1) - width
        for least in (None, SHORTEST):
            for i in sorted(columns, key=lambda i: -sizes[i]):
                floor = self._least(i) if least is None or not self._may_break(i) else least
                cut = min(max(over, 0), max(sizes[i] - floor, 0))
                sizes[i], over = sizes[i] - cut, over - cut
        return sizes, gap, below

    def _may_break(self, i: int) -> bool:
        return self.titles[i] in self.wrap or self.titles[i] == self.under

    def _nonempty(self) -> list[int]:
        """Columns with something in a row."""
        return [i for i in range(len(self.titles)) if any(str(row.cells[i]) for row in self.rows if not row.whole)]

    def _is_left(self, i: int) -> bool:
        return self.titles[i] in self.left or self.titles[i] == self.under

    def _column(self, i: int) -> list[Cell]:
        return [self.titles[i] if self.header else "", *(row.cells[i] for row in self.rows if not row.whole)]

    def _size(self, i: int) -> int:
        """Characters of the longest line of a column."""
        return max(map(_longest, self._column(i)))

    def _least(self, i: int, least: int = LEAST) -> int:
        """Characters that a column needs: its longest word where it may break, but ``least`` where it has as many."""
        size = self._size(i)
        if not self._may_break(i):
            return size
        longest = max(_longest(word) for cell in self._column(i) for word in (str(cell).split() or [""]))
        return max(longest, min(least, size))


def _hanging(cell: Cell, size: int) -> RenderableType:
    """``cell``; one that is indented and breaks over lines, with every line of it indented."""
    from rich.padding import Padding

    indent = 0 if not isinstance(cell, str) else len(cell) - len(cell.lstrip())
    return Padding(cell.lstrip(), (0, 0, 0, indent)) if indent and len(cell) > size and isinstance(cell, str) else cell


def _is_plain(cell: str) -> bool:
    """Whether each of its characters takes one column."""
    return cell.isascii() and cell.isprintable()


def _longest(cell: Cell) -> int:
    """Characters of the longest line of a cell."""
    if isinstance(cell, str) and _is_plain(cell):
        return len(cell)
    from rich.cells import cell_len

    return max(cell_len(line) for line in str(cell).split("\n"))


def _text(cell: Cell, style: str) -> Text:
    from rich.text import Text

    return Text(cell, style) if isinstance(cell, str) else cell
