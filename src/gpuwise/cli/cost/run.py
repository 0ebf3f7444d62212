"""``gpuwise cost run``: the bill of a whole training run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuwise.cli.cost.input import Share, Span
from gpuwise.cli.options import LEFT_OPEN, NOTHING_FIXED, Count, LayoutOptions, Money, Training, wishes_of
from gpuwise.cli.reports import check_reports, report
from gpuwise.cli.rollouts import NO_ROLLOUTS, RolloutOptions, has_phases, refuse_rollouts, rl_wishes
from gpuwise.cli.shown import options_shown
from gpuwise.cli.step.options import OwnCode, is_own_code
from gpuwise.errors import InputError
from gpuwise.units import DAY_S, format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwise.cli.shown import Shown
    from gpuwise.facts.grid import Grid
    from gpuwise.facts.hardware.systems import Cluster
    from gpuwise.facts.offers.storage import StoragePrice
    from gpuwise.facts.operations import Site
    from gpuwise.money.cost import Price
    from gpuwise.money.run.changes import Change
    from gpuwise.money.run.cost import Run, RunCost
    from gpuwise.plan.answer import Plan
else:
    Shown = options_shown("cost run")

LONGEST_YEARS, YEAR_S = 100.0, 365.25 * DAY_S


def run(
    model: Annotated[str, Parameter(metavar="MODEL")],
    *,
    on: Annotated[str, Parameter(metavar="GPUS")],
    tokens: Count | None = None,
    samples: Count | None = None,
    batch: Annotated[str | None, Parameter(metavar="SAMPLES")] = None,
    country: Annotated[str | None, Parameter(metavar="COUNTRY")] = None,
    rent_price: Money | None = None,
    provider: Annotated[str | None, Parameter(metavar="NAME")] = None,
    spot: Annotated[bool, Parameter(negative="")] = False,
    pue: Annotated[Span | None, Parameter(metavar="RATIO")] = None,
    training: Training = LEFT_OPEN,
    rollouts: RolloutOptions = NO_ROLLOUTS,
    fixed: LayoutOptions = NOTHING_FIXED,
    storage_price: Annotated[float | None, Parameter(metavar="USD")] = None,
    egress_gb: Annotated[float | None, Parameter(metavar="GB")] = None,
    eval_share: Annotated[Share | None, Parameter(metavar="SHARE")] = None,
    html: Path | None = None,
    svg: Path | None = None,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Cost of one training run on --tokens (or your own code on --samples): money, power and carbon.

    Parameters
    ----------
    model
        A model by name, or your own code: train.py.
    on
        The GPUs: 8xH100-SXM, 2x4090, this (those of this machine).
    tokens
        Tokens to train on: 15B.
    samples
        Own code and image models: samples to train on, 1.28M for an epoch of ImageNet.
    batch
        Own code and ResNets: samples a step on each GPU.
    country
        Location, for carbon and electricity: DE, US-VA, aws:eu-central-1.
    rent_price
        US dollars for a GPU-hour on demand.
    provider
        Use the prices of this provider instead of the median over providers.
    spot
        The work may be interrupted: use spot prices, with checkpoints.
    pue
        Power usage effectiveness of the data centre: 1.1 to 1.6.
    storage_price
        US dollars per GB and month of storage.
    egress_gb
        GB downloaded from the cloud at the end.
    eval_share
        Share of the training time spent on evaluation.
    html
        Write a page with figures to this file.
    svg
        Write the figures to this file.
    json
        One JSON document on the last line of stdout.
    """
    import datetime

    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.money.run.changes import changes
    from gpuwise.money.run.cost import run_cost
    from gpuwise.plan.api import make_plan, with_length
    from gpuwise.plan.job import tokens_of_samples

    own = is_own_code(model)
    if not own and batch is not None:
        raise InputError("--batch is for own code and ResNets", hint="--global-batch sets the sequences per step")
    if not own and samples is not None:
        tokens, samples = tokens_of_samples(model, samples, tokens), None
    if own and samples is None:
        raise InputError("the samples to train on are missing", hint="--samples 1.28M for an epoch of ImageNet")
    if own and tokens is not None:
        raise InputError("--tokens are for models of text in the catalogue", hint="give --samples")
    phases = has_phases(training.purpose)
    check_reports(html, svg)
    today = datetime.date.today()
    place, site = _place(country, provider)

    def whole(run: Run) -> Run:
        usd = _spot(run.cluster, run.price, today, provider) if spot else None
        return _run(run, storage, place, site, usd, eval_share, egress_gb, None if pue is None else pue[0])

    storage = _storage(provider, storage_price)
    if phases:
        from gpuwise.plan.rl.answer import plan_rl

        asked = rl_wishes(rollouts, training, fixed, tokens)
        planned = plan_rl(model, on, *asked, usd_per_hour=rent_price, provider=provider, today=today)
        cost = run_cost(whole(planned.run))
        named = {"id": planned.arch.id, "name": planned.arch.name}
        about = {"model": named, "tokens": planned.tokens, "assumed": list(planned.assumed), "warnings": []}
        _show(about, cost, changes(cost, today), shown, html=html, svg=svg, json=json)
        return 0
    refuse_rollouts(rollouts)
    plan: Plan[Any]
    if samples is None:
        arch, asked = find_model(model), wishes_of(training, fixed, tokens=tokens)
        wishes, _ = with_length(arch, asked)
        if wishes.tokens is None:
            raise InputError("the tokens to train on are missing", hint="--tokens 15B; to serve it, --rate 20/s or --users 500")
        plan = make_plan(arch, on, asked, usd_per_hour=rent_price, provider=provider, today=today)
        amount = f"{format_count(plan.tokens)} tokens"
    else:
        from gpuwise.cli.step.plan import captured_plan

        code = OwnCode(batch=batch)
        plan = captured_plan(model, on, training, fixed, code, samples=samples, price=rent_price, provider=provider)
        amount = f"{format_count(samples)} samples"
    if plan.best is None:
        from gpuwise.plan.document import answer_document
        from gpuwise.report.answers.training import plan_answer

        report(answer_document(plan), plan_answer, None, json=json)
        return 1
    best = plan.best
    if best.time_s.expected > LONGEST_YEARS * YEAR_S:
        raise InputError(
            f"{amount} on {best.cluster.label} take {best.time_s.expected / YEAR_S:,.0f} years",
            hint=f"name more accelerators or fewer {amount.rpartition(' ')[2]}",
        )
    from gpuwise.plan.whole_run import run_of, run_of_step

    cost = run_cost(
        whole(
            run_of(plan.goal.arch, best.cluster, best.estimate, plan.tokens, best.price)
            if plan.samples is None
            else run_of_step(plan.step.capture, best)
        )
    )
    _show(_about(plan, cost), cost, changes(cost, today), shown, html=html, svg=svg, json=json)
    return 0


