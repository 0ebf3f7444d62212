"""Progress of a running script from its journal: rate, loss, memory, energy, cost, time left."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.train.config import NO_PLAN, Plan, TunedSpeed
from gpuwise.train.hook.journal import Journal
from gpuwise.train.ticks import Step, Tick, boundary, steps_of, warm_up
from gpuwise.train.tune.energy import NO_ENERGY, Meter
from gpuwise.units import HOUR_S, J_PER_KWH

RECENT = 20
"""Steps that the rate of now is taken over."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress at one moment; None is unknown."""

    n_steps: int
    rate: float | None = None
    per: str = "steps"
    loss: float | None = None
    epoch: float | None = None
    """Passes over the training data so far."""
    epochs: float | None = None
    """In all."""
    memory_bytes: int | None = None
    """Memory of the device's allocator; of the processes without a device."""
    energy_j: float | None = None
    """Since the process began."""
    cost_usd: float | None = None
    """Since the process began."""
    total_steps: float | None = None
    left_s: float | None = None
    """Time left in the training loop, at its own mean pace after the warm-up."""
    predicted_left_s: float | None = None
    """The same at the predicted rate."""


@dataclass(frozen=True, slots=True)
class Loop:
    """The training loop so far, from ticks that may have been thinned out."""

    steps: tuple[Step, ...]
    """Steps while all ticks were stored."""
    points: tuple[tuple[float, float, int], ...]
    """Moment, turns and samples until then, at the end of turns (of any step once ticks are thinned out)."""
    n_warm: int
    """Turns of the warm-up."""

    @property
    def turns(self) -> float:
        """Turns so far."""
        return self.points[-1][1] if self.points else 0.0

    @property
    def per(self) -> str:
        """Unit of the rate: ``samples``, or ``steps`` where the sample count is unknown."""
        return "samples" if self.points and self.points[-1][2] else "steps"

    def rate(self, a: int, b: int) -> float | None:
        """Samples (or turns) a second between two points."""
        (from_s, turns, samples), (to_s, turns_b, samples_b) = self.points[a], self.points[b]
        done = samples_b - samples if self.per == "samples" else turns_b - turns
        return done / (to_s - from_s) if to_s > from_s else None

    @property
    def samples_a_turn(self) -> float:
        """1 if the sample size is unknown."""
        if self.per == "steps" or not self.steps:
            return 1.0
        return statistics.fmean(s.samples for s in self.steps)

    @property
    def mean_turn_s(self) -> float | None:
        """Including all work between turns (evaluation, saving), after the warm-up."""
        at = min(self.n_warm, len(self.points) - 2)
        if at < 0:
            return None
        (from_s, turns, _), (to_s, turns_b, _) = self.points[at], self.points[-1]
        return (to_s - from_s) / (turns_b - turns) if turns_b > turns else None


class LoopReader:
    """The loop of one journal as it grows: each :meth:`read` takes only the ticks that came since the last."""

    def __init__(self) -> None:
        self._closing: int | None = None
        self._dense = self._thin = 0
        """Ticks read so far, from the dense and the thinned part."""
        self._ends: list[Tick] = []
        self._steps: list[Step] = []
        self._thinned: list[tuple[float, float, int]] = []

    def read(self, journal: Journal) -> Loop:
        """The loop as far as it is written; the same journal every time."""
        sparse, ticks = journal.last("sparse"), journal.ticks
        n_dense = int(sparse["from_tick"]) if sparse else len(ticks)
        if n_dense != self._dense:
            self._take(ticks[:n_dense])
        if self._steps:
            per_turn = statistics.median(s.n_optimizer for s in self._steps) or 1
            last, turns = self._ends[-1], float(len(self._ends) - 1)
            self._thinned += [
                (t.at_s, turns + (t.n_optimizer - last.n_optimizer) / per_turn, t.samples) for t in ticks[n_dense + self._thin :]
            ]
            self._thin = len(ticks) - n_dense
        points = [(t.at_s, float(n), t.samples) for n, t in enumerate(self._ends)]
        return Loop(tuple(self._steps), (*points, *self._thinned), warm_up([s.wall_s for s in self._steps]))

    def _take(self, dense: Sequence[Tick]) -> None:
        closing = boundary(dense)
        if closing != self._closing or len(dense) < self._dense:  # other ticks end a turn than it seemed
            self._closing, self._dense, self._ends, self._steps = closing, 0, [], []
        new = [t for t in dense[self._dense :] if t.optimizer == closing]
        self._steps += steps_of([*self._ends[-1:], *new], closing)
        self._ends += new
        self._dense = len(dense)


