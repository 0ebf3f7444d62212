"""The best of a plan as a job that other tools can be given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from gpuwise.errors import InputError, LayoutError, UnpredictableError
from gpuwise.export.job import Job
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.answer import Plan
from gpuwise.plan.goal import Wishes
from gpuwise.predict.step.training import TrainingEstimate

CHANGES: tuple[dict[str, int | str | bool], ...] = (
    {"virtual_stages": 1, "schedule": "1f1b"},
    {"sharding": "zero3"},
    {"sharding": "zero1"},
    {"ep": 1},
    {"recompute": "full"},
)
"""Fields to fix, one after another, when a tool has no option for a part of the best plan."""


def job_of(plan: Plan[TrainingEstimate]) -> Job:
    """The layout that the plan chose, with its tokens and time between checkpoints. Raises LayoutError where nothing fits."""
    best, goal = plan.best, plan.goal
    if best is None:
        raise LayoutError(
            "fits", f"no layout of {goal.arch.name} fits {goal.cluster.label}", hint="`gpuwise fit` shows what would"
        )
    interval = None if best.operation is None else best.operation.stops.interval_s
    step_s = best.estimate.step_time_s.expected
    return Job(
        goal.arch,
        best.cluster,
        best.estimate.strategy,
        goal.seq_len,
        goal.wishes.tokens,
        interval,
        step_s,
        task=goal.task,
        packed=goal.wishes.packed_document_len,
    )


def job_within(
    make: Callable[[Wishes], Plan[TrainingEstimate]],
    wishes: Wishes,
    plan: Plan[TrainingEstimate],
    gaps: Callable[[Job], Iterable[str]],
    stack: str | None,
) -> tuple[Job, tuple[str, ...]]:
    """The fastest job that a tool has options for, and the parts of the best ``plan`` that it lacks.

    ``plan``: answer of ``make`` to ``wishes``. ``gaps``: parts of a job that the tool has no option for. ``stack``: the tool's
    own. If no job is possible, the best with no gaps. Raises LayoutError if nothing fits.
    """
    first = job_of(plan)
    lacking = tuple(gaps(first))
    if not lacking:
        return first, ()

    def jobs() -> Iterator[Job]:
        for option in (*plan.alternatives, *plan.front):
            yield job_of(replace(plan, best=option))
        for software in dict.fromkeys((wishes.stack, wishes.stack or stack)):
            for change in ({}, *CHANGES):
                if any(name in wishes.fixed for name in change) or (software == wishes.stack and not change):
                    continue
                try:
                    yield job_of(make(replace(wishes, stack=software, fixed={**wishes.fixed, **change})))
                except (InputError, UnpredictableError):
                    continue

    able = [job for job in jobs() if not tuple(gaps(job))]
    return (min(able, key=lambda job: job.step_time_s or 0.0), lacking) if able else (first, ())


def is_catalogues(arch: Architecture) -> bool:
    """Whether ``arch`` is what the catalogue has by its name; else a saved plan holds it."""
    try:
        return find_model(arch.id) == arch
    except InputError:
        return False


def tokens_of_samples(model: str, samples: float, tokens: float | None) -> float:
    """Tokens of a number of images. Raises InputError for a text model, or if both are given."""
    arch = find_model(model)
    if tokens is not None:
        raise InputError("--samples and --tokens both set the length of training", hint="leave one out")
    if arch.patches is None:
        raise InputError(f"{arch.name} reads text, and --samples counts images", hint="give --tokens")
    return samples * arch.patches.n_tokens
