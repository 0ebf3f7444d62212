"""Predicted against measured rate, memory, energy and cost of a run."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.train.config import NO_PLAN, Plan, TunedSpeed
from gpuwise.train.hook.journal import Journal
from gpuwise.train.run.progress import Loop, cost_usd, loop_of
from gpuwise.train.ticks import steady
from gpuwise.train.tune.energy import NO_ENERGY, Energy
from gpuwise.train.tune.trial import rate_of

LEAST_STEPS = 3


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One quantity; None is unknown."""

    name: str
    unit: str
    """``1/s``, ``s``, ``B``, ``J`` or ``USD``."""
    predicted: float | None
    measured: float | None

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The prediction for a script on a device, and what the run measured."""

    rate: float
    """Rate of the steady steps: without pauses for evaluation and saving, as the tuning measures it."""
    per: str
    step_s: float
    expected: TunedSpeed | None
    memory_bytes: int | None
    n_steps: int = 0
    train_s: float = 0.0
    """From the end of the first step to that of the last, everything between with it."""
    samples: float = 0.0
    """Samples in that time; steps if the sample size is unknown."""
    energy: Energy = NO_ENERGY
    """In that time."""
    plan: Plan = NO_PLAN
    others: float = 0.0
    """Share of the steady steps in which other threads had the loop's processor: the prediction of a tuning is without them."""

    @property
    def usable(self) -> TunedSpeed | None:
        """The prediction, where it is in the same unit of rate; else None."""
        return self.expected if self.expected is not None and self.expected.per == self.per else None

    @property
    def error(self) -> float | None:
        """Relative error of the predicted rate: (predicted - measured) / measured."""
        return None if self.usable is None else self.usable.rate / self.rate - 1.0

    @property
    def energy_a_sample_j(self) -> float | None:
        """Joules a sample; None where unknown."""
        return self.energy.energy_j / self.samples if self.energy.energy_j is not None and self.samples else None

    @property
    def predicted_s(self) -> float | None:
        """Predicted seconds of the same number of samples."""
        return None if self.usable is None or not self.samples else self.samples / self.usable.rate

    def rows(self) -> list[ComparisonRow]:
        """Every quantity that is predicted or measured."""
        e, energy_j = self.usable, self.energy_a_sample_j
        predicted_j = e.energy_j if e is not None else None
        total_j = predicted_j * self.samples if predicted_j is not None else None
        found = [
            ComparisonRow(f"{self.per} a second", "1/s", None if e is None else e.rate, self.rate),
            ComparisonRow("seconds a step", "s", None if e is None else e.step_s, self.step_s),
            ComparisonRow("memory", "B", None if e is None else e.memory_bytes, self.memory_bytes),
            ComparisonRow(f"energy a {self.per.removesuffix('s')}", "J", predicted_j, energy_j),
            ComparisonRow(f"time of {self.n_steps:,} steps", "s", self.predicted_s, self.train_s or None),
            ComparisonRow(
                "their cost",
                "USD",
                cost_usd(self.plan, self.predicted_s, total_j),
                cost_usd(self.plan, self.train_s, self.energy.energy_j),
            ),
        ]
        return [r for r in found if r.predicted is not None or r.measured is not None]


def comparison_of(
    journal: Journal, expected: TunedSpeed | None, memory_bytes: int | None, *, plan: Plan = NO_PLAN, energy: Energy = NO_ENERGY
) -> RunComparison | None:
    """The comparison of a run; None with fewer than ``LEAST_STEPS`` steps."""
    loop = loop_of(journal)
    steps = steady(loop.steps)
    if len(steps) < LEAST_STEPS:
        return None
    thin = loop.points[len(loop.steps) :]
    rate, step_s = rate_of(steps), statistics.median(s.wall_s for s in steps)
    if len(thin) > 1:
        rate, step_s = _medians_over_time(loop, thin, rate, step_s, sum(s.wall_s for s in steps))
    first, last = loop.points[0], loop.points[-1]
    samples = last[2] - first[2] if loop.per == "samples" else last[1] - first[1]
    return RunComparison(
        rate,
        loop.per,
        step_s,
        expected,
        memory_bytes,
        int(loop.turns),
        last[0] - first[0],
        float(samples),
        energy,
        plan,
        max(1.0 - sum(s.undisturbed_s for s in steps) / sum(s.wall_s for s in steps), 0.0),
    )


def _medians_over_time(
    loop: Loop, thin: Sequence[tuple[float, float, int]], rate: float, step_s: float, dense_s: float
) -> tuple[float, float]:
    """Medians over time: the densely recorded steps count as one stretch, those between two thinned ticks as others."""
    rates, steps = [(rate, dense_s)], [(step_s, dense_s)]
    for (from_s, turns, samples), (to_s, turns_b, samples_b) in itertools.pairwise(thin):
        span_s, n = to_s - from_s, turns_b - turns
        if span_s > 0 and n > 0:
            rates.append(((samples_b - samples if loop.per == "samples" else n) / span_s, span_s))
            steps.append((span_s / n, span_s))
    return _weighted_median(rates), _weighted_median(steps)


def _weighted_median(values: Sequence[tuple[float, float]]) -> float:
    """The value at which half of the weight is reached."""
    ordered = sorted(values)
    half, reached = sum(w for _, w in ordered) / 2, 0.0
    for value, weight in ordered:
        reached += weight
        if reached >= half:
            return value
    return ordered[-1][0]
