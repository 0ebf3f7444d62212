"""Rent or own as a person reads it: the verdict, every way to get the hours, break-even, what drives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.cli.bars import single
from gpuwise.cli.out import console, grid, section, table_of
from gpuwise.cli.words import percent, plain
from gpuwise.interval import P80
from gpuwise.money.rent_or_own.comparison import LONGEST_MONTHS, Assumption, Bar, Option, RentOrOwn
from gpuwise.money.rent_or_own.counting import CostSteps
from gpuwise.money.rent_or_own.rules import RuleCheck
from gpuwise.predict.estimate import Estimate
from gpuwise.text import capital
from gpuwise.units import GIGA, KILO, MEGA, format_usd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from gpuwise.serve.capacity.answer import Capacity

_BARS = 7
_BAR_WIDTH = 20
_PRICES = 4
"""Assumptions always shown: rental price, its future, GPU price, capital."""


def show_rent_or_own(result: RentOrOwn, cost_steps: CostSteps | None = None) -> None:
    """Print the whole answer."""
    to = console()
    _verdict(to, result)
    _options(to, result)
    _break_even(to, result)
    _drivers(to, result)
    _energy(to, result)
    if cost_steps is not None:
        _steps(to, cost_steps)
    _assumed(to, result)
    if result.notes:
        table = grid(2, pad=1)
        for note in result.notes:
            table.add_row("-", capital(note))
        section(to, "Warnings", table)


def dollars(value: float) -> str:
    """``$1.24M``, ``-$340k``, ``$12.50``."""
    sign, size = ("-" if value < 0 else ""), abs(value)
    for scale, letter in ((GIGA, "B"), (MEGA, "M"), (KILO, "k")):
        if size >= scale:
            return f"{sign}${size / scale:.3g}{letter}" if size < 999.5 * scale else f"{sign}${size / scale:,.0f}{letter}"
    return f"{sign}{format_usd(size)}" if size else "$0"


def verdict(result: RentOrOwn) -> str:
    """The answer in a sentence: what is cheapest, by how much, how sure."""
    best = result.best
    renting = not best.owned_gpus
    against = result.option("own") if renting else result.option(result.best_rent)
    answer = capital(best.label) if best.name == "own" else f"{'Rent' if renting else 'Mix'}: {best.label}"
    saved = against.total_usd.expected - best.total_usd.expected
    less = saved / against.total_usd.expected if against.total_usd.expected > 0 else 0.0
    sure = result.beats.get(against.name, 0.0)
    futures = "nearly every future" if sure > 0.995 else f"{percent(sure)} of the futures"
    return f"{answer}. Expected to cost {dollars(saved)} ({percent(less)}) less than to {against.label}, and less in {futures}."


def _verdict(to: Console, r: RentOrOwn) -> None:
    from rich.text import Text

    d = r.demand
    hours = f"{plain(d.gpu_hours_per_month)} GPU-hours a month"
    shape = "" if d.shape == "steady" else f", peaks of {d.peak_over_mean:g} times the mean"
    growth = "" if d.growth_per_year == 0 else f", {100 * d.growth_per_year:+.0f} % a year"
    to.print(Text.assemble((f"{r.accelerator}", "bold"), f": {hours}{shape}{growth}, {_time(r.horizon_months)}"))
    to.print(Text(verdict(r), "bold green"))


def _hourly(usd: float) -> str:
    """A GPU-hour's dollars, in the digits that every command gives them."""
    return format_usd(usd).replace("$", "")


def _options(to: Console, r: RentOrOwn) -> None:
    wide = to.width >= 100
    spread = any(o.total_usd.low < o.total_usd.high for o in r.options)  # nothing varies where every price is held still
    ends = [P80] * spread
    columns = ["", "total", *ends, "$/GPU h", *ends, *(["busy"] if wide else []), "cheapest in"]
    table = table_of(columns, left=("", P80), wrap=("",), gives_way=(P80, "busy"))
    for i, o in enumerate(r.options):
        busy = [_percent(o.utilisation)] if wide else []
        table.add_row(
            o.label,
            dollars(o.total_usd.expected),
            *[_ends(o.total_usd)] * spread,
            _hourly(o.usd_per_gpu_hour.expected),
            *[f"{_hourly(o.usd_per_gpu_hour.low)} to {_hourly(o.usd_per_gpu_hour.high)}"] * spread,
            *busy,
            percent(o.cheapest_share),
            style="bold" if i == 0 else "",
        )
    section(to, f"Every way to get the hours (today's dollars, {r.n_scenarios:,} futures)", table)
    low, high = r.regret_usd.low, r.regret_usd.high
    if len(r.options) > 1 and high > 0:
        to.print(f"  Chosen now, it costs {dollars(low)} to {dollars(high)} more than what turns out cheapest.")


