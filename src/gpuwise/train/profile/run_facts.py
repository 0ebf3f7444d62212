"""Facts of a watched run beside its trace: phases of the steps without profiler, optimizers, models, loaders."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gpuwise.train.hook.journal import Journal
from gpuwise.train.hook.ticks import Step, boundary, steady, steps_of

COMPILES = 2.0
"""Times the usual length: a step that was compiled for is longer. Rule of this project."""
_NAMES = tuple(f.name for f in fields(Step))


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Of the steps before notes and trace, which nothing but the watch touched."""

    steps: tuple[Step, ...]
    step: Step
    """Medians of their phases; saving, which comes now and then, at its mean."""
    optimizers: tuple[Mapping[str, Any], ...] = ()
    models: tuple[Mapping[str, Any], ...] = ()
    loaders: tuple[Mapping[str, Any], ...] = ()
    calls: tuple[Mapping[str, Any], ...] = ()
    """Noted calls, their number and seconds a step."""
    padding: Mapping[str, Any] = field(default_factory=dict[str, Any])
    anomaly: bool = False
    n_graphs_steady: int = 0
    """Graphs that were compiled after the warm-up."""
    compiling_s: float = 0.0
    """A step, on average: what steps with such a graph take beyond the others. Medians do not show it."""
    queue_s: float = 0.0
    """A step, on average: other programs had the processors that it was ready to run on."""
    bare_queue_s: float = 0.0
    """By how much that lengthens the median of what is in none of the phases."""
    compiler: Mapping[str, Any] = field(default_factory=dict[str, Any])
    memory: Mapping[str, Any] = field(default_factory=dict[str, Any])
    constant: Step | None = None
    """The same with the first batch given again and again."""
    held_back: Mapping[str, float] = field(default_factory=dict[str, float])
    """Share of the run during which the clocks were held, by reason."""
    power_w: float | None = None
    trace_wall_s: float | None = None
    """Of a step while the profiler ran."""
    has_trace: bool = False


def median_step(steps: Sequence[Step]) -> Step:
    """The median of every phase and count; for rare phases (saving) the mean."""
    values = {name: statistics.median([getattr(s, name) for s in steps]) for name in _NAMES}
    save_s = statistics.fmean([s.save_s for s in steps])
    values["wall_s"] += max(save_s - values["save_s"], 0.0)
    values["save_s"] = save_s
    return Step(**{**values, **{n: round(values[n]) for n in _NAMES if n.startswith("n_") or n in ("samples", "tokens")}})


def run_facts(journal: Journal) -> RunFacts | None:
    """None where fewer than two undisturbed steps were seen."""
    notes, trace = journal.last("notes"), journal.last("trace")
    ends = [e["at_tick"] for e in (notes, trace) if e]
    clean = steps_of(journal.ticks[: min(ends)] if ends else journal.ticks)
    kept = steady(clean) or clean
    if not kept:
        return None
    per = max(int(notes.get("n_ticks", 0)) / max(_ticks_a_step(journal), 1), 1.0)
    calls = [{**c, "n": c["n"] / per, "seconds": c["seconds"] / per} for c in notes.get("calls", ())]
    warm = len(clean) - len(kept)
    graphs = list(journal.of("graphs"))
    late = [e["n"] for e in graphs if e["at_tick"] > warm + 3]
    early = max((e["n"] for e in graphs if e["at_tick"] <= warm + 3), default=0)
    n_late = max(late, default=early) - early
    return RunFacts(
        tuple(kept),
        median_step(kept),
        tuple(journal.of("optimizer")),
        tuple(journal.of("model")),
        tuple(journal.of("loader")),
        tuple(calls),
        notes.get("padding", {}),
        bool(notes.get("anomaly")),
        n_late,
        _excess(kept) if n_late else 0.0,
        statistics.fmean(s.queue_s for s in kept),
        max(statistics.median(s.other_s for s in kept) - statistics.median(s.other_s - s.bare_queue_s for s in kept), 0.0),
        journal.last("compiler"),
        journal.last("memory"),
        trace_wall_s=_traced_wall(journal, trace),
        has_trace=bool(trace),
    )


def _excess(steps: Sequence[Step]) -> float:
    walls = sorted(s.wall_s for s in steps)
    usual = walls[len(walls) // 4]
    return sum(w - usual for w in walls if w > COMPILES * usual) / len(walls)


def _ticks_a_step(journal: Journal) -> int:
    closing = boundary(journal.ticks)
    closed = sum(t.optimizer == closing for t in journal.ticks)
    return round(len(journal.ticks) / closed) if closed else 1


def _traced_wall(journal: Journal, trace: Mapping[str, Any]) -> float | None:
    if not trace:
        return None
    ticks = journal.ticks[trace["at_tick"] : trace["at_tick"] + trace["n_ticks"]]
    walls = [s.wall_s for s in steps_of(ticks)]
    return statistics.median(walls) if walls else None


def add_constant_batch(facts: RunFacts, journal: Journal) -> RunFacts:
    """With the steps of a run whose loaders gave one batch only."""
    other = run_facts(journal)
    return facts if other is None else replace(facts, constant=other.step)
