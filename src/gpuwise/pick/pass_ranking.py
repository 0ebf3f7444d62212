"""Every accelerator that is rented, ranked by what a million passes cost on it."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.systems import Cluster, default_system
from gpuwise.facts.models.architecture import Architecture
from gpuwise.pick.candidates import ways
from gpuwise.pick.limits import Limits
from gpuwise.serve.engines.engine import engine_runs
from gpuwise.serve.load.targets import Target
from gpuwise.serve.passes.batches import AT_ONCE, Batcher
from gpuwise.serve.passes.capacity import ForwardCapacity, capacity_forward, kind_of
from gpuwise.serve.passes.kind import Model


def rank_passes(
    arch: Model,
    workload: str,
    targets: Sequence[Target],
    requests_per_s: float | None,
    tokens: int | None,
    *,
    today: datetime.date,
    budget_usd_per_hour: float | None = None,
    batcher: Batcher = AT_ONCE,
    version: str | None = None,
) -> list[ForwardCapacity]:
    """Every accelerator that is rented and keeps the targets within the budget, by dollars for a million items. Raises InputError
    for a model of another kind."""
    kind_of(arch, workload).shape(arch, workload, tokens)
    capacities: dict[str, ForwardCapacity] = {}
    for way in ways(Limits(), today):
        accelerator = way.accelerator
        runs = not isinstance(arch, Architecture) or engine_runs(accelerator)
        if way.rent is None or accelerator.id in capacities or not runs:
            continue
        cluster = Cluster(default_system(accelerator), 1)
        try:
            capacities[accelerator.id] = capacity_forward(
                arch,
                cluster,
                workload=workload,
                targets=targets,
                requests_per_s=requests_per_s,
                tokens=tokens,
                batcher=batcher,
                today=today,
                version=version,
            )
        except (InputError, UnpredictableError):
            continue
    usable = [a for a in capacities.values() if a.point is not None and a.usd_per_million is not None]
    if budget_usd_per_hour is not None:
        usable = [a for a in usable if a.usd_per_hour is not None and a.usd_per_hour <= budget_usd_per_hour]
    return sorted(usable, key=_cost)


def _cost(answer: ForwardCapacity) -> float:
    return math.inf if answer.usd_per_million is None else answer.usd_per_million
