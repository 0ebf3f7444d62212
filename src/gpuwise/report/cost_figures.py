# pyright: reportUnknownMemberType=false
# matplotlib leaves the types of its keyword arguments out
"""The figures of renting, owning or mixing (:class:`gpuwise.money.rent_or_own.comparison.RentOrOwn`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuwise.interval import P80
from gpuwise.money.rent_or_own.comparison import Option, RentOrOwn
from gpuwise.report.figures import (
    BAD,
    DASHES,
    GRID,
    INK,
    MUTED,
    PAPER,
    SERIES,
    SMALL,
    Drawing,
    colour,
    draw,
    legend_below,
    margins,
    room_for,
    tick_labels,
)
from gpuwise.units import GIGA, KILO, MEGA, format_usd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
LINES = 4
"""Options drawn over time: own, on demand and the two cheapest."""
BARS = 10
"""Bars of the tornado; what moves less is in the words."""
PART_COLOURS = {
    "hardware": SERIES[0],
    "resale": SERIES[5],
    "power": SERIES[1],
    "colocation": SERIES[4],
    "staff": SERIES[3],
    "support": SERIES[6],
    "repairs": BAD,
    "running": BAD,
    "reserved": SERIES[2],
    "on-demand": SERIES[7],
    "spot": GRID,
}


def cost_drawings(result: RentOrOwn) -> list[Drawing]:
    """Every figure of the result."""
    return [
        _over_time(result),
        _by_hours(result),
        _breakdown(result),
        _tornado(result),
        _prices(result),
        _mix(result),
        _difference(result),
    ]


def dollars(value: float) -> str:
    """``"$1.2M"``, ``"-$340k"``, ``"$12"``: short enough for an axis."""
    sign, size = ("-" if value < 0 else ""), abs(value)
    for scale, letter in ((GIGA, "B"), (MEGA, "M"), (KILO, "k")):
        if size >= scale:
            return f"{sign}${size / scale:.3g}{letter}"
    return f"{sign}{format_usd(size)}" if size else "$0"


def _dollar_axis(axis: object) -> None:
    from matplotlib.axis import Axis
    from matplotlib.ticker import MaxNLocator

    assert isinstance(axis, Axis)
    axis.set_major_locator(MaxNLocator(6))
    axis.set_major_formatter(tick_labels(dollars))


def main_options(result: RentOrOwn) -> list[Option]:
    """Own, renting on demand, and the cheapest of the others, cheapest first."""
    must = {"own", "on-demand"}
    others = [o for o in result.options if o.name not in must][: LINES - len(must)]
    return [o for o in result.options if o.name in must or o in others]


def _over_time(result: RentOrOwn) -> Drawing:
    options = main_options(result)
    even = result.break_even.months

    def paint(figure: Figure) -> None:
        ax = figure.add_subplot()
        months = np.arange(result.horizon_months + 1)
        for i, option in enumerate(options):
            low, middle, high = option.cumulative_usd
            ax.fill_between(months, low, high, color=colour(i), alpha=0.16, lw=0)
            ax.plot(months, middle, color=colour(i), ls=DASHES[i], label=option.label)
        if even is not None and even.expected <= result.horizon_months:
            ax.axvspan(even.low, min(even.high, result.horizon_months), color=MUTED, alpha=0.13, lw=0)
            ax.axvline(even.expected, color=INK, lw=1.0)
            side, x = ("left", 4) if even.expected < 0.6 * result.horizon_months else ("right", -4)
            ax.annotate(
                f"break-even {even.expected:.0f} months",
                (even.expected, 0.02),
                (x, 0),
                ha=side,
                fontsize=SMALL,
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                color=INK,
            )
        ax.set_xlim(0, result.horizon_months)
        ax.set_ylim(bottom=0)
        ax.set_xlabel("months from today")
        _dollar_axis(ax.yaxis)
        margins(figure, bottom=0.48 + legend_below(figure, ax, 1), left=0.66)

    if even is None:
        caption = "Owning does not pay for itself out of the rent it saves in half of the scenarios."
    else:
        caption = f"Owning has paid for itself after {even.expected:.0f} months ({P80}: {even.low:.0f} to {even.high:.0f})."
    ends = "; ".join(f"{o.label} {dollars(float(o.cumulative_usd[1, -1]))}" for o in options)
    return draw(
        "over-time",
        "Money spent by month",
        f"{caption} Bands hold {P80} of the scenarios; resale is left out.",
        4.2,
        paint,
        f"Spent in the end: {ends}.",
    )


def _by_hours(result: RentOrOwn) -> Drawing:
    """Where renting and owning win, by hours delivered a month and GPU."""
    even = result.break_even

    def paint(figure: Figure) -> None:
        ax = figure.add_subplot()
        for i, (curve, label) in enumerate(((even.curve_own, "own"), (even.curve_rent, "rent on demand"))):
            ax.fill_between(even.curve_hours, curve[0], curve[2], color=colour(i), alpha=0.16, lw=0)
            ax.plot(even.curve_hours, curve[1], color=colour(i), ls=DASHES[i], label=label)
        top = 4.0 * float(np.max(even.curve_rent[1]))
        ax.set_ylim(0, min(top, float(np.max(even.curve_own[2])) * 1.05))
        ax.set_xlim(0, float(even.curve_hours[-1]))
        hours = even.hours_per_month
        if hours is not None:
            end = float(even.curve_hours[-1])
            ax.axvspan(0, hours.low, ymax=0.045, color=colour(1), alpha=0.75, lw=0)
            ax.axvspan(hours.low, min(hours.high, end), ymax=0.045, color=GRID, lw=0)
            ax.axvspan(min(hours.high, end), end, ymax=0.045, color=colour(0), alpha=0.75, lw=0)
            ax.axvline(hours.expected, color=INK, lw=1.0)
            side, x = ("right", -4) if hours.expected > 0.5 * end else ("left", 4)
            ax.annotate(
                f"{hours.expected:,.0f} hours",
                (hours.expected, 0.93),
                (x, 0),
                ha=side,
                fontsize=SMALL,
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                color=INK,
            )
        ax.set_xlabel("hours delivered a month by one GPU (a month has 730)")
        ax.set_ylabel("US dollars a GPU-hour")
        _dollar_axis(ax.yaxis)
        margins(figure, bottom=0.48 + legend_below(figure, ax))

    hours = even.hours_per_month
    if hours is None:
        caption = "A month has too few hours for owning to be the cheaper way in half of the scenarios."
    else:
        caption = (
            f"Owning is the cheaper way above {hours.expected:,.0f} hours a month and GPU ({P80}: {hours.low:,.0f} to "
            f"{hours.high:,.0f}), resale counted. The strip below is the winner; grey is undecided."
        )
    return draw("by-hours", "Where renting and owning win", caption, 3.7, paint)


def _breakdown(result: RentOrOwn) -> Drawing:
    options = list(result.options)
    kinds = [k for k in PART_COLOURS if any(abs(o.parts_usd.get(k, 0.0)) > 0 for o in options)]
    names = [o.name for o in options]

    def paint(figure: Figure) -> None:
        ax = figure.add_subplot()
        for i, option in enumerate(options):
            right = left = 0.0
            for kind in kinds:
                usd = option.parts_usd.get(kind, 0.0)
                start = right if usd >= 0 else left
                label = kind if i == _first(options, kind) else None
                ax.barh(i, usd, left=start, height=0.62, color=PART_COLOURS[kind], edgecolor=PAPER, lw=0.8, label=label)
                right, left = (right + usd, left) if usd >= 0 else (right, left + usd)
            total = option.total_usd
            ax.plot([total.low, total.high], [i, i], color=INK, lw=1.2, marker="|", ms=7)
            ax.plot([total.expected], [i], color=INK, marker="D", ms=4.5)
            ax.annotate(
                dollars(total.expected),
                (max(right, total.high), i),
                (5, 0),
                textcoords="offset points",
                va="center",
                fontsize=SMALL,
            )
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.margins(x=0.16)
        ax.axvline(0, color=MUTED, lw=0.8)
        ax.grid(visible=False, axis="y")
        _dollar_axis(ax.xaxis)
        margins(figure, left=room_for(names), bottom=0.35 + legend_below(figure, ax, 4))

    caption = "; ".join(
        f"{o.label}: "
        + ", ".join(f"{k} {dollars(v)}" for k, v in o.parts_usd.items() if v)
        + f", in all {dollars(o.total_usd.expected)}"
        for o in options
    )
    return draw(
        "breakdown",
        "What the money pays for",
        f"Present value over {result.horizon_months} months. The diamond is the total, its whisker the {P80} interval; "
        "resale counts against the rest.",
        1.5 + 0.34 * len(names),
        paint,
        f"{caption}.",
    )


def _first(options: Sequence[Option], kind: str) -> int:
    return next(i for i, o in enumerate(options) if o.parts_usd.get(kind, 0.0))


def _tornado(result: RentOrOwn) -> Drawing:
    bars = result.bars[:BARS]
    names = [b.label for b in bars]

    def paint(figure: Figure) -> None:
        ax = figure.add_subplot()
        middle = result.own_minus_rent_usd.expected
        for i, bar in enumerate(bars):
            ends = sorted([(bar.usd_at_low, bar.low, SERIES[0]), (bar.usd_at_high, bar.high, SERIES[1])])
            for right, (end, value, tone) in enumerate(ends):
                ax.barh(i, end - middle, left=middle, height=0.6, color=tone, alpha=0.8)
                # the lesser end is labelled on the left, wherever the middle lies
                side, away, at = ("left", 3, max(end, middle)) if right else ("right", -3, min(end, middle))
                ax.annotate(
                    _amount(value, bar.unit),
                    (at, i),
                    (away, 0),
                    textcoords="offset points",
                    va="center",
                    ha=side,
                    fontsize=SMALL - 1.5,
                    color=MUTED,
                )
        ax.axvline(0, color=INK, lw=1.0)
        ax.axvline(middle, color=MUTED, lw=0.8, ls=DASHES[1])
        ax.set_yticks(range(len(bars)), [_wrapped(n) for n in names])
        ax.invert_yaxis()
        ax.margins(x=0.2)
        ax.grid(visible=False, axis="y")
        _dollar_axis(ax.xaxis)
        ax.set_xlabel("own less rent: left of the line owning is cheaper")
        margins(figure, left=room_for([line for n in names for line in _wrapped(n).split("\n")]), bottom=0.5)

    caption = "; ".join(
        f"{b.label} from {_amount(b.low, b.unit)} to {_amount(b.high, b.unit)}: {dollars(b.usd_at_low)} to "
        f"{dollars(b.usd_at_high)}, {100 * b.variance_share:.0f} % of the variance"
        for b in bars
    )
    lead = bars[0] if bars else None
    words = "" if lead is None else f" Most hangs on {lead.label}."
    return draw(
        "tornado",
        "What decides it",
        "Each bar moves one uncertain number from its 10th (blue) to its 90th percentile (orange) with the rest at its "
        f"middle.{words}",
        0.75 + 0.34 * max(len(bars), 1),
        paint,
        f"{caption}.",
    )


def _wrapped(words: str, most: int = 24) -> str:
    """In two lines where it is long, broken at a space."""
    if len(words) <= most:
        return words
    at = words.rfind(" ", 0, max(most, len(words) // 2 + 4))
    return words if at < 0 else f"{words[:at]}\n{words[at + 1 :]}"


def _amount(value: float, unit: str) -> str:
    """A driver's value in its own unit, short."""
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if unit.startswith("$"):
        return f"${number}{unit[1:]}"
    if unit == "%" or unit.startswith("of "):
        return f"{100 * value:.0f} %"
    return f"{number} {unit}" if unit in ("W", "x", "months", "years") else number


