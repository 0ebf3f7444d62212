"""A trace's JSON cut into runs of whole events, without ever holding the file.

Kineto writes every event over several lines and closes it with two spaces and a brace; JSON has no line breaks inside
strings, so that mark is sure, and finding the last one in a block costs nothing. Other writers' files are cut by counting
brackets outside strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MARK = b"\n  },\n  {"
"""Between two of Kineto's events."""
_KEEP = len(b"\n  }")
_DROP = len(b"\n  },")
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]"]', re.DOTALL)
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
SPACE = b" \t\r\n,"
MOST_BUFFERED = 1 << 26
"""Bytes before the events, of one event and after the events."""


class NoEventsError(ValueError):
    """The text holds no list of events."""


class TooLongError(ValueError):
    """An event, or what follows the events, is longer than any profiler writes."""


class EventText:
    """Takes blocks of the file in order and returns runs of whole events, each to be put in brackets.

    ``head`` and ``tail`` are the text around the list, ``ended`` whether its end was seen.
    """

    def __init__(self) -> None:
        self.head, self.tail = bytearray(), bytearray()
        self.ended = False
        self._inside = False
        self._buffer = bytearray()
        self._at = self._depth = 0
        """How far the buffer is counted, and how deep that is."""
        self._whole = 0
        """End of the last whole event that was counted."""

    def feed(self, block: bytes) -> Iterator[bytes]:
        """Runs of events that are whole now. Raises NoEventsError, TooLongError."""
        if len(self.tail) > MOST_BUFFERED or (self._inside and len(self._buffer) > MOST_BUFFERED):
            raise TooLongError
        if self.ended:
            self.tail += block
            return
        self._buffer += block
        if not self._inside and not self._enter():
            return
        if self._depth == 0 and self._at == 0:
            at = self._buffer.rfind(MARK)
            if at >= 0:
                run = bytes(self._buffer[: at + _KEEP])
                del self._buffer[: at + _DROP]
                yield run
                return
        yield from self._count()

    def finish(self) -> Iterator[bytes]:
        """The rest at the end of the file. Raises NoEventsError if no list ever began."""
        if not self._inside:
            raise NoEventsError
        if not self.ended:
            yield from self._count()

    def recut(self, run: bytes) -> Iterator[bytes]:
        """Single events of a run that is not a valid list: it may contain the end of the list."""
        again = EventText()
        again._inside = True
        again._buffer += run
        yield from again._singles()
        if again.ended:
            self.ended = True
            self.tail += again.tail + b"," + bytes(self._buffer)
            self._buffer.clear()

    def _enter(self) -> bool:
        text = self._buffer.lstrip()
        if not text:
            if len(self._buffer) > MOST_BUFFERED:
                raise NoEventsError
            return False
        if text.startswith(b"["):
            start = self._buffer.index(b"[") + 1
        elif text.startswith(b"{"):
            found = _ARRAY.search(self._buffer)
            if found is None:
                if len(self._buffer) > MOST_BUFFERED:
                    raise NoEventsError
                return False
            start = found.end()
            self.head += self._buffer[: found.start()]
        else:
            raise NoEventsError
        del self._buffer[:start]
        self._inside = True
        return True

    def _count(self) -> Iterator[bytes]:
        """The whole events located by counting, as one run."""
        for _ in self._events():
            pass
        end, self._whole = self._whole, 0
        run = bytes(self._buffer[:end]).strip(SPACE)
        if self.ended:
            self.tail += self._buffer[self._at :]
            self._buffer.clear()
        else:
            del self._buffer[:end]
            self._at -= end
        if run:
            yield run

    def _singles(self) -> Iterator[bytes]:
        before = 0
        for end in self._events():
            yield bytes(self._buffer[before:end]).strip(SPACE)
            before = end
        if self.ended:
            self.tail += self._buffer[self._at :]
        elif self._buffer[before:].strip(SPACE):
            yield bytes(self._buffer[before:])

    def _events(self) -> Iterator[int]:
        """End position of each whole event."""
        for token in _TOKEN.finditer(self._buffer, self._at):
            kind = token[0]
            if kind == b'"':
                # the string continues in the next block
                self._at = token.start()
                return
            if kind in (b"{", b"["):
                self._depth += 1
            elif kind in (b"}", b"]"):
                self._depth -= 1
                if self._depth < 0:
                    self.ended = True
                    self._at = token.end()
                    return
                if self._depth == 0:
                    self._whole = token.end()
                    yield self._whole
            self._at = token.end()
