"""A watch without a screen: frames at a steady pace to where they were asked to go, until time, a signal or a reader ends it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from gpuwise.cli.top.options import TopOptions
from gpuwise.machine.telemetry.causes.cause import Cause, Severity
from gpuwise.machine.telemetry.frames import Frame
from gpuwise.machine.telemetry.monitor import Monitor, Source
from gpuwise.machine.telemetry.options import spending
from gpuwise.machine.telemetry.tap import InThread, Sink, Tap

SCHEMA = 1
"""Of the JSON document."""
FAULT_EXIT = 3


def open_source(options: TopOptions) -> Source:
    """What is watched: this machine, cards that do not exist, or a recording. Raises InputError, DataError."""
    if options.replay is not None:
        from gpuwise.machine.telemetry.recording.replay import open_replay

        return open_replay(options.replay)
    if options.demo is not None:
        from gpuwise.machine.telemetry.demo import DemoDevices, DemoReader

        devices = DemoDevices(options.demo)
        return Monitor([devices], interval_s=options.interval_s, reader=DemoReader(devices), watch_xids=False, demo=True)
    # one look does not wait for errors to come
    return Monitor(interval_s=options.interval_s, watch_xids=not options.once)


def open_sinks(options: TopOptions, *, quiet: bool) -> list[Sink]:
    """Where frames go beside the screen. Raises InputError; whatever was opened is closed then."""
    sinks: list[Sink] = []
    try:
        if options.alerts:
            from gpuwise.machine.telemetry.alerts import Alerts, parse_rule

            sinks.append(Alerts(tuple(parse_rule(a) for a in options.alerts), options.command, quiet=quiet))
        if options.prometheus is not None:
            from gpuwise.machine.telemetry.outputs.exporter import Exporter

            sinks.append(Exporter(*options.prometheus))
        if options.csv is not None:
            from gpuwise.machine.telemetry.outputs.csv_log import CsvLog

            log = CsvLog(options.csv)
            sinks.append(log if options.csv == "-" or options.replay else InThread(log))
        if options.otlp is not None:
            from gpuwise.machine.telemetry.outputs.otlp import OtlpLog

            otlp = OtlpLog(str(options.otlp))
            sinks.append(otlp if options.replay else InThread(otlp))
        if options.record is not None:
            from gpuwise.machine.telemetry.recording.parquet import SUFFIXES, ParquetRecorder
            from gpuwise.machine.telemetry.recording.recorder import Recorder

            parquet = options.record.suffix.lower() in SUFFIXES
            sinks.append(InThread(ParquetRecorder(options.record) if parquet else Recorder(options.record)))
    except BaseException:
        for sink in sinks:
            sink.close()
        raise
    return sinks


def document(frame: Frame, causes: tuple[Cause, ...], options: TopOptions, notices: Sequence[str] = ()) -> dict[str, Any]:
    """A frame as the JSON of ``--json``."""
    from gpuwise.machine.telemetry.outputs.csv_log import time_words
    from gpuwise.machine.telemetry.recording.plain import to_plain

    frame_document = {"schema": SCHEMA, "time": time_words(frame.wall_s), **to_plain(frame), "causes": to_plain(causes)}
    if options.prices.any:
        frame_document["spending"] = to_plain(spending(options.prices, frame.cards, 0.0))
    return frame_document | {"notices": list(notices)}


def look_once(source: Source, options: TopOptions) -> tuple[Frame, tuple[Cause, ...], tuple[str, ...]]:
    """One frame with everything in it: of a recording its last one."""
    tap = source if isinstance(source, Tap) else Tap(source, ())
    inner = tap.source
    if isinstance(inner, Monitor):
        frame = inner.settle()
        causes = tap.offer(frame)
    else:
        frame = last_frame(tap, inner)
        causes = tap.causes(frame)
    return frame, causes, tap.notices


def last_frame(tap: Tap, inner: Source) -> Frame:
    """Play a recording to its end."""
    frame = tap.refresh()
    while not getattr(inner, "finished", True):
        frame = tap.refresh()
    return frame


def watch(source: Tap, options: TopOptions, stop: threading.Event) -> tuple[Frame, bool]:
    """Refresh at a steady pace until the end or until ``stop`` is set, once at least.

    The last frame, and whether a fault was named in any.
    """
    replayed = is_recording(source.source)
    began_s = time.monotonic()
    fault, n, reported = False, 0, ()
    while True:
        frame = source.refresh()
        causes = source.causes(frame)
        n += 1
        fault = fault or any(c.severity is Severity.FAULT for c in causes)
        if options.json:
            from gpuwise.cli.out import print_json

            print_json(document(frame, causes, options, source.notices))
            sys.stdout.flush()
        reported = _tell(source.notices, reported, replayed)
        if (options.count is not None and n >= options.count) or _finished(source, replayed):
            break
        if options.duration_s is not None and time.monotonic() - began_s + options.interval_s > options.duration_s:
            break
        if not replayed:
            _pause(stop, began_s, options.interval_s)
        if stop.is_set():
            break
    return frame, fault


def _finished(source: Tap, replayed: bool) -> bool:
    return replayed and bool(getattr(source.source, "finished", True))


def is_recording(source: Source) -> bool:
    """Whether it can be wound back, asked without loading what reads recordings."""
    return hasattr(source, "seek")


def _pause(stop: threading.Event, began_s: float, interval_s: float) -> None:
    """To the next multiple of the interval: those that were missed are left out."""
    passed_s = time.monotonic() - began_s
    stop.wait(max(0.0, (int(passed_s / interval_s) + 1) * interval_s - passed_s))


def _tell(notices: tuple[str, ...], before: tuple[str, ...], replayed: bool) -> tuple[str, ...]:
    """New notices on stderr, once each while they last; counts in them may change without being repeated."""
    if replayed:
        return before
    kinds = tuple(_kind(n) for n in notices)
    for notice, kind in zip(notices, kinds, strict=True):
        if kind not in before:
            sys.stderr.write(f"{notice}\n")
    return kinds


def _kind(notice: str) -> str:
    return "".join(c for c in notice if not c.isdigit())


@contextmanager
def stop_on_signals(stop: threading.Event) -> Generator[None, None, None]:
    """Set ``stop`` on Ctrl-C and on what systemd and a closed terminal send: files are finished before the end."""
    names = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n)]
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, lambda _number, _frame: stop.set()) for s in names}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def terminal_width() -> int:
    """Columns of the terminal, or 80."""
    return shutil.get_terminal_size((80, 24)).columns


def colours() -> bool:
    """Whether stdout takes colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
