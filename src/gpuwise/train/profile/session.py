"""The runs of ``gpuwise profile``: one with watch and trace, a second for the trace if the first ended too soon, and one with
a constant batch if the loader may be the limit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from gpuwise.errors import GpuwiseError
from gpuwise.train.hook.children import members_folder
from gpuwise.train.hook.journal import read_journal
from gpuwise.train.hook.launch import Limits, Outcome, launch
from gpuwise.train.hook.settings import Profiling, Settings, Stop
from gpuwise.train.hook.zygote import Zygote
from gpuwise.train.profile.device_comparison import Target
from gpuwise.train.profile.profile_data import RankView
from gpuwise.train.profile.result import Profile, profile_run
from gpuwise.train.profile.run_facts import RunFacts, add_constant_batch, add_trace, ran_on_gpu, run_facts
from gpuwise.train.profile.split import Split
from gpuwise.train.profile.steps import find_steps
from gpuwise.train.profile.trace_reader import read_trace

CLEAN_STEPS, NOTED_STEPS, TRACED_STEPS = 20, 3, 5
FIRST_TRACED = 2
"""Optimizer steps before a trace: :data:`gpuwise.train.ticks.DISCOVERY_TICKS`, which needs torch to be imported."""
LONGEST_AGAIN_S = 5.0
"""A step for whose trace a script is run again: a processor does some hundred thousand operations in it, and a trace of more is
read for minutes. Rule of this project."""
WARM_UP_STEPS = 3
"""Steps before the clean ones; further warm-up steps are recognised and excluded."""
CLEAN_S = 30.0
"""Seconds of long steps after which fewer are enough."""
SEEN_S = 2.0
"""Seconds of steady steps to observe before the script is stopped: short steps have their pauses between many."""
WAITS = 0.1
"""Share of the step in loaders from which the constant batch is tried."""
SECOND_RUN_S = 300.0
QUIET = {"KINETO_LOG_LEVEL": "99"}
"""Kineto announces itself on standard error otherwise."""


class ScriptError(GpuwiseError):
    """The script gave no steps to profile; ``code`` is its exit code, or 1."""

    def __init__(self, message: str, *, hint: str, code: int) -> None:
        super().__init__(message, hint=hint)
        self.code = self.exit_code = code


@dataclass(frozen=True, slots=True)
class Request:
    """Script to run, and for how long."""

    script: str
    arguments: Sequence[str] = ()
    module: bool = False
    steps: int = CLEAN_STEPS
    stacks: bool = True
    whole: bool = False
    """Until the script's own end, not only until enough was seen."""
    seen_s: float = SEEN_S
    """Seconds of steady steps before it is stopped, beside the traced ones."""
    check_data: bool = True
    """Run again with one batch where much time goes into waiting for data."""


@dataclass(frozen=True, slots=True)
class Session:
    """The profile, the outcome of the script, and the trace file."""

    profile: Profile
    outcome: Outcome
    trace: Path | None

    @property
    def code(self) -> int:
        """The exit code of the script, 0 where it was stopped after enough steps."""
        return 0 if self.outcome.ended == "enough" else self.outcome.code


def profile_script(
    request: Request,
    folder: Path,
    *,
    zygote: Zygote | None = None,
    output: Path | None = None,
    target: Target | None = None,
    before: str | None = None,
    python: str = sys.executable,
) -> Session:
    """Raises ScriptError where the script never comes to a second step, InputError where the script does not exist."""
    trace = folder / "trace.json.gz"
    profiling = Profiling(
        str(trace),
        skip=WARM_UP_STEPS + request.steps,
        steps=TRACED_STEPS,
        stacks=request.stacks,
        note_steps=NOTED_STEPS,
        after_s=CLEAN_S,
    )
    stop = Stop() if request.whole else Stop(steps=4, at_least_s=request.seen_s)
    settings = Settings(
        request.script,
        list(request.arguments),
        str(folder / "journal.jsonl"),
        module=request.module,
        stop=stop,
        profiling=profiling,
        losses=False,
    )
    telemetry, cards, outcome = _metered_run(settings, folder, zygote, output, python)
    facts = run_facts(outcome.journal)
    notes = _notes(outcome)
    name = f"{Path(request.script).name if not request.module else request.script}"
    if facts is None:
        members = _members(settings)
        if not members:
            raise _no_steps_error(outcome, request, members_folder(settings))
        return _profile_members(name, members, telemetry, outcome, notes, target=target, before=before)
    facts = replace(facts, **telemetry)
    path = trace if facts.has_trace and trace.exists() else None
    if path is None and outcome.ok and outcome.ended != "enough":
        facts, path, said = _traced_again(facts, settings, outcome, folder, zygote, python)
        notes += said
    if request.check_data and facts.step.data_s > WAITS * facts.step.wall_s and outcome.ok:
        facts = _constant(facts, request, folder, zygote, python)
    on_gpu = ran_on_gpu(outcome.journal)
    if cards and not on_gpu:
        notes = (
            f"{cards[0]} is here, and every step ran on the processor: `gpuwise doctor` checks whether PyTorch sees it",
            *notes,
        )
    profile = profile_run(name, facts, path, target=target, before=before, notes=notes, on_gpu=on_gpu)
    return Session(profile, outcome, path)


