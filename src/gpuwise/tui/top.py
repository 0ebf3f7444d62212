"""``gpuwise top`` on a terminal: the screen over a source of frames."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.driver import Driver

    from gpuwise.machine.telemetry.monitor import Source
    from gpuwise.machine.telemetry.options import ScreenOptions


def run(source: Source, options: ScreenOptions) -> int:
    """Show the frames of ``source`` (a monitor, a tap on one, a recording) until the person leaves or the options end it.

    Returns 0. The source stays the caller's: close it. Raises what the source raises (DataError for a damaged recording), and
    UnknownNameError for a theme that there is not.
    """
    from gpuwise.tui.app import TopApp

    app = TopApp(source, options, driver=find_driver())
    app.run()
    if app.failure is not None:
        raise app.failure
    return 0


def find_driver() -> type[Driver] | None:
    """The driver of this system's terminals; None, which is Textual's choice, on Windows."""
    if sys.platform == "win32":
        return None
    from gpuwise.tui.terminal import TerminalDriver

    return TerminalDriver
