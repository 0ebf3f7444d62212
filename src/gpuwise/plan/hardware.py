"""Choice of accelerators and their number when the user names none: rented systems compared by the cost or time of the whole job.

Clusters are tried in the order of a lower bound (every peak reached to ``BEST_MFU``) until one would lose even if it came nearer
to its bound than any before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuwise.errors import InputError, UnknownNameError, UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.offers.availability import rented_together
from gpuwise.facts.offers.offer import book
from gpuwise.facts.software.support import support_of
from gpuwise.money.cost import market_factor, price_of
from gpuwise.plan.answer import Option, Plan, SearchStats, tokens_of
from gpuwise.plan.defaults import default_seq_len
from gpuwise.plan.goal import Wishes, as_trained, check_wishes, formats_of, task_of
from gpuwise.plan.planner import ClusterSearch, Pricing, plan_on, search_on
from gpuwise.predict.memory.device import usable_bytes
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.units import DAY_S, HOUR_S, format_duration, format_usd
from gpuwise.workload.optimizer import weights_on_host
from gpuwise.workload.transformer.tables import model_flop_per_token

BEST_MFU = 0.75
"""Utilisation no published large training run reaches (the best dense bf16 figures are near 0.6)."""
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
PATIENCE_S = 30 * DAY_S
"""How long a job may take when no deadline and no budget is given."""
SHORTEST_S = HOUR_S
"""Shortest job for which several accelerators are compared; below this, startup and minimum billing dominate."""
CLOSER = 0.85
"""Factor on the smallest ratio of time to bound so far: how much nearer to its bound another cluster may come."""
LEAST_MFU = 0.06
"""Utilisation of the slowest published run (Llama 3.2 1B; benchmarks/records/practice_2026-11-23.md)."""
KEEP = 6
"""Minimum number of accelerators to compare, if that many can do the job."""
COUNTS_TRIED = 4
"""Cluster sizes planned for one accelerator."""
REASONS = 2
"""Reasons named, at most, why nothing rented will do."""
UNSEEN_NAMED = 4
"""Maximum number of clusters without a known offer to name."""
TRIES = 48
"""Clusters planned at most."""
SURELY_FULL = 0.8
"""Share of the smallest plan's bytes on a device where nothing fitted: a device with less memory is not searched. Context and
workspaces of another device differ by a tenth at most."""
Key = tuple[float, int, float]
"""Excess over the limits, whether no provider offers that count together, and dollars or seconds."""


@dataclass(frozen=True, slots=True)
class _Try:
    cluster: Cluster
    least_s: float
    least_usd: float
    market: float
    """Factor of :func:`~gpuwise.money.cost.market_factor`: affects the ranking, not the budget."""
    short: bool
    """Several accelerators for a job that one surely does soon."""


def compare(arch: Architecture, wishes: Wishes, pricing: Pricing) -> Plan[TrainingEstimate]:
    """The plan on the best rented cluster, with the best of the others as alternatives.

    With a budget alone: the fastest within it. Otherwise: the cheapest that meets the deadline (30 days if none is given).
    Counts without a known offer rank after those with one. When nothing meets the limits, the nearest. Several accelerators
    are compared for a short job only where one alone cannot do it. Raises UnpredictableError when nothing rented can train the
    model, with the reasons given most often, and InputError on invalid wishes.
    """
    check_wishes(wishes)
    _check_provider(pricing)
    limit_s = wishes.deadline_s if wishes.deadline_s is not None else PATIENCE_S
    by_time = wishes.budget_usd is not None and wishes.deadline_s is None
    if by_time:
        limit_s = float("inf")
    budget = wishes.budget_usd if wishes.budget_usd is not None else float("inf")

    def key(attempt: _Try, seconds: float, usd: float) -> Key:
        over = max(seconds / limit_s, 1.0) * max(usd / budget, 1.0)
        return (over, not seen(attempt.cluster), seconds if by_time else usd * attempt.market)

    plans: list[tuple[Key, ClusterSearch]] = []
    best: dict[str, Key] = {}
    counts: dict[str, int] = {}
    needs: dict[int, float] = {}
    refusals: Counter[str] = Counter()
    hints: dict[str, str | None] = {}
    alone, nearest = True, math.inf
    for attempt in sorted(_tries(arch, wishes, pricing), key=lambda t: (t.short, key(t, t.least_s, t.least_usd))):
        if attempt.short and alone and plans:
            break
        alone = not attempt.short
        name = attempt.cluster.accelerator.id
        times = max(CLOSER * nearest, 1.0)
        least = key(attempt, times * attempt.least_s, times * attempt.least_usd)
        beaten = len(best) >= KEEP and least >= sorted(best.values())[KEEP - 1]
        if beaten or sum(counts.values()) >= TRIES:
            break
        if counts.get(name, 0) >= COUNTS_TRIED or _surely_full(attempt.cluster, needs):
            continue
        try:
            plan = search_on(arch, attempt.cluster, wishes, pricing, only_best=True)
        except (InputError, UnpredictableError) as error:
            refusals[error.message] += 1
            hints[error.message] = error.hint
            continue
        smallest = plan.found.smallest
        # another host may hold the states or the weights that this one has no room for
        if plan.best is None and weights_on_host(smallest.strategy):
            n = attempt.cluster.n_accelerators
            needs[n] = min(smallest.memory_bytes.expected, needs.get(n, float("inf")))
        if plan.best is None or plan.best.cost_usd is None:
            continue
        nearest = min(nearest, plan.best.time_s.expected / attempt.least_s)
        counts[name] = counts.get(name, 0) + 1
        plans.append((key(attempt, plan.best.time_s.expected, plan.best.cost_usd.expected), plan))
        best[name] = min(best.get(name, plans[-1][0]), plans[-1][0])
    if not plans:
        raise _nothing_rented(arch, refusals, hints)
    return _assemble(plans, wishes, pricing, limit_s)


def _nothing_rented(arch: Architecture, refusals: Counter[str], hints: Mapping[str, str | None]) -> UnpredictableError:
    """UnpredictableError that no cluster can do it, with the most frequent reasons."""
    reasons = [reason for reason, _ in refusals.most_common(REASONS)]
    return UnpredictableError(
        "no rented cluster",
        f"no rented cluster of up to {COUNTS[-1]} accelerators can train {arch.name} this way"
        + (f": {'; on others '.join(reasons)}" if reasons else ""),
        hint=(hints[reasons[0]] if reasons else None) or "name one with --on, or shorten the sequence",
    )


def _surely_full(cluster: Cluster, needs: Mapping[int, float]) -> bool:
    """Whether the strategy that was too large for as many or more devices is far too large for this device."""
    least = max((need for n, need in needs.items() if n >= cluster.n_accelerators), default=0.0)
    return usable_bytes(cluster.accelerator) < SURELY_FULL * least


def _assemble(plans: list[tuple[Key, ClusterSearch]], wishes: Wishes, pricing: Pricing, limit_s: float) -> Plan[TrainingEstimate]:
    """The winner with the best of each accelerator beside it, and the winner's other counts."""
    plans.sort(key=lambda p: p[0])
    first = plans[0][1].goal
    winner = plan_on(first.arch, first.cluster, wishes, pricing)
    accelerator_id = winner.goal.cluster.accelerator.id
    options: list[Option[TrainingEstimate]] = []
    for _, p in plans:
        accelerator_ids = [o.cluster.accelerator.id for o in options]
        name = p.goal.cluster.accelerator.id
        if p.best is not None and (
            name not in accelerator_ids or (name == accelerator_id and accelerator_ids.count(name) < COUNTS_TRIED)
        ):
            options.append(p.best)
    stats = SearchStats(
        sum(p.stats.strategies for _, p in plans),
        sum(p.stats.fitting for _, p in plans),
        sum(p.stats.seconds for _, p in plans),
    )
    notes = (*limit_notes(options, wishes), *winner.warnings)
    if wishes.deadline_s is None and wishes.budget_usd is None:
        notes = (f"no deadline or budget given: the cheapest within {limit_s / DAY_S:.0f} days", *notes)
    if unseen := [o.cluster.label for o in options if not seen(o.cluster)]:
        more = f" and {len(unseen) - UNSEEN_NAMED} more" if len(unseen) > UNSEEN_NAMED else ""
        shown = ", ".join(unseen[:UNSEEN_NAMED]) + more
        notes = (*notes, f"no known offer has that many together, so they rank after the others: {shown}")
    if thin := [
        o.cluster.accelerator.name for o in options if o is not options[0] and _is_passed_over(o, options[0], wishes, limit_s)
    ]:
        notes = (*notes, f"cheaper, but at a price that few ask, which counts dearer here: {', '.join(dict.fromkeys(thin))}")
    return replace(winner, hardware=tuple(options), search=stats, warnings=notes)


