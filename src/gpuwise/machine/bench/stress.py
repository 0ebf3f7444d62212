"""One large product over and over, every result compared bit by bit with the first, which was checked against a reference.

A device that computes the same product twice and gets two answers is faulty: libraries take the same kernel for the same
call on one stream (cuBLAS documentation, "Results reproducibility").
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuwise.machine.bench.cases import BenchCase, product_case
from gpuwise.machine.bench.prepared_case import NotHereError, PreparedCase
from gpuwise.machine.bench.run import PrepareCase, prepare_case, reason_of
from gpuwise.machine.bench.subjects import Subject
from gpuwise.machine.bench.watch import Watch
from gpuwise.machine.devices.readings import Sample
from gpuwise.records.record import Record

CASES_BY_KIND: dict[str, tuple[BenchCase, ...]] = {
    "cuda": (
        product_case("bf16", 8192, 8192, 8192, frozenset({"cuda"})),
        product_case("fp32", 4096, 4096, 4096, frozenset({"cuda"})),
    ),
    "cpu": (product_case("fp32", 1024, 1024, 1024, frozenset({"cpu"})),),
}
"""Case to repeat: the first that the device supports."""
WATCH_S = 1.0


@dataclass(frozen=True, slots=True)
class StressResult:
    """Results of a device over ``seconds``. Rates are of the whole loop, comparisons included."""

    subject: Subject
    case: BenchCase | None
    seconds: float
    executions: int
    mismatches: int
    """Executions whose result differed from the first in any bit, or was not a number."""
    first_wrong_s: float | None
    """Seconds after the start."""
    rate_first: float | None
    """Median FLOP/s of the first quarter of the executions."""
    rate_last: float | None
    """Rate of the last quarter: the difference shows heat and power limits."""
    samples: tuple[Sample, ...] = ()
    failed: str | None = None
    interrupted: bool = False

    @property
    def faulty(self) -> bool:
        """It computed something wrong, or stopped computing."""
        return self.mismatches > 0 or self.failed is not None


def stress(
    subject: Subject,
    duration_s: float,
    *,
    make: PrepareCase = prepare_case,
    clock: Callable[[], float] = time.monotonic,
    stop: threading.Event | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> StressResult:
    """Repeat until ``duration_s`` is over or ``stop`` is set. Every failure is in the result."""
    empty = StressResult(subject, None, 0.0, 0, 0, None, None, None)
    for case in CASES_BY_KIND[subject.kind]:
        try:
            prepared = make(case, subject)
        except NotHereError:
            continue
        except Exception as error:  # noqa: BLE001 - a card that cannot even begin is a result
            return replace(empty, case=case, failed=reason_of(error))
        with Watch(subject, WATCH_S) as watch:
            result = _repeat(case, subject, prepared, duration_s, clock, stop or threading.Event(), progress)
        try:
            prepared.close()
        except Exception as error:  # noqa: BLE001
            result = replace(result, failed=result.failed or reason_of(error))
        return replace(result, samples=watch.samples)
    return replace(empty, failed="no product to repeat on this device")


def _repeat(
    case: BenchCase,
    subject: Subject,
    prepared: PreparedCase,
    duration_s: float,
    clock: Callable[[], float],
    stop: threading.Event,
    progress: Callable[[str], None],
) -> StressResult:
    assert prepared.digest is not None
    began = clock()
    ends: list[float] = []
    mismatches, first_wrong, failed = 0, None, None
    interrupted = False
    reported_s = began
    try:
        verdict = prepared.check()
        if verdict is not None and not verdict.correct:
            mismatches, first_wrong = 1, 0.0
        reference = prepared.digest()
        while clock() - began < duration_s and not stop.is_set():
            if not _same(prepared.digest(), reference):
                mismatches += 1
                first_wrong = clock() - began if first_wrong is None else first_wrong
            ends.append(clock())
            if ends[-1] - reported_s >= 5.0:
                reported_s = ends[-1]
                progress(
                    f"{subject.label}: {reported_s - began:.0f} of {duration_s:.0f} s, {len(ends)} products, {mismatches} wrong"
                )
    except KeyboardInterrupt:
        interrupted = True
    except Exception as error:  # noqa: BLE001 - a device that stops answering is the finding
        failed = reason_of(error)
    first, last = _rates(began, ends, prepared.amount)
    return StressResult(
        subject, case, clock() - began, len(ends), mismatches, first_wrong, first, last, failed=failed, interrupted=interrupted
    )


def _same(a: Any, b: Any) -> bool:
    """Bit by bit; what is not a number equals nothing."""
    return bool(a.equal(b)) if hasattr(a, "equal") else bool(a == b)


def _rates(began: float, ends: Sequence[float], flop: float) -> tuple[float | None, float | None]:
    times = [b - a for a, b in zip([began, *ends], ends, strict=False)]
    quarter = len(times) // 4
    if not quarter:
        return None, None

    def rate(part: Sequence[float]) -> float | None:
        middle = sorted(part)[len(part) // 2]
        return flop / middle if middle > 0 else None

    return rate(times[:quarter]), rate(times[-quarter:])


def stress_together(
    subjects: Sequence[Subject],
    duration_s: float,
    *,
    make: PrepareCase = prepare_case,
    progress: Callable[[str], None] = lambda _: None,
) -> list[StressResult]:
    """All at once, a thread each: a box is hottest when all of it works. Ctrl-C ends all and keeps what was seen."""
    stop = threading.Event()
    results: dict[str, StressResult] = {}

    def one(subject: Subject) -> None:
        results[subject.device] = stress(subject, duration_s, make=make, stop=stop, progress=progress)

    threads = [threading.Thread(target=one, args=(s,), daemon=True) for s in subjects]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(timeout=0.2)
    except KeyboardInterrupt:
        stop.set()
        for thread in threads:
            thread.join(timeout=30.0)
        results = {key: replace(r, interrupted=True) for key, r in results.items()}
    return [results[s.device] for s in subjects if s.device in results]


def record_of(result: StressResult, now_s: float, conditions: dict[str, Any]) -> Record:
    """The record of a stress run, as it is stored."""
    s, case = result.subject, result.case
    key = "stress" if case is None else f"stress-{case.key}"
    parameters: dict[str, Any] = {} if case is None else dict(case.parameters)
    parameters |= {"seconds": round(result.seconds, 1), "executions": result.executions, "mismatches": result.mismatches}
    value = result.rate_last
    failed = result.failed or (None if value is not None else "too short to time")
    return Record(
        now_s,
        key,
        "stress",
        s.device,
        s.name,
        s.id,
        "" if case is None else case.dtype,
        parameters,
        "FLOP/s",
        None if result.failed else value,
        samples=result.executions,
        correct=None if result.failed else result.mismatches == 0,
        conditions=conditions,
        failed=failed,
    )
