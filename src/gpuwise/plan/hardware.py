"""Which accelerators, and how many, when a person names none: rented systems compared by what the whole job takes.

Clusters are tried in the order of a bound no plan beats (every peak reached to ``BEST_MFU``), and only those whose
bound already loses are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gpuwise.errors import GpuwiseError, UnpredictableError
from gpuwise.facts.accelerators import accelerators
from gpuwise.facts.models import Architecture
from gpuwise.facts.offers import offers
from gpuwise.facts.systems import Cluster
from gpuwise.money.cost import price_of
from gpuwise.plan.defaults import default_seq_len
from gpuwise.plan.goal import Wishes
from gpuwise.plan.planner import Option, Plan, Pricing, plan_on, tokens_of
from gpuwise.predict.training import flop_per_token
from gpuwise.units import DAY_S, HOUR_S
from gpuwise.workload.strategy import Strategy

BEST_MFU = 0.75
"""Utilisation no published large training run reaches (the best dense bf16 figures are near 0.6)."""
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
PATIENCE_S = 30 * DAY_S
"""How long a job may take when no deadline and no budget is given."""
KEEP = 6
TRIES = 48
"""Clusters evaluated at most."""


@dataclass(frozen=True, slots=True)
class _Try:
    cluster: Cluster
    least_s: float
    least_usd: float


def compare(arch: Architecture, wishes: Wishes, pricing: Pricing) -> Plan:
    """The plan on the best rented cluster, with the best of the others beside it.

    With a budget alone: the fastest within it. Otherwise: the cheapest that meets the deadline (30 days if none is
    given). When nothing meets the limits, the one that comes nearest. Raises UnpredictableError when nothing rented can
    train the model.
    """
    limit_s = wishes.deadline_s if wishes.deadline_s is not None else PATIENCE_S
    by_time = wishes.budget_usd is not None and wishes.deadline_s is None
    if by_time:
        limit_s = float("inf")
    budget = wishes.budget_usd if wishes.budget_usd is not None else float("inf")

    def key(seconds: float, usd: float) -> tuple[float, float]:
        over = max(seconds / limit_s, 1.0) * max(usd / budget, 1.0)
        return (over, seconds if by_time else usd)

    plans: list[tuple[tuple[float, float], Plan]] = []
    tried: dict[str, int] = {}
    for n, attempt in enumerate(sorted(_tries(arch, wishes, pricing), key=lambda t: key(t.least_s, t.least_usd))):
        if n >= TRIES or (len(plans) >= KEEP and key(attempt.least_s, attempt.least_usd) >= sorted(k for k, _ in plans)[KEEP - 1]):
            break
        plan = _attempt(arch, attempt.cluster, wishes, pricing)
        if plan is not None and plan.best is not None and plan.best.cost_usd is not None:
            plans.append((key(plan.best.time_s.expected, plan.best.cost_usd.expected), plan))
            tried[attempt.cluster.accelerator.id] = tried.get(attempt.cluster.accelerator.id, 0) + 1
    if not plans:
        raise UnpredictableError(
            "no rented cluster", f"no rented cluster of up to {COUNTS[-1]} accelerators can train {arch.name} this way",
            hint="name one with --on, or shorten the sequence",
        )  # fmt: skip
    return _assemble(plans, wishes, limit_s)


def _assemble(plans: list[tuple[tuple[float, float], Plan]], wishes: Wishes, limit_s: float) -> Plan:
    plans.sort(key=lambda p: p[0])
    winner = plans[0][1]
    hardware = _first_of_each([p.best for _, p in plans if p.best is not None], lambda o: o.cluster.label)[: 2 * KEEP]
    total = sum(p.search.strategies for _, p in plans)
    stats = replace(
        winner.search, strategies=total, fitting=sum(p.search.fitting for _, p in plans),
        seconds=sum(p.search.seconds for _, p in plans),
    )  # fmt: skip
    notes = winner.warnings
    if wishes.deadline_s is None and wishes.budget_usd is None:
        notes = (f"no deadline or budget given: the cheapest within {limit_s / DAY_S:.0f} days", *notes)
    return replace(winner, hardware=tuple(hardware), search=stats, warnings=notes)


def _first_of_each(found: list[Option], name: Callable[[Option], str]) -> list[Option]:
    kept: dict[str, Option] = {}
    for option in found:
        kept.setdefault(name(option), option)
    return list(kept.values())


def _tries(arch: Architecture, wishes: Wishes, pricing: Pricing) -> Iterator[_Try]:
    """Every rented accelerator at every count its usual system allows, with the least time and money it could take."""
    from gpuwise.facts.naming import find_cluster

    seq_len = wishes.seq_len or default_seq_len(arch, fine_tuning=wishes.fine_tuning)[0]
    base = Strategy(lora_rank=wishes.lora_rank, precision=wishes.precision[0])
    work = flop_per_token(arch, seq_len, base, wishes.packed_document_len) * tokens_of(wishes)
    for accelerator_id in sorted({o.accelerator_id for o in offers()}):
        peaks = [accelerators()[accelerator_id].peak_flop_per_s.get(p) for p in wishes.precision]
        if None in peaks:
            continue
        peak = max(p for p in peaks if p is not None)
        for n in COUNTS:
            try:
                cluster = find_cluster(f"{n}x{accelerator_id}")
                price = price_of(cluster, pricing.today, usd_per_hour=pricing.usd_per_hour, provider=pricing.provider)
            except GpuwiseError:
                continue
            if price is not None:
                seconds = work / (n * peak * BEST_MFU)
                yield _Try(cluster, seconds, seconds * n * price.expected / HOUR_S)


def _attempt(arch: Architecture, cluster: Cluster, wishes: Wishes, pricing: Pricing) -> Plan | None:
    try:
        return plan_on(arch, cluster, wishes, pricing)
    except GpuwiseError:
        return None
