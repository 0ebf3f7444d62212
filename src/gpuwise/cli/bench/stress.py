"""``gpuwise bench --stress``: is a card faulty, and what do heat and power make of its rate?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuwise.machine.bench.stress import StressResult
    from gpuwise.machine.bench.subjects import Subject
    from gpuwise.records.store import Records


def stress_all(
    subjects: list[Subject], store: Records | None, duration_s: float, *, json: bool, progress: Callable[[str], None]
) -> int:
    """GPUs where there are any, else the processor; 1 when one of them is faulty."""
    from gpuwise.machine.bench.run import new_run
    from gpuwise.machine.bench.stress import record_of, stress_together
    from gpuwise.machine.bench.watch import summarise_samples

    targets = [s for s in subjects if s.kind == "cuda"] or subjects
    progress(f"{', '.join(s.label for s in targets)}: {duration_s:.0f} s of products, each compared with the first")
    results = stress_together(targets, duration_s, progress=progress)
    progress("")
    if store is not None:
        run = new_run(subjects, "gpuwise bench --stress", time.time())
        store.start(run)
        for result in results:
            conditions = summarise_samples(result.samples) if result.samples else {}
            store.add(run, record_of(result, time.time(), conditions))
    if json:
        from gpuwise.cli.out import print_json

        print_json({"stress": [_document(r) for r in results], "faulty": [r.subject.label for r in results if r.faulty]})
    else:
        _show(results)
    if any(r.faulty for r in results):
        return 1
    return 130 if any(r.interrupted for r in results) else 0


def _show(results: Sequence[StressResult]) -> None:
    from gpuwise.cli.out import console, grid, section
    from gpuwise.units import format_rate

    to = console()
    faulty = [r for r in results if r.faulty]
    short = [r.subject.label for r in results if not r.executions]
    verdict = "every answer was right"
    if faulty:
        verdict = "FAULTY: " + ", ".join(f"{r.subject.label} {r.subject.name}" for r in faulty)
    elif short:
        verdict = f"nothing was repeated on {', '.join(short)}: give --stress more time"
    to.print(verdict, style="bold red" if faulty else "bold")
    for r in results:
        body = grid(2)
        body.add_row("products", f"{r.executions:,} in {r.seconds:.0f} s, each compared bit by bit with the first")
        wrong = f"{r.mismatches:,}" + (f", the first after {r.first_wrong_s:.0f} s" if r.first_wrong_s is not None else "")
        body.add_row("wrong", wrong)
        if r.failed:
            body.add_row("failed", r.failed)
        if r.rate_first and r.rate_last:
            body.add_row(
                "rate", f"{format_rate(r.rate_first, 'FLOP/s')} at first, {format_rate(r.rate_last, 'FLOP/s')} at the end"
            )
        for text, drift in drifts(r).items():
            body.add_row(text, drift)
        section(to, f"{r.subject.label}  {r.subject.name}", body)


def drifts(r: StressResult) -> dict[str, str]:
    """Temperature, clock and power at the beginning and at the end, and what held the clocks back."""
    from gpuwise.cli.bench.view import conditions_line
    from gpuwise.machine.bench.stress import record_of
    from gpuwise.machine.bench.watch import summarise_samples

    by_title: dict[str, str] = {}
    for title, name, scale, unit in (
        ("temperature", "temperature_c", 1.0, "C"),
        ("clock", "sm_clock_hz", 1e-6, "MHz"),
        ("power", "power_w", 1.0, "W"),
    ):
        values = [v for s in r.samples if (v := getattr(s, name)) is not None]
        if values:
            by_title[title] = f"{values[0] * scale:.0f} to {values[-1] * scale:.0f} {unit}, at most {max(values) * scale:.0f}"
    if r.samples:
        conditions = conditions_line([record_of(r, 0.0, summarise_samples(r.samples))])
        if "held back" in conditions:
            by_title["clocks"] = conditions[conditions.index("held back") :]
    return by_title


def _document(r: StressResult) -> dict[str, Any]:
    return {
        "device": r.subject.label,
        "name": r.subject.name,
        "measurement": None if r.case is None else r.case.key,
        "seconds": r.seconds,
        "executions": r.executions,
        "mismatches": r.mismatches,
        "first_wrong_s": r.first_wrong_s,
        "rate_first": r.rate_first,
        "rate_last": r.rate_last,
        "faulty": r.faulty,
        "failed": r.failed,
        "interrupted": r.interrupted,
        "drift": drifts(r),
    }
