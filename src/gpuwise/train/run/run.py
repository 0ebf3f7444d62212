"""``gpuwise run``: the unmodified script under its tuned levers, in a separate process."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuwise.errors import GpuwiseError, InputError
from gpuwise.train.config import FILE, Plan, TunedConfig, TunedSpeed, read
from gpuwise.train.hook.journal import Journal
from gpuwise.train.hook.launch import Outcome, Streams, launch
from gpuwise.train.hook.settings import Settings
from gpuwise.train.run.comparison import RunComparison, comparison_of
from gpuwise.train.run.progress import LoopReader, Progress, cost_usd, loop_of, progress_of
from gpuwise.train.tune.energy import NO_ENERGY, Energy, Meter
from gpuwise.train.tune.peak import Device, device_of
from gpuwise.train.tune.record import RAN, RateMeasurement, Script, expected_from, keep, script_of
from gpuwise.train.tune.trial import memory_of


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of a tuned run and its comparison with the prediction."""

    outcome: Outcome
    refused: dict[str, str]
    """Levers that could not take hold, and why."""
    comparison: RunComparison | None
    energy: Energy = NO_ENERGY
    """Energy of the whole process, startup included."""
    cost_usd: float | None = None
    """Cost of the whole process."""
    device: Device | None = None
    kept_in: Path | None = None
    """The records that the measurement went to."""
    not_kept: str | None = None
    """Why it did not."""


def find_config(script: str, given: Path | None, *, module: bool = False) -> tuple[Path | None, TunedConfig]:
    """``given``, else ``gpuwise.toml`` beside the script or here, where it is of this script. Raises InputError."""
    if given is not None:
        return given, read(given)
    folders = [Path.cwd()] if module else [Path(script).resolve().parent, Path.cwd()]
    for folder in dict.fromkeys(folders):
        path = folder / FILE
        if path.exists():
            tuned = read(path)
            if tuned.script and Path(tuned.script).name != Path(script).name:
                raise InputError(
                    f"{path} is of {tuned.script}, not of {script}",
                    hint="`gpuwise tune` the script, or name its file with --config",
                )
            return path, tuned
    raise InputError(
        f"there is no {FILE} for {script}", hint=f"`gpuwise tune {shlex.quote(script)}` writes it; --config names another file"
    )


class _Prediction:
    """Expectation for the device of a run, looked up once the device is known."""

    def __init__(self, script: Script, tuned: TunedConfig) -> None:
        self._script, self._tuned = script, tuned
        self._known = False
        self._found: TunedSpeed | None = None
        self.failed: str | None = None

    def of(self, journal: Journal) -> TunedSpeed | None:
        """None before the device is known, and without an expectation for it."""
        if self._known:
            return self._found
        device = device_of(journal)
        if device is None:
            return None
        self._known = True
        try:
            self._found = expected_from(self._script, device, self._tuned.levers, self._tuned.expected)
        except GpuwiseError as error:
            self.failed = error.message
            given = self._tuned.expected
            self._found = given if given is not None and given.device_name in (None, device.name) else None
        return self._found


def run_tuned(
    script: str,
    arguments: Sequence[str],
    tuned: TunedConfig,
    *,
    module: bool = False,
    plan: Plan | None = None,
    look: Callable[[Progress], None] | None = None,
    every_s: float = 1.0,
    streams: Streams = (None, None),
    record: bool = True,
) -> RunResult:
    """Run it to its own end; what it prints goes where it would, or to ``streams``. Signals to this process are the script's.

    ``plan``: how long it is to go on and what it costs; the file's by default. ``record``: what was measured goes to the user's
    records; that it cannot is no error.
    """
    plan = tuned.plan if plan is None else plan
    script_is = script_of(script, arguments, module=module)
    prediction = _Prediction(script_is, tuned)
    with tempfile.TemporaryDirectory(prefix="gpuwise-run-") as folder, Meter() as meter:
        place = Path(folder)
        settings = Settings(
            script, list(arguments), str(place / "journal.jsonl"), module=module, levers=dict(tuned.levers), live=True
        )
        began = time.monotonic()
        reader = LoopReader()

        def show(journal: Journal) -> None:
            if look is not None:
                elapsed_s = time.monotonic() - began
                loop = reader.read(journal)
                look(progress_of(journal, plan, loop=loop, expected=prediction.of(journal), meter=meter, elapsed_s=elapsed_s))

        outcome = launch(
            settings,
            place,
            look=None if look is None else show,
            look_every_s=every_s,
            streams=streams,
            let_end=True,
        )
    journal = outcome.journal
    energy = meter.of(journal)
    result = RunResult(
        outcome,
        journal.refused,
        _comparison(journal, prediction.of(journal), outcome, plan, meter),
        energy,
        cost_usd(plan, outcome.wall_s, energy.energy_j),
        device_of(journal),
        not_kept=prediction.failed,
    )
    return _store(result, script_is, tuned) if record else result


def _comparison(
    journal: Journal, expected: TunedSpeed | None, outcome: Outcome, plan: Plan, meter: Meter
) -> RunComparison | None:
    points = loop_of(journal).points
    energy = meter.of(journal, points[0][0], points[-1][0]) if len(points) > 1 else NO_ENERGY
    return comparison_of(journal, expected, memory_of(outcome), plan=plan, energy=energy)


def _store(result: RunResult, script: Script, tuned: TunedConfig) -> RunResult:
    """Store its measurement in the records; a failed write is only reported."""
    comparison, device = result.comparison, result.device
    if comparison is None or device is None or result.refused:
        # with a lever missing it differs from the file
        return result
    e = comparison.usable
    measured = RateMeasurement(
        RAN,
        comparison.rate,
        comparison.per,
        comparison.step_s,
        tuned.levers,
        None if e is None else e.rate,
        None if e is None else e.basis,
        comparison.memory_bytes,
        None if e is None else e.memory_bytes,
        comparison.energy_a_sample_j,
        None,
        comparison.n_steps,
    )
    try:
        return replace(result, kept_in=keep(script, device, result.outcome.journal.begin.get("torch"), [measured]))
    except GpuwiseError as error:
        return replace(result, not_kept=error.message)
