"""Facts of a watched run beside its trace: phases of the steps without profiler, optimizers, models, loaders."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gpuwise.train.hook.journal import Journal
from gpuwise.train.ticks import QUEUED, Step, Tick, boundary, steady, steps_of

COMPILES = 2.0
"""Times the usual length: a step that was compiled for is longer. Rule of this project."""
PAUSE = 3.0
"""Times the usual length, from which a step holds a pause of the training. Rule of this project."""
REGULAR = 0.6
"""Share of the steps with the same number of passes above which steps with more are not longer episodes. It is two thirds of
the updates if every rollout serves three. Rule of this project."""
LIKE_USUAL = 0.5
"""Tolerance relative to the usual time of a model's pass. Rule of this project."""
LEAST_PAUSES, LEAST_PAUSE_S = 2, 5e-3
"""Minimum number of similar pauses, and their minimum length if nothing else distinguishes them, to attribute them to the
loop: scheduler and garbage collector take a millisecond or two at times. Rules of this project."""
ALIKE = 0.2
"""Share of the step by which two runs may differ. Rule of this project."""
UNSURE = 0.1
"""Share of the time used by other programs by which the rest of a step is uncertain: the caches are cold afterwards, and a
virtual machine's own delays are in no statistics. Rule of this project."""
_NAMES = tuple(f.name for f in fields(Step))


@dataclass(frozen=True, slots=True)
class Pauses:
    """Occasional work of the loop between updates: it plays an environment, evaluates, restarts its loader. Medians do not
    show it."""

    n: int = 0
    seconds: float = 0.0
    """A step, on average: what steps with a pause take beyond the others, less their waiting for data and saving."""
    data_s: float = 0.0
    """The same of waiting for data, as where workers start at every epoch."""
    model_s: float = 0.0
    """Part of ``seconds`` in passes of models."""
    n_forward: float = 0.0
    """Such passes in a pause, on average."""
    n_batches: float = 0.0
    """Batches taken from loaders in a pause, on average."""
    steps: tuple[int, ...] = ()
    """Numbers of the steps that hold one."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts of the steps before notes and trace, modified only by the watch."""

    steps: tuple[Step, ...]
    step: Step
    """Medians of their phases; what comes now and then (saving, a loader that starts) at its mean. Pauses are not in it.
    The phases are those of a step without what other programs took of it, in proportion to the whole."""
    optimizers: tuple[Mapping[str, Any], ...] = ()
    models: tuple[Mapping[str, Any], ...] = ()
    loaders: tuple[Mapping[str, Any], ...] = ()
    pauses: Pauses = Pauses()
    calls: tuple[Mapping[str, Any], ...] = ()
    """Noted calls, their number and seconds a step."""
    padding: Mapping[str, Any] = field(default_factory=dict[str, Any])
    anomaly: bool = False
    n_graphs_steady: int = 0
    """Graphs that were compiled after the warm-up."""
    compiling_s: float = 0.0
    """A step, on average: what steps with such a graph take beyond the others. Medians do not show it."""
    compiler: Mapping[str, Any] = field(default_factory=dict[str, Any])
    memory: Mapping[str, Any] = field(default_factory=dict[str, Any])
    constant: Step | None = None
    """The same with the first batch given again and again."""
    held_back: Mapping[str, float] = field(default_factory=dict[str, float])
    """Share of the run with reduced clocks, by reason."""
    power_w: float | None = None
    has_trace: bool = False
    traced: tuple[Step, ...] = ()
    """The steps of the trace, as the watch timed them."""
    optimizers_traced: tuple[int, ...] = ()
    """The optimizer of every tick in it, in order."""

    @property
    def queue_share(self) -> float:
        """Share of the time of all steps in which other programs had the processors."""
        wall_s = sum(s.wall_s for s in self.steps)
        return sum(s.queue_s for s in self.steps) / wall_s if wall_s > 0 else 0.0

    @property
    def is_void(self) -> bool:
        """Whether the run with one batch again and again proves nothing: it took longer than the one with all its data."""
        return self.constant is not None and constant_batch_s(self.step, self.constant) > (1 + ALIKE) * self.step.wall_s


