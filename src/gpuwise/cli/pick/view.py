"""A pick as a person reads it: the verdict, a table for each way of having hardware, why not for the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuwise.cli.out import console, grid, section, table_of
from gpuwise.interval import P80
from gpuwise.pick.api import Pick
from gpuwise.pick.jobs import ModelJob
from gpuwise.pick.outcomes import Outcome
from gpuwise.pick.owning import MONTH_H
from gpuwise.pick.passes import PassJob
from gpuwise.pick.words import LeftOutGroup, hardware, money, price_words
from gpuwise.plan.explain import probability
from gpuwise.text import capital
from gpuwise.units import format_bytes, format_duration, format_number

if TYPE_CHECKING:
    from rich.console import Console

    from gpuwise.cli.fitted_table import FittedTable
    from gpuwise.pick.fleet import Fleet
    from gpuwise.pick.learning import Learning

WIDE = 110
TITLES = {"rent": "To rent", "buy": "To buy", "notebook": "As a notebook"}
ORDERS = {
    "cost": "cost",
    "time": "time",
    "balance": "time x root of money",
    "value": "dollars for useful work",
    "energy": "electricity",
}
"""What each objective ranks by, in a line below the tables."""
MARKS = {
    "4": "done with a change (4-bit weights, lighter states)",
    "p": "software partial or unknown",
    "l": "list price without a date",
    "?": "no known offer of that many in one machine",
    "+": "with the machine around it",
    "d": "derived from its family",
    "s": "predicted from its specification",
    "x": "beyond what was measured",
}
"""What the letters of the notes column mean; fitted and measured predictions have none."""


def show_pick(ranking: Pick, top: int) -> None:
    """Print the whole answer."""
    to = console()
    _verdict(to, ranking.job.name, ranking.verdict, ranking.best is not None)
    letters: set[str] = set()
    for how, title in TITLES.items():
        rows = _each_once(ranking.ranked, how)[:top]
        if rows:
            section(to, title + _money_title(ranking.job, how), _table(ranking.job, rows))
            letters.update(letter for o in rows for letter in marks(o))
    if ranking.ranked:
        to.print(
            f"  Rows by {ORDERS[ranking.limits.objective]} at the worse end of its interval, among more: see Order.", style="dim"
        )
    if letters:
        to.print("  " + "; ".join(f"{letter} {words}" for letter, words in MARKS.items() if letter in letters), style="dim")
    _changes(to, ranking.ranked, top)
    _why_not(to, ranking.left_out)
    _foot(to, ranking)


def _each_once(ranked: Sequence[Outcome], how: str) -> list[Outcome]:
    """The outcomes of one kind, of a notebook's accelerator the best plan only."""
    distinct: list[Outcome] = []
    for o in ranked:
        again = how == "notebook" and any(f.cluster.accelerator.id == o.cluster.accelerator.id for f in distinct)
        if o.way.how == how and not again:
            distinct.append(o)
    return distinct


def _verdict(to: Console, name: str, sentences: Sequence[str], good: bool) -> None:
    from rich.text import Text

    to.print(Text(capital(name), "bold"))
    for i, text in enumerate(sentences):
        style = ("bold green" if good else "bold red") if i == 0 else ""
        to.print(f"  {text}", style=style)


def _money_title(job: ModelJob | PassJob, how: str) -> str:
    period = f" for {job.hours:,.0f} hours" if job.serving else ""
    return {"rent": f", dollars{period}", "buy": f", purchase with electricity{period}", "notebook": ""}[how]


GIVES_WAY = ("tok/J", "$/(GB/s)", "$/GB", P80, "$/EFLOP", "W")
"""Columns left out, in this order, until the others stand whole."""


def _table(job: ModelJob | PassJob, rows: Sequence[Outcome]) -> FittedTable:
    """The rows with as many columns as the terminal is wide."""
    per_month = " mo" if rows[0].way.rent is not None else ""
    titles = {"$/GB": f"$/GB{per_month}", "$/(GB/s)": f"$/(GB/s){per_month}"}
    cells = [_cells(job, o) for o in rows]
    gives_way = [titles.get(name, name) for name in GIVES_WAY]
    table = table_of([titles.get(name, name) for name in cells[0]], left=("GPUs", "notes"), gives_way=gives_way)
    for row in cells:
        table.add_row(*row.values())
    return table


def _cells(job: ModelJob | PassJob, o: Outcome) -> dict[str, str]:
    """What is known of a row, by column."""
    months = MONTH_H if o.way.rent is not None else 1.0
    cells = {
        "GPUs": f"{o.n}x {short_name(o.cluster.accelerator.name)}",
        "price": price_words(o.way),
        job.rate_title if job.serving else "time": _speed(job, o),
        P80: _span(job, o),
        "cost": money(o.cost_usd.expected),
        "$/EFLOP": three(1000 * o.usd_per_pflop),
        "$/GB": three(months * o.usd_per_gb),
        "$/(GB/s)": three(months * o.usd_per_gb_per_s),
        "W": "-" if o.board_w is None else f"{o.board_w:,.0f}",
        "tok/J": "-" if o.tokens_per_joule is None else f"{o.tokens_per_joule:.2g}",
        "notes": "".join(marks(o)),
    }
    # a fee is paid for the whole notebook, not for its memory
    return {k: v for k, v in cells.items() if o.way.notebook is None or "GB" not in k}


def _speed(job: ModelJob | PassJob, o: Outcome) -> str:
    return format_number(o.tokens_per_s.expected) if job.serving else format_duration(o.time_s.expected)


