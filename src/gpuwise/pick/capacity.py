"""Which accelerators serve a load for the least money: every one that is rented and that the engine runs on, simulated.

No fleet costs less than its arithmetic at the specified peak and the caches its tokens read:

    $/request >= price x (2 N (prompt + answer) / peak + answer x KV(prompt + answer / 2) / bandwidth)

Accelerators are looked at in the order of that bound. None is simulated whose prompts alone take longer at its peak than the
first token may, whose bound lies above the best answers found, or which would have to come nearer to its bound than any before.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster, default_system
from gpuwise.facts.models.architecture import Architecture
from gpuwise.money.cost import Price, price_of
from gpuwise.pick.candidates import cluster_of, ways
from gpuwise.pick.limits import Limits
from gpuwise.predict.estimate import Estimate, to_document
from gpuwise.serve.capacity.answer import check_model
from gpuwise.serve.capacity.configurations import Wanted
from gpuwise.serve.capacity.document import fleet_document
from gpuwise.serve.capacity.fleet import Demand, Fleet, fleet_for
from gpuwise.serve.capacity.rate import Limit
from gpuwise.serve.capacity.search import search, with_slots
from gpuwise.serve.engine import engine_runs
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.targets import Target
from gpuwise.serve.memory import sequence_bytes
from gpuwise.units import HOUR_S, MEGA, format_duration
from gpuwise.workload.transformer.parameters import count_parameters

REQUESTS = 300
"""Simulated for each rate: enough to rank; the best is answered with more."""
MOST_SIMULATED = 40
MOST_IN_A_HOST = 8
"""Cards of one kind in a machine that is rented."""
TOP = 5
RESOLUTION = 1.08
"""Between the two rates where a search that ranks stops."""
CLOSER = 0.85
"""Of the smallest ratio of cost to its bound seen so far: how much nearer another accelerator may come."""
SIGMA_RATE = 0.25
"""Logarithm by which a rate of so few requests may be wrong."""


@dataclass(frozen=True, slots=True)
class Option:
    """One accelerator as the fleet that carries the load."""

    cluster: Cluster
    limit: Limit
    fleet: Fleet

    @property
    def key(self) -> float:
        """What options are ranked by: dollars for a million tokens written."""
        return math.inf if self.fleet.usd_per_million is None else self.fleet.usd_per_million.expected


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An accelerator that is not ranked, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Ranked:
    """``options`` cheapest first; ``nearest`` is what comes nearest where none keeps the targets."""

    options: tuple[Option, ...]
    left_out: tuple[LeftOut, ...]
    nearest: Limit | None
    simulated: int

    def with_answer(self, limit: Limit, fleet: Fleet) -> Ranked:
        """The first option as it was answered in full, with more requests and the engine's options searched; in its new place."""
        first = replace(self.options[0], limit=limit, fleet=fleet)
        return replace(self, options=tuple(sorted((first, *self.options[1:]), key=lambda o: o.key)))


@dataclass(frozen=True, slots=True)
class _Candidate:
    cluster: Cluster
    price: Price
    bound_usd: float
    """Of a million tokens written, at the least."""
    least_ttft_s: float
    """Of a prompt at the target's percentile, over a whole host."""


def rank_accelerators(
    arch: Architecture,
    load: Load,
    targets: Sequence[Target],
    demand: Demand,
    wanted: Wanted | None = None,
    *,
    today: datetime.date,
    limits: Limits | None = None,
    budget_usd_per_hour: float | None = None,
    progress: Callable[[str], None] = lambda words: None,
) -> Ranked:
    """The accelerators that keep ``targets`` under ``load``, by dollars for a million tokens. Raises InputError for a model that
    writes no text."""
    check_model(arch)
    load, asked = with_slots(load, wanted or Wanted())
    options: list[Option] = []
    bounds: list[float] = []
    left_out: list[LeftOut] = []
    missed: list[Limit] = []
    simulated = 0
    nearest_to_bound = 1.0
    allowed = min((t.limit_s for t in targets if t.metric == "ttft"), default=math.inf)
    for candidate in sorted(_candidates(arch, load, targets, asked, limits or Limits(), today), key=lambda c: c.bound_usd):
        name = candidate.cluster.accelerator.name
        worst = sorted(o.key for o in options)[TOP - 1] if len(options) >= TOP else math.inf
        if candidate.bound_usd * nearest_to_bound * CLOSER > worst:
            left_out.append(LeftOut(name, "dearer even at its peak"))
            continue
        if candidate.least_ttft_s > allowed:
            least = format_duration(candidate.least_ttft_s)
            words = f"reading a prompt takes {least} at its peak, {format_duration(allowed)} allowed"
            left_out.append(LeftOut(name, words))
            continue
        if simulated >= MOST_SIMULATED:
            left_out.append(LeftOut(name, f"not simulated: {MOST_SIMULATED} with a lower bound came first"))
            continue
        progress(name)
        found = search(arch, candidate.cluster, load, targets, asked, n=REQUESTS, refine=False, resolution=RESOLUTION)
        simulated += found.error is None
        if found.best is None:
            missed += [] if found.nearest is None else [found.nearest]
            left_out.append(LeftOut(name, _why(found.error, found.nearest)))
            continue
        each = Estimate.from_log_sigma(found.best.rate_per_s, SIGMA_RATE, "derived")
        fleet = fleet_for(found.best, each, candidate.cluster, demand, today=today, usd_per_hour=candidate.price.expected)
        if budget_usd_per_hour is not None and (fleet.usd_per_hour or 0.0) > budget_usd_per_hour:
            left_out.append(LeftOut(name, f"${fleet.usd_per_hour:,.2f}/h is over the budget"))
            continue
        options.append(Option(candidate.cluster, found.best, fleet))
        reached = [o.key / b for o, b in zip(options, [*bounds, candidate.bound_usd], strict=True)]
        bounds.append(candidate.bound_usd)
        nearest_to_bound = max(min(reached), 1.0)
    options.sort(key=lambda o: o.key)
    nearest = min(missed, key=lambda x: (x.alone.worst.ratio or math.inf) if x.alone.worst else math.inf, default=None)
    return Ranked(tuple(options), tuple(left_out), nearest, simulated)


