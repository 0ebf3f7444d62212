"""A self-contained page: no requests, no scripts, readable in light and dark mode, on paper, on a telephone and with a screen
reader."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuwise.text import escape

_CSS = """
:root{color-scheme:light dark;--ink:#1f2430;--muted:#5b6270;--line:#d5d9e0;--paper:#fdfdfe;--card:#f3f5f8;--good:#00724f;
--weak:#8a5a00;--link:#0060a8}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e8eaf0;--muted:#a9b0bd;--line:#3a404c;--paper:#15181e;
--card:#1d2129;--good:#4fd6a5;--weak:#f0b95a;--link:#6cb6ff}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0 auto;max-width:76rem;padding:1.5rem clamp(1rem,4vw,3rem) 4rem;background:var(--paper);color:var(--ink);
font:1rem/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:break-word}
h1{font-size:clamp(1.4rem,4vw,2rem);line-height:1.2;margin:.2em 0}
h2{font-size:1.25rem;margin:2.2em 0 .6em;border-bottom:1px solid var(--line);padding-bottom:.25em}
.lead{color:var(--muted);margin:.2em 0 1.2em}
.verdict{background:var(--card);border-left:4px solid var(--good);padding:.8rem 1.2rem;margin:1rem 0}
.verdict ul,.notes{margin:0;padding-left:1.1rem}
.verdict li{margin:.35em 0}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,25rem),1fr));gap:1.5rem 2rem;align-items:start}
.figures{margin:1.5rem 0}
figure{margin:0;min-width:0}
figure svg{display:block;width:100%;height:auto;max-width:46rem}
figcaption{font-size:.9rem;color:var(--muted)}
figcaption b{color:var(--ink);display:block;font-size:1rem}
.scroll{overflow-x:auto;max-width:100%}
.scroll:focus-visible{outline:2px solid var(--link)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.94rem}
th,td{padding:.35rem .6rem;border-bottom:1px solid var(--line);text-align:right;vertical-align:baseline}
th[scope=row],th:first-child,.words{text-align:left}
th[scope=row]{font-weight:500;min-width:8.5rem}
th[scope=rowgroup]{padding-top:1.1rem;font-size:1rem;text-align:left}
thead th{border-bottom:2px solid var(--line);vertical-align:bottom}
td{min-width:min(6.8rem,10vw)}
.best{font-weight:700;color:var(--good)}
.weak{color:var(--weak)}
th[scope=row]{position:sticky;left:0;background:var(--paper)}
small{display:block;color:var(--muted);font-weight:400;font-size:.8rem;line-height:1.35}
td:not(.words) small{white-space:nowrap}td small.long{white-space:normal!important}
.scroll+.notes{margin-top:1rem}.below{margin:.6rem 0 0;font-size:.9rem;color:var(--muted)}
a{color:var(--link)}
sup a{text-decoration:none;padding:0 .1em}
ol.sources{font-size:.88rem;color:var(--muted);padding-left:1.6rem}
@media screen and (max-width:32rem){figure svg{width:calc(100% + 2rem);margin:0 -1rem}
thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
table,tbody{display:block}
tr{display:grid;grid-template-columns:1fr 1fr;gap:.35rem 1rem;border-bottom:1px solid var(--line);padding:.5rem 0}
th[scope=row],th[scope=rowgroup],td{border:0;padding:0;min-width:0;text-align:left}
th[scope=row],th[scope=rowgroup],td.words{grid-column:1/-1}th[scope=row]{position:static;font-weight:700}
td small{white-space:normal!important}
th[data-label]::before{content:attr(data-label) " ";font-weight:400}
td::before{content:attr(data-label);display:block;color:var(--muted);font-weight:400;font-size:.8rem}td:empty{display:none}
.pair th[scope=row]{grid-column:1;font-weight:500}.pair td{text-align:right}.pair td.words{grid-column:2}
.pair td.long{grid-column:1/-1;text-align:left}
.pair td::before{display:none}}
@media print{body{max-width:none;padding:0;font-size:10pt}figure,tr,.verdict{break-inside:avoid}h2{break-after:avoid}
.scroll{overflow:visible}a{color:inherit;text-decoration:none}}
"""


LONGEST_INTERVAL = 24
"""Letters of a second line that is not broken: an interval with its units is shorter, a sentence is not."""
_TAG = re.compile(r"<[^>]*>")


@dataclass(frozen=True, slots=True)
class Markup:
    """Text that is already HTML. Anything else is escaped."""

    html: str


Text = str | Markup


def text(value: Text) -> str:
    """HTML of ``value``."""
    return value.html if isinstance(value, Markup) else escape(value)


@dataclass(frozen=True, slots=True)
class TableCell:
    """``small`` is a second line; ``mark`` one of ``best``, ``weak``, ``words`` or several with spaces."""

    value: Text
    small: Text = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class TableRow:
    """``group`` True makes it a heading over the rows that follow, without cells."""

    title: Text
    cells: Sequence[TableCell] = ()
    group: bool = False


def page(title: str, lead: str, body: Iterable[str]) -> str:
    """The whole document; ``body`` is HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="generator" content="gpuwise">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{style()}</style>\n</head>\n<body>\n"
        f'<main>\n<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>\n{"".join(body)}</main>\n</body>\n</html>\n'
    )


