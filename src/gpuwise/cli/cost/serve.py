"""``gpuwise cost serve``: a served load as a demand in GPU-hours: the fleet of ``gpuwise capacity``, hour by hour of its day."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.cli.cost.input import (
    CurrencyOptions,
    DemandOptions,
    DrawnOptions,
    FutureOptions,
    OwningOptions,
    RentingOptions,
    ServingOptions,
)
from gpuwise.cli.cost.own import AS_MANY, IN_DOLLARS, OWNED_AS_KNOWN, RENTED_AS_KNOWN, answer_hours, refuse_beside_one_sum
from gpuwise.cli.shown import options_shown
from gpuwise.errors import InputError

if TYPE_CHECKING:
    import datetime

    from gpuwise.cli.shown import Shown
    from gpuwise.serve.capacity.answer import Capacity
else:
    Shown = options_shown("cost own")

NOTHING_SERVED, AS_NOW = ServingOptions(), FutureOptions()


def serve(
    model: Annotated[str, Parameter(metavar="MODEL")],
    *,
    on: Annotated[str, Parameter(metavar="GPUS")],
    served: ServingOptions = NOTHING_SERVED,
    usage: FutureOptions = AS_NOW,
    owned: OwningOptions = OWNED_AS_KNOWN,
    rented: RentingOptions = RENTED_AS_KNOWN,
    country: Annotated[str | None, Parameter(metavar="COUNTRY")] = None,
    drawn: DrawnOptions = AS_MANY,
    money: CurrencyOptions = IN_DOLLARS,
    html: Path | None = None,
    svg: Path | None = None,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Compare renting and owning the GPUs that serve a model to --users or at a --rate.

    Parameters
    ----------
    model
        A model by name.
    on
        The GPUs: 8xH100-SXM, 2x4090, this (those of this machine). The count is that of one server.
    country
        Location, for carbon and electricity: DE, US-VA, aws:eu-central-1.
    html
        Write a page with figures to this file.
    svg
        Write the figures to this file.
    json
        One JSON document on the last line of stdout.
    """
    import datetime

    if served.rate is None and served.users is None:
        raise InputError("the load is missing", hint="--rate 20/s or --users 500")
    refuse_beside_one_sum(owned)
    fleet = served_fleet(model, on, served, datetime.date.today())
    hours = hours_of(fleet, DemandOptions(**asdict(usage)))
    on = f"{fleet.cluster.system.count}x{fleet.cluster.accelerator.id}"
    return answer_hours(on, hours, owned, rented, country, drawn, money, shown, html=html, svg=svg, json=json, fleet=fleet)


def served_fleet(model: str, on: str, served: ServingOptions, today: datetime.date) -> Capacity:
    """What carries the load on ``on``. Raises InputError where nothing keeps the targets."""
    from gpuwise.cli.progress import progress
    from gpuwise.serve.capacity.api import make_capacity
    from gpuwise.serve.load.targets import as_option

    if served.rate is not None and served.users is not None:
        raise InputError("--rate and --users say the load twice", hint="give one of them")
    with progress("simulating") as say:
        answer = make_capacity(
            model,
            on,
            workload=served.workload or "chat",
            slo=served.slo,
            requests_per_s=served.rate,
            users=served.users,
            today=today,
            progress=say,
        )
    if answer.served is None:
        feasible = None if answer.miss is None else answer.miss.feasible
        raise InputError(
            f"nothing on {on} meets " + ", ".join(t.words for t in answer.targets),
            hint=f"--slo {as_option(feasible.targets)} is feasible"
            if feasible is not None
            else f"gpuwise capacity {model} --on {on} shows what comes nearest",
        )
    return answer


def hours_of(answer: Capacity, usage: DemandOptions) -> DemandOptions:
    """``usage`` with the GPU-hours of the fleet: the mean of a day, and its peak."""
    from gpuwise.money.rent_or_own.demand import HOURS_PER_MONTH

    assert answer.served is not None
    fleet = answer.served.fleet
    peak = fleet.cluster.n_accelerators / fleet.mean_accelerators
    flat = peak < _FLAT
    return replace(
        usage,
        hours=(fleet.cluster.n_accelerators if flat else fleet.mean_accelerators) * HOURS_PER_MONTH,
        shape="steady" if flat else "bursts",
        peak=None if flat else round(peak, 2),
    )


_FLAT = 1.01
"""Peak over mean of a fleet that stands all day."""