def _is_passed_over(option: Option[TrainingEstimate], first: Option[TrainingEstimate], wishes: Wishes, limit_s: float) -> bool:
    """Whether ``option`` would come before ``first`` by its price alone, and comes after it for want of providers."""
    meets = wishes.budget_usd is None and seen(option.cluster) and option.time_s.expected <= limit_s
    return meets and _usd(option) < _usd(first) and option.price is not None and option.price.origin == "market"


def seen(cluster: Cluster) -> bool:
    """Whether a provider is known to rent out that many together."""
    return rented_together(cluster.accelerator, cluster.n_accelerators)


def late(option: Option[TrainingEstimate], wishes: Wishes) -> bool:
    """Whether the expected time misses the deadline."""
    return wishes.deadline_s is not None and option.time_s.expected > wishes.deadline_s


def over_budget(option: Option[TrainingEstimate], wishes: Wishes) -> bool:
    """Whether the expected cost is beyond the budget."""
    return wishes.budget_usd is not None and _usd(option) > wishes.budget_usd


def _usd(option: Option[TrainingEstimate]) -> float:
    return float("inf") if option.cost_usd is None else option.cost_usd.expected


def limit_notes(options: Sequence[Option[TrainingEstimate]], wishes: Wishes) -> Iterator[str]:
    """Named: the cheapest that meets the deadline; the fastest, cheapest and usual within the budget; or what comes nearest."""

    def words(o: Option[TrainingEstimate]) -> str:
        name = f"{o.cluster.n_accelerators}x {o.cluster.accelerator.name}"
        return f"{name}, {format_duration(o.time_s.expected)}, {format_usd(_usd(o))}"

    if wishes.deadline_s is not None:
        limit, meet = format_duration(wishes.deadline_s), [o for o in options if not late(o, wishes)]
        if meet:
            yield f"the cheapest compared that meets the deadline of {limit}: {words(min(meet, key=_usd))}"
        else:
            yield f"none compared meets the deadline of {limit}; nearest: {words(min(options, key=lambda o: o.time_s.expected))}"
    if wishes.budget_usd is not None:
        limit, within = format_usd(wishes.budget_usd), [o for o in options if not over_budget(o, wishes)]
        if within:
            fastest, cheapest = min(within, key=lambda o: o.time_s.expected), min(within, key=_usd)
            usual = max(within, key=lambda o: o.price.n_providers if o.price else 0)
            others = (("cheapest", cheapest), ("rented by most providers", usual))
            more = "".join(f"; {what}: {words(o)}" for what, o in others if o is not fastest)
            yield f"the fastest compared within the budget of {limit}: {words(fastest)}{more}"
        else:
            yield f"none compared is within the budget of {limit}; cheapest: {words(min(options, key=_usd))}"


