"""A comparison as a person reads it: the verdict, then rows side by side, best ones marked, weak ones too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpuwise.cli.out import console, grid, section, table_of
from gpuwise.facts.sources import sources
from gpuwise.pick.compare.comparison import Comparison
from gpuwise.pick.compare.rows import Cell, FigureRow, say
from gpuwise.pick.compare.words import names_of
from gpuwise.report.answers.values import BASIS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

TITLE, COLUMN, MOST_COLUMN = 26, 16, 26
"""Characters of the title column, and of a column at least and at most."""
BEST, WEAK = "*", "~"


def show_comparison(comparison: Comparison, *, every_source: bool = False) -> None:
    """Print the whole comparison."""
    to = console()
    verdict = grid(2, pad=1)
    for sentence in comparison.verdict:
        verdict.add_row("-", sentence)
    to.print(verdict)
    names = names_of(comparison.subjects)
    for columns in _blocks(len(names), to.width):
        for title in comparison.sections:
            rows = [r for r in comparison.rows if r.section == title and _has_figures(r, columns)]
            if rows:
                section(to, title, _table(rows, names, columns, to.width))
    to.print()
    to.print(f"{BEST} best of the row   {WEAK} weak: not from the vendor, inferred, old, or not measured", style="dim")
    for note in comparison.notes:
        to.print(f"Note: {note}", style="dim")
    if every_source:
        _show_sources(to, comparison, names)
    else:
        _show_footnotes(to, comparison, names)


def _blocks(n: int, width: int) -> list[tuple[int, ...]]:
    """Columns shown together: as many as fit, in blocks as equal as can be."""
    fit = max(1, (width - TITLE) // (COLUMN + 1))
    count = -(-n // fit)
    size = -(-n // count)
    return [tuple(range(i, min(i + size, n))) for i in range(0, n, size)]


def _has_figures(row: FigureRow, columns: Sequence[int]) -> bool:
    return any(row.cells[i].value is not None or row.cells[i].words for i in columns)


def _table(rows: Sequence[FigureRow], names: Sequence[str], columns: Sequence[int], width: int) -> Table:
    from rich.table import Table

    share = min(MOST_COLUMN, (width - TITLE) // len(columns) - 1)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("", width=TITLE - 3)
    for i in columns:
        table.add_column(names[i], justify="right", width=share)
    for row in rows:
        table.add_row(row.title, *(_cell(row, i) for i in columns))
    return table


def _cell(row: FigureRow, i: int) -> Text:
    from rich.text import Text

    cell, best = row.cells[i], i in row.best
    if cell.value is None:
        return Text(cell.words or "-", "" if not row.unit else "dim")
    text = Text(say(row.unit, cell.value), "bold green" if best else "")
    text.append((BEST if best else "") + (WEAK if cell.weak else ""), "yellow" if cell.weak else "green")
    for line in _second_line(row, i):
        text.append(f"\n{line}", "dim")
    return text


def _second_line(row: FigureRow, i: int) -> Iterator[str]:
    """What goes with a figure: the share of a peak, an age, a batch; of predictions the ratio to the first column."""
    cell, ratio = row.cells[i], row.ratios[i]
    predicted = cell.low is not None and row.section.endswith("predicted")
    if predicted and ratio is not None and i > 0:
        yield f"{ratio:.2f}x the first"
    if cell.words and not row.key.startswith("train_"):
        yield cell.words


def _show_footnotes(to: Console, comparison: Comparison, names: Sequence[str]) -> None:
    """One line a column: where its figures come from."""
    from rich.text import Text

    by_key = sources()
    to.print()
    to.print("Sources", style="bold")
    for i, name in enumerate(names):
        keys = [r.cells[i].source for r in comparison.rows if r.cells[i].source in by_key]
        titles = [f"{by_key[k].title} ({by_key[k].kind})" for k in dict.fromkeys(keys) if by_key[k].kind != "rule"]
        to.print(Text(f"  {name}: ", "").append("; ".join(titles), "dim"))
    bases = sorted({c.kind for r in comparison.rows for c in r.cells if c.kind in BASIS and c.source not in by_key})
    to.print(Text("  predictions: ").append("; ".join(f"{b}: {BASIS[b]}" for b in bases), "dim"))
    to.print("  --sources lists every figure with its own", style="dim")


def _show_sources(to: Console, comparison: Comparison, names: Sequence[str]) -> None:
    table = table_of(("figure", "of", "kind", "source"), left=("figure", "of", "kind"), wrap=("figure", "of"), under="source")
    for row in comparison.rows:
        for name, cell in zip(names, row.cells, strict=True):
            if cell.source:
                table.add_row(row.title, name, cell.kind + (f" {WEAK}" if cell.weak else ""), _source(cell))
    section(to, "Sources", table)


def _source(cell: Cell) -> str:
    table = sources()
    if cell.source not in table:
        return cell.source
    source = table[cell.source]
    return f"{source.title}\n{source.url}".strip()