def _break_even(to: Console, r: RentOrOwn) -> None:
    owning, even = r.option("own"), r.break_even
    several, years = owning.owned_gpus > 1, LONGEST_MONTHS // 12
    gpus = f"{owning.owned_gpus} owned GPU{'s' if several else ''}"
    pay, off, them, each = ("pay", "themselves", "them", "Each") if several else ("pays", "itself", "it", "It")
    never_pay = f"{'do' if several else 'does'} not pay for {off}"
    if even.months is None:
        months = f"{gpus} {never_pay} within {years} years in most futures ({percent(1 - even.months_never)} do)."
    else:
        never = "" if even.months_never < 0.005 else f"; never within {years} years in {percent(even.months_never)}"
        e = even.months
        span = "" if e.high - e.low < 0.05 else f" ({_number(e.low)} to {_number(e.high)}{never})"
        months = f"{gpus} {pay} for {off}, resale left out, in {e.expected:.1f} months{span}."
    if even.hours_per_month is None:
        hours = f"No number of hours makes {them} cheaper over {_time(r.horizon_months)} in most futures."
    else:
        never = "" if even.hours_never < 0.005 else f"; never in {percent(even.hours_never)}"
        h = even.hours_per_month
        span = "" if h.high - h.low < 0.5 else f" ({plain(h.low)} to {plain(h.high)}{never})"
        hours = f"{each} is cheaper over {_time(r.horizon_months)} from {plain(h.expected)} of 730 hours of work a month{span}."
    section(to, "Break-even against renting on demand", f"{months}\n{hours}")


def _drivers(to: Console, r: RentOrOwn) -> None:
    if not r.bars:
        return
    wide = to.width >= 100
    columns = ["", "10 % to 90 %", "own - rent", *(["", "swing"] if wide else []), "variance"]
    table = table_of(columns, left=("", "own - rent", "10 % to 90 %"), wrap=("",), gives_way=("10 % to 90 %",))
    widest = r.bars[0].swing_usd
    for bar in r.bars[:_BARS]:
        bar_cells = [single(bar.swing_usd / widest, _BAR_WIDTH), dollars(bar.swing_usd)] if wide else []
        ends = f"{dollars(bar.usd_at_low)} to {dollars(bar.usd_at_high)}"
        between = f"{_value(bar.low, bar)} to {_value(bar.high, bar)}"
        table.add_row(bar.label, between, ends, *bar_cells, percent(bar.variance_share))
    section(to, "What drives it (each alone from its 10th to its 90th percentile)", table)


def _energy(to: Console, r: RentOrOwn) -> None:
    with_energy = [o for o in r.options if o.kwh is not None]
    if not with_energy:
        return
    table = table_of(["", "MWh", P80, "t CO2e running", "t CO2e making"], left=("", P80), gives_way=(P80,))
    rows = [r.best] + [o for o in (r.option("own"), r.option(r.best_rent)) if o.name != r.best.name]
    for o in rows:
        if o.kwh is not None:
            row = [_tonnes(o.operational_kgco2e), _tonnes(o.embodied_kgco2e)]
            table.add_row(_short(o), _number(o.kwh.expected / KILO), _range(o.kwh.scaled(1 / KILO)), *row)
    section(to, "Electricity at the meter and carbon over the whole time", table)
    if all(o.operational_kgco2e is None for o in rows):
        to.print("  Name the place for the carbon of the electricity: --country DE")


