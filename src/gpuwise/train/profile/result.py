"""The result of ``gpuwise profile``, from traces or from a watched run with its trace."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpuwise.errors import GpuwiseError, InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.train.profile.device_comparison import Slower, Target, against_device, utilisation
from gpuwise.train.profile.finding import Finding
from gpuwise.train.profile.findings.table import find_wastes
from gpuwise.train.profile.profile_data import DeviceFacts, ProfileData, RankView
from gpuwise.train.profile.run_facts import ALIKE, PAUSE, RunFacts, constant_batch_s
from gpuwise.train.profile.split import Split, event_cost_s, split_step, stalls, undisturbed
from gpuwise.train.profile.step_fit import fit_to, of_phases
from gpuwise.train.profile.steps import Steps, chosen, clean_s, find_steps, with_delays, without_tail
from gpuwise.train.profile.trace import Trace
from gpuwise.train.profile.trace_reader import read_trace
from gpuwise.train.profile.verdict import Verdict, decide
from gpuwise.units import format_duration

STALLED = 4.0
"""A traced step on a processor that is this many times longer than the shortest was delayed by the machine, not the script.
Rule of this project."""
TORN = 0.1
"""Share of the median of the traced steps below which a window is not a step. Rule of this project."""
CROWDED = 0.1
"""Share of the time without a processor above which the profile mentions it. Rule of this project."""


@dataclass(frozen=True, slots=True)
class Profile:
    """``split`` adds up to the step; ``findings`` are sorted by what they save."""

    name: str
    device: str
    split: Split
    findings: tuple[Finding, ...]
    verdict: Verdict
    slower: tuple[Slower, ...] = ()
    utilisation: float | None = None
    """Share of the peak in :attr:`main_format`, by products alone; None if peak or shapes are unknown."""
    main_format: str = ""
    """Format of the products with most arithmetic; empty without any."""
    ranks: tuple[tuple[int, Split], ...] = ()
    notes: tuple[str, ...] = ()
    data: ProfileData = field(repr=False, default=None)  # type: ignore[assignment]

    @property
    def samples_per_s(self) -> float | None:
        """None where no batch was seen."""
        n = self.data.samples
        return n / self.split.wall_s if n and self.split.wall_s > 0 else None


def profile_traces(files: Sequence[Path], *, target: Target | None = None) -> Profile:
    """The profile of existing traces, one for each rank. Raises InputError."""
    views = [_view(i, read_trace(f)) for i, f in enumerate(files)]
    numbers = [v.rank for v in views]
    if len(set(numbers)) < len(numbers):
        raise InputError(f"two of the traces are of rank {max(numbers, key=numbers.count)}", hint="give one trace for each rank")
    views.sort(key=lambda v: v.rank)
    first = views[0]
    split = split_step(first.trace, first.steps)
    facts, target, name = _device_of(first.trace, target)
    data = ProfileData(split, split, first.trace, first.steps, None, facts, views if len(views) > 1 else ())
    ranks = tuple((v.rank, split if v is first else split_step(v.trace, v.steps)) for v in views) if len(views) > 1 else ()
    shown = files[0].name if len(files) == 1 else f"{len(files)} ranks"
    return _profile_of(shown, name, data, target, _trace_notes(first), ranks=ranks)


def profile_run(
    name: str,
    facts: RunFacts,
    trace_file: Path | None,
    *,
    target: Target | None = None,
    before: str | None = None,
    notes: Sequence[str] = (),
    on_gpu: bool = False,
    ranks: Sequence[RankView] = (),
) -> Profile:
    """The profile of a watched run, with its trace where there is one; ``ranks`` are the traces of all its processes."""
    if facts.queue_share > CROWDED:
        waited = f"{100 * facts.queue_share:.0f} %"
        notes = [*notes, f"other programs had the processors for {waited} of the time: on an idle machine a step is shorter"]
    notes = [*notes, *_disagreements(facts)]
    if trace_file is None:
        split = of_phases(facts.step, "gpu" if on_gpu else "cpu", facts.pauses.seconds)
        data = ProfileData(split, facts=facts, device=_processor_facts())
        return _profile_of(name, "", data, None, [*notes, "no trace: the run was too short for one"], before)
    trace = read_trace(trace_file)
    steps = with_delays(find_steps(trace, facts.optimizers_traced), facts.traced)
    if not trace.has_device:
        steps = _fast_steps(steps)
    else:
        steps = without_tail(steps, trace, facts.traced)
        if facts.pauses.n:
            steps = _without_pauses(steps)
    stalled, steps = stalls(trace, steps)
    compared_s = facts.step.wall_s if trace.has_device else clean_s(steps, facts.step)
    traced = undisturbed(split_step(trace, steps, stalled, event_cost_s(trace, steps, stalled, compared_s)), steps, trace)
    device, target, device_name = _device_of(trace, target)
    data = ProfileData(
        fit_to(traced, trace, facts.step, facts.compiling_s, facts.pauses.seconds, clean_s=compared_s),
        traced,
        trace,
        steps,
        facts,
        device,
        ranks,
        stalled,
    )
    return _profile_of(name, device_name, data, target, [*notes, *_trace_notes(RankView(0, trace, steps))], before)


def _disagreements(facts: RunFacts) -> list[str]:
    """Inconsistencies between the run with one repeated batch and the times of the first run."""
    if facts.constant is None:
        return []
    expected_s, found_s = facts.step.wall_s - facts.step.data_s, constant_batch_s(facts.step, facts.constant)
    if abs(found_s - expected_s) <= ALIKE * facts.step.wall_s:
        return []
    text = f"without its data a step should take {format_duration(expected_s)}, and took {format_duration(found_s)} when tried"
    counted = (
        "the second, slower without its data than with it, is not counted" if facts.is_void else "the smaller saving is reported"
    )
    return [f"two runs disagree: {text}; {counted}. Run it again on an idle machine"]


def _fast_steps(steps: Steps) -> Steps:
    """The faster half, without those during which the machine stalled: on a shared processor the slower ones reflect the
    others. A window far shorter than the typical step is a truncated one and not counted."""
    lengths = steps.windows[:, 1] - steps.windows[:, 0]
    whole = np.flatnonzero(lengths >= TORN * np.median(lengths))
    faster = whole[lengths[whole].argsort()][: max((len(whole) + 1) // 2, 1)]
    rows = sorted(faster[lengths[faster] <= STALLED * lengths[faster].min()].tolist())
    return chosen(steps, rows)


def _without_pauses(steps: Steps) -> Steps:
    lengths = steps.work[:, 1] - steps.work[:, 0]
    return chosen(steps, np.flatnonzero(lengths <= PAUSE * np.median(lengths)).tolist())


def _profile_of(
    name: str,
    device: str,
    data: ProfileData,
    target: Target | None,
    notes: Sequence[str],
    before: str | None = None,
    ranks: tuple[tuple[int, Split], ...] = (),
) -> Profile:
    findings = find_wastes(data)
    peaks = data.device.peak_flop_per_s or {}
    formats = {p.dtype: p.flop * p.count for p in data.products}
    main = max(formats, key=lambda d: formats[d]) if formats else ""
    # if the delays of the traced steps are known, none of them is left in the parts
    is_clear = data.facts is None or data.on_gpu or data.trace is None or (data.steps is not None and len(data.steps.waited_s))
    return Profile(
        name,
        device or ("processor" if not data.on_gpu else "GPU"),
        data.split,
        findings,
        decide(
            findings,
            data.split,
            before,
            0.0 if is_clear or data.facts is None else data.facts.step.queue_s,
            traced=data.trace is not None,
            queue_share=0.0 if data.facts is None else data.facts.queue_share,
        ),
        against_device(data, target),
        utilisation(data.products, data.wall_s, peaks.get(main)),
        main,
        ranks,
        tuple(notes),
        data,
    )


def _view(number: int, trace: Trace) -> RankView:
    return RankView(number if trace.rank is None else trace.rank, trace, find_steps(trace))


def _trace_notes(view: RankView) -> list[str]:
    steps, trace = view.steps, view.trace
    notes: list[str] = []
    if steps.by == "whole trace":
        notes.append("no steps are marked in the trace: all of it is taken as one")
    if not any("python_function" in c for c in trace.categories):
        notes.append("the trace has no stacks: lines of the script come from notes only")
    return notes


def _device_of(trace: Trace, target: Target | None) -> tuple[DeviceFacts, Target | None, str]:
    """Facts of the device that ran; None for a target of the other kind."""
    host = _processor_facts()
    if not trace.has_device:
        name = target.name if target is not None and not isinstance(target, Accelerator) else ""
        peaks = None if isinstance(target, Accelerator) or target is None else dict(target.peak_flop_per_s)
        return replace(host, name=name, peak_flop_per_s=peaks), None if isinstance(target, Accelerator) else target, name
    device = target if isinstance(target, Accelerator) else _accelerator(trace)
    memory = trace.properties.get("totalGlobalMem")
    name = str(trace.properties.get("name", ""))
    peaks = None if device is None else dict(device.peak_flop_per_s)
    return DeviceFacts(name, peaks, float(memory) if memory else None, host.n_cores), device, name


def _accelerator(trace: Trace) -> Accelerator | None:
    from gpuwise.machine.bench.subjects import accelerator_named

    properties: Any = trace.properties
    with suppress(GpuwiseError):
        return accelerator_named(str(properties.get("name", "")), properties.get("totalGlobalMem"), trace.capability)
    return None


def _processor_facts() -> DeviceFacts:
    from gpuwise.machine.devices.cpu import usable_cores
    from gpuwise.machine.devices.memory import total_bytes

    return DeviceFacts(memory_bytes=float(total_bytes() or 0) or None, n_cores=usable_cores())
