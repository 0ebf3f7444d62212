"""``gpuwise top``: what the GPUs do, and why they are slow."""

from __future__ import annotations

import shlex
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.cli.asked import asked
from gpuwise.cli.options import NewFile

if TYPE_CHECKING:
    from gpuwise.cli.top.options import TopOptions
    from gpuwise.machine.telemetry.causes.cause import Cause
    from gpuwise.machine.telemetry.frames import Frame
    from gpuwise.machine.telemetry.tap import Tap

NO_CARDS_HINT = "hint: `gpuwise doctor` looks for the reason; `gpuwise top --demo` shows the screen\n"


def top(
    *,
    once: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
    csv: NewFile | None = None,
    record: Path | None = None,
    replay: Path | None = None,
    interval: Annotated[str, Parameter(metavar="TIME")] = "1s",
    duration: Annotated[str | None, Parameter(metavar="TIME")] = None,
    count: Annotated[int | None, Parameter(metavar="N")] = None,
    prometheus: Annotated[str | None, Parameter(metavar="ADDRESS:PORT")] = None,
    grafana: Path | None = None,
    otlp: Path | None = None,
    alert: Annotated[tuple[str, ...], Parameter(metavar="RULE", negative="")] = (),
    exec_: Annotated[str | None, Parameter(name="--exec", metavar="COMMAND")] = None,
    price: Annotated[str | None, Parameter(metavar="USD")] = None,
    co2: Annotated[str | None, Parameter(metavar="GRAMS")] = None,
    demo: Annotated[list[str] | None, Parameter(metavar="GPUS", consume_multiple=True, negative="")] = None,
    fail_on_fault: Annotated[bool, Parameter(negative="")] = False,
    screen: bool = True,
    theme: Annotated[str | None, Parameter(metavar="NAME")] = None,
    all_: Annotated[bool, Parameter(name="--all", negative="")] = False,
) -> int:
    """Show what the GPUs are doing now, who uses them, and why they are slow.

    On a terminal: a live screen. Without a terminal, or with --once: one reading. Every GPU is checked for what slows it
    down: power limit, heat, memory errors, PCIe, a CPU thread it waits for.

    Parameters
    ----------
    once
        Read the GPUs once, then end.
    json
        JSON on stdout: one document with --once, else one line a refresh.
    csv
        Write a line for each GPU and refresh to this new file; `-` is stdout.
    record
        Record everything into this new file: SQLite, or Parquet where its name ends in .parquet.
    replay
        Show a recording instead of this machine.
    interval
        Time between refreshes: 1s, 500ms, 10s.
    duration
        Watch this long, then end: 90s, 10m, 8h.
    count
        Refresh this many times, then end.
    prometheus
        Serve metrics at http://[HOST:]PORT/metrics while watching, to this machine only unless HOST says otherwise
        (0.0.0.0:9400).
    grafana
        Write the Grafana dashboard for these metrics to this file, and do nothing else.
    otlp
        Append OpenTelemetry metrics to this file: OTLP/JSON, one line a refresh, for the collector's otlpjsonfile receiver.
    alert
        A rule such as "temp>85 for 60s", "util<5 for 10m until 20", "lost", "fault" or the name of a cause; may be given several
        times.
    exec_
        Run this shell command when an alert starts and when it ends. The variables GPUWISE_ALERT, GPUWISE_STATE, GPUWISE_GPU
        and GPUWISE_VALUE describe the alert.
    price
        US dollars: 0.30/kWh of electricity, or 2.50/h for each GPU.
    co2
        Grams of CO2 a kWh.
    demo
        Show simulated GPUs: eight, or this many.
    fail_on_fault
        Exit with 3 when a fault was reported.
    screen
        On a terminal, show the live screen; --no-screen only records, serves and alerts.
    theme
        Colours of the screen this time: textual-dark, textual-light, textual-ansi (the terminal's own), gruvbox, nord and others;
        T on the screen shows and remembers them.
    all_
        Of one reading: every GPU, cause and process, not only one screen of them.
    """
    from gpuwise.cli.top import options as given
    from gpuwise.errors import InputError

    address = None
    if prometheus is not None:
        from gpuwise.machine.telemetry.outputs.exporter import parse_address

        address = parse_address(prometheus)
    if count is not None and count < 1:
        raise InputError(f"--count: {count} is not at least 1", hint="write it like --count 10")
    options = given.check(
        given.TopOptions(
            once=once,
            json=json,
            csv=csv,
            record=record,
            replay=replay,
            interval_s=given.interval(interval),
            duration_s=None if duration is None else given.duration(duration),
            count=count,
            prometheus=address,
            otlp=otlp,
            alerts=alert,
            command=exec_,
            prices=given.prices(price, co2),
            demo=given.demo_cards(demo),
            fail_on_fault=fail_on_fault,
            screen=screen,
            theme=theme,
            everything=all_,
        )
    )
    if grafana is not None:
        from gpuwise.machine.telemetry.outputs.grafana import write_dashboard

        if options != given.TopOptions():
            raise InputError("--grafana writes its file and does nothing else", hint="leave the other options out")
        write_dashboard(grafana)
        sys.stderr.write(f"{grafana}: import it in Grafana under Dashboards, New, Import\n")
        return 0
    return _run(options)


