"""Records of a watch at every optimizer step, and the steps of a training loop derived from them.

A *tick* is one call of one optimizer's ``step``, with counters that only grow. A *step* is the interval between two ticks of
the same optimizer, with all that the loop does in it (micro-batches, several optimizers, occasional evaluation).
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

DISCOVERY_TICKS = 2
"""Optimizer steps until which outermost modules are searched."""
BY_BACKWARD = -1
"""``Tick.optimizer`` where the loop has no optimizer and its backward passes are counted in its place."""
CLOSURE = "gpuwise: closure"
"""Range in a trace around what an optimizer's step calls to compute the loss."""
QUEUED = ("data", "forward", "backward", "optimizer", "save")
"""Phases whose delays by other programs are counted. Another, copies to a device, may come hundreds of times a step."""
MOST_WARM_UP = 0.5
"""Maximum share of the observed steps that counts as warm-up."""
STEADY_WITHIN = 1.25
"""A step up to this many times the median of the later half is steady: compilation, cuDNN's choice of algorithms and the
filling of loader queues at the start take several times a step. Rule of this project."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What a loop has done: seconds and numbers."""

    data_s: float = 0.0
    """Waiting in ``next`` of loaders."""
    copy_s: float = 0.0
    """In ``Tensor.to`` and ``Tensor.cuda`` that cross between host and device."""
    forward_s: float = 0.0
    """In outermost modules; on a GPU the host's time of issuing."""
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    save_s: float = 0.0
    """In ``torch.save``."""
    n_batches: int = 0
    """Taken from loaders."""
    n_forward: int = 0
    n_backward: int = 0
    n_optimizer: int = 0
    """Steps of all optimizers."""
    samples: int = 0
    """First dimension of the batches taken from loaders; of the model's inputs where there is no loader."""
    tokens: int = 0
    """Elements of two-dimensional integer inputs (ids), the padding with them."""
    queue_s: float = 0.0
    """In any phase: ready to run, but other programs had the processors."""
    bare_queue_s: float = 0.0
    """The same in none of the phases; counted in a step that follows a delayed one."""
    data_queue_s: float = 0.0
    """The same in this phase, as in those that follow."""
    forward_queue_s: float = 0.0
    backward_queue_s: float = 0.0
    optimizer_queue_s: float = 0.0
    save_queue_s: float = 0.0
    worker_queue_s: float = 0.0
    """Part of ``data_queue_s``: a loader's worker was runnable without a processor, and this thread waited for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Counters):
    """Counters at the end of one optimizer step, since the watch began."""

    at_s: float
    """Clock of the process (``time.perf_counter``)."""
    optimizer: int
    """Which, in the order of their first step; ``BY_BACKWARD``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Counters):
    """One turn of the training loop; the differences of two ticks."""

    wall_s: float

    @property
    def undisturbed_s(self) -> float:
        """Its length less what other programs took."""
        return max(self.wall_s - self.queue_s, 0.0)

    @property
    def other_s(self) -> float:
        """In none of the phases: the loop's own Python, logging, reading of values from the device."""
        phases_s = self.data_s + self.copy_s + self.forward_s + self.backward_s + self.optimizer_s + self.save_s
        return max(self.wall_s - phases_s, 0.0)

    @property
    def alone(self) -> Step:
        """The same without time taken by other programs, phase by phase; a delay known only for the whole step is subtracted
        from all its phases in proportion."""
        own_s = {name: max(getattr(self, f"{name}_s") - getattr(self, f"{name}_queue_s"), 0.0) for name in QUEUED}
        own_s["copy"] = self.copy_s
        sum_s = sum(own_s.values()) + max(self.other_s - self.bare_queue_s, 0.0)
        shrunk = min(self.undisturbed_s / sum_s, 1.0) if sum_s > 0 else 1.0
        none = dict.fromkeys(("queue_s", "bare_queue_s", "worker_queue_s", *(f"{name}_queue_s" for name in QUEUED)), 0.0)
        return replace(self, wall_s=self.undisturbed_s, **{f"{n}_s": s * shrunk for n, s in own_s.items()}, **none)


COUNTERS = tuple(f.name for f in fields(Counters))


def boundary(ticks: Sequence[Tick]) -> int | None:
    """The optimizer whose steps close a turn of the loop: among those that stepped at least twice the least frequent one; ties
    go to the last in the turn. None before any has stepped twice."""
    n_by_optimizer = Counter(t.optimizer for t in ticks)
    often = {o: n for o, n in n_by_optimizer.items() if n >= 2}
    if not often:
        return None
    least = min(often.values())
    # an optimizer that has not had its turn yet at the end is one behind
    candidates = [o for o, n in often.items() if n <= least + 1] if len(often) > 1 else list(often)
    last = {t.optimizer: at for at, t in enumerate(ticks[: _first_turn(ticks)])}
    return max(candidates, key=lambda o: last.get(o, -1))


def _first_turn(ticks: Sequence[Tick]) -> int:
    """Ticks until every optimizer has stepped once."""
    optimizers = {t.optimizer for t in ticks}
    for at, tick in enumerate(ticks):
        optimizers.discard(tick.optimizer)
        if not optimizers:
            return at + 1
    return len(ticks)


def steps_of(ticks: Sequence[Tick], closing: int | None = None) -> list[Step]:
    """The turns of the loop, first to last; empty where fewer than two ticks close one. ``closing``: the optimizer whose steps
    close them, by default the :func:`boundary` of the ticks."""
    closing = boundary(ticks) if closing is None else closing
    ends = [t for t in ticks if t.optimizer == closing]
    return [
        Step(wall_s=b.at_s - a.at_s, **{name: getattr(b, name) - getattr(a, name) for name in COUNTERS})
        for a, b in itertools.pairwise(ends)
    ]


def warm_up(wall_s: Sequence[float]) -> int:
    """How many steps at the start are slower than the loop will be: those before the first that is near the median of the
    later half, with its two followers. At most ``MOST_WARM_UP`` of them."""
    n = len(wall_s)
    if n < 4:
        return 0
    level = statistics.median(wall_s[n // 2 :]) * STEADY_WITHIN
    most = int(n * MOST_WARM_UP)
    for at in range(most):
        window = wall_s[at : at + 3]
        if statistics.median(window) <= level and wall_s[at] <= level:
            return at
    return most


def steady(steps: Sequence[Step]) -> list[Step]:
    """The steps after the warm-up."""
    return list(steps[warm_up([s.wall_s for s in steps]) :])
