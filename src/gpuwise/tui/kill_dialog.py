"""The dialog that ends a process: asks first, sends SIGTERM, and offers SIGKILL after ``PATIENCE_S``."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuwise.processes import END_AT_ONCE
from gpuwise.tui.dialog import Choice, Dialog
from gpuwise.tui.kill_process import is_gone, kill_process
from gpuwise.tui.lines.processes import Entry, command_of
from gpuwise.tui.lines.text_runs import BLANK, Line, line, run, short_bytes, wrap

if TYPE_CHECKING:
    from gpuwise.tui.application import Application

CHECK_EVERY_S = 0.2
PATIENCE_S = 5.0
"""How long a process is given to end by SIGTERM before SIGKILL is offered."""
N_COMMAND_LINES = 4


def ask(app: Application, rows: Sequence[Entry], number: signal.Signals) -> None:
    """Ask whether to send the signal ``number`` to the process of ``rows``, and send it."""
    host = rows[0].host

    def lines(width: int) -> list[Line]:
        memory_text = ", ".join(f"{short_bytes(e.gpu.memory_bytes)} on GPU {e.number}" for e in rows if e.gpu is not None)
        out = [line(run(f"process {host.pid}", "strong"), run(f" of {host.user or 'unknown user'}", "dim"))]
        out += [line(run(t)) for t in wrap(command_of(rows[0]), width)[:N_COMMAND_LINES]]
        out += [line(run(f"holds {memory_text}", "dim"))] if memory_text else []
        if number != signal.SIGTERM:
            out += [
                line(run(t, "warn"))
                for t in wrap(
                    f"It has not ended {PATIENCE_S:g} s after SIGTERM. SIGKILL leaves it no time to save anything.", width
                )
            ]
        return [*out, BLANK]

    word = "kill it now (SIGKILL)" if number != signal.SIGTERM else "ask it to end (SIGTERM)"
    choices = [Choice("leave", "leave it", "n"), Choice("end", word, "y")]

    def answered(choice: str | None) -> None:
        if choice != "end":
            return
        ended = kill_process(host, number, live=app.state.live)
        app.say(ended.words)
        if ended.ok:
            _follow(app, rows, number)

    app.open(Dialog(app.palette, "end a process", lines, choices=choices, widest=72), answered)


def _follow(app: Application, rows: Sequence[Entry], number: signal.Signals) -> None:
    """Look whether it has ended; after a while offer the harder signal."""
    host, began_s = rows[0].host, time.monotonic()

    def look() -> None:
        if is_gone(host):
            timer.stop()
            app.say(f"process {host.pid} has ended")
            app.sampler.hurry()
        elif time.monotonic() - began_s >= PATIENCE_S:
            timer.stop()
            if number != END_AT_ONCE and not isinstance(app.screen, Dialog):
                ask(app, rows, END_AT_ONCE)
            else:
                app.say(f"process {host.pid} is still there")

    timer = app.set_interval(CHECK_EVERY_S, look)
