"""Optimal checkpoint interval, and the time lost to stops and checkpoints.

Stops come at random with mean time M between them (exponential). Work is saved every tau seconds at a cost of delta seconds; a
stop costs R seconds until work resumes from the last checkpoint, and stops may come while saving and while restarting. The
expected time of a run that needs T_s seconds is then (Daly, Future Generation Computer Systems 22 (2006), equation 20)

    T_w = M exp(R / M) (exp((tau + delta) / M) - 1) T_s / tau

which is least where ``1 - exp(-(tau + delta) / M) = tau / M``: solved here exactly. For delta far below M
that is Young's tau = sqrt(2 delta M) (Communications of the ACM 17 (1974)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.operations import failure_records, operations
from gpuwise.predict.estimate import Estimate
from gpuwise.workload.optimizer import parameter_bytes
from gpuwise.workload.strategy import Strategy

F64 = NDArray[np.float64]
_ITERATIONS = 60
_HOPELESS = 1e3
"""A run that takes a thousand times its own time does not end."""


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """``interval_s`` seconds of work between checkpoints, and ``overhead``: expected time lost to saving,
    stops, lost work and restarts, as a share of the work."""

    interval_s: float
    overhead: float

    @property
    def effective(self) -> float:
        """Share of the time that is work."""
        return 1.0 / (1.0 + self.overhead)


@dataclass(frozen=True, slots=True)
class Checkpointings:
    """:class:`Checkpointing` for many cases at once; arrays of one shape. A hopeless case has an infinite
    overhead."""

    interval_s: F64
    overhead: F64


@dataclass(frozen=True, slots=True)
class Losses:
    """Expected seconds lost over a run of ``work_s``; ``saving_s + rework_s + restart_s`` is the whole."""

    interruptions: float
    checkpoints: float
    saving_s: float
    rework_s: float
    restart_s: float


def overhead(interval_s: ArrayLike, save_s: ArrayLike, restart_s: ArrayLike, mtbf_s: ArrayLike) -> F64:
    """Expected time beyond the work, as a share of the work, for checkpoints every ``interval_s`` seconds of
    work. Arrays broadcast. Raises InputError."""
    tau, delta, restart, mtbf = _check_arguments(interval_s, save_s, restart_s, mtbf_s)
    if not bool(np.all(tau > 0)):
        raise _no_seconds("the time between checkpoints", positive=True)
    return _overhead(tau, delta, restart, mtbf)


@overload
def optimal_checkpoint(save_s: float, restart_s: float, mtbf_s: float) -> Checkpointing: ...
@overload
def optimal_checkpoint(save_s: F64, restart_s: ArrayLike, mtbf_s: ArrayLike) -> Checkpointings: ...
@overload
def optimal_checkpoint(save_s: ArrayLike, restart_s: F64, mtbf_s: ArrayLike) -> Checkpointings: ...
@overload
def optimal_checkpoint(save_s: ArrayLike, restart_s: ArrayLike, mtbf_s: F64) -> Checkpointings: ...
def optimal_checkpoint(save_s: ArrayLike, restart_s: ArrayLike, mtbf_s: ArrayLike) -> Checkpointing | Checkpointings:
    """The interval with the least expected overhead. Numbers give a :class:`Checkpointing`, arrays (which
    broadcast) :class:`Checkpointings`.

    Raises InputError unless ``save_s`` and ``mtbf_s`` are positive and ``restart_s`` is not negative, and,
    for numbers, UnpredictableError when stops come so often that the run does not end.
    """
    _, delta, restart, mtbf = _check_arguments(1.0, save_s, restart_s, mtbf_s)
    interval = mtbf * _best_share(delta / mtbf)
    lost = _overhead(interval, delta, restart, mtbf)
    if lost.ndim:
        return Checkpointings(interval, lost)
    if not float(lost) < _HOPELESS:
        raise UnpredictableError(
            "interrupted too often",
            f"a run that is stopped every {float(mtbf):.4g} s, saves in {float(delta):.4g} s and restarts in "
            f"{float(restart):.4g} s does not end",
            hint="use fewer accelerators, faster storage, or hardware that is not taken away",
        )
    return Checkpointing(float(interval), float(lost))


def losses(work_s: float, interval_s: float, save_s: float, restart_s: float, mtbf_s: float) -> Losses:
    """Expected time beyond ``work_s``, by cause. With x = (tau + delta) / M, a stretch of work and its checkpoint is stopped
    exp(x) - 1 times. That loses M (exp(x) - 1) - tau - delta of work, and M (exp(R / M) - 1) each time until work resumes.
    Stops are counted over the whole expected time. Raises InputError."""
    for name, value in (("the time between checkpoints", interval_s), ("saving", save_s), ("mean time between stops", mtbf_s)):
        if not 0 < value < math.inf:
            raise _no_seconds(name, positive=True)
    if not 0 <= restart_s < math.inf:
        raise _no_seconds("restarting", positive=False)
    try:
        stopped, again = math.expm1((interval_s + save_s) / mtbf_s), math.expm1(restart_s / mtbf_s)
    except OverflowError:
        stopped = again = math.inf
    share = (1.0 + again) * stopped * (mtbf_s / interval_s) - 1.0
    stretches = work_s / interval_s
    rework = stretches * max(mtbf_s * stopped - interval_s - save_s, 0.0)
    restarting = stretches * stopped * mtbf_s * again
    return Losses(work_s * (1.0 + share) / mtbf_s, stretches, stretches * save_s, rework, restarting)


@cache
def accelerator_mtbf_s(family: str | None = None) -> Estimate:
    """Seconds of one accelerator between interruptions of the job it works in: geometric mean of the
    published records of its family, or of all when none is of the family. The interval is the spread of all
    records around their families' means."""
    records = failure_records()
    logs = {
        f: [math.log(r.accelerator_s_per_interruption) for r in records if r.family == f] for f in {r.family for r in records}
    }
    every = [x for values in logs.values() for x in values]
    sigma = stdev(every)
    if family in logs:
        return Estimate.from_log_sigma(math.exp(fmean(logs[family])), sigma, "fitted")
    return Estimate.from_log_sigma(math.exp(fmean(every)), sigma * math.sqrt(1 + 1 / len(every)), "derived")


