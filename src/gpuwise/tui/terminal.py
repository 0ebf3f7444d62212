"""Textual's driver of a terminal, with a way past its compositor for an application that draws whole lines itself."""

from __future__ import annotations

from typing import Any, cast

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver


class TerminalDriver(LinuxDriver):
    """Gives an application that has a ``write_whole`` its own."""

    def __init__(self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None) -> None:
        # Textual declares no type argument of its App here
        super().__init__(app, debug=debug, mouse=mouse, size=size)  # pyright: ignore[reportUnknownMemberType]
        if hasattr(app, "write_whole"):
            cast("Any", app).write_whole = self.write_whole

    def write_whole(self, text: str) -> None:
        """Write what is seen at once on terminals that can hold a picture back until it is whole (mode 2026)."""
        self.write(f"\x1b[?2026h{text}\x1b[?2026l")
        self.flush()
