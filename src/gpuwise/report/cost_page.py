"""Costs as a page: rent, own or mix, or the bill of one training run."""

from __future__ import annotations

from pathlib import Path

from gpuwise.files import FIGURE_SUFFIXES, PAGE_SUFFIXES, check_target, write_text
from gpuwise.money.rent_or_own.comparison import Option, RentOrOwn
from gpuwise.money.run.cost import Line, RunCost
from gpuwise.predict.estimate import Estimate
from gpuwise.report.cost_figures import cost_drawings, dollars
from gpuwise.report.figures import Drawing, stand_alone
from gpuwise.report.page import TableCell, TableRow, figures, heading, notes, page, table, verdict
from gpuwise.report.run_figures import run_drawings
from gpuwise.units import KILO, format_duration, format_usd


def write_cost_page(result: RentOrOwn | RunCost, path: Path, *, title: str = "") -> None:
    """Write the page to ``path`` (.html). Raises InputError when it cannot be written there."""
    check_target(path, PAGE_SUFFIXES)
    write_text(path, cost_page(result, title=title), PAGE_SUFFIXES)


def write_cost_figure(result: RentOrOwn | RunCost, path: Path) -> None:
    """Write the figures below one another to ``path`` (.svg). Raises InputError when it cannot be written there."""
    check_target(path, FIGURE_SUFFIXES)
    write_text(path, stand_alone(_drawings(result)), FIGURE_SUFFIXES)


def cost_page(result: RentOrOwn | RunCost, *, title: str = "") -> str:
    """The page as HTML; ``title`` in place of the usual one."""
    if isinstance(result, RentOrOwn):
        return _rent_or_own_page(result, title or f"Rent or own{f': {result.accelerator}' if result.accelerator else ''}")
    return _run_page(result, title or f"A training run on {result.run.cluster.label}")


def _drawings(result: RentOrOwn | RunCost) -> list[Drawing]:
    return cost_drawings(result) if isinstance(result, RentOrOwn) else run_drawings(result)


def _rent_or_own_page(r: RentOrOwn, title: str) -> str:
    demand = r.demand
    lead = (
        f"{demand.gpu_hours_per_month:,.0f} GPU-hours a month, {demand.shape}, over {r.horizon_months} months; "
        f"{r.n_scenarios:,} scenarios, seed {r.seed}. Present value in US dollars of today."
    )
    head = ["", "over the horizon", "a GPU-hour", "cheapest in", "busy", "electricity", "CO2, running", "CO2, making"]
    return page(
        title,
        lead,
        [
            verdict(rent_or_own_words(r)),
            figures(cost_drawings(r)),
            heading("Every way to get the hours"),
            table("Every way to get the hours", head, [_option_row(o) for o in r.options]),
            heading("What it stands on"),
            table(
                "What it stands on",
                ["", "value", "source"],
                [
                    TableRow(
                        a.label,
                        [
                            TableCell(a.value + (" ~" if a.estimate else ""), mark="weak" if a.estimate else ""),
                            TableCell(a.source, mark="words"),
                        ],
                    )
                    for a in r.assumptions
                ],
            ),
            notes([*r.notes, "~: an estimate; nobody measured it."]),
        ],
    )


def rent_or_own_words(r: RentOrOwn) -> list[str]:
    """The answer in sentences, from the figures."""
    best, even = r.best, r.break_even
    sentences = [
        f"Cheapest on average: {best.label}, {_usd(best.total_usd)} over {r.horizon_months} months or "
        f"{format_usd(best.usd_per_gpu_hour.expected)} a GPU-hour; it wins in {100 * best.cheapest_share:.0f} % of the "
        "scenarios.",
        f"Owning all of it is cheaper than the best way to rent ({r.best_rent}) in {100 * r.own_wins:.0f} %; the difference is "
        f"{_usd(r.own_minus_rent_usd)}.",
    ]
    if even.months is not None:
        sentences.append(f"Against renting on demand it has paid for itself after {_span(even.months)} months.")
    else:
        sentences.append(
            f"Against renting on demand it does not pay for itself in {100 * even.months_never:.0f} % of the scenarios."
        )
    if even.hours_per_month is not None:
        sentences.append(f"Owning is the cheaper way from {_span(even.hours_per_month)} delivered hours a month and GPU on.")
    if r.bars:
        sentences.append(f"Most hangs on {' and '.join(b.label for b in r.bars[:2])}.")
    return sentences


