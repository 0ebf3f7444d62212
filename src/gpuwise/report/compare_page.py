"""A comparison as a page: the verdict, the figures, every row with its sources."""

from __future__ import annotations

from pathlib import Path

from gpuwise.facts.sources import sources
from gpuwise.files import FIGURE_SUFFIXES, PAGE_SUFFIXES, check_target, write_text
from gpuwise.interval import P80
from gpuwise.pick.compare.comparison import Comparison
from gpuwise.pick.compare.rows import Cell, FigureRow, say, say_span
from gpuwise.pick.compare.words import names_of
from gpuwise.report.compare_figures import comparison_drawings
from gpuwise.report.figures import stand_alone
from gpuwise.report.page import (
    Markup,
    TableCell,
    TableRow,
    figures,
    heading,
    notes,
    page,
    source_list,
    table,
    verdict,
)
from gpuwise.text import escape


def write_compare_page(comparison: Comparison, path: Path) -> None:
    """Write the page to ``path`` (.html). Raises InputError when it cannot be written there."""
    check_target(path, PAGE_SUFFIXES)
    write_text(path, compare_page(comparison), PAGE_SUFFIXES)


def write_compare_figures(comparison: Comparison, path: Path) -> None:
    """Write the figures below one another to ``path`` (.svg). Raises InputError when it cannot be written there."""
    check_target(path, FIGURE_SUFFIXES)
    write_text(path, stand_alone(comparison_drawings(comparison)), FIGURE_SUFFIXES)


def compare_page(comparison: Comparison) -> str:
    """The page as HTML."""
    names = names_of(comparison.subjects)
    numbers = _numbers(comparison)
    by_key = sources()
    rows: list[TableRow] = []
    for section in comparison.sections:
        rows.append(TableRow(section, group=True))
        rows += [_row(r, numbers) for r in comparison.rows if r.section == section]
    items = [(f"{by_key[k].title} ({by_key[k].kind})", by_key[k].url) for k in numbers]
    marks = (
        "Green: the best of its row. ~: weak, that is not from the vendor, inferred, old, or predicted from specifications "
        f"alone. Dense rates with FP32 accumulation; links in one direction; ranges are {P80} intervals, of prices the "
        "cheapest and the dearest. Small numbers lead to the sources."
    )
    return page(
        " or ".join(names) + "?",
        _lead(comparison),
        [
            verdict(comparison.verdict),
            figures(comparison_drawings(comparison)),
            heading("Side by side"),
            table("Side by side", ["", *names], rows),
            notes([marks, *comparison.notes]),
            heading("Sources"),
            source_list(items),
        ],
    )


def _lead(comparison: Comparison) -> str:
    work = comparison.work
    doing = "" if work is None else f", and what each does with {work.arch.name}"
    return f"Compared by gpuwise on {comparison.today.isoformat()}{doing}."


def _numbers(comparison: Comparison) -> dict[str, int]:
    """Keys of the sources that are cited, numbered from 1 in order of first use."""
    by_key = sources()
    numbers: dict[str, int] = {}
    for key in (c.source for r in comparison.rows for c in r.cells):
        if key in by_key:
            numbers.setdefault(key, len(numbers) + 1)
    return numbers


def _row(row: FigureRow, numbers: dict[str, int]) -> TableRow:
    return TableRow(row.title, [_cell(row, i, numbers) for i in range(len(row.cells))])


def _cell(row: FigureRow, i: int, numbers: dict[str, int]) -> TableCell:
    cell, ratio = row.cells[i], row.ratios[i]
    if cell.value is None:
        return TableCell(_citation(cell.words or "-", cell, numbers), mark="" if not row.unit else "words" if cell.words else "")
    marks = ("best " if i in row.best else "") + ("weak" if cell.weak else "")
    small: list[str] = []
    if cell.low is not None and cell.high is not None and cell.high > cell.low:
        small.append(say_span(row.unit, cell.low, cell.high))
    if i and ratio is not None:
        small.append(f"{ratio:.2f} of the first")
    small += [cell.words] if cell.words else []
    text = say(row.unit, cell.value) + (" ~" if cell.weak else "")
    return TableCell(_citation(text, cell, numbers), Markup("<br>".join(escape(s) for s in small)), marks.strip())


def _citation(words: str, cell: Cell, numbers: dict[str, int]) -> Markup:
    """``words`` with the number of their source, or with what they were computed from where there is none."""
    if cell.source in numbers:
        n = numbers[cell.source]
        return Markup(f'{escape(words)}<sup><a href="#source-{n}" aria-label="source {n}">{n}</a></sup>')
    title = ", ".join(t for t in (cell.source, cell.kind) if t)
    return Markup(f'<span title="{escape(title)}">{escape(words)}</span>' if title else escape(words))