def _about(plan: Plan[Any], cost: RunCost) -> dict[str, Any]:
    """What the bill is of."""
    from gpuwise.money.run.cost import published_usd

    own = plan.samples is not None
    return {
        "model": {"id": None if own else plan.goal.arch.id, "name": plan.name},
        **({"samples": plan.samples, "batch": plan.step.batch} if own else {"tokens": plan.tokens}),
        "assumed": [] if own else list(plan.goal.assumed),
        "warnings": list(plan.warnings),
        "published": list(plan.published),
        "published_usd": list(published_usd(plan.goal.arch.id, cost.run, plan.tokens)) if plan.published else [],
    }


def _show(
    about: dict[str, Any],
    cost: RunCost,
    other: Sequence[Change],
    shown: Shown | None,
    *,
    html: Path | None,
    svg: Path | None,
    json: bool,
) -> None:
    from gpuwise.money.run.document import run_document
    from gpuwise.plan.cluster_document import cluster_document
    from gpuwise.report.answers.costs import run_answer

    document = {**about, "cluster": cluster_document(cost.run.cluster), **run_document(cost, other)}
    report(document, run_answer, shown, json=json, html=html, svg=svg)


def _place(country: str | None, provider: str | None) -> tuple[Grid | None, Site | None]:
    """The grid, and the kind of place where the provider or the cloud of the region says it."""
    from gpuwise.facts.grid import find_grid
    from gpuwise.facts.operations import site_of_provider

    grid = None if country is None else find_grid(country)
    if provider is not None:
        return grid, site_of_provider(provider)
    if grid is not None and grid.scope == "region":
        return grid, site_of_provider(grid.key.partition(":")[0])
    return grid, None


def _storage(provider: str | None, usd_per_gb_month: float | None) -> StoragePrice:
    import math
    from dataclasses import replace

    from gpuwise.facts.offers.storage import storage_price

    price = storage_price(provider)
    if usd_per_gb_month is None:
        return price
    if not (math.isfinite(usd_per_gb_month) and 0 <= usd_per_gb_month <= 10):
        raise InputError(f"storage cannot cost {usd_per_gb_month:g} dollars a GB-month", hint="for example 0.023, for 1e9 bytes")
    return replace(price, provider="given", usd_per_gb_month=usd_per_gb_month)


def _spot(cluster: Cluster, price: Price | None, today: object, provider: str | None) -> float:
    """Raises InputError if the accelerator has no spot offer."""
    import datetime

    from gpuwise.money.run.changes import spot_usd_per_hour

    assert isinstance(today, datetime.date)
    spot_usd = spot_usd_per_hour(cluster, today, provider)
    if spot_usd is None or price is None:
        who = f"{provider} offers" if provider else "the catalogue has"
        raise InputError(f"{who} no spot price for {cluster.accelerator.name}", hint="leave --spot out")
    return spot_usd


def _run(
    run: Run,
    storage: StoragePrice,
    grid: Grid | None,
    site: Site | None,
    spot_usd: float | None,
    eval_share: float | None,
    egress_gb: float | None,
    pue: float | None,
) -> Run:
    """The run with this command's options."""
    from dataclasses import replace

    return replace(
        run,
        storage=storage,
        grid=grid,
        site=site,
        pue=pue,
        spot_usd_per_hour=spot_usd,
        evaluation_share=eval_share,
        egress_gb=egress_gb,
    )
