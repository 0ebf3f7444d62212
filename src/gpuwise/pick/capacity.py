"""Accelerators that serve a load at the lowest cost: every rented one that the engine supports, simulated. Purchases, if
included, are priced over three years with resale and electricity; edge modules and machines with unified memory run llama.cpp if
the engine does not support them.

Lower bound of a fleet's cost: its arithmetic at the specified peak and the cache reads of its tokens:

    $/request >= price x (2 N (prompt + answer) / peak + answer x KV(prompt + answer / 2) / bandwidth)

and for a given load, one replica on the fewest accelerators on which the model fits. Accelerators are evaluated in the order
of these bounds. One is not simulated if its prompts alone exceed the time-to-first-token target at its peak, if its bounds
exceed the best answers so far, or if it would have to come nearer to its bound than any before. With enough answers, one is
searched only if a layout meets the targets at the rate needed to be among the best: layouts whose closed form is below that
rate, or that need too many accelerators, are not simulated; the others are simulated once.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from gpuwise.errors import GpuwiseError, InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import Cluster, default_system
from gpuwise.facts.models.architecture import Architecture
from gpuwise.money.cost import price_of
from gpuwise.pick.candidates import Acquisition, cluster_of, forms_of, placed, ways
from gpuwise.pick.limits import Limits
from gpuwise.pick.owning import Terms, bill
from gpuwise.predict.estimate import Estimate, to_document
from gpuwise.serve.capacity.answer import Capacity, Draft, check_model
from gpuwise.serve.capacity.configurations import SLOW_LINKS, Requirements, refined
from gpuwise.serve.capacity.document import fleet_document
from gpuwise.serve.capacity.fleet import Demand, Fleet, about, accelerators_of, fleet_for
from gpuwise.serve.capacity.mixed import Kind, MixedFleet, mixed_fleet
from gpuwise.serve.capacity.rate import Limit
from gpuwise.serve.capacity.reliable import STEEP_WORDS, WIDER, is_steep, steep_rate, wider_by
from gpuwise.serve.capacity.search import carries, contends, least_ranks, search, with_slots
from gpuwise.serve.engines.engine import LOCAL_ENGINE, engine_runs
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.targets import Target
from gpuwise.serve.memory import sequence_bytes
from gpuwise.serve.passes.capacity import PassCapacity, PassQuestion, capacity_of_passes, kind_of
from gpuwise.serve.passes.kind import Model
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
"""Factor on the smallest ratio of cost to bound so far: how much nearer to its bound another accelerator may come."""
FEW = 3.0
"""Ratio to the bound above which one replica's price means low utilisation: at a third of its peak, which splits over slow
links seldom reach."""


@dataclass(frozen=True, slots=True)
class Option:
    """One accelerator as the fleet that serves the load."""

    cluster: Cluster
    limit: Limit
    fleet: Fleet
    how: str = "rent"
    """``rent``, ``new`` or ``used``."""
    usd_per_accelerator_hour: float = 0.0
    asked: bool = False
    """The fleet serves a requested load, rather than its maximum."""

    @property
    def name(self) -> str:
        """Name of the accelerator, with the form of acquisition if it is not rented by the hour."""
        name = self.cluster.accelerator.name
        return name if self.how == "rent" else f"{name}, bought {self.how}"

    @property
    def per_million(self) -> float:
        """Dollars for a million tokens written."""
        return math.inf if self.fleet.usd_per_million is None else self.fleet.usd_per_million.expected

    @property
    def key(self) -> float:
        """Ranking key: dollars per million output tokens, or per hour for a requested load (users who wait longer read fewer
        tokens)."""
        return self.per_million if not self.asked else math.inf if self.fleet.usd_per_hour is None else self.fleet.usd_per_hour

    def may_cost_less(self, than: float, load: Load, targets: Sequence[Target]) -> bool:
        """Whether its layout keeps ``targets``, with any option of the engine, at a rate that brings its key below ``than``."""
        own, rate = self.limit.configuration, self.limit.rate_per_s
        if self.asked:
            usd = self.key / self.fleet.cluster.n_accelerators
            copies = next(
                (n for n in range(self.fleet.copies_peak, 0, -1) if usd * accelerators_of(own.system, own.ranks, n) < than), 0
            )
            needed = self.fleet.peak_per_s / copies if copies else math.inf
        else:
            needed = rate * self.key / than
        return any(carries(c, load, needed, targets, REQUESTS) for c in (own, *refined(own)))


@dataclass(frozen=True, slots=True)
class CapacityExclusion:
    """An accelerator that is not ranked, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class CapacityRanking:
    """``options`` cheapest first; ``nearest`` is what comes nearest where none keeps the targets."""

    options: tuple[Option, ...]
    left_out: tuple[CapacityExclusion, ...]
    nearest: Limit | None
    simulated: int
    mixed: MixedFleet | None = None
    """A cheaper fleet of two kinds; None where none is."""

    def with_answer(
        self, option: Option, limit: Limit | None, fleet: Fleet | None, demand: Demand, limits: Limits
    ) -> CapacityRanking:
        """``option`` after a longer simulation and a search of the engine's options: at its new rank, or dropped if it no longer
        meets the targets, together with the fleet of two kinds."""
        others = [o for o in self.options if o.name != option.name]
        if limit is None or fleet is None:
            left_out = (*self.left_out, CapacityExclusion(option.name, "misses the targets where it is simulated at length"))
            return replace(self, options=tuple(others), left_out=left_out, mixed=_mixed(others, demand, limits))
        options = tuple(sorted((replace(option, limit=limit, fleet=fleet), *others), key=lambda o: o.key))
        return replace(self, options=options, mixed=_mixed(options, demand, limits))

    def answered(
        self,
        ask: Callable[[Option], Draft],
        load: Load,
        targets: Sequence[Target],
        demand: Demand,
        limits: Limits,
        *,
        compare: bool = True,
    ) -> tuple[CapacityRanking, Capacity]:
        """The options and the full answer of the cheapest. The first is simulated at length, and then every other that may cost
        less; only the one that is first in the end is completed, and with ``compare`` beside its other layouts."""
        ranked, drafts = self, dict[str, Draft]()
        while (option := ranked._to_ask(drafts, load, targets)) is not None:
            draft = drafts[option.name] = ask(option)
            ranked = ranked.with_answer(option, draft.limit, None if draft.limit is None else draft.fleet(), demand, limits)
        first = (ranked.options or self.options)[0]
        answer = drafts[first.name].completed(suggest=False, compare=compare)
        if answer.served is not None:
            return ranked.with_answer(first, answer.served.limit, answer.served.fleet, demand, limits), answer
        if ranked.options:
            ranked = ranked.with_answer(first, None, None, demand, limits)
        if ranked.options:
            again = (load, targets, demand, limits)
            return ranked.answered(lambda option: drafts.get(option.name) or ask(option), *again, compare=compare)
        return ranked, drafts[first.name].completed(compare=compare)

    def _to_ask(self, asked: Collection[str], load: Load, targets: Sequence[Target]) -> Option | None:
        """The first option, or the first of the others that may cost less; None once all of these are ``asked``."""
        others = (o for o in self.options[1:] if o.name not in asked and o.may_cost_less(self.options[0].key, load, targets))
        return next(others, None) if not self.options or self.options[0].name in asked else self.options[0]