def style() -> str:
    """CSS of a page and of the figures in it."""
    return _CSS


def heading(words: str) -> str:
    """``words`` as a heading of the second level."""
    return f"<h2>{escape(words)}</h2>\n"


def notes(sentences: Sequence[str]) -> str:
    """``sentences`` as a list; nothing for none."""
    return "" if not sentences else f'<ul class="notes">{"".join(f"<li>{escape(s)}</li>" for s in sentences)}</ul>\n'


def table(caption: str, head: Sequence[Text], rows: Sequence[TableRow]) -> str:
    """A table that scrolls sideways on its own where it is too wide; on a telephone each row is a block of its cells, named by
    their columns (the roles keep it a table to a screen reader)."""
    wordy = {i for r in rows for i, c in enumerate(r.cells, start=1) if "words" in c.mark}
    marks = [' class="words"' if i in wordy else "" for i in range(len(head))]
    columns = "".join(
        f'<th scope="col" role="columnheader"{m}>{text(h)}</th>' if h else f'<td role="cell"{m}></td>'
        for m, h in zip(marks, head, strict=True)
    )
    pair = ' class="pair"' if len(head) == 2 else ""
    body = "".join(_row(r, head) for r in rows)
    return (
        f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0"><table{pair} role="table">'
        f'<thead role="rowgroup"><tr role="row">{columns}</tr></thead><tbody role="rowgroup">{body}</tbody></table></div>\n'
    )


def _row(row: TableRow, head: Sequence[Text]) -> str:
    if row.group:
        return f'<tr role="row"><th scope="rowgroup" colspan="{len(head)}" role="rowheader">{text(row.title)}</th></tr>\n'
    cells = "".join(_cell(c, h) for c, h in zip(row.cells, [*head[1:], *[""] * len(row.cells)], strict=False))
    title = text(row.title)
    bare = not any(c.isalpha() for c in _TAG.sub("", title))  # a number is meaningless without its column's name
    label = f' data-label="{_words(head[0])}"' if bare else ""
    return f'<tr role="row"><th scope="row" role="rowheader"{label}>{title}</th>{cells}</tr>\n'


def _cell(cell: TableCell, column: Text) -> str:
    label = _words(column)
    mark = f' class="{escape(cell.mark)}"' if cell.mark else ""
    long = ' class="long"' if len(_TAG.sub("", text(cell.small))) > LONGEST_INTERVAL else ""
    small = f"<small{long}>{text(cell.small)}</small>" if cell.small else ""
    return f'<td role="cell" data-label="{label}"{mark}>{text(cell.value)}{small}</td>'


def _words(column: Text) -> str:
    """A column's name as an attribute."""
    return escape(_TAG.sub("", html.unescape(column.html))) if isinstance(column, Markup) else escape(column)
