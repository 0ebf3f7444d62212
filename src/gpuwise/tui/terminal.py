"""Textual's terminal driver, with a bypass of its compositor for an application that draws whole lines itself, and an end when
the terminal closes."""

from __future__ import annotations

import os
import select
import threading
import time
from contextlib import suppress
from typing import IO, Any, cast

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

PATIENCE_S = 1.0
"""Seconds that an ending application waits for a blocked terminal."""
_LOOK_S = 0.1
_HANG_UP_S = 0.5
"""How often a hang-up is looked for: no signal comes where another process leads the session."""


class TerminalOutput:
    """The file that Textual's writer thread writes to. It never raises and, once the application ends, never waits for long.

    That thread ends at an error of its file, and later writes would wait for its queue forever.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._encoding: str = getattr(file, "encoding", None) or "utf-8"
        self._own: int | None = None
        self._leave_by_s: float | None = None
        self.gone = False
        """The terminal is closed; output is dropped."""
        with suppress(OSError, ValueError, AttributeError):
            # a separate open file: setting the shared one non-blocking would affect the shell too
            self._own = os.open(os.ttyname(file.fileno()), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)

    def fileno(self) -> int:
        """The file's own number."""
        return self._file.fileno()

    def isatty(self) -> bool:
        """Whether the file is a terminal."""
        return self._file.isatty()

    def write(self, text: str) -> None:
        """Write all of ``text``, or drop the rest if the terminal is closed or blocked while the application ends."""
        if self._own is None:
            self._pass_on(lambda: self._file.write(text))
            return
        unwritten = memoryview(text.encode(self._encoding, "replace"))
        while unwritten and not self.gone:
            try:
                unwritten = unwritten[os.write(self._own, unwritten) :]
            except BlockingIOError:
                if self._leave_by_s is not None and time.monotonic() >= self._leave_by_s:
                    self.gone = True
                select.select((), (self._own,), (), _LOOK_S)
            except OSError:
                self.gone = True

    def flush(self) -> None:
        """Give what was written to the terminal."""
        if self._own is None:
            self._pass_on(self._file.flush)

    def leave(self) -> None:
        """From now on a terminal that takes nothing is waited for no longer than ``PATIENCE_S``."""
        if self._leave_by_s is None:
            self._leave_by_s = time.monotonic() + PATIENCE_S

    def close(self) -> None:
        """Close its own open file."""
        descriptor, self._own = self._own, None
        self.gone = True
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)

    def _pass_on(self, write: Any) -> None:
        if self.gone:
            return
        try:
            write()
        except (OSError, ValueError):
            self.gone = True


class TerminalDriver(LinuxDriver):
    """Lets an application with ``write_whole`` write directly, and ends it when its terminal has closed."""

    def __init__(self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None) -> None:
        # Textual declares no type argument of its App here
        super().__init__(app, debug=debug, mouse=mouse, size=size)  # pyright: ignore[reportUnknownMemberType]
        self._output = TerminalOutput(self._file)
        self._file = cast("IO[str]", self._output)
        self._closed = threading.Event()
        self._watched = self._leaves = False
        if hasattr(app, "write_whole"):
            cast("Any", app).write_whole = self.write_whole

    def write_whole(self, text: str) -> None:
        """Write what is seen at once on terminals that can hold a picture back until it is whole (mode 2026)."""
        self.write(f"\x1b[?2026h{text}\x1b[?2026l")
        self.flush()

    def start_application_mode(self) -> None:
        super().start_application_mode()
        if self.input_tty and not self._watched:
            self._watched = True
            threading.Thread(target=self._wait_for_hang_up, name="terminal-hang-up", daemon=True).start()

    def leave(self) -> None:
        """The application ends: see :meth:`TerminalOutput.leave`. Safe in a signal handler."""
        self._leaves = True
        self._output.leave()

    def _sigcont_application(self, *_: object) -> None:
        # a hang-up comes with this signal: what ends is not to begin again
        if not self._leaves:
            # Textual declares no types of its handler's arguments
            super()._sigcont_application()  # pyright: ignore[reportUnknownMemberType]

    def stop_application_mode(self) -> None:
        super().stop_application_mode()

    def close(self) -> None:
        self._closed.set()
        self.leave()
        super().close()
        self._output.close()

    def run_input_thread(self) -> None:
        try:
            super().run_input_thread()
        except OSError:
            self._hang_up()

    def _wait_for_hang_up(self) -> None:
        looked = select.poll()
        looked.register(self.fileno, 0)
        while not self._closed.wait(_HANG_UP_S):
            if any(event & select.POLLHUP for _, event in looked.poll(0)):
                self._hang_up()
                return

    def _hang_up(self) -> None:
        """The terminal is closed: stop reading and writing, and end the application."""
        self._output.gone = self._leaves = True
        # a terminal that was hung up gives an empty text for ever, and the thread that reads it would not rest
        self.exit_event.set()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._app.exit)
