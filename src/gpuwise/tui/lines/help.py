"""The keys, as the help dialog shows them."""

from __future__ import annotations

from gpuwise.tui.lines.cards import BUSY, IDLE
from gpuwise.tui.lines.text_runs import BLANK, Line, line, run, wrap

KEYS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Everywhere",
        (
            ("tab, shift+tab", "next or previous view: overview, processes, charts, why"),
            ("← →  or  0-9", "select a GPU"),
            ("enter", "details of the selected process, else of the GPU"),
            ("d", "details of the selected GPU: every reading, and why one is unknown"),
            ("w", "why is it slow: every cause in full"),
            ("space", "pause, and go on"),
            ("+ -", "longer or shorter time between refreshes"),
            ("T", "themes"),
            ("? or h", "these keys"),
            ("q", "leave"),
        ),
    ),
    (
        "Processes",
        (
            ("↑ ↓ page home end", "select a process; in the view `why`, scroll"),
            ("s S", "sort by the next or previous column (or click on its title)"),
            ("r", "turn the order round"),
            ("/", "filter as you type: words of pid, user, container, command; gpu:2"),
            ("esc", "clear the filter, then the selection"),
            ("t", "tree"),
            ("o", "only those of the selected GPU"),
            ("k", "end the process: SIGTERM first, SIGKILL if it stays"),
        ),
    ),
    (
        "Charts",
        (
            ("c C", "next or previous reading"),
            ("a", "one reading of all GPUs"),
            ("z", "zoom: 1, 5 or 15 refreshes to a dot"),
        ),
    ),
    (
        "Replay",
        (
            (", .", "10 s back or forward"),
            ("< >", "a minute back or forward"),
        ),
    ),
)
MARKS: tuple[tuple[str, str, str], ...] = (
    ("✖", "bad", "a fault, or the GPU does not answer"),
    ("▲", "warn-strong", "something slows it"),
    (BUSY, "ok", "at work, nothing holds it back"),
    (IDLE, "dim", "idle"),
    ("–", "faint", "the driver does not say: see `d`"),
)
SHORT = 20


def help_lines(width: int) -> list[Line]:
    """The help in ``width`` columns."""
    out = list[Line]()
    for title, keys in KEYS:
        out += [BLANK] if out else []
        out.append(line(run(title, "title")))
        for key, words in keys:
            for n, text in enumerate(wrap(words, max(10, width - SHORT - 1))):
                out.append(line(run(f"{key if n == 0 else '':<{SHORT}} ", "key"), run(text)))
    out += [BLANK, line(run("Marks", "title"))]
    return out + [line(run(f"{glyph:<{SHORT}} ", role), run(words)) for glyph, role, words in MARKS]
