"""Textual's driver of a terminal, with a way past its compositor for an application that draws whole lines itself."""

from __future__ import annotations

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver


class TerminalDriver(LinuxDriver):
    """Gives an application that has a ``write_whole`` its own."""

    def __init__(self, app: App[object], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        if hasattr(app, "write_whole"):
            app.write_whole = self.write_whole

    def write_whole(self, text: str) -> None:
        """Write what is seen at once on terminals that can hold a picture back until it is whole (mode 2026)."""
        self.write(f"\x1b[?2026h{text}\x1b[?2026l")
        self.flush()
