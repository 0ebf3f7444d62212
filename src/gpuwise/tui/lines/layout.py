"""Heights of the panels of the screen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuwise.machine.telemetry.causes.cause import Cause, Severity
from gpuwise.tui.lines.cards import CARD_LINES, cause_lines

CHART, PROCESSES = 6, 6
"""The fewest lines in which each is worth its place, its heading included."""
TABLE = 4
"""Minimum lines of the process table kept free of causes."""
CHART_MAX = 12
VIEWS = ("overview", "processes", "charts", "why")


@dataclass(frozen=True, slots=True)
class Layout:
    """Heights of the panels in lines."""

    head: int
    cards: int
    chart: int
    processes: int
    foot: int
    per_card: int = 1
    """1, 2 or CARD_LINES."""
    heading: bool = True
    causes: dict[int, int] = field(default_factory=dict[int, int])
    """Place of a cause in the frame's -> lines it gets."""


def lay_out(width: int, height: int, n_cards: int, causes: Sequence[Cause], n_processes: int, view: str = "overview") -> Layout:
    """The layout of a view; every height is 0 or more and they fill the screen."""
    foot = 1 if height >= 4 else 0
    head = 0 if height < 3 else 1 if height < 14 else 2
    free = max(0, height - head - foot)
    if view == "processes":
        return Layout(head, 0, 0, free, foot)
    if view in ("charts", "why"):
        return Layout(head, 0, free, 0, foot)
    per_card, heading = _style(free, n_cards, len(causes))
    cards = n_cards * per_card + heading
    if cards > free:
        heading, cards = False, n_cards * per_card
    if cards > free:
        # they scroll; the table keeps a few lines
        cards = free - min(3, free // 3)
    rest = free - cards
    table = min(TABLE if n_processes else 2, rest)
    cause_lines = dict.fromkeys(range(min(len(causes), max(0, rest - table))), 1)
    rest -= len(cause_lines)
    process_lines = min(PROCESSES, n_processes + 2)
    chart = CHART if rest >= CHART + process_lines else 0
    _give_more(cause_lines, causes, width, rest - chart - (process_lines if chart else table))
    cards += sum(cause_lines.values())
    rest = free - cards
    if chart:
        chart = min(CHART_MAX, rest - max(process_lines, min(n_processes + 1, rest // 2)))
    return Layout(head, cards, chart, rest - chart, foot, per_card, heading, cause_lines)


def _style(free: int, n_cards: int, n_causes: int) -> tuple[int, bool]:
    """Lines per card that leave room for the parts below; and whether there is a heading."""
    below = CHART + PROCESSES
    for per_card, keep in ((CARD_LINES, PROCESSES + n_causes), (2, below + n_causes), (1, TABLE)):
        heading = per_card < CARD_LINES
        if n_cards * per_card + heading + keep <= free:
            return per_card, heading
    return 1, n_cards + 1 <= free


def _give_more(lines_given: dict[int, int], causes: Sequence[Cause], width: int, room: int) -> None:
    """A second and a third line for each cause that has something to say in it, worst first; notes stay at one."""
    for n in (2, 3):
        for place in lines_given:
            if room > 0 and causes[place].severity is not Severity.NOTE and len(cause_lines(causes[place], width, n)) == n:
                lines_given[place] = n
                room -= 1
