"""A change made to a training run or step, with what it saves and what it costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from gpuwise.workload.changes.change import Change
from gpuwise.workload.changes.registry import kind_of, label, labels, on_strategy, training_of
from gpuwise.workload.optimizer import on_host
from gpuwise.workload.strategy import Strategy

if TYPE_CHECKING:
    from gpuwise.plan.step.estimates import StepEstimate
    from gpuwise.predict.step.training import TrainingEstimate

E = TypeVar("E", "TrainingEstimate", "StepEstimate")


@dataclass(frozen=True, slots=True)
class Remedy(Generic[E]):
    """Changes made together. ``saved_bytes`` is of the fullest device and may be negative. ``slower`` is the ratio of step
    times, for the same work, to the request (as if that fitted) minus one; None without a time."""

    name: str
    changes: tuple[Change, ...]
    estimate: E
    saved_bytes: float
    slower: float | None
    lines: tuple[str, ...] = ()
    """Lines to write into the user's code: see :mod:`gpuwise.workload.changes.diff`."""

    @property
    def kind(self) -> str:
        """Effect of the changes on the training result: ``same training``, ``lighter states``."""
        return training_of(self.changes)

    @property
    def fits(self) -> bool:
        return self.estimate.fits

    @property
    def tight(self) -> bool:
        """It fits, but not with the allocator's usual slack."""
        return self.fits and self.estimate.memory_bytes.expected > self.estimate.device_bytes

    @property
    def risk(self) -> str:
        """Risk of the changes."""
        return "; ".join(dict.fromkeys(kind_of(c).risk for c in self.changes))

    @property
    def allocator_conf(self) -> str | None:
        """The allocator's settings among the changes."""
        return next((str(c.argument) for c in self.changes if c.name == "allocator"), None)


def remedy_of(
    changes: tuple[Change, ...],
    baseline: E,
    alternative: E,
    *,
    name: str = "",
    lines: tuple[str, ...] = (),
    work: float = 1.0,
) -> Remedy[E]:
    """``changed`` against what was ``asked`` for; ``name`` where the changes' own labels do not say it. ``work``: that of a step
    over the baseline's, where the batch changes."""
    before, after = baseline.step_time_s, alternative.step_time_s
    slower = None if before is None or after is None else after.expected / (work * before.expected) - 1.0
    saved = baseline.memory_bytes.expected - alternative.memory_bytes.expected
    return Remedy(name or labels(changes), changes, alternative, saved, slower, lines)


def remedy_order(remedy: Remedy[TrainingEstimate] | Remedy[StepEstimate]) -> tuple[bool, float]:
    """Those that fit first, then by slowdown; without a time by what is saved."""
    return (not remedy.fits, remedy.slower if remedy.slower is not None else -remedy.saved_bytes)


def changed(s: Strategy, changes: Iterable[Change]) -> Strategy:
    """``s`` with the changes made, one after the other."""
    for change in changes:
        s = on_strategy(change, s)
    return s


def strategy_label(changes: Iterable[Change], before: Strategy, after: Strategy) -> str:
    """The changes' labels, a micro-batch by its size rather than by its parts, an offload by what ``after`` keeps on the host."""

    def words(change: Change) -> str:
        if change.name == "micro_batches":
            return f"micro-batch {changed(before, (change,)).micro_batch}"
        if change.name == "offload_optimizer" and after.offload_optimizer:
            return f"{on_host(after)[0]} in host memory"
        return label(change)

    return " + ".join(map(words, changes)) or "as asked"