def _tries(arch: Architecture, wishes: Wishes, pricing: Pricing) -> Iterator[_Try]:
    """Every rented accelerator that software trains on, at every count its usual system allows, with the least time and
    money it could take."""
    from gpuwise.facts.hardware.naming import counted, find_cluster

    task, _ = task_of(arch, wishes)
    arch, seq_len = as_trained(arch, task), wishes.seq_len or default_seq_len(arch, task)[0]
    per_token = model_flop_per_token(
        arch,
        seq_len,
        lora_rank=wishes.lora_rank,
        lora_targets=wishes.lora_targets,
        packed_document_len=wishes.packed_document_len,
    )
    work = per_token * tokens_of(wishes)
    purpose = "finetune" if wishes.fine_tuning else "train"
    for accelerator_id in sorted({o.accelerator_id for o in book(pricing.today)}):
        accelerator = accelerators()[accelerator_id]
        if support_of(accelerator).works_for(purpose).level == "none":
            continue
        peaks = [accelerator.peak_flop_per_s.get(p) for p in formats_of(wishes.precision, accelerator)]
        if None in peaks:
            continue
        peak = max(p for p in peaks if p is not None)
        try:
            one = find_cluster(accelerator_id)
            price = price_of(one, pricing.today, usd_per_hour=pricing.usd_per_hour, provider=pricing.provider)
        except (InputError, UnpredictableError):
            continue
        if price is None:
            continue
        market = market_factor(accelerator_id, price, pricing.today)
        for n in counts_for(wishes.fixed):
            try:
                cluster = replace(counted(accelerator, n), assumption=one.assumption)
            except InputError:
                continue
            if _connected(cluster):
                seconds = work / (n * peak * BEST_MFU)
                short = n > 1 and surely_short(seconds, wishes.deadline_s)
                yield _Try(cluster, seconds, seconds * n * price.expected / HOUR_S, market, short)


def counts_for(fixed: Mapping[str, int | str | bool]) -> tuple[int, ...]:
    """The counts that the ``fixed`` degrees of a layout leave: multiples of what they multiply to."""
    ranks = math.prod(max(int(fixed.get(f, 1)), 1) for f in ("tp", "pp", "cp"))
    if "dp" in fixed:
        return (ranks * int(fixed["dp"]),)
    least = ranks * (2 if fixed.get("sharding", "none") != "none" or "shard_group" in fixed else 1)
    while least < int(fixed.get("ep", 1)) * int(fixed.get("pp", 1)):
        least *= 2
    return tuple(least * n for n in COUNTS if least * n <= COUNTS[-1])


def surely_short(least_s: float, deadline_s: float | None) -> bool:
    """Whether a job that takes ``least_s`` at :data:`BEST_MFU` is too short for several accelerators: under :data:`SHORTEST_S`,
    and within the deadline even at :data:`LEAST_MFU`."""
    return least_s < SHORTEST_S and (deadline_s is None or least_s * BEST_MFU / LEAST_MFU < deadline_s)


def _connected(cluster: Cluster) -> bool:
    """Whether the cluster is one system, or several with a network that is more than a guess at ordinary
    Ethernet."""
    system = cluster.system
    return cluster.n_systems == 1 or not ("network" in system.assumed and system.network_kind == "ethernet")


def _check_provider(pricing: Pricing) -> None:
    """Raises UnknownNameError for an unknown provider."""
    providers = {o.provider for o in book(pricing.today)}
    if pricing.provider is not None and pricing.provider.lower() not in {p.lower() for p in providers}:
        hint = "it is one of " + ", ".join(sorted(providers))
        raise UnknownNameError("provider", pricing.provider, providers, hint=hint)
