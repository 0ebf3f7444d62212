# pyright: reportGeneralTypeIssues=false
"""What the application holds and can be asked, for the modules it is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.app import App

if TYPE_CHECKING:
    from gpuwise.machine.telemetry.history import History
    from gpuwise.machine.telemetry.monitor import Source
    from gpuwise.tui.dialog import Dialog
    from gpuwise.tui.lines.drawing import HostHistory, ScreenLines
    from gpuwise.tui.lines.palette import Palette
    from gpuwise.tui.panel import Panel
    from gpuwise.tui.sampler import Sampler, Snapshot
    from gpuwise.tui.state import State


class Application(App[None]):
    """The base of :class:`gpuwise.tui.app.TopApp`, which has what is declared here: dialogs and actions ask it."""

    shot: Snapshot | None
    screen_lines: ScreenLines | None
    state: State
    sampler: Sampler
    source: Source
    palette: Palette
    panel: Panel
    hosts: HostHistory
    _waiting: Snapshot | None
    _stopped: tuple[History, HostHistory] | None
    """What the charts show while a live source is paused: it goes on, they do not."""
    _told_theme: str | None

    def redraw(self) -> None:
        """Draw what there is."""
        raise NotImplementedError

    def say(self, words: str) -> None:
        """Say at the bottom, for a moment, what a key has done."""
        raise NotImplementedError

    def open(self, dialog: Dialog, done: Callable[[str | None], None] | None = None) -> None:
        """Show a dialog over the screen."""
        raise NotImplementedError

    def keep_choices(self) -> None:
        """Remember what was chosen."""
        raise NotImplementedError

    def reorder(self, **changes: object) -> None:
        """Change the order of the table and show it."""
        raise NotImplementedError
