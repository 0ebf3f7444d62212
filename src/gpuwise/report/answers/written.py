"""An answer as HTML: the body of a page, of a file or of a notebook."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from urllib.parse import urlencode

from gpuwise.interval import P80
from gpuwise.report.answers.answer import (
    Answer,
    Area,
    Block,
    Cell,
    Chart,
    Code,
    Command,
    Notes,
    Phrase,
    Picture,
    Points,
    Row,
    Section,
    Stack,
    Table,
)
from gpuwise.report.answers.drawings import bar, layers, lines, points
from gpuwise.report.answers.look import style
from gpuwise.report.answers.values import At, button, coded, inert, placed, shown
from gpuwise.report.page import Markup, TableCell, TableRow, heading, page, table
from gpuwise.text import capital, escape

Drawn = Stack | Chart | Area | Points | Picture


def body(answer: Answer, asked: Sequence[str] = (), *, folded: bool = False) -> str:
    """The whole answer; ``asked`` are the words of the command line that asked. ``folded``: what a terminal's first screen leaves
    out opens on a click."""
    ids = count()
    made = [head(answer), *_parts(answer.parts[:1], asked, ids)]
    made += [_command(answer.next, asked)] if answer.next is not None else []
    if folded:
        made += [_folded(p.title, "".join(_parts([p], asked, ids))) for p in answer.parts[1:]]
    else:
        made += _parts(answer.parts[1:], asked, ids)
    for title, sentences in (("Warnings", answer.warnings), ("Assumed", answer.assumed)):
        if sentences:
            made += [_folded(title, _notes(sentences)) if folded and title == "Assumed" else heading(title) + _notes(sentences)]
    return "".join(made)


OPEN = ("latency",)
"""Parts that a page shows open beside those of a terminal's first screen."""


def below(answer: Answer, asked: Sequence[str] = ()) -> str:
    """What a live page shows below the verdict and its figures: the parts of the first screen, every drawing, and tables of other
    parts that open on a click."""
    ids = count()
    shown = [p for i, p in enumerate(answer.parts) if i == 0 or p.first or p.name in OPEN]
    rest = [(p, [b for b in p.blocks if not isinstance(b, Drawn)]) for p in answer.parts if p not in shown]
    made = [*_parts(shown[:1], asked, ids)]
    made += [_command(answer.next, asked)] if answer.next is not None else []
    made += [*_parts(shown[1:], asked, ids), _figures([b for p, _ in rest for b in p.blocks if isinstance(b, Drawn)])]
    made += [heading("Warnings") + _notes(answer.warnings)] if answer.warnings else []
    made += [_folded(p.title, "".join(_block(b, asked, ids) for b in blocks)) for p, blocks in rest if blocks]
    made += [_folded("Assumed", _notes(answer.assumed))] if answer.assumed else []
    return "".join(made)


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inside}</details>\n"


def page_of(answer: Answer, title: str, lead: str, asked: Sequence[str] = ()) -> str:
    """The answer as a page that stands alone: nothing in it asks again."""
    return page(title, lead, [f"<style>{style()}</style>", inert(body(answer, asked))])


def head(answer: Answer) -> str:
    """Verdict, lead and figures."""
    mark = f' class="{answer.state}"' if answer.state else ""
    lead = f'<p class="layout">{_sentence(answer.lead)}</p>\n' if answer.lead else ""
    return f"<h2{mark}>{markup(answer.verdict)}</h2>\n{_tiles(answer)}{lead}"


def part_of(answer: Answer, *names: str) -> str:
    """The drawings of the parts of these names."""
    found = [p for p in map(answer.part, names) if p is not None]
    return _figures([b for p in found for b in p.blocks if isinstance(b, Drawn)])


def markup(phrase: Phrase) -> str:
    """``phrase`` as HTML, each number with its value and place."""
    if isinstance(phrase, str):
        return escape(phrase)
    if isinstance(phrase, At):
        return shown(phrase).html
    if isinstance(phrase, Sequence):
        return "".join(map(markup, phrase))
    return placed(phrase.place.expected, phrase.text).html


def _sentence(phrase: Phrase) -> str:
    return coded(capital(phrase)) if isinstance(phrase, str) else markup(phrase)


def _note(phrase: Phrase) -> str:
    """A note that may begin with a sign or a letter of its table."""
    return coded(phrase) if isinstance(phrase, str) else markup(phrase)


def _tiles(answer: Answer) -> str:
    items = "".join(
        f"<div><dt>{escape(capital(f.name))}</dt><dd>{markup(f.value)}"
        + "".join(f"<small>{markup(words)}</small>" for words in (f.small, f.note) if words)
        + "</dd></div>"
        for f in answer.figures
    )
    return f'<dl class="tiles">{items}</dl>\n' if items else ""