@dataclass(frozen=True, slots=True)
class _Candidate:
    cluster: Cluster
    usd_per_hour: float
    """Hourly cost of one accelerator: rent, or purchase over its life and electricity."""
    how: str
    wanted: Requirements
    bound_usd: float
    """Lower bound of the cost of a million output tokens."""
    least_ttft_s: float
    """Minimum time to first token of a prompt at the target's percentile, over a whole host."""
    least: int
    """Accelerators of the smallest replica on which the model fits; 1 if none fits, or without a requested load."""
    split_slowly: bool
    """The model has to be split, over links that are far from the arithmetic: such answers are rarely the cheapest, and the
    simulations of their stages the longest."""

    @property
    def name(self) -> str:
        name = self.cluster.accelerator.name
        return name if self.how == "rent" else f"{name}, bought {self.how}"


def rank_accelerators(
    arch: Architecture,
    load: Load,
    targets: Sequence[Target],
    demand: Demand,
    wanted: Requirements | None = None,
    *,
    today: datetime.date,
    limits: Limits | None = None,
    budget_usd_per_hour: float | None = None,
    progress: Callable[[str], None] = lambda words: None,
) -> CapacityRanking:
    """The accelerators that keep ``targets`` under ``load``, the cheapest first. Raises InputError for a model that
    writes no text."""
    check_model(arch)
    asked = wanted or Requirements()
    bounds_of = limits or Limits(ways=("rent",))
    options: list[Option] = []
    bounds: list[float] = []
    left_out: list[CapacityExclusion] = []
    missed: list[Limit] = []
    simulated = passed_over = 0
    nearest_to_bound = 1.0
    allowed = min((t.limit_s for t in targets if t.metric == "ttft"), default=math.inf)
    written = float(load.at(1.0, REQUESTS).output_tokens.mean())
    asks = demand.rate_per_s is not None or demand.users is not None
    most_written = math.inf if demand.most_per_s is None else demand.most_per_s * written * HOUR_S / MEGA

    def in_order(candidate: _Candidate) -> tuple[bool, float]:
        replica = candidate.usd_per_hour * candidate.least / most_written
        return candidate.split_slowly and replica < FEW * candidate.bound_usd, max(candidate.bound_usd, replica)

    for candidate in sorted(_candidates(arch, load, targets, asked, bounds_of, demand, today), key=in_order):
        name = candidate.name
        why = _too_many_watts(candidate.cluster.accelerator, 1, bounds_of)
        if why:
            left_out.append(CapacityExclusion(name, why))
            continue
        first = sorted(options, key=lambda o: o.key)[:TOP]
        worst = max(o.per_million for o in first) if len(first) == TOP else math.inf
        if candidate.bound_usd * nearest_to_bound * CLOSER > worst:
            left_out.append(CapacityExclusion(name, "dearer even at its peak"))
            continue
        payable = first[-1].key / candidate.usd_per_hour if worst < math.inf and asks else math.inf  # accelerators
        if candidate.least > payable:
            words = "replica" if candidate.least == 1 else f"replica on {candidate.least} of them"
            left_out.append(CapacityExclusion(name, f"dearer even as one {words}"))
            continue
        if candidate.least_ttft_s > allowed:
            least = format_duration(candidate.least_ttft_s)
            words = f"reading a prompt takes {least} at its peak, {format_duration(allowed)} allowed"
            left_out.append(CapacityExclusion(name, words))
            continue
        if simulated + passed_over >= MOST_SIMULATED:
            left_out.append(CapacityExclusion(name, f"not simulated: {MOST_SIMULATED} with a lower bound came first"))
            continue
        progress(name)
        slotted, chosen = with_slots(load, candidate.wanted)
        # of one accelerator, so that its rent for a million tokens is that of the last of the best
        needed = candidate.usd_per_hour / HOUR_S * demand.peak_over_mean / (worst * written / MEGA * RESOLUTION)
        if needed and not contends(arch, candidate.cluster, slotted, targets, chosen, needed, most_ranks=payable, n=REQUESTS):
            left_out.append(
                CapacityExclusion(
                    name, f"no layout serves the {needed:.2g} requests/s per accelerator at which it would be cheap enough"
                )
            )
            nearest_to_bound = max(min(nearest_to_bound, worst / candidate.bound_usd), 1.0)
            passed_over += 1
            continue
        found = search(
            arch,
            candidate.cluster,
            slotted,
            targets,
            chosen,
            demand=demand,
            most_ranks=payable,
            n=REQUESTS,
            refine=False,
            resolution=RESOLUTION,
        )
        simulated += found.error is None
        if found.best is None:
            missed += [] if found.nearest is None else [found.nearest]
            left_out.append(CapacityExclusion(name, _why(found.error, found.nearest)))
            continue

        def wider(
            best: Limit = found.best,
            cluster: Cluster = candidate.cluster,
            slotted: Load = slotted,
            chosen: Requirements = chosen,
        ) -> Limit | None:
            """The limit within wider targets; None where no layout is fast enough for the answer to be steep."""
            easier, fast = wider_by(targets, WIDER), steep_rate(best)
            if not contends(arch, cluster, slotted, easier, chosen, fast, n=REQUESTS):
                return None
            return search(
                arch, cluster, slotted, easier, chosen, demand=demand, n=REQUESTS, refine=False, resolution=RESOLUTION
            ).best

        if is_steep(found.best, found, candidate.cluster, demand, wider):
            missed.append(found.best)
            left_out.append(CapacityExclusion(name, STEEP_WORDS.removesuffix(".")))
            continue
        each = about(found.best)
        fleet = fleet_for(found.best, each, candidate.cluster, demand, today=today, usd_per_hour=candidate.usd_per_hour)
        why = _too_many_watts(candidate.cluster.accelerator, fleet.cluster.n_accelerators, bounds_of)
        if why:
            left_out.append(CapacityExclusion(name, why))
            continue
        if budget_usd_per_hour is not None and (fleet.usd_per_hour or 0.0) > budget_usd_per_hour:
            left_out.append(CapacityExclusion(name, f"${fleet.usd_per_hour:,.2f}/h is over the budget"))
            continue
        options.append(Option(candidate.cluster, found.best, fleet, candidate.how, candidate.usd_per_hour, asks))
        reached = [o.per_million / b for o, b in zip(options, [*bounds, candidate.bound_usd], strict=True)]
        bounds.append(candidate.bound_usd)
        nearest_to_bound = max(min(reached), 1.0)
    options.sort(key=lambda o: o.key)
    nearest = min(missed, key=lambda x: (x.alone.worst.ratio or math.inf) if x.alone.worst else math.inf, default=None)
    return CapacityRanking(tuple(options), tuple(left_out), nearest, simulated, _mixed(options, demand, bounds_of))