def _prices(result: RentOrOwn) -> Drawing:
    """History on the left of today, the fan of scenarios on the right."""
    fan = result.prices

    def paint(figure: Figure) -> None:
        ax = figure.add_subplot()
        bands = len(fan.percentiles) // 2
        for k in range(bands):
            label = f"{100 * (fan.percentiles[-1 - k] - fan.percentiles[k]):.0f} % of the scenarios"
            ax.fill_between(
                fan.months,
                fan.usd_per_hour[k],
                fan.usd_per_hour[-1 - k],
                color=SERIES[0],
                alpha=0.12 + 0.1 * k,
                lw=0,
                label=label,
            )
        middle = fan.usd_per_hour[len(fan.percentiles) // 2]
        ax.plot(fan.months, middle, color=SERIES[0], label="middle scenario")
        if fan.history:
            past = _months_before_last(fan.history)
            ax.plot(past, [p for _, p in fan.history], color=INK, lw=1.3, marker="o", ms=2.5, label="published history")
        ax.axvline(0, color=MUTED, lw=0.8)
        ax.set_ylim(bottom=0)
        ax.set_xlabel("months from today")
        ax.set_ylabel("US dollars a GPU-hour on demand")
        _dollar_axis(ax.yaxis)
        margins(figure, bottom=0.48 + legend_below(figure, ax))

    low, end, high = (float(fan.usd_per_hour[i, -1]) for i in (1, len(fan.percentiles) // 2, -2))
    return draw(
        "prices",
        "What renting may cost",
        f"In {result.horizon_months} months the middle scenario stands at {format_usd(end)}, {P80} lie between "
        f"{format_usd(low)} and {format_usd(high)}. Prices: {fan.fitted_on}.",
        3.8,
        paint,
    )


def _months_before_last(history: Sequence[tuple[str, float]]) -> list[int]:
    """Months of the points before the last one, which is today's."""
    at = [int(m[:4]) * 12 + int(m[5:7]) for m, _ in history]
    return [a - at[-1] for a in at]


def _mix(result: RentOrOwn) -> Drawing:
    def paint(figure: Figure) -> None:
        ax = figure.add_subplot()
        low, middle, high = result.mix_usd
        ax.fill_between(result.mix_counts, low, high, color=SERIES[2], alpha=0.18, lw=0, label=f"{P80} of the scenarios")
        ax.plot(
            result.mix_counts,
            middle,
            color=SERIES[2],
            marker="o" if len(result.mix_counts) < 40 else None,
            ms=3.5,
            label="middle",
        )
        at = int(np.argmin(middle))
        ax.plot([result.mix_counts[at]], [middle[at]], color=INK, marker="D", ms=6, ls="none", label="cheapest")
        ax.set_ylim(bottom=0)
        ax.set_xlabel("GPUs owned, the rest rented")
        _dollar_axis(ax.yaxis)
        margins(figure, bottom=0.48 + legend_below(figure, ax, 3), left=0.66)

    at = int(np.argmin(result.mix_usd[1]))
    return draw(
        "mix",
        "How many to own",
        f"Cheapest in the middle scenario: own {result.mix_counts[at]:,.0f} and rent the rest "
        f"({dollars(float(result.mix_usd[1, at]))}).",
        3.4,
        paint,
    )


def _difference(result: RentOrOwn) -> Drawing:
    edges, counts = result.difference_edges, result.difference_counts

    def paint(figure: Figure) -> None:
        ax: Axes = figure.add_subplot()
        share = counts / counts.sum()
        middle = (edges[:-1] + edges[1:]) / 2
        for mask, tone, label in ((middle < 0, SERIES[0], "owning is cheaper"), (middle >= 0, SERIES[1], "renting is cheaper")):
            if mask.any():
                ax.bar(
                    edges[:-1][mask], share[mask], width=np.diff(edges)[mask], align="edge", color=tone, alpha=0.85, label=label
                )
        ax.axvline(0, color=INK, lw=1.0)
        ax.set_yticks([])
        ax.grid(visible=False)
        ax.spines["left"].set_visible(False)
        _dollar_axis(ax.xaxis)
        ax.set_xlabel(f"own less {result.best_rent}, present value over {result.horizon_months} months")
        margins(figure, bottom=0.48 + legend_below(figure, ax), left=0.2)

    d = result.own_minus_rent_usd
    return draw(
        "difference",
        "How sure it is",
        f"Owning is cheaper in {100 * result.own_wins:.0f} % of {result.n_scenarios:,} scenarios; {P80} of the "
        f"differences lie between {dollars(d.low)} and {dollars(d.high)}.",
        2.9,
        paint,
    )
