"""A line of progress under whatever a script prints on the same terminal.

On a terminal the script writes to terminals of its own (pseudo-terminals, so that it colours and draws bars as ever); what comes
out of them is passed on unchanged, with the line taken away before and drawn again after. Elsewhere the script writes straight to
our own streams, and progress is a line on stderr now and then.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType

CHUNK = 65536
DRAIN_S = 2.0
"""For what a script wrote last, where something it left behind holds its terminal open."""
OUT, ERR = 1, 2


class Screen:
    """Use as a context; :attr:`streams` are for the script, :meth:`show` draws the line."""

    def __init__(self) -> None:
        self.is_live = sys.stderr.isatty() and os.name == "posix" and os.environ.get("TERM") not in (None, "", "dumb")
        self.streams: tuple[int | None, int | None] = (None, None)
        self._lock = threading.Lock()
        self._text, self._drawn = "", False
        self._partial = b""
        self._pairs: list[tuple[int, int, int]] = []
        """Our end, the script's end, and where it goes."""
        self._threads: list[threading.Thread] = []
        self._held: object = None

    def __enter__(self) -> Screen:
        sys.stdout.flush()
        sys.stderr.flush()
        if self.is_live:
            error = self._open(ERR)
            # one for both where they are one terminal: their words stay in order
            same = os.isatty(OUT) and os.fstat(OUT).st_rdev == os.fstat(ERR).st_rdev
            self.streams = (error if same else self._open(OUT) if os.isatty(OUT) else None, error)
            self._resize()
            self._watch_size()
        return self

    def __exit__(self, *exc: object) -> None:
        for _, theirs, _ in self._pairs:
            os.close(theirs)
        for thread in self._threads:
            thread.join(DRAIN_S)
        with self._lock:
            self._erase()
            self._text = ""
            if self._partial:
                os.write(ERR, b"\r\n")
        for ours, _, _ in self._pairs:
            with suppress(OSError):
                os.close(ours)
        if self._held is not None:
            signal.signal(signal.SIGWINCH, self._held)  # type: ignore[arg-type]

    def show(self, text: str) -> None:
        """Draw it in place of the last; a line of its own where there is no terminal."""
        if not self.is_live:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
            return
        with self._lock:
            self._erase()
            self._text = text
            self._draw()

    # -- the line, under the script's last words

    def _draw(self) -> None:
        width = shutil.get_terminal_size().columns
        if not self._text or len(self._partial) >= width:
            return
        line = self._text[: width - 1].encode()
        if self._partial:
            _write(ERR, b"\r\n\x1b[2K" + line + b"\x1b[1A\r" + self._partial)
        else:
            _write(ERR, b"\r\x1b[2K" + line)
        self._drawn = True

    def _erase(self) -> None:
        if self._drawn:
            _write(ERR, b"\r\n\x1b[2K\x1b[1A\r" + self._partial if self._partial else b"\r\x1b[2K")
        self._drawn = False

    def _pass_on(self, to: int, data: bytes) -> None:
        with self._lock:
            self._erase()
            _write(to, data)
            self._partial = last_line(self._partial + data)
            self._draw()

    # -- the script's terminals

    def _open(self, to: int) -> int:
        import pty
        import termios

        ours, theirs = pty.openpty()
        settings = termios.tcgetattr(theirs)
        # the real terminal does it
        settings[1] &= ~termios.OPOST
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        self._pairs.append((ours, theirs, to))
        thread = threading.Thread(target=self._read, args=(ours, to), name="gpuwise-screen", daemon=True)
        self._threads.append(thread)
        thread.start()
        return theirs

    def _read(self, ours: int, to: int) -> None:
        while True:
            try:
                data = os.read(ours, CHUNK)
            except OSError:
                # all ends of the script's are closed
                return
            if not data:
                return
            self._pass_on(to, data)

    def _resize(self) -> None:
        import fcntl
        import termios

        with suppress(OSError):
            size = fcntl.ioctl(ERR, termios.TIOCGWINSZ, b"\0" * 8)
            for ours, _, _ in self._pairs:
                fcntl.ioctl(ours, termios.TIOCSWINSZ, size)

    def _watch_size(self) -> None:
        def resized(number: int, frame: FrameType | None) -> None:
            self._resize()

        if threading.current_thread() is threading.main_thread():
            self._held = signal.signal(signal.SIGWINCH, resized)


@contextmanager
def screen() -> Generator[Screen, None, None]:
    """A screen for one run."""
    with Screen() as display:
        yield display


def last_line(output: bytes) -> bytes:
    """Text on the line of the cursor, as last drawn (bars restart with a carriage return)."""
    line = output[output.rfind(b"\n") + 1 :]
    body = line.rstrip(b"\r")
    back = b"\r" if len(body) < len(line) else b""
    return body[body.rfind(b"\r") + 1 :] + back


def _write(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except OSError:
            # the terminal has closed
            return