def _mixed(options: Sequence[Option], demand: Demand, limits: Limits) -> MixedFleet | None:
    """The fleet of two kinds for the peak, from the load that each serves alone; None without a requested load."""
    if (demand.rate_per_s is None and demand.users is None) or not options:
        return None
    kinds = [
        Kind(
            o.name,
            o.fleet.each.expected,
            o.usd_per_accelerator_hour * o.limit.configuration.ranks,
            o.limit.configuration.ranks,
            None if (tdp := o.cluster.accelerator.tdp_w) is None else tdp * o.limit.configuration.ranks,
        )
        for o in options
    ]
    return mixed_fleet(kinds, options[0].fleet.peak_per_s, limits.max_watts)


def _too_many_watts(accelerator: Accelerator, n: int, limits: Limits) -> str:
    """Why ``n`` of them draw more than allowed; empty where they do not."""
    if limits.max_watts is None:
        return ""
    if accelerator.tdp_w is None:
        return "its power is not published"
    watts = n * accelerator.tdp_w
    return f"{watts:,.0f} W, {limits.max_watts:,.0f} W allowed" if watts > limits.max_watts else ""


def _candidates(
    arch: Architecture,
    load: Load,
    targets: Sequence[Target],
    wanted: Requirements,
    limits: Limits,
    demand: Demand,
    today: datetime.date,
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
    smallest = count_parameters(arch).total * min(wanted.bits) / 8
    for way in ways(limits, today):
        accelerator = way.accelerator
        run_by = _engine_on(accelerator, wanted, way)
        if run_by is None or (way.rent is None and way.purchase is None) or not _asked_for(way, limits):
            continue
        cluster = placed(way, _host(accelerator), limits.have)
        usd = _hourly(way, cluster, today)
        peak = max((v for k, v in accelerator.peak_flop_per_s.items() if k in _formats(wanted)), default=0.0)
        if usd is None or not peak:
            continue
        seconds = flop / peak + read / accelerator.memory_bandwidth_bytes_per_s
        least = prompt * each / (peak * min(cluster.n_accelerators, cluster.system.count))
        split = accelerator.memory_bytes < smallest and cluster.system.topology in SLOW_LINKS
        held_by = 1 if demand.most_per_s is None else least_ranks(arch, cluster, run_by)
        yield _Candidate(cluster, usd, way.label, run_by, usd / HOUR_S * seconds / written * MEGA, least, held_by, split)


def _asked_for(way: Acquisition, limits: Limits) -> bool:
    """Whether form, vendor and condition match the request."""
    accelerator = way.accelerator
    if limits.form is not None and limits.form not in forms_of(accelerator.id):
        return False
    return (not limits.vendors or accelerator.vendor in limits.vendors) and (way.condition != "used" or limits.used)


def _engine_on(accelerator: Accelerator, wanted: Requirements, way: Acquisition) -> Requirements | None:
    """The ``wanted`` engine on this accelerator; llama.cpp for a purchase that the engine does not support; None if nothing
    runs."""
    if engine_runs(accelerator, wanted.engine):
        return wanted
    if way.purchase is not None and wanted.version is None and wanted.tp in (None, 1) and engine_runs(accelerator, LOCAL_ENGINE):
        return replace(wanted, engine=LOCAL_ENGINE, tp=None)
    return None


def _hourly(way: Acquisition, cluster: Cluster, today: datetime.date) -> float | None:
    """Dollars per hour of one accelerator; None without a price."""
    if way.rent is not None:
        price = price_of(cluster, today)
        return None if price is None else price.expected
    try:
        owned = bill(way, Cluster(cluster.system, 1), Estimate(HOUR_S, HOUR_S, HOUR_S, "specified"), Terms(), "serving")
    except UnpredictableError:
        return None
    return owned.usd_per_hour


def _host(accelerator: Accelerator) -> Cluster:
    """A whole machine: its usual system, or the usual number of cards per host."""
    system = default_system(accelerator)
    several = cluster_of(accelerator.id, MOST_IN_A_HOST) if system.count < MOST_IN_A_HOST and accelerator.form == "PCIe" else None
    return several if several is not None and several.n_systems == 1 else Cluster(system, system.count)


def _formats(wanted: Requirements) -> set[str]:
    """Formats of products that the weights allowed are multiplied in."""
    found = {"fp16", "bf16"}
    return found | {"fp8", "int8"} if min(wanted.bits) <= 8 else found


def _why(error: GpuwiseError | None, nearest: Limit | None) -> str:
    if error is not None:
        return error.message
    worst = None if nearest is None else nearest.alone.worst
    if worst is None or worst.value_s is None:
        return "does not keep the targets"
    assert nearest is not None
    upto = f", up to {worst.value_s * nearest.alone.longest:.3g} s," if worst.met else ""
    return f"{worst.target.key} of {worst.value_s:.3g} s{upto} for a request alone, {worst.target.limit_s:g} s allowed"


def ranked_document(found: CapacityRanking) -> dict[str, object]:
    """The options as JSON values, cheapest first."""
    document = {
        "options": [
            {
                "accelerator": o.cluster.accelerator.id,
                "name": o.cluster.accelerator.name,
                "how": o.how,
                "engine": o.limit.configuration.config.engine,
                "configuration": o.limit.configuration.words,
                "requests_per_s_of_a_copy": o.limit.rate_per_s,
                "fleet": fleet_document(o.fleet),
            }
            for o in found.options
        ],
        "left_out": [{"name": one.name, "why": one.why} for one in found.left_out],
        "simulated": found.simulated,
        "mixed": None if found.mixed is None else found.mixed.as_dict(),
    }
    return cast("dict[str, object]", to_document(document))


def rank_passes(arch: Model, asked: PassQuestion, budget_usd_per_hour: float | None = None) -> list[PassCapacity]:
    """Every accelerator that is rented and keeps the targets within the budget, by dollars for a million items. Raises InputError
    for a model of another kind."""
    kind_of(arch, asked.workload).shape(arch, asked.workload, asked.tokens)
    capacities: dict[str, PassCapacity] = {}
    for way in ways(Limits(), asked.today):
        accelerator = way.accelerator
        runs = not isinstance(arch, Architecture) or engine_runs(accelerator)
        if way.rent is None or accelerator.id in capacities or not runs:
            continue
        try:
            capacities[accelerator.id] = capacity_of_passes(arch, Cluster(default_system(accelerator), 1), asked)
        except (InputError, UnpredictableError):
            continue
    usable = [a for a in capacities.values() if a.affordable(budget_usd_per_hour) and a.usd_per_million is not None]
    return sorted(usable, key=lambda a: a.usd_per_million or 0.0)
