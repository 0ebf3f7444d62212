"""An answer before it is written: a verdict, the numbers that matter, parts, what is assumed.

A function for each command makes one from the document of ``--json``. Two writers show it, one on a terminal
(:mod:`gpuwise.cli.answer`), one as HTML (:mod:`gpuwise.report.answers.written`). A number is a place in the document: both show
what the document has.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from gpuwise.report.answers.drawings import Axis, Dot, Layer, Line, Part
from gpuwise.report.answers.parts import PARTS
from gpuwise.report.answers.values import At

State = Literal["yes", "no", "maybe", ""]
Mark = Literal["", "good", "bad", "weak", "best", "dim"]


@dataclass(frozen=True, slots=True)
class Number:
    """A number of the document in other words than the name of its field gives."""

    place: At
    say: Callable[[float], str]

    @property
    def text(self) -> str:
        """Its words."""
        return self.say(self.place.number)


Phrase: TypeAlias = "str | At | Number | Sequence[Phrase]"
"""Words with numbers of the document among them."""


def plain(phrase: Phrase) -> str:
    """``phrase`` as text."""
    if isinstance(phrase, str):
        return phrase
    return phrase.text if isinstance(phrase, (At, Number)) else "".join(map(plain, phrase))


def places(phrase: Phrase) -> Iterator[At]:
    """The places of the document that ``phrase`` shows."""
    if isinstance(phrase, At):
        yield phrase.expected
    elif isinstance(phrase, Number):
        yield phrase.place.expected
    elif not isinstance(phrase, str):
        for inner in phrase:
            yield from places(inner)


def span(place: At, say: Callable[[float], str] | None = None) -> Phrase:
    """The interval at ``place``, ``2.1 to 3.9 days``: the unit once where both ends share it. Nothing where there is none."""
    low, high = place["low"], place["high"]
    if low.value is None or high.value is None or low.value == high.value:
        return ""
    first, last = (low.text, high.text) if say is None else (say(low.number), say(high.number))
    number, _, unit = first.partition(" ")
    if unit and unit == last.partition(" ")[2]:
        first = number
    return (Number(low, lambda _: first), " to ", Number(high, lambda _: last))


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table. ``small`` is a second line of a page: an interval, a note; the terminal leaves it out. On a live page
    ``sets`` are options that a click asks with, ``tick`` options that a box adds."""

    value: Phrase
    small: Phrase = ""
    mark: Mark = ""
    sets: Mapping[str, str] = field(default_factory=dict[str, str])
    tick: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Column:
    """A column. On a narrow terminal those with ``leaves`` are left out, the lowest first; ``under`` puts it below its row."""

    title: str
    words: bool = False
    """Words: left-aligned, and broken over lines; numbers are right-aligned and whole."""
    leaves: int = 0
    under: bool = False
    small: bool = False
    """Whether a terminal shows the second lines of its cells."""


@dataclass(frozen=True, slots=True)
class Row:
    """Cells, one a column; a single one with ``heading`` is a line over all columns."""

    cells: Sequence[Cell]
    heading: bool = False
    mark: Mark = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first screen has its first rows."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    below: Phrase = ""
    """A note on what signs in it mean."""
    split: bool = False
    """Where a terminal is too narrow for all columns, several tables with the first column in each; else columns give way."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A bar of parts, ``whole`` against ``limit``, which leaves ``room``; ``apart`` has a line for each part on a terminal."""

    key: str
    title: str
    parts: Sequence[Part]
    whole: At
    limit: At | None = None
    room: Phrase = ""
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines, with upright marks and a dot on each; on a terminal a row of bars a line."""

    key: str
    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    marks: Sequence[tuple[float, str]] = ()
    dots: Sequence[Dot | None] = ()
    below: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Area:
    """Parts of a sum on top of each other as they change: heights from each place ``at`` to the next, a line ``over`` them, and
    upright marks with their words."""

    key: str
    title: str
    x: Axis
    y: Axis
    at: Sequence[float]
    layers: Sequence[Layer]
    over: Layer | None = None
    marks: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True, slots=True)
class Points:
    """Points to choose from; on a terminal a line for each."""

    key: str
    title: str
    x: Axis
    y: Axis
    dots: Sequence[Dot]


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing that only a page has, as HTML; ``words`` stand for it on a terminal."""

    html: str
    words: Sequence[Phrase] = ()


