"""An answer on a terminal: the first screen, chosen parts, or all of it."""

from __future__ import annotations

import io
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from gpuwise.cli.asked import asked
from gpuwise.cli.bars import single, stacked
from gpuwise.cli.out import console, grid, table_of
from gpuwise.cli.shown import parts_shown
from gpuwise.report.answers.answer import (
    Answer,
    Area,
    Block,
    Cell,
    Chart,
    Code,
    Command,
    Figure,
    Notes,
    Phrase,
    Picture,
    Points,
    Section,
    Stack,
    Table,
    brief,
    plain,
)
from gpuwise.text import broken_command, capital

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from gpuwise.cli.shown import Shown

LINES = 25
"""Of a first screen; more where it is narrower than 80 columns."""
ROWS, FEWEST = 5, 2
"""Of a table beside others on it; with as few as the second a part is left out."""
WIDEST = 100
"""Columns of a bar, at most."""
STATES = {"yes": "bold green", "maybe": "bold yellow", "no": "bold red", "": "bold"}
STYLES = {"good": "green", "best": "bold green", "bad": "red", "weak": "yellow", "dim": "dim", "": ""}
LEVELS = "▁▂▃▄▅▆▇█"
LEAST = 0.0005
"""Of a bar: less is rounding."""


def show(answer: Answer, shown: Shown | None) -> None:
    """Print what is asked for of an answer; ``shown`` are the options of :mod:`gpuwise.cli.shown`, None where none is given."""
    _print(answer, console(), () if shown is None else parts_shown(shown))


def text(answer: Answer, names: Collection[str] | None = (), width: int = 80) -> str:
    """What a terminal of ``width`` columns shows: the parts of these names, the first screen without any, all for None."""
    from gpuwise.cli.out import printing_console

    out = io.StringIO()
    to = printing_console(width=width, file=out)
    _print(answer, to, names)
    return out.getvalue()


def summary(answer: Answer) -> dict[str, Any]:
    """The verdict, the figures and what could change them, as words: the part of a document that a program shows first."""
    more = [] if answer.next is None else answer.next.line(asked())
    return {
        "verdict": plain(answer.verdict),
        "state": answer.state,
        "figures": [
            {"name": f.name, "value": plain(f.value), "range": plain(f.small), "note": plain(f.note)} for f in answer.figures
        ],
        "warnings": brief(answer.warnings),
        "assumed": brief(answer.assumed),
        "parts": [p.name for p in answer.parts],
        "next": shlex.join(more) if more and more[0] == "gpuwise" else shlex.join(["gpuwise", *more]) if more else "",
    }


def _print(answer: Answer, to: Console, names: Collection[str] | None) -> None:
    for line in _whole(answer, to, names) if names is None or names else _first(answer, to):
        to.print(line, soft_wrap=getattr(line, "no_wrap", None) is True)


def _whole(answer: Answer, to: Console, names: Collection[str] | None) -> Iterator[RenderableType]:
    """Everything, or the verdict with the parts of these names."""
    parts = [p for p in answer.parts if names is None or p.name in names]
    alone = names is not None and len(parts) == 1 and parts[0].verdict
    yield from _head(replace(answer, verdict=parts[0].verdict) if alone else answer, to, lead=names is None)
    for part in parts:
        yield from _part(part, to, None)
    if names is None:
        for title, sentences in (("Warnings", answer.warnings), ("Assumed", answer.assumed)):
            if sentences:
                yield from ("", _bold(title), _indented(_notes(Notes(sentences, "dim"))))
        yield ""
        yield from _next(answer, to)
    elif not parts:
        yield _indented(_text(f"Nothing of that here; this answer has {_options(answer.parts)}", "dim"))


