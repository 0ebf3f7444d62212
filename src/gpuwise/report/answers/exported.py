"""An answer as files that stand alone: a page, and its pictures below one another."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from gpuwise.files import FIGURE_SUFFIXES, PAGE_SUFFIXES, write_text
from gpuwise.report.answers.answer import Answer
from gpuwise.report.answers.drawings import WIDTH
from gpuwise.report.answers.drawings import style as drawings_style
from gpuwise.report.answers.values import inert
from gpuwise.report.answers.written import body, page_of

_SVG = re.compile(r"<svg (?![^>]*class=\"mark\").*?</svg>", re.DOTALL)
_FIGURE = re.compile(r"<figure\b.*?</figure>", re.DOTALL)
_LEGEND = re.compile(r'<li><svg class="mark"[^>]*><rect class="(\w+)"[^>]*/></svg>(.*?)</li>', re.DOTALL)
GAP = 20.0
LETTER = 7.2
"""Width of a letter of a legend."""


def write_page(answer: Answer, path: Path, asked: Sequence[str] = ()) -> None:
    """Write the answer to ``path`` (.html). Raises InputError when it cannot be written there."""
    line = shlex.join(["gpuwise", *asked]) if asked else ""
    write_text(path, page_of(answer, f"gpuwise {answer.command}", line, asked), PAGE_SUFFIXES)


def write_pictures(answer: Answer, path: Path) -> None:
    """Write the pictures of the answer to ``path`` (.svg). Raises InputError when they cannot be written there."""
    write_text(path, pictures(body(answer)), FIGURE_SUFFIXES)


def pictures(body: str) -> str:
    """The figures of a page below one another as one SVG file, each with the names of its colours."""
    parts, y = list[str](), 0.0
    for figure in _FIGURE.findall(inert(body)):
        for svg in _SVG.findall(figure):
            box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
            label = re.search(r'aria-label="([^"]*)"', svg)
            if box is None:
                continue
            wide, high = float(box[1]), float(box[2])
            title = label[1].partition(". ")[0] if label else ""
            parts.append(f'<text x="0" y="{y + 14:g}">{title}</text>')
            parts.append(svg.replace("<svg ", f'<svg y="{y + GAP:g}" width="{wide:g}" height="{high:g}" ', 1))
            y += high + 1.2 * GAP
        names = [(ink, re.sub(r"<[^>]*>", "", words).strip()) for ink, words in _LEGEND.findall(figure)]
        x = 0.0
        for ink, words in names:
            wide = 26.0 + LETTER * len(words)
            x, y = (0.0, y + 18.0) if x and x + wide > WIDTH else (x, y)
            parts.append(f'<rect class="{ink}" x="{x:g}" y="{y + 4:g}" width="9" height="9"/>')
            parts.append(f'<text x="{x + 13:g}" y="{y + 13:g}">{words}</text>')
            x += wide
        y += (18.0 if names else 0.0) + GAP
    size = f'viewBox="0 0 {WIDTH:g} {y:g}" width="{WIDTH:g}" height="{y:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{drawings_style()}</style>{"".join(parts)}</svg>\n'