def _span(job: ModelJob | PassJob, o: Outcome) -> str:
    if job.serving:
        return f"{format_number(o.tokens_per_s.low)}-{format_number(o.tokens_per_s.high)}"
    low, high = format_duration(o.time_s.low), format_duration(o.time_s.high)
    same = low.split(" ")[-1] == high.split(" ")[-1]
    return f"{low.split(' ')[0]}-{high}" if same else f"{low}-{high}"


def three(usd: float) -> str:
    """Dollars in three digits."""
    return "$0" if usd == 0 else f"${usd:,.0f}" if usd >= 100 else f"${usd:.3g}"


def short_name(name: str) -> str:
    """A product name without what the table need not repeat."""
    return name.replace(" Blackwell", "").replace("Radeon ", "").replace("Workstation", "WS").replace(" (DGX Spark)", "")


def marks(o: Outcome) -> list[str]:
    """The letters of a row, in the order of :data:`MARKS`."""
    holds = {
        "4": o.tier > 0,
        "p": o.support.level != "full",
        "l": any("undated" in n for n in o.notes),
        "?": any(n.startswith("no offer seen") for n in o.notes),
        "+": o.bill.box_usd > 0,
        "d": o.time_s.basis == "derived",
        "s": o.time_s.basis == "specified",
        "x": o.time_s.basis == "extrapolated",
    }
    return [letter for letter in MARKS if holds[letter]]


def _changes(to: Console, ranked: Sequence[Outcome], top: int) -> None:
    """How the best of each way does it."""
    from rich.text import Text

    table = grid(2)
    rows: dict[tuple[str, str, str], None] = {}
    for first in filter(None, (next((o for o in ranked if o.way.how == how), None) for how in TITLES)):
        words = [first.layout, *(c for c in first.changes if c not in first.layout), _free(first), *first.notes]
        rows[hardware(first), "; ".join(words), f"software {first.support.level}: {first.support.reason}"] = None
    for name, how, software in rows:
        table.add_row(name, Text(how))
        table.add_row("", Text(software, "dim"))
    if table.row_count:
        section(to, "How", table)


def _free(o: Outcome) -> str:
    free = f"{format_bytes(o.headroom_bytes)} free" if o.headroom_bytes > 0 else "memory full"
    return free if o.fit_probability is None else f"{free}, fits with {probability(o.fit_probability)}"


def _why_not(to: Console, reasons: Sequence[LeftOutGroup]) -> None:
    from rich.text import Text

    if not reasons:
        return
    table = grid(2)
    for g in reasons:
        names = "; ".join(f"{name} ({why})" for name, why in g.named[: 3 if to.width >= WIDE else 2])
        more = f"; {g.count - min(len(g.named), 3 if to.width >= WIDE else 2)} more" if g.count > len(g.named) else ""
        table.add_row(Text.assemble((f"{g.count}", "bold"), f" {g.heading}"), Text(names + more))
    table.columns[0].max_width = 24
    section(to, "Why not", table)


def _foot(to: Console, ranking: Pick) -> None:
    search = ranking.ranking
    to.print()
    if ranking.assumed:
        to.print("Assumed: " + "; ".join(ranking.assumed) + ".", style="dim")
    to.print(f"Order: {ranking.order}.", style="dim")
    to.print(
        f"{search.considered} ways to have {_accelerators(ranking)} accelerators, {search.predicted} predicted exactly, "
        f"the others ruled out by limits or bounds. $/EFLOP: useful work, busy all the time, a purchase spread over "
        f"{ranking.terms.lifetime_years:g} years.",
        style="dim",
    )


def _accelerators(ranking: Pick) -> int:
    names = {o.way.accelerator.id for o in ranking.ranked} | {o.way.accelerator.id for o in ranking.ranking.left_out}
    return len(names)


def show_learning(learning: Learning, top: int) -> None:
    """Print the ranking for learning."""
    to = console()
    _verdict(to, "learn: " + ", ".join(e.name for e in learning.exercises), learning.verdict, bool(learning.ranked))
    for how, title in TITLES.items():
        rows = [r for r in learning.ranked if r.way.how == how][:top]
        if rows:
            table = table_of(["GPU", "price", "does", "time", "cost", "missing"], left=("GPU",), under="missing")
            for r in rows:
                table.add_row(
                    f"{r.n}x {short_name(r.way.accelerator.name)}",
                    price_words(r.way),
                    f"{r.done}/{len(learning.exercises)}",
                    format_duration(r.time_s.expected),
                    money(r.cost_usd.expected),
                    r.words,
                )
            section(to, title, table)
    table = grid(2)
    for e in learning.exercises:
        table.add_row(e.name, e.why)
    section(to, "The exercises", table)
    _why_not(to, learning.left_out)
    to.print()
    to.print(learning.order, style="dim")


def show_fleet(answer: Fleet) -> None:
    """Print the split of a budget over roles."""
    to = console()
    _verdict(to, answer.name, answer.verdict, answer.best is not None)
    if answer.best is not None:
        table = table_of(["role", "GPUs", "price", "does", "cost", "share"], left=("role", "GPUs"), under="does")
        for row in answer.rows():
            table.add_row(row.role, row.hardware, row.price, row.does, money(row.cost_usd), f"{100 * row.share:.0f} %")
        section(to, "Who gets what", table)
    if answer.others:
        table = table_of(
            ["cost", "speed", "train", "serve", "develop"], left=("train", "serve", "develop"), wrap=("train", "serve", "develop")
        )
        for split in answer.others:
            table.add_row(money(split.cost_usd), f"{100 * split.relative:.0f} %", *split.names)
        section(to, "The next-best splits", table)
    to.print()
    to.print("Assumed: " + "; ".join(answer.assumed) + ".", style="dim")