def _steps(to: Console, cost_steps: CostSteps) -> None:
    table = table_of(
        ["", "alone", "own - rent", "together", "own - rent", "own wins"], left=("",), wrap=("",), gives_way=("alone",)
    )
    bare = cost_steps.bare
    table.add_row(bare.label, _months(bare.break_even_months), dollars(bare.own_minus_rent_usd), "", "", "")
    for one, all_so_far in zip(cost_steps.alone, cost_steps.together, strict=True):
        table.add_row(
            f"+ {one.label}",
            _months(one.break_even_months),
            dollars(one.own_minus_rent_usd),
            _months(all_so_far.break_even_months),
            dollars(all_so_far.own_minus_rent_usd),
            percent(all_so_far.own_wins),
        )
    section(to, "From the bare sum to the whole: break-even in months, (own - rent)", table)


def _assumed(to: Console, r: RentOrOwn) -> None:
    """Prices, and whatever moves the answer most; the rest is in ``--json`` and ``--html``."""
    driving = {bar.label for bar in r.bars[:_BARS]}
    assumptions = [a for i, a in enumerate(r.assumptions) if i < _PRICES or a.label in driving]
    table = table_of(["what", "value", "source"], left=("what", "value"), wrap=("what", "value"), under="source")
    table.header = False
    for a in assumptions:
        table.add_row(a.label, _marked(a), a.source)
    section(to, f"Assumed ({P80} ranges; ~ an estimate, not measured)", table)
    n_more = len(r.assumptions) - len(assumptions)
    if n_more > 0:
        to.print(f"  and {n_more} more, each with its source: --json or --html FILE")


def _marked(a: Assumption) -> str:
    return f"{'~' if a.estimate else ''}{a.value}"


def _short(o: Option) -> str:
    return {"own": "own", "mix": "mix"}.get(o.name, f"rent, {o.name}")


def _tonnes(kg: Estimate | None) -> str:
    return "" if kg is None else f"{_number(kg.expected / KILO)} ({_range(kg.scaled(1 / KILO))})"


def _ends(e: Estimate) -> str:
    return f"{dollars(e.low)} to {dollars(e.high)}"


def _range(e: Estimate) -> str:
    return f"{_number(e.low)} to {_number(e.high)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _value(value: float, bar: Bar) -> str:
    if bar.unit.startswith("$"):
        return f"${value:,.0f}" if value >= 100 else f"${value:.2f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "" if value is None else percent(value)


def _months(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"


def _time(months: int) -> str:
    return f"{months // 12} years" if months % 12 == 0 and months > 12 else f"{months} months"


def show_rules(checks: Sequence[RuleCheck]) -> None:
    """Print where the rule of thumb holds."""
    to = console()
    to.print("Rent below 100 GPU-hours a month, buy above 1,000?", style="bold")
    wide = to.width >= 100
    columns = ["", "$/GPU h", "own wins at 100", "at 1,000", "break-even, hours a month", *(["the rule"] if wide else [])]
    table = table_of(
        columns,
        left=("", "break-even, hours a month", "the rule"),
        wrap=("", "break-even, hours a month"),
        gives_way=("$/GPU h",),
    )
    for c in checks:
        low, high = c.own_wins_at.values()
        break_even = "never" if c.break_even is None else f"{plain(c.break_even.expected)}  ({_range(c.break_even)})"
        words = {(True, True): "holds", (True, False): "rent holds, buy does not", (False, True): "buy holds, rent does not"}
        verdict = [words.get((c.rent_holds, c.buy_holds), "does not hold")] if wide else []
        table.add_row(c.accelerator, f"{c.usd_per_hour:.2f}", percent(low), percent(high), break_even, *verdict)
    section(to, "Share of the futures in which owning is cheaper; what is owned comes in whole servers", table)


def fleet_words(answer: Capacity) -> str:
    """The fleet in a line, and whether its speed was ever checked."""
    from gpuwise.serve.simulate.front import known_error

    assert answer.served is not None
    s, f = answer.served, answer.served.fleet
    who = f"{answer.demand.users:,} users" if answer.demand.users else f"{f.rate_per_s:.3g} requests/s"
    copies = "one replica" if f.copies_peak == 1 else f"{f.copies_peak} replicas"
    never = known_error(answer.arch, answer.cluster.accelerator, s.configuration.server.config.engine)
    return (
        f"{answer.arch.name} for {answer.load.title}, {who}: {copies} at the peak ({s.configuration.words}), "
        f"{f.cluster.n_accelerators} {f.cluster.accelerator.name}, {f.mean_accelerators:.3g} over the day."
        + ("" if never is None else f" Note: {never}.")
    )
