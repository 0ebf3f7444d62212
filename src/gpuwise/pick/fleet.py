"""``pick --for mixed``: a card to train on, one to serve from and one to develop on, within one budget.

Every triple of options is evaluated (a few ten thousand, as arrays), so the split is the optimum of the predicted ones::

    maximise  sum_r w_r log(speed_r / best speed_r)   subject to   cost <= budget

A bought card that takes several roles is paid for once, if its hours suffice for all of them.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.boards import board_of
from gpuwise.facts.models.architecture import Architecture
from gpuwise.pick.api import pick
from gpuwise.pick.jobs import ModelJob, serving_job, training_job
from gpuwise.pick.limits import REST_OF_PC_W, Have, Limits
from gpuwise.pick.outcomes import Outcome, friction
from gpuwise.pick.owning import Terms, bill
from gpuwise.pick.tries import Predictions
from gpuwise.pick.words import hardware, price_words
from gpuwise.predict.estimate import Estimate
from gpuwise.text import capital
from gpuwise.units import HOUR_S, format_duration, format_number, format_usd

F64 = NDArray[np.float64]
ROLES = ("train", "serve", "develop")
RUNS_A_YEAR = 12
"""Fine-tuning runs: one a month."""
DEVELOP_HOURS = 500.0
"""Hours per year of an interactive development card: two hours on each working day."""
SERVE_USERS = 4
YEAR_H = 8766.0
CHANGE_PENALTY = 0.8
"""A way that changes the job's result counts as this share of its speed, so that it wins only by more than a quarter."""
OTHERS = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """One option for one role. ``fixed_usd`` is paid once for everything of the same ``name``; ``run_usd`` for the role."""

    name: str
    speed: float
    """Work a second; only ratios within a role count."""
    fixed_usd: float
    run_usd: float
    hours: float
    """Hours a year the role keeps it."""
    slots: float = 0.0
    power_w: float = 0.0
    friction: float = 1.0
    """Factor by which it is harder to obtain and use than one card that runs CUDA."""


@dataclass(frozen=True, slots=True)
class Split:
    """Positions in each role's options, what they cost together, and the geometric mean of their relative speeds."""

    at: tuple[int, ...]
    cost_usd: float
    relative: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RoleRow:
    """One role of the best split, in words."""

    role: str
    hardware: str
    price: str
    does: str
    cost_usd: float
    share: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """``best`` is None if no three options are within the budget."""

    name: str
    budget_usd: float
    options: tuple[tuple[Outcome, ...], ...]
    choices: tuple[tuple[Choice, ...], ...]
    best: Split | None
    others: tuple[Split, ...]
    verdict: tuple[str, ...]
    assumed: tuple[str, ...]

    def rows(self) -> tuple[RoleRow, ...]:
        """The best split, one role per line; a shared card's price is in its first role."""
        if self.best is None:
            return ()
        paid: set[str] = set()
        role_rows: list[RoleRow] = []
        for r, i in enumerate(self.best.at):
            o, c = self.options[r][i], self.choices[r][i]
            fixed = 0.0 if c.name in paid else c.fixed_usd
            if c.fixed_usd:
                paid.add(c.name)
            cost = fixed + c.run_usd
            price = "shared" if c.fixed_usd and not fixed else price_words(o.way)
            role_rows.append(
                RoleRow(ROLES[r], hardware(o), price, _does(r, o), cost, cost / self.best.cost_usd if self.best.cost_usd else 0)
            )
        return tuple(role_rows)


