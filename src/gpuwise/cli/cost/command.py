"""``gpuwise cost``: rent, own or mix for a demand in GPU-hours; with a model, the bill of a training run."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.cli.cost.input import DemandOptions, OwningOptions, RentingOptions, ServingOptions, Share, Span
from gpuwise.cli.options import LEFT_OPEN, NOTHING_FIXED, Count, LayoutOptions, Training, given, refuse
from gpuwise.cli.reports import check_reports
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.money.rent_or_own.rules import RuleCheck
    from gpuwise.serve.capacity.answer import Capacity

NOTHING_WANTED, NOTHING_SERVED, OWNED_AS_KNOWN, RENTED_AS_KNOWN = (
    DemandOptions(),
    ServingOptions(),
    OwningOptions(),
    RentingOptions(),
)
SCENARIOS = 100_000.0
_USAGE, _OWNING, _RENTING, _TRAINING, _LAYOUT = (
    frozenset(f.name for f in fields(group)) for group in (DemandOptions, OwningOptions, RentingOptions, Training, LayoutOptions)
)
_COMMON = frozenset({"seed", "currency", "usd_rate", "rent_price", "provider"})
_DRAWN = _COMMON | _USAGE | {"scenarios", "html", "svg", "simple"}
OF_A_RUN = (
    _TRAINING
    | _LAYOUT
    | {"tokens", "samples", "batch", "storage_price", "egress_gb", "eval_share"}
    | {"country", "pue", "provider", "rent_price", "spot", "html", "svg"}
)
OF_HOURS = _DRAWN | _OWNING | _RENTING | {"country", "steps", "rules"}
"""Options of demands in GPU-hours; other questions take a part of them."""
OF_A_LOAD = {"hours", "hours_per_month", "gpu_hours_per_year", "shape", "peak", "burst_share"}
"""What a load that is served says itself."""
OF_SIMPLE = _DRAWN - {"demand_spread"} | {"buy_price", "own_count", "used", "opex_per_month"}
OF_RULES = _COMMON | _OWNING | {"rules", "years", "country", "still"}
OF_OPEX = {"kwh_price", "pue", "colo", "staff", "support"}
"""What one sum a month stands for."""


def cost(
    model: Annotated[str | None, Parameter(metavar="MODEL")] = None,
    *,
    on: Annotated[str, Parameter(metavar="GPUS")],
    usage: DemandOptions = NOTHING_WANTED,
    served: ServingOptions = NOTHING_SERVED,
    owned: OwningOptions = OWNED_AS_KNOWN,
    rented: RentingOptions = RENTED_AS_KNOWN,
    country: Annotated[str | None, Parameter(metavar="COUNTRY")] = None,
    simple: Annotated[bool, Parameter(negative="")] = False,
    steps: Annotated[bool, Parameter(negative="")] = False,
    rules: Annotated[bool, Parameter(negative="")] = False,
    scenarios: Annotated[Count, Parameter(show_default="100k")] = SCENARIOS,
    seed: Annotated[int, Parameter(metavar="N")] = 0,
    currency: Annotated[str, Parameter(metavar="CODE")] = "USD",
    usd_rate: Annotated[float | None, Parameter(metavar="USD")] = None,
    tokens: Count | None = None,
    samples: Count | None = None,
    batch: Annotated[str | None, Parameter(metavar="SAMPLES")] = None,
    training: Training = LEFT_OPEN,
    fixed: LayoutOptions = NOTHING_FIXED,
    storage_price: Annotated[float | None, Parameter(metavar="USD")] = None,
    egress_gb: Annotated[float | None, Parameter(metavar="GB")] = None,
    eval_share: Annotated[Share | None, Parameter(metavar="SHARE")] = None,
    html: Path | None = None,
    svg: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Rent or own; what does the year cost, in money, power and carbon?

    Without a model: every way to get so many GPU-hours, in scenarios of prices, demand and failures. With one: the
    bill of training it once on --tokens, or of serving it to --users or at a --rate.

    Parameters
    ----------
    model
        A model by name: the bill of one training run, or of serving it.
    on
        The GPUs: 8xH100-SXM, 2x4090. The count is that of one server.
    country
        Where it runs, for carbon and electricity: DE, US-VA, aws:eu-central-1.
    simple
        The bare sum: no server, power, capital cost or resale, prices that stand still.
    steps
        What each thing counted changes, from the bare sum on, alone and together.
    rules
        Judge "rent below 100 hours a month, buy above 1,000" for the GPUs named (several with commas), at half, once
        and twice the rental price.
    scenarios
        How many futures to draw: 100k.
    seed
        Same seed, same answer.
    currency
        Of the amounts given; anything but USD needs --usd-rate.
    usd_rate
        US dollars for one unit of the currency.
    tokens
        With a model: tokens to train on.
    samples
        Own code and models of images: samples to train on, 1.28M for an epoch of ImageNet.
    batch
        Own code and ResNets: samples a step on each GPU.
    storage_price
        With a model: US dollars a GB and month of storage.
    egress_gb
        With a model: GB taken out of the cloud at the end.
    eval_share
        With a model: share of the training time spent on evaluation.
    html
        Write a page with figures to this file.
    svg
        Write the figures to this file.
    json
        One JSON document on the last line of stdout.
    """
    if served != NOTHING_SERVED and (model is None or (served.rate is None and served.users is None)):
        lacks = "a model" if model is None else "--rate or --users"
        raise InputError(f"serving needs {lacks}", hint="gpuwise cost llama-3.1-8b --on l40s --rate 20/s")
    chosen: dict[str, object] = given(usage, NOTHING_WANTED) | given(owned, OWNED_AS_KNOWN) | given(rented, RENTED_AS_KNOWN)
    chosen |= given(training, LEFT_OPEN) | given(fixed, NOTHING_FIXED)
    chosen |= {"tokens": tokens, "samples": samples, "batch": batch, "storage_price": storage_price, "egress_gb": egress_gb}
    chosen |= {"eval_share": eval_share, "country": country, "simple": simple or None, "steps": steps or None, "svg": svg}
    chosen |= {"rules": rules or None, "html": html, "scenarios": None if scenarios == SCENARIOS else scenarios}
    chosen |= {"seed": seed or None, "currency": None if currency == "USD" else currency, "usd_rate": usd_rate}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if model is not None and served == NOTHING_SERVED:
        refuse(chosen, "is for GPU-hours, not for the bill of a run", "leave the model or that out", OF_A_RUN)
        from gpuwise.cli.step.options import is_own_code

        own = is_own_code(model)
        if not own and batch is not None:
            raise InputError("--batch is for own code and ResNets", hint="--global-batch says sequences a step")
        if not own and samples is not None:
            from gpuwise.cli.plan.command import tokens_of_samples

            tokens = tokens_of_samples(model, samples, tokens)
        if own and samples is None:
            raise InputError("the samples to train on are missing", hint="--samples 1.28M for an epoch of ImageNet")
        if own and tokens is not None:
            raise InputError("--tokens are for models of text in the catalogue", hint="give --samples")
        if not own and tokens is None:
            raise InputError("the tokens to train on are missing", hint="--tokens 15B; to serve it, --rate 20/s or --users 500")
        from gpuwise.cli.cost.run import cost_run

        return cost_run(
            model,
            on=on,
            tokens=tokens,
            samples=samples if own else None,
            batch=batch,
            country=country,
            provider=rented.provider,
            usd_per_hour=rented.rent_price,
            spot=rented.spot,
            training=training,
            fixed=fixed,
            storage_usd_per_gb_month=storage_price,
            egress_gb=egress_gb,
            eval_share=eval_share,
            pue=_one(owned.pue),
            html=html,
            svg=svg,
            json=json,
        )
    for_run = "gpuwise cost llama-3.1-8b --on 8xH100-SXM --tokens 15B"
    refuse(chosen, "without a model" if model is None else "is of a training run, not of serving", for_run, OF_HOURS)
    if model is not None:
        refuse(chosen, "does not go with a served load, which says the GPU-hours", allowed=OF_HOURS - OF_A_LOAD - {"rules"})
    if simple:
        refuse(chosen, "changes nothing under --simple", "leave one of them out", OF_SIMPLE)
    if owned.opex_per_month is not None:
        refuse(chosen, "changes nothing under --opex-per-month", "leave one of them out", set(chosen) - OF_OPEX)
    if rules:
        refuse(chosen, "changes nothing under --rules", "leave one of them out", OF_RULES)
        return _rules(on, usage.years, owned, rented, country, seed, (currency, usd_rate), json)
    fleet = None
    if model is not None:
        import datetime

        from gpuwise.cli.cost.serving import hours_of, served_fleet

        fleet = served_fleet(model, on, served, datetime.date.today())
        usage, on = hours_of(fleet, usage), f"{fleet.cluster.system.count}x{fleet.cluster.accelerator.id}"
    return _hours(
        on, usage, owned, rented, country, simple, steps, int(scenarios), seed, (currency, usd_rate), html, svg, fleet, json
    )


