"""The question of this room by name: which accelerators for this job, within these limits."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from gpuwise.pick.jobs import ModelJob
from gpuwise.pick.limits import Limits, check_limits
from gpuwise.pick.outcomes import Outcome
from gpuwise.pick.owning import Terms
from gpuwise.pick.passes import PassJob
from gpuwise.pick.ranking import Ranking, rank
from gpuwise.pick.tries import Predictions, tries_of
from gpuwise.pick.words import LeftOutGroup, default_words, groups, verdict

TOP = 10


@dataclass(frozen=True, slots=True)
class Pick:
    """``ranking`` is the whole of it; ``verdict`` its answer in sentences; ``left_out`` counts accelerators none of whose
    ways is ranked."""

    job: ModelJob | PassJob
    limits: Limits
    terms: Terms
    today: datetime.date
    ranking: Ranking[Outcome]
    verdict: tuple[str, ...]
    order: str
    left_out: tuple[LeftOutGroup, ...]
    assumed: tuple[str, ...]

    @property
    def ranked(self) -> tuple[Outcome, ...]:
        return self.ranking.ranked

    @property
    def best(self) -> Outcome | None:
        """None when nothing does the job within the limits."""
        return self.ranking.ranked[0] if self.ranking.ranked else None


def pick(
    job: ModelJob | PassJob,
    limits: Limits | None = None,
    *,
    today: datetime.date,
    terms: Terms | None = None,
    top: int = TOP,
    known: Predictions | None = None,
) -> Pick:
    """Every accelerator in every form of acquisition, ranked for ``job`` within ``limits``, or excluded with a reason.

    The best ``top`` of each way (rented, bought, notebook) are predicted exactly; the others provably cannot be among them.
    Prices are as of ``today``. Raises InputError and UnknownNameError on invalid limits.
    """
    pick_limits, money = limits or Limits(), terms or Terms()
    check_limits(pick_limits)
    predictions = known or Predictions()
    ranking = rank(lambda way: tries_of(job, way, pick_limits, money, predictions), job.purpose, pick_limits, today, top)
    return Pick(
        job,
        pick_limits,
        money,
        today,
        ranking,
        verdict(job, pick_limits, ranking),
        default_words(job, pick_limits),
        groups(ranking),
        job.assumed,
    )