def _parts(parts: Iterable[Section], asked: Sequence[str], ids: Iterator[int]) -> Iterator[str]:
    """Parts under their titles; drawings of parts that follow each other side by side, under their own."""
    drawn: list[Drawn] = []
    for part in parts:
        alone = [b for b in part.blocks if isinstance(b, Drawn)]
        rest = [b for b in part.blocks if not isinstance(b, Drawn)]
        drawn += alone
        if rest:
            if drawn:
                yield _figures(drawn)
                drawn = []
            yield heading(part.title) if not alone else ""
            yield from (_block(b, asked, ids) for b in rest)
    if drawn:
        yield _figures(drawn)


def _figures(drawn: Sequence[Drawn]) -> str:
    return f'<div class="figures">{"".join(map(_drawing, drawn))}</div>\n' if drawn else ""


def _drawing(block: Drawn) -> str:
    match block:
        case Stack():
            return bar(block.key, block.title, block.parts, block.whole, block.limit)
        case Chart():
            return lines(block.key, block.title, block.x, block.y, block.lines, block.marks, block.dots, block.below)
        case Area():
            return layers(block.key, block.title, block.x, block.y, block.at, block.layers, block.over, block.marks)
        case Points():  # without points, the place of those of another answer
            return f"<!--{block.key}-->" if not block.dots else points(block.key, block.title, block.x, block.y, block.dots)
        case Picture():
            return block.html


def _block(block: Block, asked: Sequence[str], ids: Iterator[int]) -> str:
    match block:
        case Table():
            return _table(block, ids)
        case Notes():
            return _notes(block.items)
        case Command():
            return _command(block, asked)
        case Code():
            note = f"<p>{_sentence(block.note)}</p>" if block.note else ""
            lines = escape("\n".join(block.lines))
            return f"<details><summary>{escape(capital(block.title))}</summary>{note}<pre>{lines}</pre></details>\n"
        case _:
            return _figures([block])


def _notes(items: Sequence[Phrase]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{_sentence(i)}</li>" for i in items)}</ul>\n' if items else ""


def _command(command: Command, asked: Sequence[str]) -> str:
    words = command.line(asked)
    if not words:
        return ""
    line = " ".join(words) if command.words else shlex.join(["gpuwise", *words])
    why = f"<p>{_sentence(command.why)}</p>\n" if command.why else ""
    file = f"\n# {command.file[0]}\n{command.file[1]}" if command.file else ""
    return f"{why}<pre>{escape(line + file)}</pre>\n"


def _with_intervals(block: Table) -> Table:
    """Columns of intervals as second lines of the columns before them."""
    intervals = [i for i, c in enumerate(block.columns) if c.title == P80]
    if not intervals:
        return block

    def joined(row: Row) -> Row:
        cells = [replace(c, small=row.cells[i + 1].value) if i + 1 in intervals else c for i, c in enumerate(row.cells)]
        return row if row.heading else replace(row, cells=[c for i, c in enumerate(cells) if i not in intervals])

    columns = [c for i, c in enumerate(block.columns) if i not in intervals]
    return replace(block, columns=columns, rows=[*map(joined, block.rows)])


MOST_COLUMNS = 10
"""Of a table that fits beside its figures on a page of 1,184 points."""


def _table(block: Table, ids: Iterator[int]) -> str:
    """Columns in which no row has a cell are left out, and of more than :data:`MOST_COLUMNS` those that a terminal leaves out
    first."""
    block = _with_intervals(block)
    used = [i for i in range(len(block.columns)) if any(not r.heading and r.cells[i].value for r in block.rows)]
    leaving = sorted((i for i in used if block.columns[i].leaves), key=lambda i: block.columns[i].leaves)
    used = [i for i in used if i not in leaving[: max(len(used) - MOST_COLUMNS, 0)]]
    rows: list[TableRow] = []
    for r in block.rows:
        if r.heading:
            rows.append(TableRow(Markup(markup(r.cells[0].value)), group=True))
            continue
        first, *rest = (_cell(r.cells[i], r.mark, words=block.columns[i].words or block.columns[i].under, ids=ids) for i in used)
        title = first.value if not first.small else Markup(f"{_html(first.value)}<small>{_html(first.small)}</small>")
        rows.append(TableRow(title, rest))
    if not rows:
        return ""
    below = f'<p class="below">{_note(block.below)}</p>\n' if block.below else ""
    return table(block.title, [block.columns[i].title for i in used], rows) + below


def _html(value: str | Markup) -> str:
    return value.html if isinstance(value, Markup) else escape(value)


def _cell(cell: Cell, row: str, *, words: bool, ids: Iterator[int]) -> TableCell:
    value = Markup(markup(cell.value))
    if cell.sets:
        value = button(value, cell.sets)
    elif cell.tick:
        at = f"tick-{next(ids)}"
        box = f'<input type="checkbox" id="{at}" data-tick="{escape(urlencode(cell.tick))}">'
        value = Markup(f'<label for="{at}">{box} {value.html}</label>')
    marks = {"good": "best", "best": "best", "bad": "weak", "weak": "weak"}
    mark = " ".join(m for m in (marks.get(cell.mark or row, ""), "words" if words else "") if m)
    return TableCell(value, Markup(markup(cell.small)) if cell.small else "", mark)
