"""The two answers of this room: a plan and a fit, whichever front end wrote the step.

``subject`` is what was asked about: a :class:`~gpuwise.plan.goal.Goal` for a model of the catalogue, a :class:`CapturedStep`
for a person's own code. An estimate is then a :class:`~gpuwise.predict.step.training.TrainingEstimate` or a
:class:`~gpuwise.plan.step.estimates.StepEstimate`; both know their step time, memory and whether it fits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic

from gpuwise.facts.hardware.systems import Cluster
from gpuwise.plan.changes.remedy import E, Remedy
from gpuwise.plan.goal import Goal, Wishes
from gpuwise.predict.estimate import Estimate
from gpuwise.shown import Shown
from gpuwise.units import GIGA
from gpuwise.workload.changes.change import Sites
from gpuwise.workload.transformer.parameters import count_parameters

if TYPE_CHECKING:
    from gpuwise.money.cost import Price
    from gpuwise.money.energy import Energy
    from gpuwise.money.run.goodput import Operation, Run
    from gpuwise.plan.changes.batch_search import BatchSearch
    from gpuwise.plan.step.estimates import StepEstimate
    from gpuwise.plan.step.scaling import Scaling
    from gpuwise.workload.capture.captured import Capture


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A person's own step as it was captured."""

    name: str
    capture: Capture
    batch: int | None
    """Batch per accelerator; None when the step chooses its own batch."""
    seq_len: int | None
    precision: str
    sites: Sites = field(default_factory=lambda: Sites([]))
    batches: BatchSearch[StepEstimate] | None = None
    """Batches tried, with ``batch="auto"``."""
    captures: int = 0
    """Captures that were run for all of the answer."""
    notes: tuple[str, ...] = ()
    """Assumptions about a step that is trained by name; nothing was captured for it."""


@dataclass(frozen=True, slots=True)
class OtherHardware(Generic[E]):
    """The same on another accelerator, or on more of the same; ``price`` is of one accelerator and hour, None when it has no
    rental offer."""

    cluster: Cluster
    estimate: E
    price: Price | None


@dataclass(frozen=True, slots=True)
class Option(Generic[E]):
    """One way to run the work on a cluster, with its time, cost and energy. ``time_s``, ``cost_usd`` and ``energy`` are for
    the tokens or samples requested; otherwise, for a billion tokens, or for one step of own code."""

    cluster: Cluster
    estimate: E
    time_s: Estimate
    price: Price | None
    cost_usd: Estimate | None
    energy: Energy | None
    tuned: E | None = None
    """Estimate at the level that the stack's authors reach, used to rank strategies; ``estimate`` is what a team can expect.
    None for own code, which is timed directly."""
    run: Run | None = None
    operation: Operation | None = None
    """The whole run and its hours (models of the catalogue; None where it would not end): ``time_s`` and ``cost_usd`` hold
    them."""

    @property
    def level(self) -> E:
        """The tuned estimate where there is one, for comparing strategies."""
        return self.estimate if self.tuned is None else self.tuned

    @property
    def headroom_bytes(self) -> float:
        return self.estimate.headroom_bytes


class _Answer(Shown):
    """Fields common to ``Fit`` and ``Plan``."""

    __slots__ = ()
    subject: Goal | CapturedStep

    @property
    def goal(self) -> Goal:
        """The goal, for catalogue models. Raises ValueError for own code."""
        if isinstance(self.subject, CapturedStep):
            raise ValueError(f"{self.subject.name} is a captured step: it has no goal")
        return self.subject

    @property
    def step(self) -> CapturedStep:
        """The captured step, for own code. Raises ValueError for a catalogue model."""
        if isinstance(self.subject, Goal):
            raise ValueError(f"{self.subject.arch.name} is a model of the catalogue: it has no captured step")
        return self.subject

    @property
    def name(self) -> str:
        """Name of the model or step."""
        return self.subject.name if isinstance(self.subject, CapturedStep) else self.subject.arch.name

    @property
    def parameters(self) -> int:
        s = self.subject
        return s.capture.parameter_count if isinstance(s, CapturedStep) else count_parameters(s.arch).total