def best_splits(
    options: Sequence[Sequence[Choice]],
    budget_usd: float,
    *,
    weights: Sequence[float] | None = None,
    have: Have | None = None,
    keep: int = 1 + OTHERS,
) -> list[Split]:
    """The best splits of the budget over the roles, best first; of equals the cheaper. Exact over all combinations. They are
    ordered by the speeds over what each is harder to have and to use (:func:`~gpuwise.pick.outcomes.friction`), as every pick."""
    if not options or any(not o for o in options):
        return []
    w = np.full(len(options), 1.0 / len(options)) if weights is None else np.asarray(weights, float) / sum(weights)
    shape = tuple(len(o) for o in options)
    grids = np.indices(shape).reshape(len(options), -1)
    names = {n: k for k, n in enumerate(dict.fromkeys(c.name for o in options for c in o))}
    cost, score, ok = np.zeros(grids.shape[1]), np.zeros(grids.shape[1]), np.ones(grids.shape[1], bool)
    owner = np.stack([_column(o, lambda c: float(names[c.name]))[g] for o, g in zip(options, grids, strict=True)])
    fixed = np.stack([_column(o, lambda c: c.fixed_usd)[g] for o, g in zip(options, grids, strict=True)])
    hours = np.stack([_column(o, lambda c: c.hours)[g] for o, g in zip(options, grids, strict=True)])
    slots, watts, merit = np.zeros_like(cost), np.zeros_like(cost), np.zeros_like(cost)
    for r, o in enumerate(options):
        grid = grids[r]
        speed = _column(o, lambda c: c.speed)
        score += w[r] * np.log(speed / speed.max())[grid]
        merit += w[r] * np.log(speed / _column(o, lambda c: c.friction))[grid]
        again = (owner[:r] == owner[r]).any(axis=0) & (fixed[r] > 0)
        cost += _column(o, lambda c: c.run_usd)[grid] + np.where(again, 0.0, fixed[r])
        slots += np.where(again, 0.0, _column(o, lambda c: c.slots)[grid])
        watts += np.where(again, 0.0, _column(o, lambda c: c.power_w)[grid])
        together = np.where((owner == owner[r]) & (fixed > 0), hours, 0.0).sum(axis=0)
        ok &= (fixed[r] == 0) | (together <= YEAR_H)
    ok &= cost <= budget_usd
    if have is not None:
        ok &= (slots <= have.slots) if have.slots is not None else True
        ok &= (watts + REST_OF_PC_W <= have.psu_w) | (watts == 0) if have.psu_w is not None else True
    order = np.lexsort((cost, -np.round(merit, 12)))
    best_indices = order[ok[order]][:keep]
    return [
        Split(
            tuple(int(g) for g in grids[:, k]),
            float(cost[k]),
            float(np.exp(score[k])),
            tuple(o[int(g)].name for o, g in zip(options, grids[:, k], strict=True)),
        )
        for k in best_indices
    ]


def fleet(
    arch: Architecture,
    limits: Limits,
    *,
    today: datetime.date,
    terms: Terms | None = None,
    tokens: float | None = None,
    seq_len: int | None = None,
    users: int | None = None,
) -> Fleet:
    """The best split of ``limits.budget_usd`` over a year of training, serving and developing with ``arch``.

    Raises InputError and UnknownNameError on limits that cannot be meant.
    """
    money, predictions = terms or Terms(), Predictions()
    budget = limits.budget_usd or float("inf")
    train = training_job(arch, purpose="finetune", tokens=tokens, seq_len=seq_len)
    serve = serving_job(arch, users=users or SERVE_USERS)
    time_limits = replace(limits, by="time")
    trained = pick(train, time_limits, today=today, terms=money, known=predictions).ranked
    cheap = pick(train, replace(limits, by="cost"), today=today, terms=money, known=predictions).ranked
    served = pick(serve, time_limits, today=today, terms=money, known=predictions).ranked
    served += pick(serve, replace(limits, by="cost"), today=today, terms=money, known=predictions).ranked
    making = _unique([*trained, *cheap])
    options = (making, _unique(list(served)), making)
    choices = tuple(
        tuple(_choice(role, o, job, money) for o in of)
        for role, of, job in zip(ROLES, options, (train, serve, train), strict=True)
    )
    splits = best_splits(choices, budget, have=limits.have)
    best = splits[0] if splits else None
    name = f"A year of {arch.name} within {format_usd(budget)}: train, serve and develop"
    assumed = (
        f"{RUNS_A_YEAR} runs a year to {train.name}",
        f"{users or SERVE_USERS} users, {serve.hours:,.0f} hours a year",
        f"{DEVELOP_HOURS:g} hours of development a year",
        *train.assumed[1:2],
        "each role counts the same",
    )
    return Fleet(name, budget, options, choices, best, tuple(splits[1:]), _verdict(best, options, choices, budget), assumed)


def _column(options: Sequence[Choice], of: Callable[[Choice], float]) -> F64:
    return np.array([of(c) for c in options], dtype=np.float64)


