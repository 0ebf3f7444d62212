"""Effects of a tuning beside its rate: utilisation, energy of a sample, hours, money."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpuwise.train.hook.launch import Limits
from gpuwise.train.hook.settings import Stop
from gpuwise.train.hook.zygote import Zygote
from gpuwise.train.tune.energy import Energy
from gpuwise.train.tune.flop import Flop, changes_flop, utilisation
from gpuwise.train.tune.peak import Device, Peaks, measure_processor, peaks_of
from gpuwise.train.tune.search import Result
from gpuwise.train.tune.state import State
from gpuwise.train.tune.trial import NOT_COUNTED, Trial, TrialJob, run, trial_of
from gpuwise.units import HOUR_S, J_PER_KWH

COUNTED_STEPS = 8
"""Steps of a run in which only the operations of a turn are counted."""
COUNT_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Worth:
    """Before and after; unknown values are None, with the reason."""

    device: Device | None
    flop: tuple[Flop, Flop]
    """FLOP per sample."""
    utilisation: tuple[float | None, float | None]
    """Share of the peak (MFU)."""
    utilisation_why: str | None
    peak_basis: str | None
    energy: tuple[Energy, Energy]
    """Energy per sample, idle power included."""
    run_length_s: float = 0.0
    """Length of the training tuned for."""
    saved_s: float = 0.0
    """Time saved in it."""
    saved_kwh: float | None = None
    saved_usd: float | None = None
    """At a price of the hour; None without one."""


def worth_of(
    result: Result,
    job: TrialJob,
    state: State,
    folder: Path,
    zygote: Zygote | None,
    *,
    usd_per_hour: float | None = None,
) -> Worth:
    """Count the operations of the tuned script again if a lever changes them; that run is stored with the others."""
    untouched = _first_count(state)
    flop = (untouched, _flop_after(untouched, result, job, state, folder, zygote))
    device = result.before.device
    peaks = Peaks(why="the device is not known") if device is None else peaks_of(device)
    if device is not None and device.kind == "cpu" and not peaks.flop_per_s and untouched.per_sample:
        peaks = Peaks(**state.measured("peak", lambda: asdict(measure_processor())))
    shares = [utilisation(f, t.rate, peaks) for f, t in zip(flop, (result.before, result.after), strict=True)]
    run_length_s, whole = result.run_length_s, result.whole
    saved_s = max(whole.before_s - whole.after_s, 0.0) if result.levers and whole is not None else 0.0
    return Worth(
        device,
        flop,
        (shares[0][0], shares[1][0]),
        shares[0][1] or shares[1][1],
        peaks.basis,
        (result.before.energy, result.after.energy),
        run_length_s,
        saved_s,
        _saved_kwh(result, run_length_s),
        None if usd_per_hour is None else saved_s / HOUR_S * usd_per_hour,
    )


def _saved_kwh(result: Result, run_length_s: float) -> float | None:
    before, after = result.before.energy.energy_j, result.after.energy.energy_j
    if before is None or after is None or result.before.rate is None or not result.levers:
        return None
    return (before - after) * result.before.rate * run_length_s / J_PER_KWH


def _first_count(state: State) -> Flop:
    """Count of the tuning's first run."""
    if not state.has("untouched"):
        return NOT_COUNTED
    kept: Mapping[str, Any] = state.measured("untouched", dict[str, Any])
    return Trial.read(kept["trial"]).flop


def _flop_after(untouched: Flop, result: Result, job: TrialJob, state: State, folder: Path, zygote: Zygote | None) -> Flop:
    levers = changes_flop(result.levers)
    if not levers or not untouched.per_sample:
        return untouched
    job = replace(job, limits=Limits(wall_s=COUNT_LIMIT_S))

    def measure() -> dict[str, Any]:
        outcome = run(job, levers, folder / "trial", stop=Stop(most_steps=COUNTED_STEPS), zygote=zygote, count=True)
        return trial_of(outcome).keep()

    return Trial.read(state.measured(f"flop|{sorted(levers.items())}", measure)).flop
