"""``gpuwise cost own``: rent, own or mix for a demand in GPU-hours."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.cli.cost.input import CurrencyOptions, DemandOptions, DrawnOptions, OwningOptions, RentingOptions
from gpuwise.cli.options import given, refuse
from gpuwise.cli.reports import check_reports, report
from gpuwise.cli.shown import options_shown

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.money.rent_or_own.rules import RuleCheck
    from gpuwise.serve.capacity.answer import Capacity
else:
    Shown = options_shown("cost own")

NOTHING_WANTED, OWNED_AS_KNOWN, RENTED_AS_KNOWN, IN_DOLLARS, AS_MANY = (
    DemandOptions(),
    OwningOptions(),
    RentingOptions(),
    CurrencyOptions(),
    DrawnOptions(),
)
_USAGE, _OWNING, _MONEY = (frozenset(f.name for f in fields(group)) for group in (DemandOptions, OwningOptions, CurrencyOptions))
_COMMON = _MONEY | {"seed", "rent_price", "provider"}
OF_SIMPLE = (
    _COMMON | _USAGE - {"demand_spread"} | {"scenarios", "html", "svg", "buy_price", "own_count", "used", "opex_per_month"}
)
OF_RULES = _COMMON | _OWNING | {"years", "country", "still"}
OF_OPEX = {"kwh_price", "pue", "colo", "staff", "support"}
"""What one sum a month stands for."""


def own(
    *,
    on: Annotated[str, Parameter(metavar="GPUS")],
    usage: DemandOptions = NOTHING_WANTED,
    owned: OwningOptions = OWNED_AS_KNOWN,
    rented: RentingOptions = RENTED_AS_KNOWN,
    country: Annotated[str | None, Parameter(metavar="COUNTRY")] = None,
    simple: Annotated[bool, Parameter(negative="")] = False,
    rules: Annotated[bool, Parameter(negative="")] = False,
    drawn: DrawnOptions = AS_MANY,
    money: CurrencyOptions = IN_DOLLARS,
    html: Path | None = None,
    svg: Path | None = None,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Compare ways to get GPU-hours, rented or owned, over scenarios of prices, demand and failures.

    Parameters
    ----------
    on
        The GPUs: 8xH100-SXM, 2x4090, this (those of this machine). The count is that of one server.
    country
        Location, for carbon and electricity: DE, US-VA, aws:eu-central-1.
    simple
        Simple sum only: no server, power, cost of capital or resale, constant prices.
    rules
        Test the rule "rent below 100 hours a month, buy above 1,000" for these GPUs (several with commas), at half,
        once and twice the rental price.
    html
        Write a page with figures to this file.
    svg
        Write the figures to this file.
    json
        One JSON document on the last line of stdout.
    """
    options: dict[str, object] = given(usage, NOTHING_WANTED) | given(owned, OWNED_AS_KNOWN) | given(rented, RENTED_AS_KNOWN)
    options |= given(drawn, AS_MANY) | given(money, IN_DOLLARS)
    options |= {
        "country": country,
        "steps": (shown is not None and shown.steps) or None,
        "rules": rules or None,
        "svg": svg,
        "html": html,
    }
    chosen = [name for name, value in options.items() if value is not None]
    if simple:
        refuse(chosen, "changes nothing under --simple", "leave one of them out", OF_SIMPLE)
    refuse_beside_one_sum(owned)
    if rules:
        chosen += ["simple"] * simple
        refuse(chosen, "changes nothing under --rules", "leave one of them out", OF_RULES | {"rules"})
        return _rules(on, usage.years, owned, rented, country, drawn.seed, money, shown, json=json)
    return answer_hours(on, usage, owned, rented, country, drawn, money, shown, html=html, svg=svg, json=json, simple=simple)


def refuse_beside_one_sum(owned: OwningOptions) -> None:
    """Raises InputError for an option that --opex-per-month replaces."""
    if owned.opex_per_month is not None:
        replaced = [name for name in given(owned, OWNED_AS_KNOWN) if name in OF_OPEX]
        refuse(replaced, "changes nothing under --opex-per-month", "leave one of them out")


