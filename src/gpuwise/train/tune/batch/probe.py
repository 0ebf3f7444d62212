"""Real runs for the batch finder: the longest samples first, real steps of the optimizer, each in a process with a limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from gpuwise.errors import GpuwiseError
from gpuwise.train.hook.launch import Outcome
from gpuwise.train.hook.settings import Stop
from gpuwise.train.tune.batch.capacity import Capacity, filled_bytes, n_retries
from gpuwise.train.tune.batch.finder import BatchMeasurement
from gpuwise.train.tune.state import State
from gpuwise.train.tune.trial import LONGEST, Trial, trial_of
from gpuwise.units import format_bytes

Levers = Mapping[str, object]
Run = Callable[[Levers, Stop], Outcome]
LONGEST_STEPS = 3
"""Optimizer steps on the longest samples: in the second and third its states are there beside the activations."""
SECONDS = 60.0
"""Seconds of one run, from its first step on."""


class CannotError(GpuwiseError):
    """The script fails at this size for a reason other than memory."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of one run of one batch size."""

    fits: bool
    memory_bytes: float | None
    """Peak."""
    rate: float | None
    """Samples a second, of the steps after those on the longest samples."""
    n_steps: int
    largest_batch: int
    """Most samples that one batch really had."""
    optimizer_share: float = 0.0
    why: str | None = None
    """It does not fit."""
    cannot: str | None = None
    """It does not run, and memory is not the reason."""
    longest: dict[str, Any] | None = None
    """Items examined for the longest samples."""

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> Self:
        """From JSON."""
        return cls(**kept)

    @property
    def words(self) -> str:
        """One line of progress."""
        used = "" if self.memory_bytes is None else f"{format_bytes(self.memory_bytes)}, "
        rate = "" if self.rate is None else f", {self.rate:.4g} samples a second"
        return f"{used}fits{rate}" if self.fits else f"{used}{self.why}"


class Prober:
    """Runs batch sizes under some levers and remembers the results. ``say`` receives progress lines."""

    def __init__(
        self,
        run: Run,
        state: State,
        capacity: Capacity,
        *,
        base: Levers,
        accumulation: int,
        steps: int,
        least_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._run, self._state, self._capacity, self._base = run, state, capacity, dict(base)
        self._accumulation, self._steps, self._least_s, self._say = accumulation, steps, least_s, say

    def probe(self, levers: Levers) -> Probe:
        """Run with the longest samples first. Raises CannotError if the run failed for another reason than memory."""
        changed = {**self._base, **levers}
        label = ", ".join(f"{k} {v}" for k, v in levers.items())
        self._say(f"memory: {label}")
        probe = Probe.read(self._state.measured(f"memory|{key_of(changed)}", lambda: asdict(self._measure(changed, levers))))
        if probe.cannot is not None:
            raise CannotError(probe.cannot)
        self._say(f"memory: {label}: {probe.words}")
        return probe

    def size(self, batch: int, levers: Levers | None = None) -> BatchMeasurement:
        """Measure one size of the script's batch for the finder. Raises CannotError."""
        probe = self.probe({"batch": batch, **(levers or {})})
        if probe.fits and probe.largest_batch < batch:
            raise CannotError(f"the training's batches had {probe.largest_batch} samples instead of {batch}")
        return BatchMeasurement(batch, probe.fits, probe.memory_bytes, probe.rate)

    def rate(self, levers: Levers, at: int) -> Trial:
        """One run in the script's own order, for its rate. ``at`` numbers repeats."""
        changed = {**self._base, **levers}

        def measure() -> dict[str, Any]:
            return trial_of(self._run(changed, Stop(steps=self._steps, at_least_s=self._least_s, seconds=SECONDS))).keep()

        return Trial.read(self._state.measured(f"rate|{key_of(changed)}|{at}", measure))

    def _measure(self, changed: Levers, levers: Levers) -> Probe:
        n_longest = LONGEST_STEPS * self._accumulation
        stop = Stop(steps=self._steps + LONGEST_STEPS, at_least_s=self._least_s, seconds=SECONDS)
        outcome = self._run({**changed, LONGEST: n_longest}, stop)
        trial = trial_of(outcome, skip_steps=LONGEST_STEPS)
        memory, retries = filled_bytes(outcome, self._capacity), n_retries(outcome)
        why, cannot = None, next((w for n, w in outcome.journal.refused.items() if n in levers), None)
        if outcome.out_of_memory:
            why = "out of memory"
        elif outcome.ended == "time":
            why = f"not done after {outcome.wall_s:.0f} s"
        elif memory is not None and memory > self._capacity.memory_bytes:
            why = "more than there is"
        elif retries and self._capacity.device:
            why = f"the allocator had to try {retries} times again"
        elif len(outcome.journal.ticks) < LONGEST_STEPS and cannot is None:
            cannot = outcome.error or f"{outcome.how} after {len(outcome.journal.ticks)} steps"
        elif not outcome.ok and cannot is None:
            cannot = outcome.how
        return Probe(
            why is None and cannot is None,
            memory,
            trial.rate if trial.per == "samples" else None,
            len(outcome.journal.ticks),
            largest_batch(outcome),
            trial.shares.get("optimizer", 0.0),
            why,
            cannot,
            dict(outcome.journal.last("longest")) or None,
        )


def largest_batch(outcome: Outcome) -> int:
    """Samples of the largest batch, from the steps' mean batches."""
    ticks = outcome.journal.ticks
    first = ticks[0].samples / max(ticks[0].n_batches, 1) if ticks else 0.0
    return round(max([first, *(s.samples / max(s.n_batches, 1) for s in outcome.journal.steps)]))


def key_of(levers: Levers) -> str:
    """Names a set of levers."""
    return ",".join(f"{k}={v}" for k, v in levers.items())