def _candidates(
    arch: Architecture, load: Load, targets: Sequence[Target], wanted: Wanted, limits: Limits, today: datetime.date
) -> Iterator[_Candidate]:
    """Every accelerator that is rented and that the engine runs on, in its usual system."""
    requests = load.at(1.0, REQUESTS)
    each = 2.0 * count_parameters(arch).active
    fresh = 1.0 - requests.reused_share
    flop = each * float((requests.prompt_tokens * fresh + requests.output_tokens).mean())
    held = requests.prompt_tokens + requests.output_tokens / 2
    cache = sequence_bytes(arch, max(int(held.mean()), 1), 1, wanted.kv_dtype) / max(int(held.mean()), 1)
    read = float((requests.output_tokens * held).mean()) * cache
    written = float(requests.output_tokens.mean())
    ttft = next((t for t in targets if t.metric == "ttft"), None)
    share = 50.0 if ttft is None or ttft.percentile is None else ttft.percentile
    prompt = float(np.percentile(requests.prompt_tokens, share)) * (fresh if requests.reused_share else 1.0)
    seen: set[str] = set()
    for way in ways(limits, today):
        accelerator = way.accelerator
        if way.rent is None or accelerator.id in seen or not engine_runs(accelerator, wanted.engine):
            continue
        if limits.vendors and accelerator.vendor not in limits.vendors:
            continue
        seen.add(accelerator.id)
        cluster = _host(accelerator)
        price = price_of(cluster, today)
        peak = max((v for k, v in accelerator.peak_flop_per_s.items() if k in _formats(wanted)), default=0.0)
        if price is None or not peak:
            continue
        seconds = flop / peak + read / accelerator.memory_bandwidth_bytes_per_s
        least = prompt * each / (peak * min(cluster.n_accelerators, cluster.system.count))
        yield _Candidate(cluster, price, price.expected / HOUR_S * seconds / written * MEGA, least)


def _host(accelerator: Accelerator) -> Cluster:
    """A whole machine of it: its usual system, or as many cards as are put together."""
    system = default_system(accelerator)
    several = cluster_of(accelerator.id, MOST_IN_A_HOST) if system.count < MOST_IN_A_HOST and accelerator.form == "PCIe" else None
    return several if several is not None and several.n_systems == 1 else Cluster(system, system.count)


def _formats(wanted: Wanted) -> set[str]:
    """Formats of products that the weights allowed are multiplied in."""
    found = {"fp16", "bf16"}
    return found | {"fp8", "int8"} if min(wanted.bits) <= 8 else found


def _why(error: GpuwiseError | None, nearest: Limit | None) -> str:
    if error is not None:
        return error.message
    worst = None if nearest is None else nearest.alone.worst
    if worst is None or worst.value_s is None:
        return "does not keep the targets"
    return f"{worst.target.key} of {worst.value_s:.3g} s for a request alone, {worst.target.limit_s:g} s allowed"


def ranked_document(found: Ranked) -> dict[str, object]:
    """The options as JSON values, cheapest first."""
    document = {
        "options": [
            {
                "accelerator": o.cluster.accelerator.id,
                "name": o.cluster.accelerator.name,
                "configuration": o.limit.configuration.words,
                "requests_per_s_of_a_copy": o.limit.rate_per_s,
                "fleet": fleet_document(o.fleet),
            }
            for o in found.options
        ],
        "left_out": [{"name": one.name, "why": one.why} for one in found.left_out],
        "simulated": found.simulated,
    }
    return cast("dict[str, object]", to_document(document))
