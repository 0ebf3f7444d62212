"""The ranking in sentences: the verdict, what else, and why not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuwise.facts.offers.offer import offers_for
from gpuwise.facts.offers.purchases import month_or_year
from gpuwise.interval import P80
from gpuwise.pick.candidates import CODES, Acquisition, Exclusion
from gpuwise.pick.jobs import ModelJob
from gpuwise.pick.limits import Limits
from gpuwise.pick.outcomes import CHANGED, WIDER_BONUS, Outcome
from gpuwise.pick.passes import PassJob
from gpuwise.pick.ranking import Ranking, T, alike, best_of
from gpuwise.units import format_duration, format_number, format_usd, ordinal

OBJECTIVE_WORDS = {
    "cost": "the cheapest",
    "time": "the fastest",
    "balance": "the best time for its money",
    "value": "the cheapest per unit of work",
    "energy": "the most frugal",
}
NAMED = 4
"""Maximum number of names listed for a group of exclusions."""


@dataclass(frozen=True, slots=True)
class LeftOutGroup:
    """Accelerators excluded for one reason."""

    code: str
    heading: str
    count: int
    named: tuple[tuple[str, str], ...]
    """(name, why), nearest misses first."""


def hardware(o: Outcome) -> str:
    """``2x RTX 3090``."""
    return f"{o.n}x {o.cluster.accelerator.name}"


def money(usd: float) -> str:
    """``$0.30``, ``$412``, ``$3.3M``."""
    if usd >= 1e6:
        return f"${usd / 1e6:.2f}M"
    return "$0" if usd == 0 else f"${usd:,.0f}" if usd >= 100 else f"${usd:.2f}"


def price_words(way: Acquisition) -> str:
    """``$0.39/h``, ``$750 used``, ``free, colab``."""
    if way.rent is not None:
        return f"{format_usd(way.rent.expected)}/h"
    if way.notebook is not None:
        return ("free" if way.notebook.free else f"{money(way.notebook.usd_per_month)}/mo") + f", {way.notebook.provider}"
    assert way.purchase is not None
    return f"{money(way.purchase.median)} {way.condition}"


def how_words(o: Outcome) -> str:
    """``rented at $0.35 an hour (from $0.34 at runpod)``, ``used, $700 (2026-09)``, ``Kaggle, free``."""
    way = o.way
    if way.rent is not None:
        cheapest = next(iter(offers_for(way.accelerator.id)), None)
        least = "" if cheapest is None else f", from {format_usd(cheapest.on_demand_usd_per_hour)} at {cheapest.provider}"
        return f"{format_usd(way.rent.expected)} a GPU-hour{least}"
    if way.notebook is not None:
        plan = way.notebook
        fee = "free" if plan.free else f"{format_usd(plan.usd_per_month)} a month"
        return f"{plan.provider} {plan.plan}, {fee}"
    assert way.purchase is not None
    when = "" if way.purchase.as_of is None else f" in {month_or_year(way.purchase.as_of)}"
    around = f" and {format_usd(o.bill.box_usd)} for the machine around it" if o.bill.box_usd else ""
    return f"{way.condition}, {format_usd(way.purchase.median)} each{when}{around}"


def result_words(job: ModelJob | PassJob, o: Outcome) -> str:
    """``1.5 h for $0.52`` or ``35 tokens/s to each user for $312 a year``."""
    if not job.serving:
        return f"{format_duration(o.time_s.expected)} for {paid(o)}"
    if isinstance(job, PassJob):
        rate = f"{format_number(o.tokens_per_s.expected * o.n)} {job.rate_title.replace('tok/', 'tokens/')}"
    else:
        rate = f"{format_number(o.tokens_per_s.expected)} tokens/s to each user"
    return f"{rate} for {paid(o)} over {job.hours:,.0f} hours"


def paid(o: Outcome) -> str:
    """``$178``, or of a purchase ``$192 and $136 of electricity``: a budget is for the first; what it is resold for is off it."""
    power = o.bill.power_usd
    rest = o.cost_usd.expected - power
    return f"{format_usd(rest)} and {format_usd(power)} of electricity" if power else format_usd(o.cost_usd.expected)


def verdict(job: ModelJob | PassJob, limits: Limits, ranking: Ranking[Outcome]) -> tuple[str, ...]:
    """The answer in sentences, the best way first."""
    if not ranking.ranked:
        return (nothing(job, limits, ranking),)
    first = ranking.ranked[0]
    sentences = [sentence(job, first)]
    for how in ("rent", "buy", "notebook"):
        other = best_of(ranking.ranked, how)
        if other is not None and other.way.how != first.way.how:
            pays = _pays(first, other) or _pays(other, first)
            text = sentence(job, other)
            sentences.append(f"Or {text[:1].lower()}{text[1:-1]}{pays}.")
    if first.tier == CHANGED:
        sentences.append("Nothing within the limits does it as asked: " + ", ".join(first.changes) + " changes the result.")
    alternatives = _others(ranking.ranked, first)
    if alternatives:
        hardware_texts = dict.fromkeys(f"{hardware(o)} ({_short(job, limits, o)})" for o in alternatives[:3])
        sentences.append("If it is not available: " + ", ".join(hardware_texts) + ".")
    tied = [o for o in alternatives[:9] if alike(first, o, limits.objective)]
    if tied:
        sentences.append(f"Within the {P80} intervals {_count(tied)} are equal to it by {_what(limits)}.")
    return tuple(sentences)


def sentence(job: ModelJob | PassJob, o: Outcome) -> str:
    """``Rent 1x RTX 5090 ($0.39 a GPU-hour, from $0.36 at vast): 45 min for $0.29, with full recompute.``"""
    return f"{_verb(o)} {hardware(o)} ({how_words(o)}): {result_words(job, o)}{_with(o)}."


def _others(ranked: Sequence[Outcome], first: Outcome) -> list[Outcome]:
    """Later entries of the same form of acquisition, each accelerator once."""
    accelerator_ids = {first.cluster.accelerator.id}
    outcomes: list[Outcome] = []
    for o in ranked:
        if o.way.how == first.way.how and o.cluster.accelerator.id not in accelerator_ids:
            accelerator_ids.add(o.cluster.accelerator.id)
            outcomes.append(o)
    return outcomes


def _short(job: ModelJob | PassJob, limits: Limits, o: Outcome) -> str:
    if limits.objective in ("time", "balance"):
        rate = job.rate_title.replace("tok/", "tokens/")
        return f"{format_number(o.tokens_per_s.expected)} {rate}" if job.serving else format_duration(o.time_s.expected)
    return format_usd(o.cost_usd.expected)


def nothing(job: ModelJob | PassJob, limits: Limits, ranking: Ranking[Outcome]) -> str:
    """Why there is no answer, with the nearest miss."""
    nearest = max(ranking.left_out, key=lambda out: (out.progress, -out.short), default=None)
    if nearest is None:
        return f"Nothing can {job.name} within these limits."
    return (
        f"Nothing can {job.name} within these limits; nearest is {nearest.way.accelerator.name} "
        f"({nearest.way.label}): {nearest.why}."
    )


def default_words(job: ModelJob | PassJob, limits: Limits) -> str:
    """How the ranking is ordered, in words."""
    first = (
        "full software comes before partial, the job as asked before the job with a change, what surely fits, at prices of "
        "today, counts seen on offer and several systems for a day at least, before others, CUDA before what is less than "
        "half as fast again; compared at the worse end of the "
        f"{P80} interval, so a surer prediction wins over an equal guess"
    )
    if "rent" in limits.ways:
        first += ", a rent at what a typical provider asks"
    if isinstance(job, ModelJob) and job.purpose == "infer":
        first += f", and {100 * (1 - WIDER_BONUS):.0f} % off where weights of twice the width would fit too"
    what = OBJECTIVE_WORDS[limits.objective]
    if limits.by is not None:
        return f"{what} first, as asked; {first}"
    if limits.objective == "balance":
        speed = ("most tokens a second" if job.purpose == "infer" else "the fastest") if job.serving else "least time"
        within = f"within {format_usd(limits.budget_usd or 0)} (time x root of money, half the budget counted as spent)"
        return f"{speed} for its money {within}; {first}"
    if limits.objective == "time":
        speed = "most tokens a second to each user" if job.purpose == "infer" else "the fastest"
        return f"{speed} within {format_usd(limits.budget_usd or 0)}; {first}"
    within = ""
    if not job.serving:
        within = f" within {format_duration(limits.deadline_s)}" if limits.deadline_s else " within 30 days"
    return f"the cheapest{within}; {first}"


def groups(ranking: Ranking[T]) -> tuple[LeftOutGroup, ...]:
    """The accelerators of which no way is ranked, by the reason of the way that came furthest."""
    have = {o.way.accelerator.id for o in ranking.ranked}
    furthest: dict[str, Exclusion] = {}
    for out in ranking.left_out:
        name = out.way.accelerator.id
        previous = furthest.get(name)
        if name not in have and (previous is None or (out.progress, -out.short) > (previous.progress, -previous.short)):
            furthest[name] = out
    group_list: list[LeftOutGroup] = []
    for code, (_, heading) in sorted(CODES.items(), key=lambda item: -item[1][0]):
        members = [o for o in furthest.values() if o.code == code]
        if members:
            group_list.append(
                LeftOutGroup(code, heading, len(members), tuple((o.way.accelerator.name, o.why) for o in _notable(members)))
            )
    return tuple(group_list)


def _notable(members: Iterable[Exclusion]) -> Sequence[Exclusion]:
    """Nearest misses first; where a miss has no size, the newest and largest devices."""
    return sorted(members, key=lambda o: (o.short, -o.way.accelerator.year, -o.way.accelerator.memory_bytes))[:NAMED]


def _verb(o: Outcome) -> str:
    return {"rent": "Rent", "buy": "Buy", "notebook": "Use"}[o.way.how]


def _with(o: Outcome) -> str:
    return f", with {', '.join(o.changes)}" if o.changes else ""


def _pays(bought: Outcome, rented: Outcome) -> str:
    """How many such jobs a purchase pays off after."""
    if bought.way.purchase is None or rented.way.rent is None:
        return ""
    outlay = bought.way.purchase.median * bought.n + bought.bill.box_usd
    saved = rented.cost_usd.expected - bought.bill.power_usd
    if saved <= 0:
        return ", which renting undercuts on electricity alone"
    jobs = outlay / saved
    return f"; buying pays from the {ordinal(round(jobs))} such job on" if jobs > 1.5 else ""


def _count(tied: Sequence[Outcome]) -> str:
    if len(tied) == 9:
        return "the next nine"
    return hardware(tied[0]) if len(tied) == 1 else f"{len(tied)} of the next {'nine' if len(tied) > 3 else 'few'}"


def _what(limits: Limits) -> str:
    return {"cost": "cost", "time": "time", "balance": "time", "value": "price of work", "energy": "energy"}[limits.objective]