@dataclass(frozen=True, slots=True, repr=False)
class Fit(_Answer, Generic[E]):
    """Answer to "does it fit". ``remedies`` are single changes: those that suffice first, each group in order of least
    slowdown (None when not searched); ``combinations`` is the fastest fitting combination of each kind; ``failed`` lists the
    changes that cannot be made, and why."""

    subject: Goal | CapturedStep
    cluster: Cluster
    estimate: E
    """Estimate of the requested strategy."""
    remedies: tuple[Remedy[E], ...] | None
    combinations: tuple[Remedy[E], ...] = ()
    bigger: tuple[OtherHardware[E], ...] = ()
    """The cheapest larger accelerators that hold it."""
    more: tuple[OtherHardware[E], ...] = ()
    """The fewest of the same accelerators that hold it (models of the catalogue)."""
    micro_batch: int = 0
    """Largest micro-batch that fits without other changes (catalogue models; 0 when none does)."""
    seq_len: int = 0
    """Longest sequence that fits without other changes (catalogue models; 0 when none does)."""
    failed: tuple[tuple[str, str], ...] = ()
    at_bound: E | None = None
    """Estimate with every data-dependent size at its maximum; None when no size depends on data (own code)."""

    @property
    def fits(self) -> bool:
        return self.estimate.fits


@dataclass(frozen=True, slots=True)
class SearchStats:
    """How many strategies a search looked at, how many of them fit, and its seconds."""

    strategies: int
    fitting: int
    seconds: float


@dataclass(frozen=True, slots=True, repr=False)
class Plan(_Answer, Generic[E]):
    """``best`` is None when nothing fits; ``smallest`` then shows how much the smallest strategy is over.

    ``changes``: effects of one change to the best plan, fastest first, for own code (None when not searched).
    """

    subject: Goal | CapturedStep
    cluster: Cluster
    best: Option[E] | None
    changes: tuple[Remedy[E], ...] | None = None
    alternatives: tuple[Option[E], ...] = ()
    front: tuple[Option[E], ...] = ()
    hardware: tuple[Option[E], ...] = ()
    """The best option of each cluster compared when none was named, best first."""
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    smallest: E | None = None
    search: SearchStats | None = None
    scaling: tuple[Scaling, ...] = ()
    """Scaling over several accelerators, for own code."""
    published: tuple[str, ...] = ()
    """Published runs of the same model, one sentence each."""
    samples: float | None = None
    """Number of samples that time and cost cover, for own code; None for one step."""

    @property
    def tokens(self) -> float:
        """Number of tokens that time and cost cover, for a catalogue model."""
        return tokens_of(self.goal.wishes)

    @property
    def on_time(self) -> bool | None:
        """Whether the expected time meets the deadline; None without one."""
        limit = None if isinstance(self.subject, CapturedStep) else self.subject.wishes.deadline_s
        return None if limit is None or self.best is None else self.best.time_s.expected <= limit

    @property
    def in_budget(self) -> bool | None:
        """Whether the expected cost meets the budget; None without one, or without a price."""
        limit = None if isinstance(self.subject, CapturedStep) else self.subject.wishes.budget_usd
        if limit is None or self.best is None or self.best.cost_usd is None:
            return None
        return self.best.cost_usd.expected <= limit

    @property
    def step_time_s(self) -> Estimate | None:
        """Step time of the whole cluster, including gradient communication; None when nothing fits."""
        whole = [s.step_time_s for s in self.scaling if s.n == self.cluster.n_accelerators]
        if whole:
            return whole[0]
        return None if self.best is None else self.best.estimate.step_time_s

    @property
    def samples_per_s(self) -> Estimate | None:
        """Over the whole cluster; None when the step takes no batch or nothing fits."""
        s, t = self.subject, self.step_time_s
        n = s.global_batch if isinstance(s, Goal) else None if s.batch is None else s.batch * self.cluster.n_accelerators
        return None if n is None or t is None else Estimate(n / t.high, n / t.expected, n / t.low, t.basis)


def tokens_of(wishes: Wishes) -> float:
    """The tokens times and costs are for."""
    return GIGA if wishes.tokens is None else wishes.tokens


StepFit, StepPlan = Fit, Plan
"""The names that answers about own code had while they were classes of their own."""