def median_step(steps: Sequence[Step]) -> Step:
    """The median of every phase and count; for rare phases (saving) the mean."""
    values = {name: statistics.median([getattr(s, name) for s in steps]) for name in _NAMES}
    save_s = statistics.fmean([s.save_s for s in steps])
    values["wall_s"] += max(save_s - values["save_s"], 0.0)
    values["save_s"] = save_s
    return Step(**{**values, **{n: round(values[n]) for n in _NAMES if n.startswith("n_") or n in ("samples", "tokens")}})


def ran_on_gpu(journal: Journal) -> bool:
    """From the devices of its tensors; without that, whether the machine has a GPU."""
    devices = journal.last("devices")
    return bool(devices["devices"]) if devices else bool(journal.begin.get("cuda"))


def run_facts(journal: Journal) -> RunFacts | None:
    """None where fewer than two undisturbed steps were seen."""
    notes, trace = journal.last("notes"), journal.last("trace")
    ends = [e["at_tick"] for e in (notes, trace) if e]
    clean = steps_of(journal.ticks[: min(ends)] if ends else journal.ticks)
    rest = steady(clean) or clean
    if not rest:
        return None
    warm = len(clean) - len(rest)
    if trace:
        # the first step after it holds the writing of the trace
        rest += steps_of(journal.ticks[int(trace["at_tick"]) + int(trace["n_ticks"]) :])[1:]
    graphs = list(journal.of("graphs"))
    late = [e["n"] for e in graphs if e["at_tick"] > warm + 3]
    early = max((e["n"] for e in graphs if e["at_tick"] <= warm + 3), default=0)
    n_late = max(late, default=early) - early
    alone = [s.alone for s in rest]
    # what is compiled late is no pause
    pauses = Pauses() if n_late else find_pauses(alone, statistics.fmean(s.queue_s for s in rest))
    step = median_step(_without(rest, pauses.steps))
    step, pauses = _as_alone(step, median_step(_without(alone, pauses.steps)), pauses)
    facts = RunFacts(
        tuple(rest),
        replace(step, wall_s=step.wall_s + pauses.data_s, data_s=step.data_s + pauses.data_s),
        tuple(journal.of("optimizer")),
        tuple(journal.of("model")),
        tuple(journal.of("loader")),
        pauses,
        _calls(journal),
        notes.get("padding", {}),
        bool(notes.get("anomaly")),
        n_late,
        _excess(rest) if n_late else 0.0,
        journal.last("compiler"),
        journal.last("memory"),
    )
    return _with_trace(facts, journal) if trace else facts


def _as_alone(step: Step, alone: Step, pauses: Pauses) -> tuple[Step, Pauses]:
    """``step`` and ``pauses`` with their parts under ``alone``; delays are distributed over parts in proportion to their
    length."""
    if alone.wall_s <= 0 or step.wall_s <= alone.wall_s:
        return step, pauses
    longer = step.wall_s / alone.wall_s
    phases = {f"{n}_s": longer * getattr(alone, f"{n}_s") for n in (*QUEUED, "copy")}
    seconds = {n: longer * getattr(pauses, n) for n in ("seconds", "data_s", "model_s")}
    return replace(step, **phases), replace(pauses, **seconds)


def find_pauses(steps: Sequence[Step], queue_s: float = 0.0) -> Pauses:
    """Time of :func:`_paused_steps` beyond the usual step, the median of the others."""
    stops, waits = _paused_steps(steps, queue_s)
    pauses = [steps[at] for at in (*stops, *waits)]
    if not pauses:
        return Pauses()
    usual = median_step(_without(steps, stops))
    data_s = sum(max(s.data_s - usual.data_s, 0.0) for s in pauses) / len(steps)
    save_s = sum(s.save_s for s in pauses) / len(steps)
    beyond_s = sum(s.undisturbed_s - usual.undisturbed_s for s in pauses) / len(steps)
    playing = [steps[at] for at in stops]
    return Pauses(
        len(stops),
        max(beyond_s - data_s - save_s, 0.0),
        data_s,
        sum(max(s.forward_s - usual.forward_s, 0.0) for s in playing) / len(steps),
        statistics.fmean(s.n_forward - usual.n_forward for s in playing) if playing else 0.0,
        statistics.fmean(s.n_batches - usual.n_batches for s in playing) if playing else 0.0,
        tuple(stops),
    )


def _without(steps: Sequence[Step], numbers: Sequence[int]) -> Sequence[Step]:
    """The steps but those of these numbers; all where none is left."""
    left_out = set(numbers)
    return [s for at, s in enumerate(steps) if at not in left_out] or steps


