"""A terminal driver that sleeps until a key comes. Textual's own looks ten times a second whether one has; on a screen that is
open all day beside the work it watches, that is a third of all it uses."""

from __future__ import annotations

import inspect
import os
import selectors
from codecs import getincrementaldecoder

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

ESCAPE_S = 0.1
"""A lone escape is a key when nothing has followed it for this long (as in Textual)."""
N_LOOKS = 3
"""So often it is looked for the rest of a sequence, or its end, after something came."""


_KEPT_BY_DRIVER = {"fileno", "exit_event", "_key_thread"}
_ASKED_OF_DRIVER = ("start_application_mode", "disable_input", "run_input_thread", "process_message")
_ASKED_OF_PARSER = ("feed", "tick")


def fits() -> bool:
    """Whether this Textual still has what the driver leans on: its parser is private, and may change in any release."""
    methods = all(callable(getattr(LinuxDriver, n, None)) for n in _ASKED_OF_DRIVER)
    parser = all(callable(getattr(XTermParser, n, None)) for n in _ASKED_OF_PARSER)
    try:
        inspect.signature(XTermParser).bind(False)
        kept = set(LinuxDriver.__init__.__code__.co_names)
    except (TypeError, ValueError, AttributeError):
        return False
    return methods and parser and kept >= _KEPT_BY_DRIVER


class QuietDriver(LinuxDriver):
    """As the driver it is made from, but for the wait for input."""

    _wake: tuple[int, int] | None = None

    def write_whole(self, text: str) -> None:
        """Write what is seen at once on terminals that can hold a picture back until it is whole."""
        self.write(f"\x1b[?2026h{text}\x1b[?2026l")
        self.flush()

    def start_application_mode(self) -> None:
        if self._wake is None:
            self._wake = os.pipe()
        super().start_application_mode()

    def disable_input(self) -> None:
        """End the input thread, which sleeps: it is woken first. The pipe stays readable, so that it is not missed."""
        if self._wake is None:
            super().disable_input()
            return
        os.write(self._wake[1], b"!")
        super().disable_input()
        for end in self._wake:
            os.close(end)
        self._wake = None

    def run_input_thread(self) -> None:
        """Feed the parser with what comes from the terminal until input is disabled."""
        if self._wake is None:
            super().run_input_thread()
            return
        parser = XTermParser(self._debug)
        decode = getincrementaldecoder("utf-8")(errors="replace").decode
        looks = 0
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            selector.register(self._wake[0], selectors.EVENT_READ)
            while not self.exit_event.is_set():
                ready = selector.select(ESCAPE_S if looks else None)
                looks = max(0, looks - 1)
                if any(key.fd == self.fileno for key, _ in ready):
                    text = decode(os.read(self.fileno, 4096))
                    if not text:
                        # the terminal is gone, or half a character: look again, but do not spin
                        self.exit_event.wait(ESCAPE_S)
                    for message in parser.feed(text) if text else ():
                        self.process_message(message)
                    looks = N_LOOKS
                for message in parser.tick():
                    self.process_message(message)