@dataclass(frozen=True, slots=True)
class Notes:
    """Sentences."""

    items: Sequence[Phrase]
    mark: Mark = ""


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to write into a program: those with ``+`` come, those with ``-`` go, those with ``@`` name the place; ``note`` is
    what to mind. ``whole``: the lines of a file as they are, however long."""

    title: str
    lines: Sequence[str]
    note: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A command line that works when it is pasted: ``words`` as a shell reads them; without any, the question asked once more, as
    ``command`` where it is another, with the options ``sets`` and without those in ``drops``."""

    why: str
    words: Sequence[str] = ()
    command: str = ""
    sets: Mapping[str, str] = field(default_factory=dict[str, str])
    drops: Sequence[str] = ()
    file: tuple[str, str] | None = None
    """The name and the text of a file that it reads."""

    def line(self, asked: Sequence[str]) -> list[str]:
        """Its words, from those of the question; none where that was not asked on a command line."""
        if self.words:
            return list(self.words)
        return _again(asked, self) if asked else []


Block = Table | Stack | Chart | Area | Points | Picture | Notes | Code | Command


@dataclass(frozen=True, slots=True)
class Section:
    """A part of an answer. ``name`` is its option (:data:`~gpuwise.report.answers.parts.PARTS`); where it is ``first`` the first
    screen has its first block. ``verdict`` is the answer's where this part alone is asked for and answers another question."""

    name: str
    title: str
    blocks: Sequence[Block]
    first: bool = False
    verdict: Phrase = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that matters, with its interval or a note."""

    name: str
    value: Phrase
    small: Phrase = ""
    note: Phrase = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """``verdict`` is one plain sentence; ``warnings`` and ``assumed`` are what could change it."""

    command: str
    verdict: Phrase
    state: State = ""
    lead: Phrase = ""
    figures: Sequence[Figure] = ()
    parts: Sequence[Section] = ()
    next: Command | None = None
    warnings: Sequence[str] = ()
    assumed: Sequence[str] = ()

    def part(self, name: str) -> Section | None:
        """The part of that name, if there is one."""
        return next((p for p in self.parts if p.name == name), None)


def shows(answer: Answer) -> Iterator[At]:
    """Every place of the document that an answer shows as text."""
    yield from places((answer.verdict, answer.lead, *(p.verdict for p in answer.parts)))
    for f in answer.figures:
        yield from places((f.value, f.small, f.note))
    for block in (b for p in answer.parts for b in p.blocks):
        if isinstance(block, Table):
            yield from places([c.value for r in block.rows for c in r.cells])
            yield from places([c.small for r in block.rows for c in r.cells])
        elif isinstance(block, Stack):
            yield from places([block.whole, *([block.limit] if block.limit else []), *(p.place for p in block.parts)])
        elif isinstance(block, Notes):
            yield from places(block.items)


_PARENTHESES = re.compile(r" \([^()]*(?:\([^()]*\)[^()]*)*\)")


def brief(sentences: Sequence[str]) -> list[str]:
    """``sentences`` without what is in parentheses: reasons and details."""
    return [_PARENTHESES.sub("", s) for s in sentences]


def _again(asked: Sequence[str], command: Command) -> list[str]:
    """The words of ``asked`` with another command and other options."""
    named = 2 if " ".join(asked[:2]) in PARTS else 1
    flags = {"--json", "--all", *(f"--{name}" for name in PARTS.get(" ".join(asked[:named]), ()))}
    new = {f"--{name.replace('_', '-')}": value for name, value in command.sets.items()}
    dropped = {f"--{name}" for name in command.drops} | new.keys() | {f"--no-{name[2:]}" for name in new}
    end = asked.index("--") if "--" in asked else len(asked)
    words, skip = [*(command.command.split() or asked[:named])], False
    for word, after in itertools.pairwise([*asked[named:end], "--"]):
        name = word.partition("=")[0]
        if skip or word in flags:
            skip = False
        elif name in dropped:
            skip = "=" not in word and not after.startswith("--") and new.get(name) not in ("yes", "no")
        else:
            words.append(word)
    for name, value in sorted(new.items(), key=lambda item: item[1] not in ("yes", "no")):
        words += [name] if value == "yes" else [f"--no-{name[2:]}"] if value == "no" else [name, value]
    return [*words, *asked[end:]]