def _hours(
    on: str,
    usage: DemandOptions,
    owned: OwningOptions,
    rented: RentingOptions,
    country: str | None,
    simple: bool,
    steps: bool,
    scenarios: int,
    seed: int,
    money: tuple[str, float | None],
    html: Path | None,
    svg: Path | None,
    fleet: Capacity | None,
    json: bool,
) -> int:
    import datetime
    from dataclasses import replace

    from gpuwise.cli.cost.input import demand_of, footprint, in_dollars, ownership_of, renting_of, simple_question
    from gpuwise.cli.cost.run import write_figures
    from gpuwise.facts.hardware.naming import USUAL, find_cluster
    from gpuwise.money.rent_or_own.scenarios import rent_or_own

    check_reports(html, svg)
    owned, rented = in_dollars(owned, rented, *money)
    cluster, demand = find_cluster(on, prefer=USUAL), demand_of(usage)
    carbon, power = footprint(cluster, country)
    renting = renting_of(cluster, rented, datetime.date.today())
    bare = simple_question(demand, cluster, owned, renting)
    if simple:
        demand, ownership, renting = bare
    else:
        ownership = ownership_of(cluster, owned, usage.years, power)
    result = rent_or_own(
        demand,
        ownership,
        renting,
        usage.years,
        n_scenarios=scenarios,
        seed=seed,
        accelerator=cluster.accelerator.name,
        footprint=carbon,
    )
    if cluster.assumption:
        result = replace(result, notes=(cluster.assumption, *result.notes))
    cost_steps = None
    if steps and not simple:
        from gpuwise.money.rent_or_own.counting import count_up

        cost_steps = count_up(bare, (demand, ownership, renting), usage.years, seed=seed)
    write_figures(result, html, svg)
    if json:
        from gpuwise.cli.out import print_json
        from gpuwise.money.rent_or_own.document import comparison_document

        document = comparison_document(result, cost_steps)
        if fleet is not None:
            from gpuwise.serve.capacity.document import capacity_document

            document |= {"served": capacity_document(fleet)["served"]}
        print_json(document)
    else:
        from gpuwise.cli.cost.view import show_rent_or_own

        if fleet is not None:
            from gpuwise.cli.cost.serving import fleet_words
            from gpuwise.cli.out import console

            console().print(fleet_words(fleet), style="bold")
        show_rent_or_own(result, cost_steps)
    return 0


def _rules(
    on: str,
    years: int,
    owned: OwningOptions,
    rented: RentingOptions,
    country: str | None,
    seed: int,
    money: tuple[str, float | None],
    json: bool,
) -> int:
    import datetime

    from gpuwise.cli.cost.input import footprint, in_dollars, ownership_of, renting_of
    from gpuwise.facts.hardware.naming import USUAL, find_cluster
    from gpuwise.money.rent_or_own.rules import check_rule

    owned, rented = in_dollars(owned, rented, *money)
    checks: list[RuleCheck] = []
    for name in on.split(","):
        cluster = find_cluster(name.strip(), prefer=USUAL)
        _, power = footprint(cluster, country)
        ownership = ownership_of(cluster, owned, years, power)
        checks += check_rule(
            cluster.accelerator.name, ownership, renting_of(cluster, rented, datetime.date.today()), years, seed=seed
        )
    if json:
        from gpuwise.cli.out import print_json

        print_json({"horizon_months": years, "checks": [check.as_dict() for check in checks]})
    else:
        from gpuwise.cli.cost.view import show_rules

        show_rules(checks)
    return 0


def _one(value: Span | None) -> float | None:
    return None if value is None else value[0]