def loop_of(journal: Journal) -> Loop:
    """The loop of a journal, as far as it is written."""
    return LoopReader().read(journal)


def batches_an_epoch(journal: Journal) -> tuple[int | None, int | None]:
    """Batches and samples of one pass over the training data: of several loaders the one with most samples is the training's."""
    loaders = [e for e in journal.of("loader") if e.get("n_samples")]
    if not loaders:
        return None, None
    largest = max(loaders, key=lambda e: int(e["n_samples"]))
    n = largest.get("n_batches")
    if n is None and largest.get("batch_size"):
        n = -(-int(largest["n_samples"]) // int(largest["batch_size"]))
    return (int(n) if n else None), int(largest["n_samples"])


def steps_an_epoch(journal: Journal, loop: Loop) -> float | None:
    """Turns of the loop in one pass over the training data."""
    batches, samples = batches_an_epoch(journal)
    taken = statistics.median(s.n_batches for s in loop.steps) if loop.steps else 0.0
    if batches is not None and taken:
        return batches / taken
    return samples / loop.samples_a_turn if samples and loop.per == "samples" and loop.steps else None


def total_of(journal: Journal, loop: Loop, plan: Plan) -> float | None:
    """Total turns: as given, else from a trainer, else from the given epochs."""
    if plan.total_steps is not None:
        return plan.total_steps
    by_trainer = journal.last("total").get("steps")
    if by_trainer is not None:
        return float(by_trainer)
    an_epoch = steps_an_epoch(journal, loop)
    return plan.epochs * an_epoch if plan.epochs is not None and an_epoch is not None else None


def progress_of(
    journal: Journal,
    plan: Plan = NO_PLAN,
    *,
    loop: Loop | None = None,
    expected: TunedSpeed | None = None,
    meter: Meter | None = None,
    elapsed_s: float | None = None,
) -> Progress:
    """The progress of a journal, whose ``loop`` may have been read already; ``elapsed_s`` since the process began is what is paid
    for."""
    loop = loop_of(journal) if loop is None else loop
    energy = meter.of(journal) if meter is not None else NO_ENERGY
    memory = journal.last("now").get("allocated_bytes") or journal.used_bytes
    an_epoch, total = steps_an_epoch(journal, loop), total_of(journal, loop, plan)
    recent = max(len(loop.points) - 1 - RECENT, 0)
    rate = loop.rate(recent, -1) if len(loop.points) > 1 else None
    left = None if total is None else max(total - loop.turns, 0.0)
    turn_s = loop.mean_turn_s
    predicted_s = predicted_turn_s(expected, loop)
    return Progress(
        int(loop.turns),
        rate,
        loop.per,
        journal.losses[max(journal.losses)] if journal.losses else None,
        loop.turns / an_epoch if an_epoch else None,
        total / an_epoch if total and an_epoch else plan.epochs,
        memory,
        energy.energy_j,
        cost_usd(plan, elapsed_s, energy.energy_j),
        total,
        left * turn_s if left is not None and turn_s is not None else None,
        left * predicted_s if left is not None and predicted_s is not None else None,
    )


def predicted_turn_s(expected: TunedSpeed | None, loop: Loop) -> float | None:
    """Seconds of a turn at the predicted rate."""
    if expected is None or expected.per != loop.per or not loop.steps:
        return None
    return loop.samples_a_turn / expected.rate


def cost_usd(plan: Plan, seconds: float | None, energy_j: float | None) -> float | None:
    """The machine's hours and the metered electricity, of what has a price; None where nothing has."""
    parts: list[float] = []
    if plan.price_per_hour is not None and seconds is not None:
        parts.append(seconds / HOUR_S * plan.price_per_hour)
    if plan.usd_per_kwh is not None and energy_j is not None:
        parts.append(energy_j / J_PER_KWH * plan.usd_per_kwh)
    return sum(parts) if parts else None