def mtbf_s(n_accelerators: int, family: str | None = None) -> Estimate:
    """Seconds between interruptions of a job on ``n_accelerators`` that needs all of them: M = M_1 / N.

    Raises InputError unless ``n_accelerators`` is at least 1.
    """
    if n_accelerators < 1:
        raise InputError(f"{n_accelerators} accelerators", hint="give at least 1")
    return accelerator_mtbf_s(family).scaled(1.0 / n_accelerators)


def checkpoint_bytes(parameters: float, trained: float, strategy: Strategy) -> float:
    """Bytes of a full checkpoint: the weights as they are used, and of each trained parameter the master
    copy and the optimizer's states. Adapters save themselves alone: give their number as both."""
    each = parameter_bytes(strategy)
    return parameters * each.weight + trained * (each.master + each.state)


def write_bytes_per_s(cluster: Cluster) -> Estimate:
    """Combined write rate of a cluster's hosts to shared storage."""
    per_host = operations()["write_bytes_per_s_per_host"]
    return Estimate(per_host.low, per_host.expected, per_host.high, "derived").scaled(float(cluster.n_systems))


def _best_share(d: F64) -> F64:
    """x = tau / M where x + exp(-(x + d)) = 1, by Newton's method from above, where the left side is convex
    and rising: it comes down to the root without passing it."""
    x = np.minimum(np.sqrt(2.0 * d) + d, 1.0)
    for _ in range(_ITERATIONS):
        falling = np.exp(-(x + d))
        step = (x + np.expm1(-(x + d))) / (1.0 - falling)
        x = np.clip(x - step, 0.25 * x, 1.0)
        if bool(np.all(np.abs(step) <= 1e-13 * x)):
            break
    return x


def _overhead(tau: F64, delta: F64, restart: F64, mtbf: F64) -> F64:
    with np.errstate(over="ignore"):
        return np.exp(restart / mtbf) * np.expm1((tau + delta) / mtbf) * (mtbf / tau) - 1.0


def _no_seconds(name: str, *, positive: bool) -> InputError:
    return InputError(
        f"{name} must be a {'positive' if positive else 'non-negative'} finite number of seconds",
        hint="for example 60, 300 and 36000 seconds",
    )


def _check_arguments(
    interval_s: ArrayLike, save_s: ArrayLike, restart_s: ArrayLike, mtbf_s: ArrayLike
) -> tuple[F64, F64, F64, F64]:
    tau, delta, restart, mtbf = (
        np.asarray(a, dtype=np.float64)
        for a in np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (interval_s, save_s, restart_s, mtbf_s)))
    )
    for name, values, least in (("saving", delta, True), ("restarting", restart, False), ("mean time between stops", mtbf, True)):
        if not bool(np.all(np.isfinite(values) & ((values > 0) if least else (values >= 0)))):
            raise _no_seconds(name, positive=least)
    return tau, delta, restart, mtbf
