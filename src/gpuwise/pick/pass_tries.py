"""The tries of a way for a job of forward passes (embed, rerank, speech, images, videos)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.pick import networks
from gpuwise.pick.candidates import Acquisition, Exclusion, cluster_of, counts_for, left_out, not_in_limits, placed, software_for
from gpuwise.pick.limits import Limits
from gpuwise.pick.outcomes import CHANGED, SAME, TIGHT_SHARE, Outcome, friction, level
from gpuwise.pick.owning import Terms, bill, least_bill_usd, resale_share
from gpuwise.pick.passes import (
    PassJob,
    PassRate,
    TooLargeToRun,
    changes_of,
    copies,
    fitting,
    least_copies,
    passes_on,
    together_s,
)
from gpuwise.pick.passes import least_item_s as least_s_of
from gpuwise.pick.ranking import Candidate, least_budget, time_limit_s, too_large
from gpuwise.plan.own.named import NamedStep
from gpuwise.predict.estimate import Estimate
from gpuwise.units import HOUR_S, PETA, format_duration


def pass_tries(
    job: PassJob, way: Acquisition, limits: Limits, terms: Terms, notes: Callable[[Acquisition, int], tuple[str, ...]]
) -> Iterator[Candidate[Outcome] | Exclusion]:
    """One accelerator, and the minimum number of copies for a load's peak or the deadline of a number of items; or the reason
    that there is none."""
    accelerator = way.accelerator
    bits = fitting(job, accelerator)
    if isinstance(bits, TooLargeToRun):
        yield too_large(way, 1, bits.short_bytes)
        return
    counts = counts_for(way, limits)
    cluster = cluster_of(accelerator.id, 1)
    if not counts or cluster is None:
        return
    if job.serving and way.notebook is not None:
        yield left_out(way, "slow", "a notebook promises no hours around the clock")
        return
    try:
        item_s = least_s_of(job, accelerator)
        needed = least_copies(job, accelerator) if job.serving else _shares(job.items * item_s, limits)
        n = max(needed, counts[0])
    except UnpredictableError as error:
        yield left_out(way, "unpredicted", error.message)
        return
    if n > counts[-1]:
        yield left_out(way, "slow", _too_few(job, f"at least {n}", counts[-1], limits))
        return
    violation = not_in_limits(way, n, limits)
    if violation is not None:
        yield left_out(way, *violation)
        return
    busy_s = job.hours * HOUR_S if job.serving else job.items * item_s / n
    usd = least_bill_usd(way, n, busy_s, terms)
    over = least_budget(way, n, usd, limits)
    if over is not None:
        yield over
        return
    there = placed(way, cluster, limits.have)
    tier = SAME if bits == job.bits[0] else CHANGED
    yield Candidate(
        way,
        n,
        level(tier, way, n if job.trained is not None else 1, job.purpose),
        1.0,
        item_s if job.serving else busy_s,
        usd,
        _least_pflop_usd(way, job, item_s, terms),
        0.0,
        lambda: _run(job, way, there, limits, terms, notes),
        friction(way, 1 if job.serving else n),
        not job.serving,
    )


def _shares(alone_s: float, limits: Limits) -> int:
    """Number of independent accelerators over which items are distributed so that work of ``alone_s`` on one ends in time."""
    return max(1, math.ceil(alone_s / time_limit_s(limits) - 1e-9))


def _late(job: PassJob, got: PassRate, cluster: Cluster, limits: Limits) -> bool:
    """Whether what they add up together keeps them beyond the limit, and more of them would help."""
    fewer = replace(cluster, n_accelerators=max(cluster.n_accelerators - 1, 1))
    seconds, before = together_s(job, got, cluster).expected, together_s(job, got, fewer).expected
    return seconds > time_limit_s(limits) and (cluster.n_accelerators == 1 or seconds < before)


def _too_few(job: PassJob, needed: str, most: int, limits: Limits) -> str:
    what = "the load takes" if job.serving else f"{format_duration(time_limit_s(limits))} take"
    return f"{what} {needed} of them, {most} can be had"


def _run(
    job: PassJob,
    way: Acquisition,
    cluster: Cluster,
    limits: Limits,
    terms: Terms,
    notes: Callable[[Acquisition, int], tuple[str, ...]],
) -> Outcome | Exclusion:
    got = passes_on(job, cluster)
    if isinstance(got, TooLargeToRun):
        return too_large(way, 1, got.short_bytes)
    counts = counts_for(way, limits)
    n = max(copies(job, got) if job.serving else _shares(got.items_per_s.inverse(job.items).expected, limits), counts[0])
    while n < counts[-1] and not job.serving and _late(job, got, replace(cluster, n_accelerators=n), limits):
        n += 1
    if n > counts[-1]:
        return left_out(way, "slow", _too_few(job, str(n), counts[-1], limits))
    violation = not_in_limits(way, n, limits)
    return left_out(way, *violation) if violation is not None else _outcome(job, way, cluster, got, terms, n, notes(way, 1))


def _outcome(
    job: PassJob, way: Acquisition, cluster: Cluster, got: PassRate, terms: Terms, n: int, notes: tuple[str, ...]
) -> Outcome:
    whole = replace(cluster, n_accelerators=n)
    hours = job.hours * HOUR_S
    busy = Estimate(hours, hours, hours, "specified") if job.serving else together_s(job, got, whole)
    of_run = networks.energy_on(job.model, whole, busy) if isinstance(job.model, NamedStep) else None
    cost = bill(way, whole, busy, terms, "serving" if job.trained is None else "training", of_run)
    rate = got.items_per_s
    changes = tuple(changes_of(job, got))
    return Outcome(
        way=way,
        cluster=whole,
        time_s=rate.inverse() if job.serving else cost.calendar_s,
        tokens_per_s=rate,
        capacity_tokens_per_s=rate.expected * n,
        bill=cost,
        flop=job.flop,
        flop_per_s=rate.expected * job.flop_per_item * n,
        memory_bytes=got.memory_bytes,
        device_bytes=got.device_bytes,
        changes=changes,
        tier=got.tier,
        purpose=job.purpose,
        layout=got.layout if n == 1 else f"dp {n}, {got.layout}" if job.trained is not None else f"{got.layout}, {n} replicas",
        support=software_for(way.accelerator, job.purpose),
        notes=notes,
        fit_probability=got.fit_probability,
        ends=not job.serving,
        split=0 if job.trained is not None else 1,
        tight=job.purpose == "video" and got.memory_bytes > TIGHT_SHARE * got.device_bytes,
    )


def _least_pflop_usd(way: Acquisition, job: PassJob, item_s: float, terms: Terms) -> float:
    """No price of a PFLOP is lower: the hourly price, or the purchase over its life, at the rate of the bound."""
    if way.rent is not None:
        hourly = way.rent.expected
    elif way.purchase is not None:
        life_h = terms.lifetime_years * 365.25 * 24
        hourly = way.purchase.median * (1 - resale_share(way.accelerator, terms.lifetime_years)) / life_h
    else:
        hourly = 0.0
    return hourly * item_s / HOUR_S / (job.flop_per_item / PETA)