def _paused_steps(steps: Sequence[Step], queue_s: float = 0.0) -> tuple[list[int], list[int]]:
    """Numbers of the steps with a pause, and of steps that wait for a loader.

    They are ``PAUSE`` times as long as the usual one and differ in content: additional passes of a model or batches, or
    repeatedly the same long time outside the phases, beyond the uncertainty of ``queue_s`` (the mean delay by other programs).
    If most steps are such rollouts, short ones that ended early count too. Delays by other programs are excluded.
    """
    usual = median_step(steps)
    walls = [s.undisturbed_s for s in steps]
    usual_s = statistics.median(walls)
    regular = sum(s.n_forward == usual.n_forward for s in steps) >= REGULAR * len(steps)
    long = [at for at, wall in enumerate(walls) if wall > PAUSE * usual_s]
    if not regular:
        long = [at for at in long if not _only_longer(steps[at], usual)]
    more = [at for at in long if steps[at].n_forward > usual.n_forward or steps[at].n_batches > usual.n_batches]
    played = [at for at, s in enumerate(steps) if s.n_forward > usual.n_forward and s.n_batches <= usual.n_batches]
    if regular and played and statistics.median(walls[at] for at in played) > PAUSE * usual_s:
        more = sorted({*more, *played})
    bare_s = max(PAUSE * usual_s, LEAST_PAUSE_S)
    bare = [at for at in long if at not in more and steps[at].other_s - steps[at].bare_queue_s > bare_s]
    if sum(walls[at] - usual_s for at in bare) < UNSURE * queue_s * len(steps):
        bare = []
    waits = [at for at in long if at not in more and at not in bare and steps[at].data_s > PAUSE * usual_s]
    groups = [group if len(group) >= LEAST_PAUSES else [] for group in (more, bare, waits)]
    return groups[0] + groups[1], groups[2]


def _only_longer(step: Step, usual: Step) -> bool:
    """Whether it is a usual step with more of the same, as an episode that took more moves: as long for each pass of a model."""
    if usual.n_forward <= usual.n_backward or not step.n_forward:
        return False
    return step.undisturbed_s / step.n_forward >= LIKE_USUAL * usual.undisturbed_s / usual.n_forward


def _excess(steps: Sequence[Step]) -> float:
    walls = sorted(s.wall_s for s in steps)
    usual = walls[len(walls) // 4]
    return sum(w - usual for w in walls if w > COMPILES * usual) / len(walls)


def _ticks_a_step(journal: Journal) -> int:
    closing = boundary(journal.ticks)
    closed = sum(t.optimizer == closing for t in journal.ticks)
    return round(len(journal.ticks) / closed) if closed else 1


def _calls(journal: Journal) -> tuple[Mapping[str, Any], ...]:
    """Those noted, a step."""
    notes = journal.last("notes")
    per = max(int(notes.get("n_ticks", 0)) / max(_ticks_a_step(journal), 1), 1.0)
    return tuple({**c, "n": c["n"] / per, "seconds": c["seconds"] / per} for c in notes.get("calls", ()))


def _with_trace(facts: RunFacts, journal: Journal) -> RunFacts:
    """The same with the trace in the journal."""
    trace = journal.last("trace")
    ticks: list[Tick] = journal.ticks[trace["at_tick"] : trace["at_tick"] + trace["n_ticks"]] if trace else []
    traced = steps_of(ticks)
    return replace(
        facts,
        has_trace=True,
        traced=tuple(traced),
        optimizers_traced=tuple(t.optimizer for t in ticks),
    )


def constant_batch_s(step: Step, constant: Step) -> float:
    """The length that ``step`` has with one batch again and again: by the ratio of the two runs, each without what other programs
    took of it."""
    return step.wall_s * constant.undisturbed_s / step.undisturbed_s if step.undisturbed_s > 0 else constant.wall_s


def add_constant_batch(facts: RunFacts, journal: Journal) -> RunFacts:
    """The same with the steps of a run whose loaders returned only one batch."""
    other = run_facts(journal)
    return facts if other is None else replace(facts, constant=other.step)


def add_trace(facts: RunFacts, journal: Journal) -> RunFacts:
    """The same with the notes and the trace of another run, without its steps."""
    notes = journal.last("notes")
    facts = replace(facts, calls=_calls(journal), padding=notes.get("padding", {}), anomaly=bool(notes.get("anomaly")))
    return _with_trace(facts, journal)
