"""From acquisitions to a ranking: exclude, bound, then predict exactly, best bound first.

A *try* is an acquisition at one count with lower bounds of its time and money. Tries are predicted in the order of that bound.
Once enough are predicted and the next bound loses to all of them, no later one can win. The rest is excluded as beaten, with
its bound.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import product_of
from gpuwise.pick.candidates import Acquisition, Exclusion, left_out, refused, software_for, ways
from gpuwise.pick.limits import Limits, balance
from gpuwise.pick.outcomes import LEVELS, Outcome, small
from gpuwise.pick.owning import Bill, counted_usd
from gpuwise.plan.hardware import PATIENCE_S, SHORTEST_S
from gpuwise.predict.estimate import Estimate
from gpuwise.units import GIB, format_bytes, format_duration, format_number, format_usd

Key = tuple[int, float]
Name = tuple[str, str, str]


class Rankable(Protocol):
    """Item of a ranking: :class:`~gpuwise.pick.outcomes.Outcome`, or a list of exercises done."""

    @property
    def way(self) -> Acquisition: ...
    @property
    def n(self) -> int: ...
    @property
    def level(self) -> int: ...
    @property
    def time_s(self) -> Estimate: ...
    @property
    def cost_usd(self) -> Estimate: ...
    @property
    def bill(self) -> Bill: ...
    @property
    def ends(self) -> bool: ...
    def at_worst(self, objective: str) -> float: ...


T = TypeVar("T", bound=Rankable)
TRIES_A_WAY, DONE_A_WAY = 6, 2
"""Counts predicted for one way at most, and those that do the job."""
MOST_TRIES = {"rent": 16, "buy": 14, "notebook": 6}
"""Predictions for each kind of way. Beyond them only what may beat the very best is predicted, so that the first of each
kind is the first of all; the places after it are the best of what was predicted."""


MEET_SOFTWARE = ("train", "finetune", "vision", "image", "video", "learn")
"""Purposes for which a person works in the software: what it serves in part is named apart while anything is served fully."""


@dataclass(frozen=True, slots=True)
class Candidate(Generic[T]):
    """One way at ``n``. ``least_*`` are bounds; ``run`` predicts, and returns why not when the job cannot be done."""

    way: Acquisition
    n: int
    level: int
    crowding: float
    """At least 1: how much slower than its bound it is thought to be, from how full it would be. It orders the tries and
    decides nothing else."""
    least_s: float
    least_usd: float
    least_pflop_usd: float
    least_kwh: float
    run: Callable[[], T | Exclusion]
    favour: float = 1.0
    """Lower bound of the factor by which the ranking multiplies time and cost (:meth:`Outcome.at_worst`)."""
    ends: bool = True
    """The work ends, in ``least_s``; else that is the time of a token or an item."""

    def key(self, limits: Limits) -> Key:
        """No outcome of it comes before this."""
        values = {
            "time": self.least_s,
            "value": self.least_pflop_usd * self.way.market,
            "energy": self.least_kwh,
            "cost": self.least_usd * self.way.market,
        }
        objective, tier = limits.objective, self.level + lent(self.way, limits)
        if objective == "balance":
            seconds = waited_s(self.least_s * self.favour, self)
            return tier, balance(seconds, self.least_usd * self.way.market, limits)
        return tier, values[objective] * self.favour


@dataclass(frozen=True, slots=True)
class Ranking(Generic[T]):
    """``ranked`` best first, each way once; with ``left_out`` they are all ``considered``."""

    ranked: tuple[T, ...]
    left_out: tuple[Exclusion, ...]
    considered: int
    predicted: int
    capped: bool


class _Search(Generic[T]):
    def __init__(self, limits: Limits, keep: int) -> None:
        self.limits, self.keep = limits, keep
        self.found: dict[Name, T] = {}
        self.keys: dict[str, list[Key]] = {}
        self.failed: dict[Name, Exclusion] = {}
        self.tries: dict[Name, int] = {}
        self.done: dict[Name, int] = {}
        self.bounds: dict[Name, Candidate[T]] = {}
        self.predicted: dict[str, int] = {}

    def fail(self, out: Exclusion) -> None:
        """Remember the reason that came furthest."""
        failure = self.failed.get(out.way.key)
        if failure is None or out.progress > failure.progress:
            self.failed[out.way.key] = out

    def beaten(self, t: Candidate[T]) -> bool:
        """Whether no outcome of ``t`` can enter the best ``keep`` of its kind, or the very best once enough are predicted."""
        keep = self.keep if self.predicted.get(t.way.how, 0) < MOST_TRIES[t.way.how] else 1
        best_outcomes = self.best(t)
        return len(best_outcomes) >= keep and t.key(self.limits) >= best_outcomes[keep - 1]

    def larger(self, purpose: str) -> bool:
        """Whether there is a purchase that is not :func:`~gpuwise.pick.outcomes.small`, with full software support if any has
        it."""
        bought = [o for o in self.found.values() if o.way.purchase is not None]
        fully = any(_served_fully(o) for o in bought)
        return any((_served_fully(o) or not fully) and not small(o.way, purpose) for o in bought)

    def best(self, t: Candidate[T]) -> list[Key]:
        """Keys of the results of the same kind as ``t``, best first."""
        how = t.way.how
        if how not in self.keys:
            self.keys[how] = sorted(key_of(o, self.limits) for o in self.found.values() if o.way.how == how)
        return self.keys[how]

    def capped(self, t: Candidate[T]) -> bool:
        """Whether ``t`` may still enter the best ``keep`` though it is not predicted."""
        best_outcomes = self.best(t)
        return len(best_outcomes) < self.keep or t.key(self.limits) < best_outcomes[self.keep - 1]

    def enough(self, t: Candidate[T]) -> bool:
        """Whether this way was tried enough."""
        return self.tries.get(t.way.key, 0) >= TRIES_A_WAY or self.done.get(t.way.key, 0) >= DONE_A_WAY

    def take(self, t: Candidate[T]) -> None:
        """Predict ``t``."""
        key = t.way.key
        self.tries[key] = self.tries.get(key, 0) + 1
        self.predicted[t.way.how] = self.predicted.get(t.way.how, 0) + 1
        try:
            got = t.run()
        except (InputError, UnpredictableError) as error:
            self.fail(left_out(t.way, "unpredicted", error.message))
            return
        if isinstance(got, Exclusion):
            self.fail(got)
            return
        out = outside(got, self.limits)
        if out is not None:
            self.fail(out)
            return
        self.done[key] = self.done.get(key, 0) + 1
        best = self.found.get(key)
        if best is None or key_of(got, self.limits) < key_of(best, self.limits):
            self.found[key] = got
            self.keys.pop(t.way.how, None)


def waited_s(seconds: float, of: Candidate[T] | Rankable) -> float:
    """Time as valued against money: rents of less than an hour count as no waiting."""
    return max(seconds, SHORTEST_S) if of.ends and of.way.purchase is None else seconds


def key_of(outcome: Rankable, limits: Limits) -> Key:
    """Ranking key, ascending: full software support first, then jobs done as requested before jobs with a change, then counts
    with a known offer; then the upper end of the 80 % interval of the objective."""
    objective, tier = limits.objective, outcome.level + lent(outcome.way, limits)
    if objective == "balance":
        seconds = waited_s(outcome.at_worst("time"), outcome)
        return tier, balance(seconds, counted_usd(outcome.way, outcome.bill), limits)
    return tier, outcome.at_worst(objective)


def lent(way: Acquisition, limits: Limits) -> int:
    """Key that ranks notebooks behind everything rented by the hour, if requested."""
    return LEVELS if limits.hourly_first and way.notebook is not None else 0


def rank(
    tries_of: Callable[[Acquisition], Iterator[Candidate[T] | Exclusion]],
    purpose: str,
    limits: Limits,
    today: datetime.date,
    keep: int,
) -> Ranking[T]:
    """Every acquisition, ranked or excluded. ``tries_of`` returns the tries of an acquisition, and reasons for counts without
    one."""
    search: _Search[T] = _Search(limits, keep)
    every: dict[Name, Acquisition] = {}
    tries: list[Candidate[T]] = []
    for way in ways(limits, today):
        every[way.key] = way
        out = refused(way, limits, purpose)
        if out is not None:
            search.fail(out)
            continue
        for t in tries_of(way):
            if isinstance(t, Exclusion):
                search.fail(t)
            else:
                tries.append(t)
    tries.sort(key=lambda t: (t.key(limits)[0], t.key(limits)[1] * t.crowding, t.n))
    queue: list[Candidate[T]] = []
    for t in tries:
        search.bounds.setdefault(t.way.key, t)
        if search.enough(t) or (small(t.way, purpose) and search.larger(purpose)):
            continue
        if search.beaten(t):
            queue.append(t)
        else:
            search.take(t)
    capped = any(search.capped(t) for t in queue if t.way.key not in search.found)
    ranked = sorted(search.found.values(), key=lambda o: (key_of(o, limits), o.cost_usd.expected, o.time_s.expected))
    reasons = [_reason(way, search, purpose) for key, way in every.items() if key not in search.found]
    if purpose in MEET_SOFTWARE and any(_served_fully(o) for o in ranked):
        reasons += [_in_part(o, purpose) for o in ranked if not _served_fully(o)]
        ranked = [o for o in ranked if _served_fully(o)]
    if search.larger(purpose):
        reasons += [_too_small(o.way, o.n, o.cost_usd.expected) for o in ranked if small(o.way, purpose)]
        ranked = [o for o in ranked if not small(o.way, purpose)]
    ranked, boards = _each_product(ranked)
    reasons += boards
    return Ranking(tuple(ranked), tuple(reasons), len(every), sum(search.predicted.values()), capped)


def _each_product(ranked: Sequence[T]) -> tuple[list[T], list[Exclusion]]:
    """The best board of each product in each form of acquisition; the others are excluded in its favour."""
    best: dict[tuple[str, str, str], T] = {}
    kept: list[T] = []
    others: list[Exclusion] = []
    for o in ranked:
        device = o.way.accelerator
        first = best.setdefault((product_of(device.id), o.way.how, o.way.label), o)
        if first.way.accelerator.id == device.id:
            kept.append(o)
        else:
            what = f"{o.n}x: {format_usd(o.cost_usd.expected)}, the chip and memory of {first.way.accelerator.name}"
            others.append(left_out(o.way, "variant", what, o.cost_usd.expected))
    return kept, others


def _served_fully(o: Rankable) -> bool:
    """Whether :func:`~gpuwise.pick.outcomes.level` means full software support."""
    return o.level % LEVELS < 8


def _too_small(way: Acquisition, n: int, usd: float) -> Exclusion:
    return left_out(way, "behind", f"{n}x: {way.accelerator.memory_bytes / GIB:.0f} GB holds this and little after it", usd)


def _in_part(o: Rankable, purpose: str) -> Exclusion:
    support = software_for(o.way.accelerator, purpose)
    why = support.reason if support.level != "full" else "several of them are not served as one is"
    return left_out(o.way, "behind", f"{o.n}x: software in part: {why}", o.cost_usd.expected)


def _reason(way: Acquisition, search: _Search[T], purpose: str) -> Exclusion:
    """Reason that an acquisition is not shown: its bound loses to all that are, or it ranks behind them."""
    t = search.bounds.get(way.key)
    if t is not None and small(way, purpose) and search.larger(purpose):
        return _too_small(way, t.n, t.least_usd)
    if t is not None and search.tries.get(way.key, 0) == 0:
        least, top = t.key(search.limits), search.best(t)[: search.keep]
        if top and least[0] > top[-1][0]:
            return left_out(way, "behind", f"{t.n}x: {_behind(t, top[-1][0], purpose)}", least[1])
        words = _least_words(t, search.limits.objective) if least[1] else "as cheap as those"
        if top and least >= top[-1]:
            return left_out(way, "beaten", f"{t.n}x: {words} even at its best", least[1])
        return left_out(way, "later", f"{t.n}x: {words}, others have the lower bound", least[1])
    failure = search.failed.get(way.key)
    return failure or left_out(way, "unpredicted", "no count of it can be formed within the limits")


def _least_words(t: Candidate[T], objective: str) -> str:
    speed = f"at least {format_duration(t.least_s)}" if t.ends else f"at most {format_number(1 / t.least_s)} a second"
    words = {
        "time": speed,
        "balance": speed,
        "energy": f"at least {t.least_kwh:.3g} kWh",
        "value": f"at least {format_usd(t.least_pflop_usd * 1000)} an EFLOP",
    }
    return words.get(objective, f"at least {format_usd(t.least_usd)}")


def _behind(t: Candidate[T], n_shown: int, purpose: str) -> str:
    """Which part of :func:`~gpuwise.pick.outcomes.level` puts ``t`` behind what is shown."""
    if t.level // 8 > n_shown // 8:
        return f"software in part: {software_for(t.way.accelerator, purpose).reason}"
    if t.level % 8 // 4 > n_shown % 8 // 4:
        return "only with a change to the job"
    if t.way.stale and t.way.purchase is not None and t.way.purchase.as_of is not None:
        return f"its price is of {t.way.purchase.as_of:%Y-%m}"
    return "no known offer has that many in one machine"


def time_limit_s(limits: Limits) -> float:
    """How long a job that ends may take."""
    return limits.deadline_s if limits.deadline_s is not None else PATIENCE_S


def outside(outcome: Rankable, limits: Limits) -> Exclusion | None:
    """The limit an outcome breaks, and by how much; None when it keeps them."""
    seconds, outlay = outcome.time_s.expected, outcome.bill.outlay_usd
    most = time_limit_s(limits)
    if seconds > most:
        return left_out(outcome.way, "slow", f"{outcome.n}x takes {format_duration(seconds)}", seconds)
    if limits.budget_usd is not None and outlay > limits.budget_usd:
        over = outlay - limits.budget_usd
        return left_out(outcome.way, "budget", f"{outcome.n}x costs {format_usd(outlay)}, {format_usd(over)} too much", over)
    return None


def too_large(way: Acquisition, n: int, short_bytes: float) -> Exclusion:
    """Excluded for memory: per device, or because no layout over that many fits."""
    words = f"{n}x lacks {format_bytes(short_bytes)} on each" if short_bytes >= 1 else f"no way to divide it over {n} fits"
    return left_out(way, "memory", words, short_bytes)


def least_budget(way: Acquisition, n: int, least_usd: float, limits: Limits) -> Exclusion | None:
    """Excluded because even the lower bound is over budget."""
    if limits.budget_usd is None or least_usd <= limits.budget_usd:
        return None
    over = least_usd - limits.budget_usd
    price = way.purchase
    low = way.lowest_usd
    price_note = f" (lowest price {format_usd(n * low)})" if price is not None and low is not None and low < price.median else ""
    return left_out(way, "budget", f"{n}x costs {format_usd(least_usd)}{price_note}, {format_usd(over)} too much", over)


def alike(first: Outcome, second: Outcome, objective: str) -> bool:
    """Whether the 80 % intervals of what is ranked by overlap: the order of the two is not to be relied on."""
    low, high = first.interval(objective)
    other_low, other_high = second.interval(objective)  # of balance: the time's
    return first.level == second.level and low <= other_high and other_low <= high


def best_of(ranked: Sequence[T], how: str) -> T | None:
    """The first of one kind of way."""
    return next((o for o in ranked if o.way.how == how), None)
