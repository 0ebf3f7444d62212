"""``gpuwise capacity --measure URL``: the load sent to a real server, measured beside predicted, kept as records."""

from __future__ import annotations

import os
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwise.errors import InputError
from gpuwise.interval import P80

if TYPE_CHECKING:
    from gpuwise.cli.fitted_table import FittedTable
    from gpuwise.machine.telemetry.outputs.line_file import LineFile
    from gpuwise.serve.capacity.answer import Capacity
    from gpuwise.serve.capacity.configurations import Configuration
    from gpuwise.serve.capacity.rate import Point
    from gpuwise.serve.measure.comparison import Figure
    from gpuwise.serve.measure.measured import LoadResult
    from gpuwise.serve.measure.run import Bounds

KEY_VARIABLE = "GPUWISE_API_KEY"
SHARE_OF_LIMIT = 0.8
"""Of the largest rate: what is sent where none was asked for."""
SHORT = 0.95
"""Tokens written over those asked for under which it is said: less moves a latency no more than a run differs from the next."""
LATE = 0.02
"""Share of requests sent late from which the client is named as a cause."""


def measure_server(
    answer: Capacity,
    url: str,
    bounds: Bounds,
    most_requests: int,
    model: str | None,
    *,
    otlp: Path | None = None,
    keep: bool,
    json: bool,
) -> int:
    """Send the load, print and keep what came back. 1 when a target was missed or nothing was answered whole."""
    from gpuwise.cli.progress import progress
    from gpuwise.serve.capacity.rate import operate
    from gpuwise.serve.measure.comparison import figures, records_of
    from gpuwise.serve.measure.http import parse_address
    from gpuwise.serve.measure.measured import LoadResult
    from gpuwise.serve.measure.run import measure

    configuration, rate = _predicted(answer)
    log = None if otlp is None else _log(otlp)
    n = max(min(most_requests, round(rate * bounds.seconds)), 1)
    requests = answer.load.at(rate, n)
    point = operate(configuration, answer.load, rate, answer.targets, n)
    with progress("measuring") as say:
        measurement = measure(
            parse_address(url),
            requests,
            model=model,
            key=os.environ.get(KEY_VARIABLE) or None,
            bounds=bounds,
            seed=time.time_ns() % 2**31,
            progress=say,
        )
    measured = LoadResult(measurement)
    rows = figures(measured, point, answer.targets)
    if log is not None:
        from gpuwise.machine.telemetry.outputs.otlp_load import document
        from gpuwise.machine.telemetry.outputs.otlp_points import write

        write(log, document(measured, rows, configuration.config.engine, time.time()))
        log.close()
    if keep:
        _keep(records_of(rows, measured, configuration, rate, time.time()))
    if json:
        from gpuwise.cli.out import print_json

        print_json(measure_document(configuration, point, measured, rows))
    else:
        _show(configuration, point, measured, rows)
    missed = [r for r in rows if r.limit_s is not None and (r.measured_s is None or r.measured_s > r.limit_s)]
    return 1 if missed or not measured.whole else 0


def _log(path: Path) -> LineFile:
    """Opened before the load is sent. Raises InputError where it cannot be."""
    from gpuwise.machine.telemetry.outputs.line_file import LineFile

    return LineFile(str(path), append=True, unit="lines")


def _predicted(answer: Capacity) -> tuple[Configuration, float]:
    """What is predicted of the server, and the rate that is sent. Raises InputError."""
    demand, served = answer.demand, answer.served
    limit = served.limit if served is not None else None if answer.miss is None else answer.miss.limit
    if limit is None:
        raise InputError("there is no predicted load to measure", hint="give targets that can be met")
    if demand.users is not None:
        raise InputError("--measure sends a rate, not users", hint="give --rate, for example --rate 2/s")
    if demand.rate_per_s is not None:
        return limit.configuration, demand.rate_per_s
    return limit.configuration, SHARE_OF_LIMIT * limit.rate_per_s or limit.alone.rate_per_s


def _keep(records: Any) -> None:
    from gpuwise.machine.bench.subjects import machine_id
    from gpuwise.records.record import Run
    from gpuwise.records.store import Records

    with Records() as store:
        run = Run(uuid.uuid4().hex, time.time(), machine_id(), {}, {}, "gpuwise capacity --measure")
        store.start(run)
        for record in records:
            store.add(run, record)