def _run(options: TopOptions) -> int:
    from gpuwise.cli.top.watch import open_sinks, open_source, stop_on_signals
    from gpuwise.machine.telemetry.tap import Tap

    on_screen = _wants_screen(options)
    once = options.once or not (options.json or options.works_alone)
    stop = threading.Event()
    # signals are caught before a sink serves or writes anything: whoever sees the first line may end the watch at once
    with nullcontext() if on_screen or once else stop_on_signals(stop):
        sinks = open_sinks(options, quiet=on_screen)
        try:
            source = Tap(open_source(options), sinks)
        except BaseException:
            for sink in sinks:
                sink.close()
            raise
        try:
            if on_screen:
                code = _screen(source, options)
            elif once:
                code = _once(source, options)
            else:
                code = _watch(source, options, stop)
        finally:
            source.close()
    for notice in source.final_notices():
        sys.stderr.write(f"{notice}\n")
        code = code or 1
    return code


def _wants_screen(options: TopOptions) -> bool:
    return options.screen and not (options.once or options.stdout_is_data) and sys.stdin.isatty() and sys.stdout.isatty()


def _screen(source: Tap, options: TopOptions) -> int:
    from gpuwise.machine.telemetry.options import ScreenOptions
    from gpuwise.tui.top import run

    title = "demo" if options.demo is not None else options.replay.name if options.replay is not None else ""
    return run(
        source,
        ScreenOptions(options.interval_s, options.prices, options.duration_s, options.count, options.theme, title),
    )


def _once(source: Tap, options: TopOptions) -> int:
    from gpuwise.cli.top.watch import colours, document, look_once, terminal_width

    frame, causes, notices = look_once(source, options)
    if options.json:
        from gpuwise.cli.out import print_json

        print_json(document(frame, causes, options, notices))
    elif options.csv != "-":
        from gpuwise.cli.top.view import Paint, page

        words = asked() or ("top",)
        sys.stdout.write(
            page(
                frame,
                causes,
                width=terminal_width(),
                paint=Paint(colours()),
                prices=options.prices,
                everything=options.everything,
                asked=shlex.join(["gpuwise", *words]),
            )
        )
        if not frame.cards and sys.stdout.isatty():  # the page above says so
            sys.stderr.write(NO_CARDS_HINT)
            return 1
    return _verdict(frame, causes, options)


def _watch(source: Tap, options: TopOptions, stop: threading.Event) -> int:
    from gpuwise.cli.top.watch import FAULT_EXIT, watch

    for sink in source.sinks:
        if (address := getattr(sink, "address", None)) is not None:
            sys.stderr.write(f"metrics at {address}\n")
    frame, fault = watch(source, options, stop)
    if not frame.cards:
        return _no_cards()
    return FAULT_EXIT if options.fail_on_fault and fault else 0


def _verdict(frame: Frame, causes: tuple[Cause, ...], options: TopOptions) -> int:
    from gpuwise.cli.top.watch import FAULT_EXIT
    from gpuwise.machine.telemetry.causes.cause import Severity

    if not frame.cards:
        return _no_cards()
    return FAULT_EXIT if options.fail_on_fault and any(c.severity is Severity.FAULT for c in causes) else 0


def _no_cards() -> int:
    sys.stderr.write(f"error: no GPU answers here\n{NO_CARDS_HINT}")
    return 1
