# pyright: reportGeneralTypeIssues=false
"""The interface of the application that its actions and dialogs use."""

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
    """The base of :class:`gpuwise.tui.app.TopApp` with the attributes and methods that dialogs and actions use."""

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
    """Snapshot shown in the charts while a live source is paused: sampling continues."""
    _told_theme: str | None

    def redraw(self) -> None:
        """Draw the current snapshot."""
        raise NotImplementedError

    def say(self, words: str) -> None:
        """Show a message in the bottom line for some seconds."""
        raise NotImplementedError

    def open(self, dialog: Dialog, done: Callable[[str | None], None] | None = None) -> None:
        """Show a dialog over the screen."""
        raise NotImplementedError

    def keep_choices(self) -> None:
        """Store the preferences."""
        raise NotImplementedError

    def reorder(self, **changes: object) -> None:
        """Change the order of the table and show it."""
        raise NotImplementedError
