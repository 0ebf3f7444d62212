# pyright: reportUnknownMemberType=false
# matplotlib leaves the types of its keyword arguments out
"""The figures of a training run's bill (:class:`gpuwise.money.run.cost.RunCost`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.interval import P80
from gpuwise.money.run.cost import RunCost
from gpuwise.report.cost_figures import dollars
from gpuwise.report.figures import INK, MUTED, SERIES, SMALL, Drawing, colour, draw, margins, room_for
from gpuwise.units import KILO, format_rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run_drawings(cost: RunCost) -> list[Drawing]:
    """The bill; the power where it is known; the carbon where a grid is named."""
    drawings = [_bill(cost), _power(cost), _carbon(cost)]
    return [d for d in drawings if d is not None]


def _bill(cost: RunCost) -> Drawing:
    lines = [line for line in cost.lines if line.usd.expected > 0]
    names = [line.name for line in lines]

    def paint(figure: Figure) -> None:
        ax = figure.add_subplot()
        longest = max(line.usd.high for line in lines)
        for i, line in enumerate(lines):
            timed = line.hours is not None
            ax.barh(i, line.usd.expected, height=0.62, color=SERIES[0] if timed else SERIES[1], alpha=0.85)
            ax.plot([line.usd.low, line.usd.high], [i, i], color=INK, lw=1.1, marker="|", ms=6)
            ax.text(line.usd.high + 0.015 * longest, i, dollars(line.usd.expected), va="center", fontsize=SMALL)
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.set_xlim(0, longest * 1.22)
        ax.set_xticks([])
        ax.tick_params(length=0)
        ax.grid(visible=False)
        ax.spines["bottom"].set_visible(False)
        margins(figure, left=room_for(names), right=0.05, top=0.05, bottom=0.05)

    total = cost.total_usd
    caption = "; ".join(
        f"{line.name} {dollars(line.usd.expected)} ({dollars(line.usd.low)} to {dollars(line.usd.high)})" for line in lines
    )
    return draw(
        "bill",
        f"The bill: {dollars(total.expected)}",
        f"{P80} interval {dollars(total.low)} to {dollars(total.high)}. Blue is time of the machines, orange what is not; "
        f"whiskers are {P80} intervals.",
        0.2 + 0.27 * len(lines),
        paint,
        f"{caption}.",
    )


def _power(cost: RunCost) -> Drawing | None:
    """Watts at work, from the accelerators outwards, against what is on the labels."""
    budget = cost.power
    if budget is None:
        return None
    items = [(name, e) for name, e in budget.items().items() if e.expected > 0]

    def paint(figure: Figure) -> None:
        ax = figure.add_subplot()
        start = 0.0
        for i, (_, e) in enumerate(items):
            ax.barh(len(items) - 1 - i, e.expected / KILO, left=start / KILO, height=0.62, color=colour(i))
            start += e.expected
        for value, name, dash in ((budget.design_w, "accelerators' design power", ":"), (budget.most_w, "hosts' most", "--")):
            if value is not None:
                ax.axvline(value / KILO, color=MUTED, ls=dash, lw=1.3, label=f"{name} {format_rate(value, 'W')}")
        ax.plot(
            [budget.total_w.low / KILO, budget.total_w.high / KILO],
            [-0.55] * 2,
            color=INK,
            lw=1.2,
            marker="|",
            ms=6,
            label=f"total {format_rate(budget.total_w.expected, 'W')}, {P80}",
        )
        ax.set_ylim(-0.9, len(items) - 0.2)
        ax.set_xlim(0, 1.12 * max(start, budget.design_w, budget.most_w or 0.0, budget.total_w.high) / KILO)
        ax.set_yticks(range(len(items)), [f"{n}, {format_rate(e.expected, 'W')}" for n, e in reversed(items)])
        ax.tick_params(axis="y", length=0)
        ax.grid(visible=False, axis="y")
        ax.spines["left"].set_visible(False)
        ax.set_xlabel("kW")
        handles, labels = ax.get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=1, handlelength=2.4, borderaxespad=0.1)
        margins(figure, left=room_for([f"{n}, 12.3 kW" for n, _ in items]), bottom=0.5 + 0.178 * len(labels))

    total = budget.total_w
    caption = "; ".join(f"{name} {format_rate(e.expected, 'W')}" for name, e in items)
    return draw(
        "power",
        f"Power at work: {format_rate(total.expected, 'W')}",
        f"{P80} interval {format_rate(total.low, 'W')} to {format_rate(total.high, 'W')}; site: "
        f"{budget.site}, PUE {budget.pue.expected:.2f}.",
        2.7,
        paint,
        f"{caption}.",
    )


def _carbon(cost: RunCost) -> Drawing | None:
    carbon = cost.carbon
    if carbon.operational_kg is None:
        return None
    items = [("electricity", carbon.operational_kg), ("making the machines", carbon.embodied_kg)]
    names = [name for name, _ in items]

    def paint(figure: Figure) -> None:
        ax = figure.add_subplot()
        longest = max(e.high for _, e in items)
        for i, (_, e) in enumerate(items):
            ax.barh(i, e.expected, height=0.6, color=colour(i + 2), alpha=0.85)
            ax.plot([e.low, e.high], [i, i], color=INK, lw=1.1, marker="|", ms=6)
            ax.text(e.high + 0.015 * longest, i, _kg(e.expected), va="center", fontsize=SMALL)
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.set_xlim(0, longest * 1.3)
        ax.set_xticks([])
        ax.tick_params(length=0)
        ax.grid(visible=False)
        ax.spines["bottom"].set_visible(False)
        margins(figure, left=room_for(names), right=0.05, top=0.05, bottom=0.05)

    return draw(
        "carbon",
        "Carbon",
        f"Kilograms of CO2 equivalent on the grid {carbon.grid}, with {P80} intervals.",
        0.75,
        paint,
        "; ".join(f"{n} {_kg(e.expected)}" for n, e in items) + ".",
    )


def _kg(value: float) -> str:
    return f"{value / KILO:,.3g} t" if value >= KILO else f"{value:,.3g} kg"
