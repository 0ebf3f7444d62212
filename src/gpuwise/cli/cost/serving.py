"""A served load as a demand in GPU-hours: the fleet of ``gpuwise capacity``, hour by hour of its day."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwise.cli.cost.input import DemandOptions, ServingOptions
from gpuwise.errors import InputError

if TYPE_CHECKING:
    import datetime

    from gpuwise.serve.capacity.answer import Capacity


def served_fleet(model: str, on: str, served: ServingOptions, today: datetime.date) -> Capacity:
    """What carries the load on ``on``. Raises InputError where nothing keeps the targets."""
    from gpuwise.cli.capacity.command import Constraints, Traffic, as_named, question, wanted_of
    from gpuwise.cli.step.progress import progress
    from gpuwise.facts.hardware.naming import USUAL, find_cluster
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.serve.capacity.answer import Question, capacity_on
    from gpuwise.serve.load.targets import as_option

    arch = find_model(model)
    request = Traffic(workload=served.workload, slo=served.slo, rate=served.rate, users=served.users)
    held = as_named(model, arch, Constraints())
    load, targets, demand = question(arch, request, held)
    with progress("simulating") as say:
        asked = Question(arch, find_cluster(on, prefer=USUAL), load, targets, demand, today, wanted_of(held, load))
        answer = capacity_on(asked, explain=False, progress=say)
    if answer.served is None:
        feasible = None if answer.miss is None else answer.miss.feasible
        raise InputError(
            f"nothing on {on} keeps " + ", ".join(t.words for t in targets),
            hint=f"--slo {as_option(feasible.targets)} is feasible"
            if feasible is not None
            else f"gpuwise capacity {model} --on {on} says what comes nearest",
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
        + ("" if never is None else f" Mind: {never}.")
    )