def _option_row(o: Option) -> TableRow:
    def kilo(e: Estimate | None, unit: str) -> TableCell:
        if e is None:
            return TableCell("-")
        return TableCell(f"{e.expected / KILO:,.3g} {unit}", f"{e.low / KILO:,.3g} to {e.high / KILO:,.3g}")

    total, hour = o.total_usd, o.usd_per_gpu_hour
    return TableRow(
        o.label,
        [
            TableCell(dollars(total.expected), f"{dollars(total.low)} to {dollars(total.high)}"),
            TableCell(format_usd(hour.expected), f"{format_usd(hour.low)} to {format_usd(hour.high)}"),
            TableCell(f"{100 * o.cheapest_share:.0f} %"),
            TableCell("-" if o.utilisation is None else f"{100 * o.utilisation:.0f} %"),
            kilo(o.kwh, "MWh"),
            kilo(o.operational_kgco2e, "t"),
            kilo(o.embodied_kgco2e, "t"),
        ],
    )


def _run_page(c: RunCost, title: str) -> str:
    run = c.run
    price = "its own machine" if run.price is None else f"{format_usd(c.usd_per_hour)} an accelerator-hour ({run.price.provider})"
    lead = f"{run.cluster.label}, {price}."
    rows = [_line_row(line) for line in c.lines]
    rows.append(
        TableRow("total", [TableCell(dollars(c.total_usd.expected), _ends(c.total_usd), "best"), TableCell(""), TableCell("")])
    )
    return page(
        title,
        lead,
        [
            verdict(run_words(c)),
            figures(run_drawings(c)),
            heading("The bill"),
            table("The bill", ["", "US dollars", "hours of the machines", ""], rows),
        ],
    )


def run_words(c: RunCost) -> list[str]:
    """The bill in sentences, from the figures."""
    sentences = [
        f"It costs {_usd(c.total_usd)} and takes {format_duration(c.wall_s.expected)} of paid time, {100 * c.effective:.0f} % of "
        "which is training.",
        f"About {c.stops.stops.expected:,.2g} stops are to be expected; a checkpoint every "
        f"{format_duration(c.stops.interval_s)} is best, and both take {100 * c.stops.overhead:.1f} % of the work.",
    ]
    if c.kwh is not None and c.power is not None:
        sentences.append(
            f"At work it draws {c.power.total_w.expected / KILO:,.3g} kW on average, {c.kwh.expected:,.0f} kWh in all; the "
            f"accelerators' labels add up to {c.power.design_w / KILO:,.3g} kW."
        )
    total = c.carbon.total_kg
    if total is not None:
        sentences.append(f"That is {total.expected / KILO:,.3g} t of CO2 equivalent, making the machines included.")
    return sentences


def _line_row(line: Line) -> TableRow:
    hours = "" if line.hours is None else f"{line.hours.expected:,.3g}"
    return TableRow(
        line.name,
        [
            TableCell(dollars(line.usd.expected), _ends(line.usd)),
            TableCell(hours),
            TableCell(line.why, mark="words"),
        ],
    )


def _usd(e: Estimate) -> str:
    return f"{dollars(e.expected)} ({_ends(e)})"


def _ends(e: Estimate) -> str:
    return "" if e.low == e.high else f"{dollars(e.low)} to {dollars(e.high)}"


def _span(e: Estimate) -> str:
    return f"{e.expected:,.0f} ({e.low:,.0f} to {e.high:,.0f})"


__all__ = ["cost_page", "rent_or_own_words", "run_words", "write_cost_figure", "write_cost_page"]
