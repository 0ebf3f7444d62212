"""Runs cases on subjects: each is prepared, warmed up, checked, sampled until its median is precise enough, and stored at once.

A failed case is a record with its reason; after an interruption finished measurements remain.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module

from gpuwise.errors import GpuwiseError
from gpuwise.machine.bench.cases import FAMILIES, BenchCase
from gpuwise.machine.bench.prepared_case import Check, NotHereError, PreparedCase
from gpuwise.machine.bench.sampling import TARGET, measure, summarise
from gpuwise.machine.bench.subjects import Subject, describe, machine_id
from gpuwise.machine.bench.time_limit import MeasurementTimeout, time_limit
from gpuwise.machine.bench.watch import Watch
from gpuwise.records.record import Record, Run
from gpuwise.records.store import Records

PrepareCase = Callable[[BenchCase, Subject], PreparedCase]
LONGEST_REASON = 200
MAKERS = {
    "matmul": "gpuwise.machine.bench.families.products:make_product",
    "attention": "gpuwise.machine.bench.families.attention:make_attention",
    "memory": "gpuwise.machine.bench.families.streams:make_stream",
    "launch": "gpuwise.machine.bench.families.launches:make_launch",
    "copy": "gpuwise.machine.bench.families.transfers:make_transfer",
    "peer": "gpuwise.machine.bench.families.transfers:make_peer",
    "disk": "gpuwise.machine.bench.families.disks:make_disk",
    "loader": "gpuwise.machine.bench.families.loaders:make_loader",
    "collective": "gpuwise.machine.bench.families.collectives:make_collective",
}
"""Family -> who makes a case of it ready; imported when the first case runs."""


@dataclass(frozen=True, slots=True)
class Limits:
    """``each_s`` for the samples of one case. After ``end_s`` of the clock no case starts (except the very first), and a
    running one is stopped; a case that takes longer than ``case_s`` in total is stopped too (None: no limit)."""

    each_s: float = 2.0
    end_s: float | None = None
    target: float = TARGET
    case_s: float | None = None

    def left_s(self, now_s: float) -> float | None:
        """Seconds the next case may take in all; None: any."""
        ends = [e for e in (self.case_s, None if self.end_s is None else self.end_s - now_s) if e is not None]
        return min(ends) if ends else None


@dataclass(slots=True)
class Outcome:
    """The results of a run. ``skipped``: cases that do not exist here or took too long, with the reason; ``late``: cases there
    was no time for."""

    run: Run
    records: list[tuple[BenchCase, Subject, Record]] = field(default_factory=list[tuple[BenchCase, Subject, Record]])
    skipped: list[tuple[BenchCase, Subject, str]] = field(default_factory=list[tuple[BenchCase, Subject, str]])
    late: list[tuple[BenchCase, Subject]] = field(default_factory=list[tuple[BenchCase, Subject]])
    interrupted: bool = False

    @property
    def wrong(self) -> list[Record]:
        """Records whose result was outside its error bound."""
        return [r for _, _, r in self.records if r.correct is False]

    @property
    def failed(self) -> list[Record]:
        """Records of cases that failed."""
        return [r for _, _, r in self.records if r.failed is not None]


def new_run(subjects: list[Subject], command: str, now_s: float) -> Run:
    """The description of a run that starts now: machine, software and command."""
    machine, software = describe(subjects)
    return Run(uuid.uuid4().hex, now_s, machine_id(), machine, software, command)


def prepare_case(case: BenchCase, subject: Subject) -> PreparedCase:
    """Prepare a case with the maker of its family (:data:`MAKERS`)."""
    module, _, name = MAKERS[case.family].partition(":")
    make: PrepareCase = getattr(import_module(module), name)
    return make(case, subject)


def run_cases(
    pairs: Sequence[tuple[BenchCase, Subject]],
    run: Run,
    store: Records | None,
    limits: Limits,
    *,
    make: PrepareCase = prepare_case,
    progress: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], float] = time.time,
) -> Outcome:
    """Run every pair in turn and store each record as it ends. Raises DataError when the store cannot be written."""
    outcome = Outcome(run)
    if store is not None:
        store.start(run)
    for number, (case, subject) in enumerate(pairs, 1):
        left_s = limits.left_s(clock())
        if left_s is not None and left_s <= 0.0 and number == 1:
            # a machine so slow that importing took all the time
            left_s = limits.case_s
        if left_s is not None and left_s <= 0.0:
            outcome.late.append((case, subject))
            continue
        progress(f"[{number}/{len(pairs)}] {subject.label} {case.key}")
        try:
            record = run_case(case, subject, limits, make=make, clock=clock, now=now, left_s=left_s)
        except NotHereError as reason:
            outcome.skipped.append((case, subject, reason.message))
            continue
        except MeasurementTimeout:
            if left_s == limits.case_s:
                outcome.skipped.append((case, subject, f"not ready after {left_s:.0f} s"))
            else:
                outcome.late.append((case, subject))
            continue
        except KeyboardInterrupt:
            outcome.interrupted = True
            break
        outcome.records.append((case, subject, record))
        if store is not None:
            store.add(run, record)
    return outcome


def run_case(
    case: BenchCase,
    subject: Subject,
    limits: Limits,
    *,
    make: PrepareCase = prepare_case,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], float] = time.time,
    left_s: float | None = None,
) -> Record:
    """The record of one case on one subject. Raises only NotHereError if it does not exist, and MeasurementTimeout after
    ``left_s``."""
    empty = Record(
        now(),
        case.key,
        case.family,
        subject.device,
        subject.name,
        subject.id,
        case.dtype,
        {**case.parameters, "variant": case.variant},
        case.unit,
        None,
    )
    prepared: PreparedCase | None = None
    try:
        # closing is outside: what was opened is closed, late or not
        with time_limit(left_s):
            prepared = make(case, subject)
            with Watch(subject) as watch:
                seconds = _samples(prepared, limits, clock)
            verdict = prepared.check()
        return replace(_record_of(empty, case, prepared, seconds, verdict, watch), at_s=now())
    except NotHereError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a library throws is the result of this case, not the end of the run
        return replace(empty, at_s=now(), failed=reason_of(error))
    finally:
        if prepared is not None:
            _close(prepared)


def _samples(prepared: PreparedCase, limits: Limits, clock: Callable[[], float]) -> list[float]:
    try:
        return measure(prepared.sample, limit_s=limits.each_s, clock=clock, target=limits.target, most=_most(prepared))
    except StopIteration:
        raise RuntimeError("fewer samples than requested") from None


def _most(prepared: PreparedCase) -> int:
    from gpuwise.machine.bench.sampling import MOST_SAMPLES

    samples = prepared.conditions.get("samples")
    return int(samples) if isinstance(samples, int) else MOST_SAMPLES


def _record_of(
    empty: Record, case: BenchCase, prepared: PreparedCase, seconds: list[float], verdict: Check | None, watch: Watch
) -> Record:
    """Rates from seconds: the fastest sample is the high end of the rate."""
    time_s = summarise(seconds)
    as_rate = case.unit != "s"

    def value(t: float | None) -> float | None:
        return None if t is None else (prepared.amount / t if as_rate else t)

    low, high = value(time_s.low), value(time_s.high)
    if as_rate:
        low, high = high, low
    conditions = {**prepared.conditions, **watch.conditions}
    if verdict is not None:
        conditions["checked"] = verdict.what
    finite = verdict is None or verdict.error < float("inf")
    return replace(
        empty,
        value=value(time_s.median),
        low=low,
        high=high,
        samples=time_s.n,
        time_s=time_s.median,
        correct=None if verdict is None else verdict.correct,
        error=verdict.error if verdict is not None and finite else None,
        conditions=conditions,
    )


def _close(prepared: PreparedCase) -> None:
    try:
        prepared.close()
    except Exception:  # noqa: BLE001 - a device that is gone cannot be tidied; what was measured stands
        return


def reason_of(error: BaseException) -> str:
    """Why a case failed, in one line of at most ``LONGEST_REASON`` characters."""
    if isinstance(error, GpuwiseError):
        return error.message[:LONGEST_REASON]
    text = " ".join(str(error).split())
    name = type(error).__name__
    if name == "OutOfMemoryError":
        return "out of memory"
    if isinstance(error, MemoryError):
        return "out of host memory"
    return f"{name}: {text}"[:LONGEST_REASON] if text else name


def pairs_of(cases: Sequence[BenchCase], subjects: Sequence[Subject]) -> list[tuple[BenchCase, Subject]]:
    """Each case on each subject it is for: the first of every family, then the second of every one, and so on, so that a
    run that is cut short has seen something of everything. Collectives of processes on a processor come last: to start
    them takes longer than all of the others."""
    turn: dict[tuple[str, str], int] = {}
    pairs: list[tuple[bool, int, BenchCase, Subject]] = []
    for subject in subjects:
        for case in cases:
            if subject.kind in case.on:
                at = turn[case.family, subject.device] = turn.get((case.family, subject.device), -1) + 1
                pairs.append((case.family == "collective" and subject.kind == "cpu", at, case, subject))
    order = list(FAMILIES)
    pairs.sort(key=lambda p: (p[0], p[1], order.index(p[2].family)))
    return [(case, subject) for _, _, case, subject in pairs]
