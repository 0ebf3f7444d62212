"""``gpuwise prices --history``: how prices moved, down and up."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuwise.errors import UnpredictableError
from gpuwise.money.cost import STALE_DAYS

if TYPE_CHECKING:
    from rich.console import Console

    from gpuwise.facts.offers.price_moves import Move

Points = list[tuple[datetime.date, float]]
SPARKS = "▁▂▃▄▅▆▇█"
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
WHOLE_YEAR = 80
"""Columns from which the months of a year stand in one row."""
KEPT = "kept here"
"""The series made of what was fetched on this machine."""


def show_history(query: str, day: datetime.date, *, json: bool) -> int:
    """Print every price series of the accelerators that ``query`` means. Raises UnpredictableError when there
    is none."""
    from gpuwise.facts.hardware.accelerators import accelerators
    from gpuwise.facts.offers.price_history import price_history

    history = list(price_history())
    names = _meant(query, history)
    by_name = {name: _series(name) for name in names}
    by_name = {name: series for name, series in by_name.items() if series}
    if not by_name:
        raise UnpredictableError(
            "no price history",
            f"no price history of {query!r} is known",
            hint="there is one for " + ", ".join(history[:6]) + (f" and {len(history) - 6} more" if len(history) > 6 else ""),
        )
    if json:
        from gpuwise.cli.out import print_json

        print_json({"history": [_document(name, s, points) for name, series in by_name.items() for s, points in series.items()]})
        return 0
    from rich.text import Text

    from gpuwise.cli.out import console

    to = console()
    for i, (name, series) in enumerate(by_name.items()):
        if i:
            to.print()
        to.print(Text.assemble((accelerators()[name].name, "bold"), f"  {name}, US dollars an hour and accelerator"))
        for label, points in series.items():
            _print(to, label, points, day)
        to.print(f"  from {', '.join(_cited(name))}", style="dim")
    return 0


def _cited(name: str) -> list[str]:
    from gpuwise.facts.offers.price_history import price_history
    from gpuwise.facts.sources import sources

    keys = dict.fromkeys(p.source_key for p in price_history().get(name, ()))
    return [sources()[key].title for key in keys] or ["feeds fetched on this machine"]


def _meant(query: str, names: list[str]) -> tuple[str, ...]:
    from gpuwise.facts.offers.search import accelerators_of

    if not query.strip():
        return tuple(names)
    return accelerators_of(query)


def _series(name: str) -> dict[str, Points]:
    from gpuwise.facts.offers.offer import stored_history
    from gpuwise.facts.offers.price_history import history_of, series_of

    by_source: dict[str, Points] = {
        series: [(p.month, p.usd_per_hour) for p in history_of(name, series)] for series in series_of(name)
    }
    medians = [(day, median) for day, median, _ in stored_history(name)]
    return by_source | ({KEPT: medians} if medians else {})


def _print(to: Console, label: str, points: Points, day: datetime.date) -> None:
    from rich.padding import Padding

    from gpuwise.cli.out import table_of
    from gpuwise.facts.offers.price_moves import moves

    titles = {"median": "median of providers' list prices", KEPT: "median of what was fetched on this machine"}
    to.print()
    to.print(f"  {titles.get(label, label)}", style="bold")
    low, high = min(p for _, p in points), max(p for _, p in points)
    if label == KEPT:
        for day, price in points:
            to.print(f"  {day}  {price:.2f}")
    else:
        to.print(f"  {sparkline(points)}  {low:.2f} to {high:.2f}")
        by_month = {(day.year, day.month): price for day, price in points}
        together = 12 if to.width >= WHOLE_YEAR else 6
        for first in range(1, 13, together):
            table = table_of(["", *MONTHS[first - 1 : first - 1 + together]])
            for year in range(points[0][0].year, points[-1][0].year + 1):
                prices = (by_month.get((year, month)) for month in range(first, first + together))
                table.add_row(str(year), *("" if price is None else f"{price:.2f}" for price in prices))
            to.print(Padding(table, (0, 0, 0, 2), expand=False))
    for move in moves(points):
        to.print(f"  {move.start:%Y-%m} to {move.end:%Y-%m}: {_words(move)}")
    age = (day - points[-1][0]).days
    if age > STALE_DAYS:
        to.print(f"  the newest is of {points[-1][0]:%Y-%m}, {age} days old")


def _words(move: Move) -> str:
    how = "rose" if move.share > 0 else "fell"
    yearly = move.share_a_year
    rate = "" if yearly is None else f" ({yearly:+.0%} a year)"
    change = f"{how} by {abs(move.share):.0%}{rate}" if abs(move.share) >= 0.005 else "stood still"
    return f"{move.start_usd:.2f} to {move.end_usd:.2f}, {change}"


def sparkline(points: Sequence[tuple[datetime.date, float]]) -> str:
    """One block a month, from the lowest price to the highest; a month without an observation is a space."""
    low, high = min(p for _, p in points), max(p for _, p in points)
    first = points[0][0]
    cells: dict[int, str] = {}
    for day, price in points:
        level = 0.5 if high == low else (price - low) / (high - low)
        cells[12 * (day.year - first.year) + day.month - first.month] = SPARKS[round(level * (len(SPARKS) - 1))]
    return "".join(cells.get(i, " ") for i in range(max(cells) + 1))


def _document(name: str, series: str, points: Points) -> dict[str, object]:
    from gpuwise.facts.offers.price_moves import moves

    return {
        "accelerator": name,
        "series": series,
        "points": [{"date": day.isoformat(), "usd_per_hour": price} for day, price in points],
        "moves": [
            {"from": m.start.isoformat(), "to": m.end.isoformat(), "share": m.share, "share_a_year": m.share_a_year}
            for m in moves(points)
        ],
    }