def _members(settings: Settings) -> list[tuple[int, RunFacts, Path | None, bool]]:
    """Number, facts, trace, and whether it has a GPU, of each process of the script that trains."""
    members: list[tuple[int, RunFacts, Path | None, bool]] = []
    for file in _member_journals(members_folder(settings)):
        journal = read_journal(file)
        facts, trace = run_facts(journal), file.with_name(f"{file.stem}.json.gz")
        if facts is not None:
            path = trace if facts.has_trace and trace.exists() else None
            members.append((int(file.stem), facts, path, ran_on_gpu(journal)))
    return sorted(members, key=lambda m: m[0])


def _member_journals(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def _profile_members(
    name: str,
    members: Sequence[tuple[int, RunFacts, Path | None, bool]],
    telemetry: dict[str, Any],
    outcome: Outcome,
    notes: tuple[str, ...],
    *,
    target: Target | None,
    before: str | None,
) -> Session:
    """One profile of all the processes: the first in full, the parts of each, and what their traces say together."""
    traces = [(number, read_trace(file)) for number, _, file, _ in members if file is not None]
    views = [RankView(number, trace, find_steps(trace)) for number, trace in traces]
    texts = (*notes, f"{len(members)} processes train: the parts are those of the first, the table has them all")
    whole: Profile | None = None
    splits: list[tuple[int, Split]] = []
    for number, facts, file, on_gpu in members:
        result = profile_run(
            name,
            replace(facts, **telemetry),
            file,
            target=target,
            before=before,
            notes=texts if whole is None else (),
            on_gpu=on_gpu,
            ranks=views if whole is None and len(views) > 1 else (),
        )
        whole = result if whole is None else whole
        splits.append((number, result.split))
    assert whole is not None
    return Session(replace(whole, ranks=tuple(splits) if len(splits) > 1 else ()), outcome, members[0][2])


def _metered_run(
    settings: Settings, folder: Path, zygote: Zygote | None, output: Path | None, python: str
) -> tuple[dict[str, Any], tuple[str, ...], Outcome]:
    """The run, with the readings of cards, and their names."""
    from gpuwise.machine import measure

    with measure() as meter:
        outcome = launch(settings, folder, zygote=zygote, output=output, python=python, environment=QUIET)
    wall_s = max(meter.wall_s, 1e-9)
    shares = {name: seconds / wall_s for name, seconds in meter.held_back_s.items() if seconds > 0}
    return {"held_back": shares, "power_w": meter.mean_power_w}, tuple(c.name for c in meter.cards), outcome


def _traced_again(
    facts: RunFacts, settings: Settings, first: Outcome, folder: Path, zygote: Zygote | None, python: str
) -> tuple[RunFacts, Path | None, tuple[str, ...]]:
    """The facts of a script that ended before its trace began, with the notes and the trace of a second run, of its last
    steps: their number is now known. That run leaves no files. Unchanged if that run gives no trace."""
    second = folder / "traced"
    trace, n_ticks = second / "trace.json.gz", len(first.journal.ticks)
    # until its modules are known, the watch replaces torch's own call of a module, which a trace looks for
    n_traced = min(TRACED_STEPS, n_ticks - FIRST_TRACED)
    if n_traced <= 0 or settings.profiling is None or facts.step.undisturbed_s > LONGEST_AGAIN_S:
        return facts, None, ()
    n_noted = min(NOTED_STEPS, n_ticks - FIRST_TRACED - n_traced)
    profiling = msgspec.structs.replace(
        settings.profiling,
        trace=str(trace),
        skip=n_ticks - n_noted - n_traced,
        steps=n_traced,
        note_steps=n_noted,
        after_s=None,
    )
    again = msgspec.structs.replace(
        settings,
        journal=str(second / "journal.jsonl"),
        stop=Stop(),
        profiling=profiling,
        trial=str(second / "saved"),
        tidies=True,
    )
    second.mkdir(parents=True, exist_ok=True)
    limits = Limits(wall_s=SECOND_RUN_S)
    outcome = launch(again, second, zygote=zygote, output=second / "output", python=python, environment=QUIET, limits=limits)
    if not outcome.ok or not outcome.journal.last("trace") or not trace.exists():
        return facts, None, ()
    seen = f"the last {n_traced} of its {n_ticks} steps" if n_traced > 1 else f"the last of its {n_ticks} steps"
    note = f"the script ended before its trace began: it was run again to trace {seen}"
    return add_trace(facts, outcome.journal), trace, (note,)


def _constant(facts: RunFacts, request: Request, folder: Path, zygote: Zygote | None, python: str) -> RunFacts:
    """The same without its data; as it was where that run fails."""
    second = folder / "constant"
    settings = Settings(
        request.script,
        list(request.arguments),
        str(second / "journal.jsonl"),
        module=request.module,
        constant_batch=True,
        stop=Stop(steps=max(request.steps // 2, 4)),
        trial=str(second / "saved"),
        tidies=True,
        losses=False,
    )
    second.mkdir(parents=True, exist_ok=True)
    outcome = launch(
        settings,
        second,
        zygote=zygote,
        output=second / "output",
        python=python,
        limits=Limits(wall_s=SECOND_RUN_S),
    )
    return add_constant_batch(facts, outcome.journal) if outcome.ok else facts


def _notes(outcome: Outcome) -> tuple[str, ...]:
    notes: list[str] = []
    if outcome.ended == "enough":
        notes.append("the script was stopped after enough steps; --whole lets it run to its end")
    elif not outcome.ok:
        where = f" at {outcome.where}" if outcome.where else ""
        notes.append(f"the script did not end well{where}: {outcome.how}; what was seen before counts")
    return tuple(notes)


def _no_steps_error(outcome: Outcome, request: Request, folder: Path) -> ScriptError:
    """Why there is no step, in words."""
    end, children = outcome.journal.end, outcome.journal.of("child")
    code = outcome.code or 1
    if outcome.ended == "no torch":
        return ScriptError(
            f"PyTorch does not import here: {outcome.error}", hint="run gpuwise with the script's Python", code=code
        )
    if end.get("reads_input"):
        return ScriptError(
            f"{request.script} reads standard input, which it does not have here",
            hint="give it the arguments that it needs after --",
            code=code,
        )
    if outcome.ended == "error" and outcome.code == 2 and not outcome.where:
        return ScriptError(str(outcome.error), hint="give the training script as python would get it", code=2)
    if not outcome.ok:
        where = f" at {outcome.where}" if outcome.where else ""
        hint = "a smaller batch" if outcome.out_of_memory else "its own words stand above; fix it, then profile it"
        return ScriptError(f"the script ended before its second step{where}: {outcome.how}", hint=hint, code=code)
    if any(read_journal(file).ticks for file in _member_journals(folder)):
        return ScriptError(
            "the processes that the script trains in ended after their first step",
            hint="let them train for 10 steps or more",
            code=code,
        )
    if children:
        what = ", ".join(dict.fromkeys(str(c["what"]) for c in children[:3]))
        return ScriptError(
            f"the script trains in processes that it starts itself ({what}), where its steps cannot be seen",
            hint="put `with gpuwise.profile():` around the loop in that function, or run the script with one process",
            code=code,
        )
    if outcome.journal.ticks:
        return ScriptError("the script ended after its first step", hint="let it train for 10 steps or more", code=code)
    return ScriptError(
        "the script ended without a single training step: no optimizer stepped and nothing was differentiated",
        hint="give the script that trains; for inference, `gpuwise profile --trace FILE` reads a trace",
        code=code,
    )