def _first(answer: Answer, to: Console) -> list[RenderableType]:
    """The first screen: as many rows and parts as it has lines for."""
    parts = [p for p in answer.parts if p.first]
    most = max(LINES, LINES * 80 // to.width)

    def measured(lines: Iterable[RenderableType]) -> tuple[list[RenderableType], int]:
        made = [*lines]
        return made, sum(len(to.render_lines(line, pad=False)) for line in made)

    @cache
    def part(i: int, rows: int) -> tuple[list[RenderableType], int]:
        return measured(_part(parts[i], to, rows))

    head = measured(_head(answer, to))
    made: list[RenderableType] = []
    whole = ROWS if len(parts) > 1 else LINES
    for n, rows in [(n, rows) for n in range(len(parts), -1, -1) for rows in range(whole, FEWEST, -1)]:
        pieces = [head, *(part(i, rows if _is_cut(parts[i], rows) else whole) for i in range(n))]
        if n and sum(height for _, height in pieces) > most:
            continue
        pieces.append(measured(_foot(answer, to, parts[:n], rows)))
        made = [line for lines, _ in pieces for line in lines]
        if sum(height for _, height in pieces) <= most:
            break
    return made


def _head(answer: Answer, to: Console, *, lead: bool = True) -> Iterator[RenderableType]:
    yield _text(answer.verdict, STATES[answer.state])
    if lead and answer.lead:
        yield _indented(_text(answer.lead, "dim"))
    if lead and answer.figures:
        yield from ("", _indented(_figures(answer.figures)))


def _figures(figures: Sequence[Figure]) -> RenderableType:
    beside = ["; ".join(m for m in (plain(f.small), plain(f.note)) if m) for f in figures]
    table = grid(3 if any(beside) else 2)
    for f, more in zip(figures, beside, strict=True):
        table.add_row(_text(f.name), _text(f.value, "bold"), *([_text(more, "dim")] if any(beside) else []))
    return table


def _foot(answer: Answer, to: Console, parts: Sequence[Section], rows: int) -> Iterator[RenderableType]:
    """What is not sure, where the rest is, and what to do next."""
    yield ""
    for title, sentences in (("Warnings", answer.warnings), ("Assumed", answer.assumed)):
        if sentences:
            yield _text(f"{title}: {_some(brief(sentences), SHORT * to.width)}", "dim")
    rest = [p for p in answer.parts if p not in parts or _is_cut(p, rows)]
    more = f"{_options(rest)} --all".strip()
    if rest or answer.assumed:
        yield _text(f"More: {more}", "dim")
    yield from _next(answer, to)


SHORT = 2
"""Lines of what is assumed, on a first screen."""


def _some(sentences: Sequence[str], most: int) -> str:
    """As many of ``sentences`` as ``most`` characters hold, and how many more there are."""
    n = len(sentences)
    while n > 1 and len("; ".join(sentences[:n])) > most - 30:
        n -= 1
    more = len(sentences) - n
    return "; ".join([*sentences[:n], *([f"{more} more"] if more else [])])


def _options(parts: Sequence[Section]) -> str:
    return " ".join(dict.fromkeys(f"--{p.name}" for p in parts))


def _is_cut(part: Section, rows: int) -> bool:
    first = part.blocks[0]
    match first:
        case Table():
            n = len(first.rows)
        case Stack(apart=True):
            n = len(first.parts)
        case Notes():
            n = len(first.items) + 2
        case _:
            n = 0
    return len(part.blocks) > 1 or n > rows


def _next(answer: Answer, to: Console) -> Iterator[RenderableType]:
    if answer.next is not None:
        yield from _command(answer.next, to)


def _command(command: Command, to: Console, *, inner: bool = False) -> Iterator[RenderableType]:
    """``why`` and the command, on one line where there is room; indented but where it is an ``inner`` part."""
    from rich.text import Text

    words = command.line(asked())
    if not words:
        return
    quoted = words if command.words else ["gpuwise", *map(shlex.quote, words)]
    why, line = f"{command.why}:  " if command.why else "", " ".join(quoted)
    if len(why) + len(line) <= to.width - 2 * inner:
        yield Text.assemble(why, (line, "cyan"))
        yield from _file(command)
        return
    if why:
        yield _text(why.rstrip())
    for text in broken_command(line, to.width - 2):
        yield Text(f"  {text}", "cyan", no_wrap=True)  # a long word is whole, to be copied
    yield from _file(command)


def _file(command: Command) -> Iterator[RenderableType]:
    """The file that a command reads."""
    if command.file is not None:
        yield _text(f"# {command.file[0]}", "dim")
        yield _text(command.file[1].rstrip())


def _part(part: Section, to: Console, rows: int | None) -> Iterator[RenderableType]:
    """A part under its title; with a number of ``rows`` its first block, with at most as many."""
    first = part.blocks[0]
    yield ""
    yield _stack_head(part.title, first) if isinstance(first, Stack) else _bold(part.title)
    for block in part.blocks if rows is None else [first]:
        if isinstance(block, Stack) and block is not first:
            yield _indented(_text(block.title, "dim"))
        yield from (line if getattr(line, "no_wrap", None) else _indented(line) for line in _block(block, to, rows))


def _block(block: Block, to: Console, rows: int | None) -> Iterator[RenderableType]:
    match block:
        case Table():
            yield from _tables(block, rows, to.width)
            if block.below and _is_marked(block, rows):
                yield _text(block.below, "dim")
        case Stack():
            yield from _stack(block, to.width, rows)
        case Chart():
            yield from _chart(block)
        case Area():
            from gpuwise.cli.areas import area

            yield from area(block, to.width)
        case Code():
            yield from _code(block)
        case Points():  # a table beside it has the same
            pass
        case Picture():
            yield from (_text(words) for words in block.words)
        case Notes():
            yield _notes(block, rows)
        case Command():
            yield from _command(block, to, inner=True)


def _is_marked(block: Table, rows: int | None) -> bool:
    """Whether a row that is shown has a sign that ``below`` explains."""
    signs = {words.split(" ")[0] for words in plain(block.below).split("; ")}
    return any(s in plain(c.value) for r in block.rows[:rows] for c in r.cells for s in signs)


def _tables(block: Table, rows: int | None, width: int) -> Iterator[RenderableType]:
    """The table; one that may be split, as several with as many columns as fit."""
    if not block.split:
        yield _table(block, rows)
        return
    from rich.cells import cell_len

    widest = max(
        (cell_len(w) for r in block.rows if not r.heading for c in r.cells[1:] for w in _lines(c, small=True)), default=1
    )
    room = max(1, (width - NAMES) // (max(LEAST_COLUMN, min(widest, MOST_COLUMN)) + 2))
    n = len(block.columns) - 1
    size = -(-n // -(-n // room)) if n else 1
    for i in range(1, n + 1, size):
        picked = (0, *range(i, min(i + size, n + 1)))
        part = [r if r.heading else replace(r, cells=[r.cells[j] for j in picked]) for r in block.rows]
        if i > 1:
            yield ""
        yield _table(replace(block, columns=[block.columns[j] for j in picked], rows=part), rows)


NAMES, LEAST_COLUMN, MOST_COLUMN = 26, 12, 16
"""Characters of the first column of a table that is split, and of another at least and at most."""


def _lines(cell: Cell, *, small: bool) -> list[str]:
    return [plain(cell.value), *(plain(cell.small).split("; ") if small and cell.small else [])]


def _table(block: Table, rows: int | None) -> RenderableType:
    leaves = sorted((c for c in block.columns if c.leaves), key=lambda c: c.leaves)
    table = table_of(
        [c.title for c in block.columns],
        left=[c.title for c in block.columns if c.words or c.under],
        wrap=[c.title for c in block.columns if c.words or c.small],
        gives_way=[c.title for c in leaves],
        under=next((c.title for c in block.columns if c.under), None),
    )
    for row in block.rows[:rows]:
        if row.heading:
            table.add_heading(_text(row.cells[0].value, "bold"))
        else:
            cells = zip(row.cells, block.columns, strict=True)
            table.add_row(*(_cell(c, small=column.small) for c, column in cells), style=STYLES[row.mark])
    return table


def _cell(cell: Cell, *, small: bool) -> Text:
    text = _text(cell.value, STYLES[cell.mark])
    for line in _lines(cell, small=small)[1:]:
        text.append(f"\n{line}", "dim")
    return text


def _stack_head(title: str, block: Stack) -> RenderableType:
    from rich.text import Text

    whole: list[Phrase] = [": ", block.whole.expected, *([" of ", block.limit] if block.limit is not None else [])]
    return Text.assemble((title, "bold"), plain(whole), f", {plain(block.room)}" if block.room else "")


def _stack(block: Stack, width: int, rows: int | None) -> Iterator[RenderableType]:
    """A bar with its key, or a line for each part, at most ``rows``."""
    from rich.text import Text

    total = sum(p.place.number for p in block.parts)
    if block.apart:
        table = grid(4)
        table.columns[1].justify = table.columns[2].justify = "right"
        for p in block.parts[:rows]:
            share = p.place.number / total if total else 0.0
            table.add_row(p.name, p.place.text, f"{100 * share:.0f} %", single(share, max(10, min(width, WIDEST) - 42)))
        yield table
        return
    limit = block.whole.number if block.limit is None else block.limit.number
    sizes = {p.name: p.place.number for p in block.parts if p.place.number > LEAST * max(limit, total)}
    bar, keys = stacked(sizes, max(limit, 1e-9), max(20, min(width - 4, WIDEST)))
    yield bar
    texts = {p.name: p.place.text for p in block.parts}
    cells = [Text.assemble(key, f" {name} {texts[name]}") for name, key in keys]
    per_row = max(1, min(len(cells), (width - 2) // (max(map(len, cells), default=1) + 2)))
    table = grid(per_row)
    for i in range(0, len(cells), per_row):
        table.add_row(*cells[i : i + per_row])
    yield table


def _chart(block: Chart) -> Iterator[RenderableType]:
    """A row of bars for each line, with its ends in words."""
    drawn = [(line.name, [y for _, y in line.points]) for line in block.lines if line.points]
    rows = [(name, spark(ys), f"{block.y.words(ys[0])} to {block.y.words(ys[-1])}") for name, ys in drawn]
    table = grid(3)
    for column in table.columns[1:]:  # names break where it is narrow
        column.no_wrap = True
    for name, bars, ends in rows:
        table.add_row(name, bars, _text(ends, "dim"))
    xs = [x for line in block.lines for x, _ in line.points]
    if xs:
        yield table
        yield _text(f"{block.x.title}: {block.x.words(min(xs))} to {block.x.words(max(xs))}", "dim")
    yield from (_text(sentence, "dim") for sentence in block.below)


def _sentences(rows: int | None) -> int | None:
    """Notes on a screen whose tables have ``rows``."""
    return None if rows is None else max(rows - 2, 1)


SPARKS = 20
"""Characters of a row of bars, at most."""


def spark(values: Sequence[float]) -> str:
    """``values`` as a row of bars, the largest full."""
    picked = [values[i * len(values) // SPARKS] for i in range(SPARKS)] if len(values) > SPARKS else values
    most = max(picked) or 1.0
    return "".join(LEVELS[min(int(max(v, 0.0) / most * len(LEVELS)), len(LEVELS) - 1)] for v in picked)


def _notes(block: Notes, rows: int | None = None) -> RenderableType:
    table = grid(2, pad=1)
    table.columns[1].overflow = "fold"
    for item in block.items[: _sentences(rows)]:
        table.add_row("-", capital(plain(item)), style=STYLES[block.mark])
    return table


INKS = {"+": "green", "-": "red", "@": "cyan"}


def _code(block: Code) -> Iterator[RenderableType]:
    """The lines of a change, as they are written."""
    from rich.text import Text

    yield _bold(block.title)
    if block.whole:
        yield from (Text(line, no_wrap=True) for line in block.lines)
        return
    if block.note:
        yield _text(f"mind: {block.note}", "dim")
    for line in block.lines:
        yield _indented(_text(line[2:] if line[:1] == "@" else line, INKS.get(line[:1], "")))


def _indented(line: RenderableType) -> RenderableType:
    from rich.padding import Padding

    return Padding(line, (0, 0, 0, 2), expand=False)


def _bold(words: str) -> RenderableType:
    return _text(words, "bold")


def _text(phrase: Phrase, style: str = "") -> Text:
    from rich.text import Text

    return Text(plain(phrase), style)