def measure_document(
    configuration: Configuration, point: Point, measured: LoadResult, rows: tuple[Figure, ...]
) -> dict[str, Any]:
    """Measured beside predicted as one JSON document."""
    m = measured.measurement
    return {
        "url": m.url,
        "served_model": m.model,
        "predicted_for": configuration.words,
        "requests_per_s": point.rate_per_s,
        "predicted_saturated": point.saturated,
        "requests": len(m.answers),
        "sent": measured.sent,
        "answered": len(measured.whole),
        "failures": measured.failures,
        "retries": measured.retries,
        "stopped": m.stopped or None,
        "seconds": m.seconds,
        "late_share": measured.late_share,
        "answered_per_s": measured.requests_per_s,
        "output_tokens_per_s": measured.output_tokens_per_s,
        "written_share": measured.written_share,
        "latency": [
            {
                "latency": r.key,
                "measured_s": r.measured_s,
                "low_s": r.low_s,
                "high_s": r.high_s,
                "predicted_s": r.predicted_s,
                "ratio": r.ratio,
                "limit_s": r.limit_s,
            }
            for r in rows
        ],
    }


def _show(configuration: Configuration, point: Point, measured: LoadResult, rows: tuple[Figure, ...]) -> None:
    from gpuwise.cli.out import console, section
    from gpuwise.serve.measure.run import FAILURES

    to, m = console(), measured.measurement
    to.print(f"{m.url}, model {m.model}", style="bold")
    to.print(
        f"  {len(measured.whole)} of {len(m.answers)} requests answered whole in {m.seconds:.1f} s, {point.rate_per_s:.3g}/s sent"
    )
    if m.stopped:
        to.print(f"  it ended early: {m.stopped}", style="bold red")
    for kind, count in measured.failures.items():
        to.print(f"  {count} {FAILURES[kind]}", style="red")
    if measured.retries:
        to.print(
            f"  {measured.retries} {'times a request was' if measured.retries > 1 else 'time a request was'} sent again",
            style="yellow",
        )
    for words in dict.fromkeys(a.said for a in m.answers if a.failure and a.said):
        to.print(f"    {words}", style="dim")
    if measured.late_share > LATE:
        to.print(
            f"  {100 * measured.late_share:.0f} % of the requests left this client late: it may be the limit", style="yellow"
        )
    share = measured.written_share
    if share is not None and share < SHORT:
        to.print(
            f"  answers were {100 * share:.0f} % as long as asked for: the server ends them itself, and the prediction does not",
            style="yellow",
        )
    section(to, "Measured beside predicted", _table(rows))
    to.print()
    to.print(f"Predicted for {configuration.words}.", style="dim")
    if point.saturated:
        to.print("Predicted past saturation: no latency is.", style="dim")


def _table(rows: tuple[Figure, ...]) -> FittedTable:
    from gpuwise.cli.out import table_of
    from gpuwise.units import format_duration

    def say(seconds: float | None) -> str:
        return "-" if seconds is None else format_duration(seconds)

    table = table_of(
        ["latency", "measured", f"{P80} interval", "predicted", "ratio", "target"],
        left=("latency",),
        gives_way=(f"{P80} interval", "ratio"),
    )
    for r in rows:
        span = "" if r.low_s is None else f"{say(r.low_s)} to {say(r.high_s)}"
        limit_text = (
            "" if r.limit_s is None else say(r.limit_s) + (" kept" if r.measured_s and r.measured_s <= r.limit_s else " missed")
        )
        ratio = "-" if r.ratio is None else f"{r.ratio:.2f}"
        table.add_row(r.key.replace("_", " "), say(r.measured_s), span, say(r.predicted_s), ratio, limit_text)
    return table


def learnt(model: str, engine: str, accelerator: str) -> float:
    """The factor on all times that this user's measured loads say. Raises InputError where none was measured."""
    from gpuwise.errors import DataError
    from gpuwise.records.store import Records
    from gpuwise.serve.measure.comparison import FAMILY, slowdown

    try:
        with Records(create=False) as store:
            factor, requests = slowdown(store.query(family=FAMILY), model, engine, accelerator)
    except DataError:
        factor, requests = 1.0, 0
    if not requests:
        raise InputError(
            f"no load of {model} on {accelerator} was measured here",
            hint="measure one with --measure URL, or leave --calibrated out",
        )
    sys.stderr.write(f"times are {factor:.2f} of what is predicted, by {requests:,} measured requests\n")
    return factor
