"""The tries of a way for a job that trains or serves: counts with their bounds, and what runs the prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.money.energy import energy, energy_of_run
from gpuwise.money.run.cost import run_cost
from gpuwise.money.run.goodput import operate
from gpuwise.pick.candidates import (
    Acquisition,
    Exclusion,
    cluster_of,
    counts_for,
    left_out,
    not_in_limits,
    placed,
    software_for,
)
from gpuwise.pick.jobs import ModelJob
from gpuwise.pick.limits import Limits
from gpuwise.pick.outcomes import TIGHT_SHARE, UNMEASURED, WIDER_BONUS, Outcome, friction, level, on_offer, too_brief
from gpuwise.pick.owning import Bill, Terms, bill, least_bill_usd, resale_share
from gpuwise.pick.pass_tries import pass_tries
from gpuwise.pick.passes import PassJob
from gpuwise.pick.ranking import Candidate, least_budget, time_limit_s, too_large
from gpuwise.pick.serving import (
    Service,
    TooLargeToServe,
    can_serve,
    fitting_bits,
    least_replicas,
    least_short,
    least_token_s,
    most_sequences,
    ranks_for,
    serve_on,
    tier_of,
    wider_fits,
)
from gpuwise.pick.training import (
    TooLarge,
    TrainingChoice,
    crowding,
    least_short_bytes,
    least_time_s,
    possible_fallbacks,
    train_on,
)
from gpuwise.plan.hardware import SHORTEST_S, surely_short
from gpuwise.plan.whole_run import run_of, whole_time
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.units import HOUR_S, PETA, format_duration

LEAST_WEEK_H = 7.0
"""A plan without sessions that lends less than an hour a day answers calls; it runs no training."""
MOST_SPLITS = 4
"""Splits of a replica looked at for one way, the smallest that hold it."""
Predict = Callable[[ModelJob, Cluster], TrainingChoice | TooLarge]
Serve = Callable[[ModelJob, Cluster, int], Service | TooLargeToServe]


class Predictions:
    """Exact predictions, each made once however many ways lead to the same cluster."""

    def __init__(self) -> None:
        self._trained: dict[tuple[ModelJob, Cluster], TrainingChoice | TooLarge | InputError | UnpredictableError] = {}
        self._served: dict[tuple[ModelJob, Cluster, int], Service | TooLargeToServe | InputError | UnpredictableError] = {}

    def train(self, job: ModelJob, cluster: Cluster) -> TrainingChoice | TooLarge:
        """:func:`train_on`, remembered. Raises what it raises."""
        key = (job, cluster)
        if key not in self._trained:
            try:
                self._trained[key] = train_on(job, cluster)
            except (InputError, UnpredictableError) as error:
                self._trained[key] = error
        got = self._trained[key]
        if isinstance(got, (InputError, UnpredictableError)):
            raise got
        return got

    def serve(self, job: ModelJob, cluster: Cluster, ranks: int) -> Service | TooLargeToServe:
        """:func:`serve_on`, remembered. Raises what it raises."""
        key = (job, cluster, ranks)
        if key not in self._served:
            try:
                self._served[key] = serve_on(job, cluster, ranks)
            except (InputError, UnpredictableError) as error:
                self._served[key] = error
        got = self._served[key]
        if isinstance(got, (InputError, UnpredictableError)):
            raise got
        return got


def tries_of(
    job: ModelJob | PassJob, way: Acquisition, limits: Limits, terms: Terms, predictions: Predictions
) -> Iterator[Candidate[Outcome] | Exclusion]:
    """The counts worth predicting, and why others are not."""
    if isinstance(job, PassJob):
        return pass_tries(job, way, limits, terms, _notes)
    return (_serving if job.serving else _training)(job, way, limits, terms, predictions)


def _training(
    job: ModelJob, way: Acquisition, limits: Limits, terms: Terms, predictions: Predictions
) -> Iterator[Candidate[Outcome] | Exclusion]:
    accelerator, most_s = way.accelerator, time_limit_s(limits)
    for n in counts_for(way, limits):
        cluster = cluster_of(accelerator.id, n)
        if cluster is None:
            continue
        violation = not_in_limits(way, n, limits)
        if violation is not None:
            yield left_out(way, *violation)
            break
        try:
            least_s = least_time_s(job, accelerator, n)
        except UnpredictableError as error:
            yield left_out(way, "unpredicted", error.message)
            return
        possible = possible_fallbacks(job, accelerator, n)
        if not possible:
            yield too_large(way, n, least_short_bytes(job, accelerator, n).short_bytes)
            continue
        if least_s > most_s:
            yield left_out(way, "slow", f"{n}x takes at least {format_duration(least_s)}", least_s)
            continue
        usd = least_bill_usd(way, n, least_s, terms)
        over = least_budget(way, n, usd, limits)
        if over is not None:
            yield over
            if way.purchase is not None:
                return
            continue
        if n > 1 and surely_short(least_s, limits.deadline_s) and _few_do(job, way, n):
            return
        there = placed(way, cluster, limits.have)
        rate = job.flop / least_s
        yield Candidate(
            way,
            n,
            _level_of(possible[0].tier, way, cluster, job.purpose, least_s),
            crowding(job, accelerator, n),
            least_s,
            usd,
            _least_pflop_usd(way, n, rate, terms),
            _least_kwh(cluster, least_s, limits),
            _runner(job, way, there, terms, predictions),
            friction(way, n),
        )


def _level_of(tier: int, way: Acquisition, cluster: Cluster, purpose: str, least_s: float) -> int:
    """The level of a try, lower for systems together that would be needed for less than anybody rents them out even where the
    work takes twice its bound."""
    plain = level(tier, way, cluster.n_accelerators, purpose)
    return plain + (too_brief(way, cluster, 2 * least_s) and plain % 2 == 0)


def _few_do(job: ModelJob, way: Acquisition, n: int) -> bool:
    """Whether half of ``n`` may do it within :data:`~gpuwise.plan.hardware.SHORTEST_S`, and a single one is left half free by the
    lightest fallback, so that more are not needed for memory."""
    if least_time_s(job, way.accelerator, 1) >= SHORTEST_S * n / 2:
        return False
    return bool(possible_fallbacks(job, way.accelerator, 1)) and least_short_bytes(job, way.accelerator, 1).short_bytes < -(
        way.accelerator.memory_bytes / 2
    )


def _runner(
    job: ModelJob, way: Acquisition, cluster: Cluster, terms: Terms, predictions: Predictions
) -> Callable[[], Outcome | Exclusion]:
    def run() -> Outcome | Exclusion:
        got = predictions.train(job, cluster)
        if isinstance(got, TooLarge):
            return too_large(way, cluster.n_accelerators, got.short_bytes)
        return unpromised(way, whole_time(job.arch, cluster, got.estimate, job.tokens)) or trained_outcome(
            job, way, cluster, got, terms
        )

    return run


def unpromised(way: Acquisition, busy_s: Estimate) -> Exclusion | None:
    """A notebook without published weekly hours counts for one session only."""
    plan = way.notebook
    if plan is None:
        return None
    if plan.session_hours is None and plan.hours_per_week is not None and plan.hours_per_week < LEAST_WEEK_H:
        return left_out(way, "slow", f"lends {60 * plan.hours_per_week / 7:.0f} minutes a day, for calls and not for runs")
    if plan.hours_per_month is not None:
        return None
    session_s = 0.0 if plan.session_hours is None else plan.session_hours * HOUR_S
    if busy_s.expected <= session_s:
        return None
    ends = "how long a session lasts is not published" if session_s == 0 else f"a session ends after {plan.session_hours:g} h"
    return left_out(
        way, "slow", f"takes {format_duration(busy_s.expected)}, {ends}, and no hours are promised beyond it", busy_s.expected
    )


def _run_bill(job: ModelJob, way: Acquisition, cluster: Cluster, e: TrainingEstimate, terms: Terms) -> tuple[Estimate, Bill]:
    """Seconds of the whole run, and its bill: the energy that ``plan`` counts, and of rented hardware what it counts beside the
    hours (checkpoints, data, weights taken away)."""
    run = run_of(job.arch, cluster, e, job.tokens, way.rent)
    try:
        done = operate(run)
    except UnpredictableError:
        return run.time_s, bill(way, cluster, run.time_s, terms)
    cost = bill(way, cluster, done.wall_s, terms, of_run=energy_of_run(done))
    if way.rent is not None:
        total = run_cost(run, done).total_usd
        cost = replace(cost, cost_usd=total, outlay_usd=total.expected)
    return done.wall_s, cost


def trained_outcome(job: ModelJob, way: Acquisition, cluster: Cluster, got: TrainingChoice, terms: Terms) -> Outcome:
    """Outcome of the job with this acquisition, from its prediction."""
    e = got.estimate
    busy, cost = _run_bill(job, way, cluster, e, terms)
    rate = job.flop / busy.expected
    return Outcome(
        way=way,
        cluster=cluster,
        time_s=cost.calendar_s,
        tokens_per_s=e.tokens_per_s,
        capacity_tokens_per_s=e.tokens_per_s.expected,
        bill=cost,
        flop=job.flop,
        flop_per_s=rate,
        memory_bytes=e.device_bytes - e.headroom_bytes,
        device_bytes=e.device_bytes,
        fit_probability=e.fit_probability,
        changes=got.changes,
        tier=got.fallback.tier,
        purpose=job.purpose,
        layout=got.layout,
        support=software_for(way.accelerator, job.purpose),
        notes=_notes(way, cluster.n_accelerators),
        device_high=got.device_high,
        interrupted=_interrupted(way, busy),
    )


def _serving(
    job: ModelJob, way: Acquisition, limits: Limits, terms: Terms, predictions: Predictions
) -> Iterator[Candidate[Outcome] | Exclusion]:
    accelerator = way.accelerator
    lent = way.notebook.hours_per_month if way.notebook is not None else None
    busy_share = job.hours / (12 * job.years)
    if way.notebook is not None and (lent or 0.0) < busy_share:
        allowed = "no hours promised" if lent is None else f"lends {lent:.0f} hours a month"
        yield left_out(way, "slow", f"{allowed} of the {busy_share:.0f} wanted", busy_share - (lent or 0.0))
        return
    if not can_serve(job, accelerator):
        yield left_out(way, "software", "vLLM is not known to run on it, and llama.cpp serves one user")
        return
    counts = counts_for(way, limits)
    whole = counts[0] if way.purchase is not None and counts else 1
    possible = [n for n in ranks_for(job, accelerator) if counts and n <= counts[-1]]
    if not possible:
        n = min(max(counts, default=1), 16)
        yield too_large(way, n, least_short(job, accelerator, n).short_bytes)
        return
    for ranks in possible[:MOST_SPLITS]:
        cluster = cluster_of(accelerator.id, ranks)
        if cluster is None or (ranks > 1 and cluster.n_systems > 1):
            if ranks == possible[0]:
                yield left_out(way, "memory", f"one model takes {ranks} of them, more than one machine has")
            continue
        least_n = max(ranks * least_replicas(job, accelerator, ranks), whole)
        violation = not_in_limits(way, least_n, limits)
        if violation is not None:
            yield left_out(way, *violation)
            continue
        token_s = least_token_s(job, accelerator, ranks)
        if 1 / token_s < job.load.least_tokens_per_s:
            yield left_out(way, "slow", f"{ranks}x writes at most {1 / token_s:.2g} tokens a second", token_s)
            continue
        usd = least_bill_usd(way, least_n, job.hours * HOUR_S, terms)
        over = least_budget(way, least_n, usd, limits)
        if over is not None:
            yield over
            continue
        bits = fitting_bits(job, accelerator, ranks) or job.bits[-1]
        batch = job.load.users or most_sequences(job, accelerator, ranks)
        rate = job.flop_per_served_token * batch / token_s * least_n / ranks
        there = placed(way, cluster, limits.have)
        yield Candidate(
            way,
            least_n,
            level(tier_of(job, bits), way, ranks, job.purpose),
            1.0,
            token_s,
            usd,
            _least_pflop_usd(way, least_n, rate, terms),
            _least_kwh(cluster, job.hours * HOUR_S, limits) * least_n / ranks,
            _server(job, way, there, ranks, limits, terms, predictions),
            WIDER_BONUS * friction(way, ranks),
            ends=False,
        )


def _server(
    job: ModelJob, way: Acquisition, cluster: Cluster, ranks: int, limits: Limits, terms: Terms, predictions: Predictions
) -> Callable[[], Outcome | Exclusion]:
    def run() -> Outcome | Exclusion:
        got = predictions.serve(job, cluster, ranks)
        if isinstance(got, TooLargeToServe):
            return too_large(way, ranks, got.short_bytes)
        n = got.ranks * got.replicas
        sure = surely(got.tokens_per_s)
        if sure < job.load.least_tokens_per_s:
            return left_out(way, "slow", f"{n}x writes {sure:.2g} tokens a second for one user")
        counts = counts_for(way, limits)
        if counts and n > counts[-1]:
            return left_out(way, "slow", f"the load takes {n} of them, {counts[-1]} can be had")
        violation = not_in_limits(way, n, limits)
        if violation is not None:
            return left_out(way, *violation)
        return served_outcome(job, way, cluster, got, terms, max(n, counts[0]) if way.purchase is not None else n)

    return run


def surely(speed: Estimate) -> float:
    """Conservative speed: the expected one if the device or its family was measured, else its pessimistic end."""
    return speed.low if speed.basis in UNMEASURED else speed.expected


def _for_the_years(cost: Bill, way: Acquisition, job: ModelJob) -> Bill:
    """The bill of a notebook that is used through all of the period: its fee is due every month, however few its hours."""
    if way.notebook is None or cost.cost_usd.expected <= 0:
        return cost
    fee = max(cost.cost_usd.expected, 12 * job.years * way.notebook.usd_per_month)
    return replace(
        cost, cost_usd=replace(cost.cost_usd, low=fee, expected=fee, high=fee), outlay_usd=fee, usd_per_hour=fee / job.hours
    )


def served_outcome(job: ModelJob, way: Acquisition, cluster: Cluster, got: Service, terms: Terms, n: int) -> Outcome:
    """Outcome of the load with this acquisition, from its prediction, on the ``n`` accelerators required."""
    hours = job.hours * HOUR_S
    whole = replace(cluster, n_accelerators=n)
    cost = _for_the_years(bill(way, whole, Estimate(hours, hours, hours, "specified"), terms, "serving"), way, job)
    rate = got.tokens_per_s
    wait = rate.inverse()
    flop_per_s = got.capacity_tokens_per_s * job.flop_per_served_token
    changes = () if got.tier == 0 and got.bits == 16 else (f"{got.bits}-bit weights ({got.replica.weights})",)
    split = (
        f"{got.replicas} replica{'s' if got.replicas > 1 else ''} of {got.ranks}"
        if got.replicas * got.ranks > 1
        else "one device"
    )
    return Outcome(
        way=way,
        cluster=whole,
        time_s=wait,
        tokens_per_s=rate,
        capacity_tokens_per_s=got.capacity_tokens_per_s,
        bill=cost,
        flop=job.flop or flop_per_s * hours,
        flop_per_s=flop_per_s,
        memory_bytes=got.memory.total,
        device_bytes=got.memory.most,
        changes=changes,
        tier=got.tier,
        purpose=job.purpose,
        layout=f"{got.replica.program}, {split}, batch {got.batch}",
        support=software_for(way.accelerator, "infer"),
        notes=(*got.replica.notes, *_notes(way, whole.n_accelerators)),
        wider=wider_fits(job, way.accelerator, got.bits, got.ranks),
        tight=job.load.users > 0 and got.memory.total > TIGHT_SHARE * got.memory.most,
        ends=False,
        split=got.ranks,
    )


def _interrupted(way: Acquisition, busy_s: Estimate) -> bool:
    """Whether a plan that promises nothing ends its sessions before the work is done."""
    plan = way.notebook
    return plan is not None and not plan.guaranteed and busy_s.expected > (plan.session_hours or 24.0) * HOUR_S


def _notes(way: Acquisition, n: int) -> tuple[str, ...]:
    """Warnings about this acquisition."""
    notes: list[str] = []
    if way.rent is not None:
        if way.rent.stale:
            notes.append(f"the price is {way.rent.age_days} days old")
        if not on_offer(way, n):
            notes.append(f"no offer seen has {n} in one machine")
    if way.purchase is not None and way.purchase.as_of is None:
        notes.append(f"the price is the catalogue's ({way.purchase.kind}), undated")
    if way.notebook is not None and not way.notebook.guaranteed:
        notes.append("given out as available, not promised")
    if way.notebook is not None and way.notebook.session_hours is not None:
        notes.append(f"sessions of {way.notebook.session_hours:g} h: resume from checkpoints")
    return tuple(notes)


def _least_kwh(cluster: Cluster, seconds: float, limits: Limits) -> float:
    """Energy of the bound, when it is what is ranked by."""
    if limits.objective != "energy":
        return 0.0
    consumption = energy(Estimate(seconds, seconds, seconds, "specified"), cluster)
    return float("inf") if consumption is None else consumption.kwh.expected


def _least_pflop_usd(way: Acquisition, n: int, flop_per_s: float, terms: Terms) -> float:
    """No price of a PFLOP is lower: the hourly price, or the purchase over its life, at the rate of the bound."""
    if way.rent is not None:
        hourly = n * way.rent.expected
    elif way.purchase is not None:
        hours = terms.lifetime_years * 365.25 * 24
        hourly = n * way.purchase.median * (1 - resale_share(way.accelerator, terms.lifetime_years)) / hours
    else:
        hourly = 0.0
    return hourly / (flop_per_s * HOUR_S / PETA)
