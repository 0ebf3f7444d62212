"""``pick --for learn``: hardware for a beginner's exercises, at the lowest cost.

The exercises are jobs like any other; candidates are ranked by the number of exercises they can do, then by the objective.
CNNs (an image generator) are captured from PyTorch and excluded here.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.candidates import Acquisition, Exclusion, cluster_of, counts_for, left_out, not_in_limits, placed
from gpuwise.pick.jobs import ModelJob, serving_job, training_job
from gpuwise.pick.limits import Limits, check_limits
from gpuwise.pick.outcomes import CHANGED, LEVELS, WIDER_BONUS, friction, level
from gpuwise.pick.owning import Bill, Terms, bill, counted_usd, least_bill_usd
from gpuwise.pick.ranking import Candidate, Ranking, best_of, rank
from gpuwise.pick.serving import TooLargeToServe, fitting_bits, least_token_s
from gpuwise.pick.training import TooLarge, least_time_s, possible_fallbacks
from gpuwise.pick.tries import Predictions
from gpuwise.pick.words import LeftOutGroup, groups
from gpuwise.plan.whole_run import whole_time
from gpuwise.predict.estimate import Basis, Estimate, to_document, weakest
from gpuwise.text import capital
from gpuwise.units import HOUR_S, format_duration, format_usd

CHAT_HOURS = 10.0
"""Hours of chatting with a model on own hardware: an evening a week for a season."""
IMAGES, EPOCHS = 10_000, 3
"""A small labelled set of images, three times over."""
TOP = 10


@dataclass(frozen=True, slots=True)
class Exercise:
    """One thing to have done."""

    name: str
    why: str
    job: ModelJob


@dataclass(frozen=True, slots=True)
class LearningResult:
    """Result of the exercises on a candidate; ``missing`` lists those it cannot do, and why."""

    way: Acquisition
    cluster: Cluster
    n_exercises: int
    seconds: tuple[tuple[str, Estimate], ...]
    missing: tuple[tuple[str, str], ...]
    bill: Bill
    narrowed: int = 0
    """Exercises done with a change: 4-bit weights under adapters, lighter states."""

    ends = True
    """An exercise is done at some time."""

    @property
    def n(self) -> int:
        return self.cluster.n_accelerators

    @property
    def done(self) -> int:
        """Exercises of the course that run on it."""
        return self.n_exercises - len(self.missing)

    @property
    def level(self) -> int:
        """Rank before price: missing exercises first, then how well software and memory serve the rest. Less is better."""
        return LEVELS * len(self.missing) + level(0, self.way, self.n, "learn")

    @property
    def time_s(self) -> Estimate:
        return self.bill.calendar_s

    @property
    def cost_usd(self) -> Estimate:
        return self.bill.cost_usd

    @property
    def words(self) -> str:
        """Short list of the missing exercises."""
        return "; ".join(f"{name}: {why}" for name, why in self.missing)

    def at_worst(self, objective: str) -> float:
        """Upper end of the interval of time, or energy, or money: what is ranked by."""
        if objective == "time":
            return self.time_s.high * friction(self.way, self.n) * (1.0 if self.narrowed else WIDER_BONUS)
        if objective == "energy":
            return float("inf") if self.bill.energy is None else self.bill.energy.kwh.high
        return counted_usd(self.way, self.bill)


@dataclass(frozen=True, slots=True)
class Learning:
    """``ranking`` of ways by exercises done, then by the objective."""

    exercises: tuple[Exercise, ...]
    ranking: Ranking[LearningResult]
    limits: Limits
    verdict: tuple[str, ...]
    order: str
    left_out: tuple[LeftOutGroup, ...]

    @property
    def ranked(self) -> tuple[LearningResult, ...]:
        return self.ranking.ranked


def exercises() -> tuple[Exercise, ...]:
    """The default set of exercises."""
    chat = find_model("llama-3.1-8b")
    vision = find_model("vit-b-16")
    assert vision.patches is not None
    images = IMAGES * EPOCHS * vision.patches.n_tokens
    return (
        Exercise(
            "chat with an 8B model",
            f"Llama 3.1 8B in 4 bits or more, {CHAT_HOURS:g} hours, as fast as one reads",
            serving_job(chat, users=1, years=CHAT_HOURS / 8 / 365.25),
        ),
        Exercise(
            "fine-tune an 8B model",
            "LoRA, on 4-bit weights where it must be, 2M tokens of 1,024",
            training_job(chat, purpose="finetune", tokens=2e6, seq_len=1024),
        ),
        Exercise(
            "train GPT-2", "GPT-2 124M from scratch on 300M tokens", training_job(find_model("gpt2"), tokens=3e8, seq_len=1024)
        ),
        Exercise(
            "fine-tune a vision model",
            f"ViT-B/16, every weight, {IMAGES:,} images {EPOCHS} times",
            training_job(vision, purpose="finetune", tokens=images, method="full"),
        ),
    )


def learn(
    limits: Limits | None = None,
    *,
    today: datetime.date,
    terms: Terms | None = None,
    top: int = TOP,
    known: Predictions | None = None,
) -> Learning:
    """Every way ranked by the exercises it does. Raises InputError and UnknownNameError on limits that cannot be meant."""
    pick_limits, money, predictions = limits or Limits(), terms or Terms(), known or Predictions()
    check_limits(pick_limits)
    tasks = exercises()
    ranking = rank(lambda way: _tries(tasks, way, pick_limits, money, predictions), "learn", pick_limits, today, top)
    words = {"time": "the fastest", "energy": "the most frugal", "balance": "the best time for its money"}
    what = words.get(pick_limits.objective, "the cheapest")
    return Learning(
        tasks,
        ranking,
        pick_limits,
        _verdict(tasks, ranking),
        f"Order: most exercises done, then {what}. "
        "Convolution networks need PyTorch to be read, and are not among the exercises.",
        groups(ranking),
    )


def _tries(
    tasks: tuple[Exercise, ...], way: Acquisition, limits: Limits, terms: Terms, predictions: Predictions
) -> Iterator[Candidate[LearningResult] | Exclusion]:
    counts = counts_for(way, limits)
    n = counts[0] if counts else 1
    cluster = cluster_of(way.accelerator.id, n)
    if cluster is None or not counts:
        return
    violation = not_in_limits(way, n, limits)
    if violation is not None:
        yield left_out(way, *violation)
        return
    least_s, missing = _bounds(tasks, way, n)
    if missing == len(tasks):
        yield left_out(way, "memory", "none of the exercises fits, or its speed is unknown")
        return
    usd = least_bill_usd(way, n, least_s, terms)
    if limits.budget_usd is not None and usd > limits.budget_usd:
        over = usd - limits.budget_usd
        yield left_out(way, "budget", f"costs at least {format_usd(usd)}, {format_usd(over)} too much", over)
        return
    there = placed(way, cluster, limits.have)

    def run() -> LearningResult | Exclusion:
        return _do(tasks, way, there, terms, predictions)

    yield Candidate(way, n, LEVELS * missing + level(0, way, n, "learn"), 1.0, least_s, usd, usd, 0.0, run)


def _bounds(tasks: tuple[Exercise, ...], way: Acquisition, n: int) -> tuple[float, int]:
    """The least time of all that may fit, and how many cannot."""
    total, missing = 0.0, 0
    for task in tasks:
        job = task.job
        try:
            if job.serving:
                possible = fitting_bits(job, way.accelerator, n) is not None
                possible = possible and least_token_s(job, way.accelerator, n) * job.load.least_tokens_per_s <= 1
                total += job.hours * HOUR_S if possible else 0.0
            else:
                possible = bool(possible_fallbacks(job, way.accelerator, n))
                total += least_time_s(job, way.accelerator, n) if possible else 0.0
        except UnpredictableError:
            possible = False
        missing += not possible
    return total, missing


def _do(
    tasks: tuple[Exercise, ...], way: Acquisition, cluster: Cluster, terms: Terms, predictions: Predictions
) -> LearningResult | Exclusion:
    seconds: list[tuple[str, Estimate]] = []
    narrowed = 0
    missing: list[tuple[str, str]] = []
    for task in tasks:
        try:
            got = _seconds(task.job, cluster, predictions)
            narrowed += _narrowed(task.job, cluster, predictions)
        except (InputError, UnpredictableError) as error:
            missing.append((task.name, error.message))
            continue
        if isinstance(got, str):
            missing.append((task.name, got))
        else:
            seconds.append((task.name, got))
    if not seconds:
        return left_out(way, "memory", missing[0][1])
    values = [s for _, s in seconds]
    bases: list[Basis] = [s.basis for s in values]
    total = Estimate(
        sum(s.low for s in values),
        sum(s.expected for s in values),
        sum(s.high for s in values),
        weakest(*bases),
    )
    return LearningResult(way, cluster, len(tasks), tuple(seconds), tuple(missing), bill(way, cluster, total, terms), narrowed)


def _narrowed(job: ModelJob, cluster: Cluster, predictions: Predictions) -> bool:
    """Whether training takes a change that alters its result."""
    got = None if job.serving else predictions.train(job, cluster)
    return got is not None and not isinstance(got, TooLarge) and got.fallback.tier == CHANGED


def _seconds(job: ModelJob, cluster: Cluster, predictions: Predictions) -> Estimate | str:
    """How long an exercise takes, or why it cannot be done."""
    if not job.serving:
        got = predictions.train(job, cluster)
        return "does not fit" if isinstance(got, TooLarge) else whole_time(job.arch, cluster, got.estimate, job.tokens)
    served = predictions.serve(job, cluster, cluster.n_accelerators if cluster.n_accelerators <= 4 else 1)
    if isinstance(served, TooLargeToServe):
        return "does not fit"
    if served.tokens_per_s.expected < job.load.least_tokens_per_s:
        return f"{served.tokens_per_s.expected:.2g} tokens a second, slower than one reads"
    hours = job.hours * HOUR_S
    return Estimate(hours, hours, hours, served.tokens_per_s.basis)


def _verdict(tasks: tuple[Exercise, ...], ranking: Ranking[LearningResult]) -> tuple[str, ...]:
    if not ranking.ranked:
        return ("Nothing within these limits does any of the exercises.",)
    sentences: list[str] = []
    first = ranking.ranked[0]
    for how in (first.way.how, *(h for h in ("notebook", "rent", "buy") if h != first.way.how)):
        best = best_of(ranking.ranked, how)
        if best is not None:
            verb = {"rent": "rent", "buy": "buy", "notebook": "use"}[how]
            what = "all" if best.done == len(tasks) else f"{best.done} of {len(tasks)}"
            where = f" ({best.way.label})" if how != "rent" else ""
            text = (
                f"{verb} {best.n}x {best.way.accelerator.name}{where}: {what} exercises in "
                f"{format_duration(best.time_s.expected)} for {format_usd(best.cost_usd.expected)}."
            )
            sentences.append(capital(text) if not sentences else "Or " + text)
    return tuple(sentences)


def learning_document(learning: Learning) -> dict[str, object]:
    """The ranking as one JSON document."""
    document = {
        "exercises": [{"name": e.name, "what": e.why} for e in learning.exercises],
        "verdict": learning.verdict,
        "objective": learning.limits.objective,
        "ranked": [
            {
                "accelerator": r.way.accelerator.id,
                "count": r.n,
                "way": r.way.how,
                "provider": r.way.label,
                "done": r.done,
                "missing": dict(r.missing),
                "time_s": r.time_s,
                "cost_usd": r.cost_usd,
                "outlay_usd": r.bill.outlay_usd,
                "seconds": dict(r.seconds),
            }
            for r in learning.ranked
        ],
        "left_out": learning.ranking.left_out,
        "considered": learning.ranking.considered,
        "predicted": learning.ranking.predicted,
    }
    return cast("dict[str, object]", to_document(document))
