"""The bill of a training run as a person reads it: the answer first, then money, power, stops, what to change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gpuwise.cli.bars import single
from gpuwise.cli.out import console, grid, section, table_of
from gpuwise.cli.words import percent, plain, span
from gpuwise.facts.operations import sites
from gpuwise.interval import P80
from gpuwise.money.cost import Price
from gpuwise.money.run.changes import Change
from gpuwise.money.run.cost import RunCost, published_usd
from gpuwise.plan.answer import Plan
from gpuwise.predict.estimate import Estimate
from gpuwise.text import capital
from gpuwise.units import GIGA, HOUR_S, KILO, MEGA, format_duration, format_usd

if TYPE_CHECKING:
    from rich.console import Console

BAR = 24
"""Columns of the widest bar."""


def show_run_cost(plan: Plan[Any], cost: RunCost, changes: Sequence[Change], amount: str) -> None:
    """Print the whole bill of what is done on ``amount``: ``15B tokens``."""
    to = console()
    _headline(to, plan.name, amount, cost)
    _bill(to, cost)
    _power(to, cost)
    _stops(to, cost)
    _changes(to, cost, changes)
    _notes(to, plan, cost)


def _headline(to: Console, name: str, amount: str, cost: RunCost) -> None:
    from rich.text import Text

    cluster = cost.run.cluster
    to.print(Text.assemble((name, "bold"), f", {amount} on ", (cluster.label, "bold")))
    is_owned = cost.run.price is None
    to.print(
        Text.assemble(
            "  ",
            (_money(cost.total_usd.expected), "bold green"),
            f"  [{span(cost.total_usd, _money)}]" + (", electricity and storage of one's own machine" if is_owned else ""),
        )
    )
    to.print(
        Text.assemble(
            "  ",
            (format_duration(cost.wall_s.expected), "bold"),
            f"  [{span(cost.wall_s, format_duration)}], {percent(cost.effective)} of it training",
        )
    )
    if cost.kwh is not None:
        words = f"  {_kwh(cost.kwh.expected)}  [{span(cost.kwh, _kwh)}]"
        to.print(words, soft_wrap=True)
    total = cost.carbon.total_kg
    if total is not None:
        to.print(
            f"  {_kg(total.expected)} CO2e  [{span(total, _kg)}], {_kg(cost.carbon.embodied_kg.expected)} of it "
            "from making the machines"
        )


def _bill(to: Console, cost: RunCost) -> None:
    wide = to.width >= 100
    table = table_of(
        ["", "$", P80, "hours", *([""] if wide else [])],
        left=("", P80),
        wrap=("",),
        gives_way=(P80,),
    )
    for line in cost.lines:
        hours = "" if line.hours is None else _number(line.hours.expected)
        usd = "" if cost.run.price is None and line.hours is not None else _usd(line.usd.expected)
        row = [line.name, usd, _range(line.usd, _usd), hours]
        table.add_row(*row, *([line.why] if wide else []))
    total = ["total", _usd(cost.total_usd.expected), _range(cost.total_usd, _usd)]
    table.add_row(*total, _number(cost.wall_s.expected / HOUR_S), *([""] if wide else []), style="bold")
    section(to, "The bill", table)


def _power(to: Console, cost: RunCost) -> None:
    budget = cost.power
    if budget is None or cost.kwh is None:
        section(to, "Power", f"The design power of {cost.run.cluster.accelerator.name} is not published.")
        return
    table = table_of(["", "kW", P80, "kWh", "of it", ""], left=("", P80), wrap=("",))
    for name, watts in budget.items().items():
        if watts.expected > 0:
            share = cost.kwh_parts[name] / cost.kwh.expected
            bar = single(share, BAR) if to.width >= 100 else ""
            kwh = _number(cost.kwh_parts[name])
            table.add_row(name, _kw(watts.expected), f"[{span(watts, _kw)}]", kwh, percent(share), bar)
    whole, kwh = budget.total_w, _number(cost.kwh.expected)
    table.add_row("at the meter", _kw(whole.expected), f"[{span(whole, _kw)}]", kwh, "", "", style="bold")
    section(to, "Power while training; energy of the whole run", table)
    for line in _power_words(cost):
        to.print(f"  {line}", style="dim")


def _power_words(cost: RunCost) -> list[str]:
    budget, run = cost.power, cost.run
    assert budget is not None
    most = "" if budget.most_w is None else f" of hosts that draw {_kw(budget.most_w)} kW at most"
    site = sites()[budget.site].name if budget.site in sites() else "the PUE given"
    sentences = [
        f"GPUs are {_kw(budget.design_w)} kW by design{most}; PUE {budget.pue.expected:.2f} ({site}).",
    ]
    if run.grid is not None:
        year = "" if run.grid.year is None else f" in {run.grid.year}"
        line = f"{run.grid.name}: {run.grid.kg_co2e_per_kwh * KILO:.0f} g CO2e a kWh{year}, location-based"
        if cost.electricity is not None and cost.electricity_usd is not None:
            line += f"; {cost.electricity.usd_per_kwh:.3f} $/kWh, so {_money(cost.electricity_usd.expected)}"
            line += " of electricity" + ("" if run.price is None else ", inside the rent")
        sentences.append(line + ".")
    return sentences


def _stops(to: Console, cost: RunCost) -> None:
    stops, table = cost.stops, grid(2)
    every = f"every {format_duration(stops.interval_s)} of work, {plain(max(stops.checkpoints, 1))} in all"
    rows = [
        ("stops expected", f"{_number(stops.stops.expected)}  [{span(stops.stops, _number)}]"),
        ("mean time between them", f"{format_duration(stops.mtbf_s.expected)}  [{span(stops.mtbf_s, format_duration)}]"),
        ("checkpoint", every),
        ("", f"{_gb(cost.run.state_bytes)}, {format_duration(stops.save_s.expected)} to write"),
        ("restart", f"{format_duration(stops.restart_s.expected)}, reading the checkpoint included"),
        ("lost to both", f"{percent(stops.overhead)} of the work"),
    ]
    for name, value in rows:
        table.add_row(name, value)
    section(to, "Stops and checkpoints", table)


def _changes(to: Console, cost: RunCost, changes: Sequence[Change]) -> None:
    if not changes:
        return
    carbon = any(c.kg_co2e is not None for c in changes)
    table = table_of(["", "$", "time", *(["CO2e"] if carbon else [])], left=("",), wrap=("",))
    for change in changes:
        row = [change.name, _signed(change.usd, _money), _signed(change.wall_s, format_duration)]
        table.add_row(*row, *([_signed(change.kg_co2e or 0.0, _kg)] if carbon else []))
    section(to, "What would change it", table)


def _notes(to: Console, plan: Plan[Any], cost: RunCost) -> None:
    run, sentences = cost.run, list[str]()
    if run.price is not None:
        sentences.append(_rent_words(cost, run.price))
    else:
        sentences.append("Nobody rents this accelerator out: the machine is not in the bill. A rent is given by --rent-price.")
    if run.grid is None:
        sentences.append("Carbon needs a country or cloud region: --country DE, --country aws:us-east-1.")
    elif cost.electricity is None:
        sentences.append(f"No electricity price is known for {run.grid.name}.")
    priced = ("the price is", "no rental price")
    sentences += [capital(w) + "." for w in plan.warnings if not w.startswith(priced)]
    if plan.samples is not None:
        sentences.append(f"Steps of {plan.step.batch} samples on each GPU. The data are not known, and not in the bill.")
    elif plan.goal.assumed:
        sentences.append("Assumed: " + "; ".join(plan.goal.assumed) + ".")
    table = grid(2, pad=1)
    for line in sentences:
        table.add_row("-", line)
    section(to, "Warnings", table)
    if plan.published:
        table = grid(2, pad=1)
        for line in plan.published:
            table.add_row("-", line)
        for usd in published_usd(plan.goal.arch.id, run, plan.tokens):
            table.add_row("-", f"At this rent, for as many tokens as here, the published GPU hours cost {_money(usd)}.")
        section(to, "Others", table)


def _rent_words(cost: RunCost, price: Price) -> str:
    """``Rent: $3.87 a GPU and hour, median of 16 providers ($2.10 to $6.90), 2026-07-30``."""
    words = f"Rent: {format_usd(price.expected)} a GPU and hour, {price.provider}"
    if price.high > price.low:
        words += f" ({format_usd(price.low)} to {format_usd(price.high)})"
    if price.as_of is not None:
        words += f", {price.as_of.isoformat()}" + (f", {price.age_days} days old" if price.stale else "")
    words += "."
    if cost.run.spot_usd_per_hour is not None:
        spot = format_usd(cost.run.spot_usd_per_hour)
        words += f" On spot {spot}; with the hours on demand {format_usd(cost.usd_per_hour)}."
    return words + " The intervals hold the price still."


def _range(value: Estimate, say: Callable[[float], str]) -> str:
    """The interval, where there is one."""
    return "" if say(value.low) == say(value.high) else f"[{span(value, say)}]"


def _money(usd: float) -> str:
    return f"${usd / MEGA:,.4g} million" if usd >= MEGA else format_usd(usd)


def _usd(usd: float) -> str:
    if usd >= MEGA:
        return f"{usd / MEGA:,.2f} M"
    return f"{usd:,.0f}" if usd >= 100 else f"{usd:.2f}" if usd >= 0.005 else "0" if usd == 0 else "<0.01"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}" if value < MEGA else f"{value / MEGA:,.4g} M"
    return f"{value:.3g}" if value >= 0.01 else "<0.01" if value > 0 else "0"


def _kw(watts: float) -> str:
    kw = watts / KILO
    return f"{kw:,.0f}" if kw >= 100 else f"{kw:.2f}" if kw < 10 else f"{kw:.1f}"


def _kwh(kwh: float) -> str:
    if kwh >= MEGA:
        return f"{kwh / MEGA:,.3g} GWh"
    return f"{kwh:,.0f} kWh" if kwh >= 10 else f"{kwh:.2g} kWh"


def _kg(kg: float) -> str:
    tonnes = kg / KILO
    if tonnes >= 10:
        return f"{tonnes:,.0f} t" if tonnes >= 100 else f"{tonnes:.1f} t"
    return f"{kg:,.0f} kg" if kg >= 10 else f"{kg:.2g} kg"


def _gb(size: float) -> str:
    return f"{size / GIGA:,.0f} GB" if size >= 10 * GIGA else f"{size / GIGA:.2g} GB"


def _signed(value: float, say: Callable[[float], str]) -> str:
    return ("-" if value < 0 else "+") + say(abs(value)) if value else "0"