def _unique(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Each way at each count once; notebooks are no part of a fleet."""
    by_key: dict[tuple[object, int], Outcome] = {}
    for o in outcomes:
        if o.way.notebook is None:
            by_key.setdefault((o.way.key, o.n), o)
    return tuple(by_key.values())


def _choice(role: str, o: Outcome, job: ModelJob, terms: Terms) -> Choice:
    """An outcome as what it does and costs in one year of its role."""
    if role == "train":
        hours = RUNS_A_YEAR * job.tokens / o.tokens_per_s.expected / HOUR_S
    else:
        hours = job.hours if role == "serve" else DEVELOP_HOURS
    seconds = Estimate(hours * HOUR_S, hours * HOUR_S, hours * HOUR_S, "specified")
    cost = bill(o.way, o.cluster, seconds, terms, "serving" if role == "serve" else "training")
    speed = o.tokens_per_s.expected * (CHANGE_PENALTY if o.tier else 1.0)
    harder = friction(o.way, o.split or o.n)
    if o.way.rent is not None:
        return Choice(f"rented {hardware(o)}", speed, 0.0, cost.cost_usd.expected, hours, friction=harder)
    assert o.way.purchase is not None
    fixed = o.way.purchase.median * o.n + cost.box_usd
    board = board_of(o.way.accelerator.id)
    slots = 0.0 if board is None or board.slots_taken is None else float(board.slots_taken * o.n)
    power = o.board_w or 0.0 if board is not None and board.installable else 0.0
    name = f"{o.way.condition} {hardware(o)}"
    return Choice(name, speed, fixed, cost.power_usd, hours, slots, power, harder)


def _does(role: int, o: Outcome) -> str:
    changes = f", {', '.join(o.changes)}" if o.tier else ""
    if role == 1:
        return f"{format_number(o.tokens_per_s.expected)} tokens/s to each user{changes}"
    if role == 0:
        return f"a run in {format_duration(o.time_s.expected)}{changes}"
    return f"{o.tokens_per_s.expected:,.0f} tokens/s{changes}"


def _verdict(
    best: Split | None, options: Sequence[Sequence[Outcome]], choices: Sequence[Sequence[Choice]], budget: float
) -> tuple[str, ...]:
    if best is None:
        least = sum(min((c.fixed_usd + c.run_usd for c in of), default=float("nan")) for of in choices)
        comparison = f"; the cheapest three cost {format_usd(least)}" if least == least else "; a role has no option at all"
        return (f"No three options fit into {format_usd(budget)}{comparison}.",)
    words = [f"{ROLES[r]} on {choices[r][i].name}" for r, i in enumerate(best.at)]
    sentences = [
        f"{capital(words[0])}, {words[1]}, {words[2]}: {format_usd(best.cost_usd)} a year, "
        f"{format_usd(budget - best.cost_usd)} left."
    ]
    slowest = min(range(len(best.at)), key=lambda r: _relative(choices[r], best.at[r]))
    fastest = hardware(options[slowest][_fastest(choices[slowest])])
    shortfall = _relative(choices[slowest], best.at[slowest])
    gives_up = f"; {ROLES[slowest]} gives up most ({100 * shortfall:.0f} % of {fastest})" if shortfall < 0.995 else ""
    sentences.append(f"Together {100 * best.relative:.0f} % of the speed of the fastest option of each role{gives_up}.")
    if len({choices[r][i].name for r, i in enumerate(best.at) if choices[r][i].fixed_usd}) == 1 and all(
        choices[r][i].fixed_usd for r, i in enumerate(best.at)
    ):
        sentences.append("One machine takes all three roles in turn: its hours suffice.")
    return tuple(sentences)


def _relative(choices: Sequence[Choice], at: int) -> float:
    return choices[at].speed / choices[_fastest(choices)].speed


def _fastest(choices: Sequence[Choice]) -> int:
    return max(range(len(choices)), key=lambda i: choices[i].speed)


def fleet_document(answer: Fleet) -> dict[str, object]:
    """The split as one JSON document."""
    return {
        "name": answer.name,
        "budget_usd": answer.budget_usd,
        "verdict": list(answer.verdict),
        "roles": [
            {"role": r.role, "hardware": r.hardware, "price": r.price, "does": r.does, "cost_usd": r.cost_usd}
            for r in answer.rows()
        ],
        "cost_usd": None if answer.best is None else answer.best.cost_usd,
        "relative_speed": None if answer.best is None else answer.best.relative,
        "others": [{"cost_usd": s.cost_usd, "relative_speed": s.relative, "names": list(s.names)} for s in answer.others],
        "options": [len(o) for o in answer.options],
        "assumed": list(answer.assumed),
    }
