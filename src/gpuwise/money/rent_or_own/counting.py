"""Steps from a simple sum to the full one: effect of each component, alone and cumulatively.

The simple sum has the price of the GPUs, one running cost, and a constant rental price. Each step adds one component of the
full sum; alone on the simple sum, or on top of the steps before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuwise.money.rent_or_own.break_even import months_to_break_even, saved_by_month
from gpuwise.money.rent_or_own.comparison import Step
from gpuwise.money.rent_or_own.demand import Demand
from gpuwise.money.rent_or_own.engine import Batch, Mix, draw, draw_prices, uncertain_inputs_of
from gpuwise.money.rent_or_own.ownership import Ownership
from gpuwise.money.rent_or_own.renting import Renting

Question = tuple[Demand, Ownership, Renting]
SCENARIOS = 4096

_OWN_FIELDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("price range of the GPUs", ("gpu_spread",)),
    ("servers around the GPUs", ("server_factor", "host_usd")),
    ("network and storage", ("network_share", "storage_share")),
    ("electricity", ("tdp_w", "power_share", "idle_share", "host_w", "usd_per_kwh")),
    ("cooling (PUE)", ("pue",)),
    ("colocation", ("colocation", "server_kw")),
    ("staff and support", ("staff", "support_share")),
    ("failures and idle gaps", ("availability", "fill", "failures", "warranty_months")),
    ("cost of capital", ("capital_per_year",)),
    ("resale", ("resale_keep", "resale_follows")),
)


@dataclass(frozen=True, slots=True)
class CostSteps:
    """The simple sum, each thing alone on it, and all of them one after the other."""

    bare: Step
    alone: tuple[Step, ...]
    together: tuple[Step, ...]
    """Cumulative, in the same order; the last is the whole sum."""


def count_up(bare: Question, whole: Question, months: int, *, seed: int = 0, n: int = SCENARIOS) -> CostSteps:
    """Every step from ``bare`` to ``whole`` that changes a figure, both with the GPUs ``bare`` owns.

    The running costs of ``bare`` stay unless ``whole`` has none. Own is compared with renting on demand.
    """
    gpus = bare[1].owned_gpus or bare[1].for_peak(bare[0].peak_gpus(months))
    start = _step("the bare sum", bare, gpus, months, seed, n)
    current, before = bare, start
    alone: list[Step] = []
    together: list[Step] = []
    for name, change in _changes(bare, whole):
        current = change(current)
        one, all_so_far = _step(name, change(bare), gpus, months, seed, n), _step(name, current, gpus, months, seed, n)
        if _figures(one) != _figures(start) or _figures(all_so_far) != _figures(before):
            alone.append(one)
            together.append(all_so_far)
        before = all_so_far
    return CostSteps(start, tuple(alone), tuple(together))


def _figures(step: Step) -> tuple[float | None, float, float]:
    return step.break_even_months, step.own_minus_rent_usd, step.own_wins


def _changes(bare: Question, whole: Question) -> Sequence[tuple[str, Callable[[Question], Question]]]:
    steps: list[tuple[str, Callable[[Question], Question]]] = []
    per_server = whole[1].gpus_per_server
    for name, fields in _OWN_FIELDS:
        values = {field: getattr(whole[1], field) for field in fields}
        if any(getattr(bare[1], field) != value for field, value in values.items()):
            steps.append((name, _own_change(values | {"gpus_per_server": per_server})))
    if bare[1].running_usd_per_month != whole[1].running_usd_per_month:
        steps.append(("the given running costs", _own_change({"running_usd_per_month": whole[1].running_usd_per_month})))
    if bare[0].drift != whole[0].drift:
        spread = whole[0].drift
        steps.append(("demand uncertainty", lambda q: (replace(q[0], spread=spread), q[1], q[2])))
    if bare[2].process != whole[2].process:
        process = whole[2].process
        steps.append(("moving rental prices", lambda q: (q[0], q[1], replace(q[2], process=process))))
    return steps


def _own_change(values: Mapping[str, object]) -> Callable[[Question], Question]:
    return lambda q: (q[0], replace(q[1], **values), q[2])  # type: ignore[arg-type]


def _step(name: str, question: Question, gpus: int, months: int, seed: int, n: int) -> Step:
    demand, ownership, rent = question
    here, longer = np.random.SeedSequence(seed).spawn(2)
    rng = np.random.Generator(np.random.PCG64(here))
    x = draw(uncertain_inputs_of(demand, ownership, rent), rng, n)
    batch = Batch(demand, ownership, rent, x, *draw_prices(rent, rng, months, n), n=n)
    difference = batch.cost(Mix(gpus)).total_usd - batch.cost(Mix()).total_usd
    even = months_to_break_even(saved_by_month(demand, ownership, rent, gpus, longer, n))
    return Step(
        name,
        even,
        float(np.mean(difference, dtype=np.float64)),
        float(np.mean(np.broadcast_to(difference < 0, (n,)))),
    )