def answer_hours(
    on: str,
    usage: DemandOptions,
    owned: OwningOptions,
    rented: RentingOptions,
    country: str | None,
    drawn: DrawnOptions,
    money: CurrencyOptions,
    shown: Shown | None,
    *,
    html: Path | None,
    svg: Path | None,
    json: bool,
    simple: bool = False,
    fleet: Capacity | None = None,
) -> int:
    """Show what the GPU-hours of ``usage`` cost; of ``fleet``, where it is what they are for."""
    import datetime
    from dataclasses import replace

    from gpuwise.cli.cost.input import demand_of, footprint, hours_given, in_dollars, ownership_of, renting_of, simple_question
    from gpuwise.facts.hardware.naming import USUAL, find_cluster
    from gpuwise.money.rent_or_own.demand import HOURS_PER_MONTH
    from gpuwise.money.rent_or_own.scenarios import rent_or_own

    check_reports(html, svg)
    owned, rented = in_dollars(owned, rented, money)
    cluster = find_cluster(on, prefer=USUAL)
    carbon, power = footprint(cluster, country)
    ownership = ownership_of(cluster, owned, usage.years, power)
    if not hours_given(usage):
        usage = replace(usage, hours=HOURS_PER_MONTH * cluster.n_accelerators * ownership.usable)
        always = f"in use {100 * ownership.usable:.0f} % of all hours, as much as a machine can be (--hours 200/month: fewer)"
        cluster = replace(cluster, assumption="; ".join(filter(None, (cluster.assumption, always))))
    demand = demand_of(usage)
    renting = renting_of(cluster, rented, datetime.date.today())
    bare = simple_question(demand, cluster, owned, renting)
    if simple:
        demand, ownership, renting = bare
    result = rent_or_own(
        demand,
        ownership,
        renting,
        usage.years,
        n_scenarios=int(drawn.scenarios),
        seed=drawn.seed,
        accelerator=cluster.accelerator.name,
        footprint=carbon,
    )
    if cluster.assumption:
        result = replace(result, notes=(cluster.assumption, *result.notes))
    cost_steps = None
    if shown is not None and shown.steps and not simple:
        from gpuwise.money.rent_or_own.counting import count_up

        cost_steps = count_up(bare, (demand, ownership, renting), usage.years, seed=drawn.seed)
    from gpuwise.money.rent_or_own.document import comparison_document
    from gpuwise.report.answers.costs import own_answer

    document = comparison_document(result, cost_steps)
    if fleet is not None:
        from gpuwise.serve.capacity.document import capacity_document

        document |= {"served": capacity_document(fleet)["served"]}
    report(document, own_answer, shown, json=json, html=html, svg=svg)
    return 0


def _rules(
    on: str,
    years: int,
    owned: OwningOptions,
    rented: RentingOptions,
    country: str | None,
    seed: int,
    money: CurrencyOptions,
    shown: Shown | None,
    *,
    json: bool,
) -> int:
    import datetime

    from gpuwise.cli.cost.input import footprint, in_dollars, ownership_of, renting_of
    from gpuwise.facts.hardware.naming import USUAL, find_cluster
    from gpuwise.money.rent_or_own.rules import check_rule

    owned, rented = in_dollars(owned, rented, money)
    checks: list[RuleCheck] = []
    for name in on.split(","):
        cluster = find_cluster(name.strip(), prefer=USUAL)
        _, power = footprint(cluster, country)
        ownership = ownership_of(cluster, owned, years, power)
        checks += check_rule(
            cluster.accelerator.name, ownership, renting_of(cluster, rented, datetime.date.today()), years, seed=seed
        )
    from gpuwise.report.answers.costs import rules_answer

    report({"horizon_months": years, "checks": [check.as_dict() for check in checks]}, rules_answer, shown, json=json)
    return 0
